//! A dashboard as Grafana loads it: schema version 39, which Grafana from 10.4 on takes and later ones migrate.
//!
//! In: [`Dashboard`]. Out: JSON. Refuses to know metrics.

use serde_json::{Value, json};

use super::model::{Dashboard, Kind, Link, Panel, Row, Target, Unit, Variable};

const SCHEMA_VERSION: u32 = 39;
/// Panels stand on so many columns.
pub(crate) const COLUMNS: u32 = 24;

pub(crate) fn dashboard(dashboard: &Dashboard) -> Value {
    let mut place = NextPanel::default();
    let panels: Vec<Value> = dashboard.rows.iter().flat_map(|row| place.row(row)).collect();
    let mut variables = vec![source("datasource", "prometheus", "Prometheus"), page()];
    variables.extend(dashboard.variables.iter().map(variable));
    json!({
        "id": null,
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["obi"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": false,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "templating": {"list": variables},
        "annotations": {"list": []},
        "links": [{
            "type": "dashboards", "tags": ["obi"], "title": "obi", "asDropdown": true, "includeVars": false,
            "keepTime": true, "targetBlank": false, "icon": "external link", "tooltip": "", "url": "",
        }],
        "panels": panels,
    })
}

/// Where the next panel goes.
#[derive(Default)]
struct NextPanel {
    id: u32,
    x: u32,
    y: u32,
    /// Of the panels beside each other.
    height: u32,
}

impl NextPanel {
    fn next_id(&mut self) -> u32 {
        self.id += 1;
        self.id
    }

    fn break_line(&mut self) {
        self.y += self.height;
        (self.x, self.height) = (0, 0);
    }

    fn take(&mut self, width: u32, height: u32) -> Value {
        if self.x + width > COLUMNS {
            self.break_line();
        }
        let place = json!({"x": self.x, "y": self.y, "w": width, "h": height});
        self.x += width;
        self.height = self.height.max(height);
        place
    }

    /// A row stands before its panels; one that is closed holds them.
    fn row(&mut self, row: &Row) -> Vec<Value> {
        self.break_line();
        let id = self.next_id();
        let at = self.take(COLUMNS, 1);
        let panels: Vec<Value> = row.panels.iter().map(|it| self.panel(it)).collect();
        let (inside, beside) = if row.is_collapsed { (panels, vec![]) } else { (vec![], panels) };
        let head = json!({
            "id": id, "type": "row", "title": row.title, "collapsed": row.is_collapsed, "gridPos": at,
            "panels": inside,
        });
        std::iter::once(head).chain(beside).collect()
    }

    fn panel(&mut self, panel: &Panel) -> Value {
        let (kind, height) = match panel.kind {
            Kind::Lines | Kind::Stacked => ("timeseries", 8),
            Kind::Number => ("stat", 4),
            Kind::Table => ("table", 10),
            Kind::Heatmap => ("heatmap", 10),
            Kind::Text => ("text", 3),
            Kind::Flame => ("flamegraph", 14),
        };
        let source = match panel.kind {
            Kind::Flame => json!({"type": "grafana-pyroscope-datasource", "uid": "${pyroscope}"}),
            _ => json!({"type": "prometheus", "uid": "${datasource}"}),
        };
        let targets: Vec<Value> =
            panel.targets.iter().zip('A'..='Z').map(|(it, id)| target(panel.kind, it, id, &source)).collect();
        json!({
            "id": self.next_id(),
            "type": kind,
            "title": panel.title,
            "description": panel.description,
            "datasource": source,
            "gridPos": self.take(panel.width, height),
            "targets": targets,
            "fieldConfig": {"defaults": defaults(panel), "overrides": overrides(panel)},
            "options": options(panel),
            "transformations": transformations(panel),
        })
    }
}

fn target(kind: Kind, target: &Target, id: char, source: &Value) -> Value {
    if kind == Kind::Flame {
        return json!({
            "refId": id.to_string(), "datasource": source, "queryType": "profile", "groupBy": [],
            "profileTypeId": "process_cpu:cpu:nanoseconds:cpu:nanoseconds", "labelSelector": target.expression,
        });
    }
    let is_table = kind == Kind::Table;
    let format = match kind {
        Kind::Table => "table",
        Kind::Heatmap => "heatmap",
        _ => "time_series",
    };
    json!({
        "refId": id.to_string(),
        "datasource": source,
        "editorMode": "code",
        "expr": target.expression,
        "legendFormat": if is_table || target.legend.is_empty() { "__auto" } else { target.legend },
        "format": format,
        "instant": is_table,
        "range": !is_table,
        "exemplar": target.has_exemplars,
    })
}

fn defaults(panel: &Panel) -> Value {
    let mut defaults = json!({
        "unit": panel.unit.name(),
        "links": panel.links.iter().map(link).collect::<Vec<_>>(),
        "thresholds": {"mode": "absolute", "steps": [{"color": "blue", "value": null}]},
        "color": {"mode": "palette-classic"},
    });
    if matches!(panel.unit, Unit::PerSecond | Unit::Share | Unit::Seconds | Unit::Bytes | Unit::Processors) {
        defaults["min"] = json!(0);
    }
    match panel.kind {
        Kind::Lines | Kind::Stacked => {
            let is_stacked = panel.kind == Kind::Stacked;
            defaults["custom"] = json!({
                "drawStyle": "line", "lineWidth": 1, "fillOpacity": if is_stacked { 40 } else { 5 },
                "showPoints": "auto", "spanNulls": false,
                "stacking": {"mode": if is_stacked { "normal" } else { "none" }, "group": "A"},
            });
        }
        // One colour: what is good or bad is said by words.
        Kind::Number => defaults["color"] = json!({"mode": "thresholds"}),
        Kind::Table => defaults["custom"] = json!({"align": "auto", "filterable": true}),
        Kind::Heatmap | Kind::Text | Kind::Flame => {}
    }
    defaults
}

fn link(link: &Link) -> Value {
    json!({"title": link.title, "url": link.url, "targetBlank": false})
}

/// Columns have units of their own.
fn overrides(panel: &Panel) -> Vec<Value> {
    let columns = panel.targets.iter().filter_map(|target| Some((target.legend, target.unit?)));
    columns
        .map(|(title, unit)| {
            json!({
                "matcher": {"id": "byName", "options": title},
                "properties": [{"id": "unit", "value": unit.name()}],
            })
        })
        .collect()
}

fn options(panel: &Panel) -> Value {
    match panel.kind {
        Kind::Lines | Kind::Stacked => json!({
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": true, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }),
        Kind::Number => json!({
            "colorMode": "none", "graphMode": "area", "justifyMode": "auto", "textMode": "auto", "orientation": "auto",
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": false},
        }),
        Kind::Table => json!({"showHeader": true, "cellHeight": "sm", "sortBy": [
            {"displayName": panel.targets.first().map_or("", |target| target.legend), "desc": true}
        ]}),
        Kind::Heatmap => json!({
            "calculate": false,
            "color": {"mode": "scheme", "scheme": "Oranges", "steps": 64, "exponent": 0.5, "fill": "dark-orange",
                      "reverse": false},
            "cellGap": 1,
            "exemplars": {"color": "rgba(0,114,178,0.9)"},
            "filterValues": {"le": 1e-9},
            "legend": {"show": true},
            "rowsFrame": {"layout": "auto"},
            "showValue": "never",
            "tooltip": {"mode": "single", "showColorScale": false, "yHistogram": false},
            "yAxis": {"axisPlacement": "left", "unit": panel.unit.name(), "reverse": false},
        }),
        Kind::Text => json!({"mode": "markdown", "content": panel.description}),
        Kind::Flame => json!({}),
    }
}

/// Columns that were asked for apart become one table with their titles.
fn transformations(panel: &Panel) -> Vec<Value> {
    if panel.kind != Kind::Table {
        return Vec::new();
    }
    let titles: serde_json::Map<String, Value> = panel
        .targets
        .iter()
        .zip('A'..='Z')
        .map(|(target, id)| (format!("Value #{id}"), json!(target.legend)))
        .collect();
    vec![
        json!({"id": "merge", "options": {}}),
        json!({"id": "organize", "options": {
            "excludeByName": {"Time": true}, "indexByName": {}, "renameByName": titles,
        }}),
    ]
}

fn source(name: &str, plugin: &str, label: &str) -> Value {
    json!({
        "type": "datasource", "name": name, "label": label, "query": plugin, "hide": 0, "includeAll": false,
        "multi": false, "regex": "", "refresh": 1, "options": [],
        "description": "Where it is asked for",
    })
}

/// One agent's page: each agent has one, and knows its own machine.
fn page() -> Value {
    let default = "http://localhost:9464";
    json!({
        "type": "textbox", "name": "page", "label": "Page of an agent", "query": default, "hide": 0,
        "current": {"text": default, "value": default}, "options": [{"text": default, "value": default, "selected": true}],
        "description": "Address of the agent that links lead to",
    })
}

fn variable(variable: &Variable) -> Value {
    match variable {
        Variable::Label { name, label, selector, help } => {
            query_variable((name, help), selector, label, true)
        }
        Variable::One { name, label, selector, help } => query_variable((name, help), selector, label, false),
        Variable::Computed { name, label, expression, help, is_shown } => {
            computed_variable((name, help), expression, label, *is_shown)
        }
        Variable::Source { name, plugin, help } => source(name, plugin, help),
    }
}

fn query_variable((name, help): (&str, &str), selector: &str, label: &str, has_all: bool) -> Value {
    let query = format!("label_values({selector}, {label})");
    let mut variable = json!({
        "type": "query", "name": name, "label": help, "description": help, "hide": 0,
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": query, "refId": "variable", "qryType": 1},
        "includeAll": has_all, "multi": has_all, "refresh": 2, "regex": "", "sort": 1, "options": [],
    });
    if has_all {
        // Matches series without the label as well.
        variable["allValue"] = json!(".*");
        variable["current"] = json!({"text": "All", "value": "$__all", "selected": true});
    }
    variable
}

/// Values of a label of what an expression gives. One that is shown offers all as well; none is escaped in expressions
/// if it is not shown, so it may be a pattern.
fn computed_variable((name, help): (&str, &str), expression: &str, label: &str, is_shown: bool) -> Value {
    let mut variable = json!({
        "type": "query", "name": name, "label": help, "description": help, "hide": if is_shown { 0 } else { 2 },
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "query": {"query": format!("query_result({expression})"), "refId": "variable", "qryType": 3},
        "includeAll": is_shown, "multi": false, "refresh": 2, "regex": format!("/{label}=\"([^\"]*)\"/"), "sort": 1,
        "options": [],
    });
    if is_shown {
        variable["allValue"] = json!(".*");
        variable["current"] = json!({"text": "All", "value": "$__all", "selected": true});
    }
    variable
}
