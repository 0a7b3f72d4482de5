//! What every dashboard keeps, checked on its JSON.
//!
//! In: JSON. Out: a list of what is broken, with the panel's title. The rules are those of Grafana's dashboard
//! linter, and some of our own.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::json::COLUMNS;
use super::name;
use obi::red::Instrument;

/// Functions that turn a counter into something to look at.
const OF_COUNTERS: [&str; 2] = ["rate", "increase"];
/// Windows that follow what is shown.
const WINDOWS: [&str; 2] = ["$__rate_interval", "$__range"];
/// Words of PromQL that are no metric and no function.
const WORDS: [&str; 8] = ["by", "on", "or", "unless", "group_left", "ignoring", "without", "and"];
/// Of `histogram_quantile` and rules.
const MADE: [&str; 1] = ["le"];

/// All panels, those in closed rows as well.
fn panels(dashboard: &Value) -> Vec<&Value> {
    let outer = dashboard["panels"].as_array().unwrap();
    outer
        .iter()
        .flat_map(|panel| std::iter::once(panel).chain(panel["panels"].as_array().into_iter().flatten()))
        .filter(|panel| panel["type"] != "row")
        .collect()
}

fn text<'v>(value: &'v Value, key: &str) -> &'v str {
    value[key].as_str().unwrap_or("")
}

/// What is wrong with a whole dashboard.
fn broken(dashboard: &Value) -> Vec<String> {
    let mut broken = Vec::new();
    let mut say = |holds: bool, what: &str| {
        if !holds {
            broken.push(what.to_owned());
        }
    };
    say(dashboard["editable"] == false, "can be edited");
    say(dashboard["id"].is_null(), "has an id");
    say(dashboard.get("version").is_none(), "has a version");
    say((1..=40).contains(&text(dashboard, "uid").len()), "has no uid, or one that is too long");
    say(dashboard["tags"] == json!(["obi"]), "lacks the tag that links it to the others");
    say(!text(dashboard, "description").is_empty(), "has no description");
    say(dashboard["links"][0]["tags"] == json!(["obi"]), "has no link to the others");
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let source = &variables[0];
    say(
        text(source, "name") == "datasource" && text(source, "query") == "prometheus",
        "has no source variable",
    );
    let names: BTreeSet<&str> = variables.iter().map(|variable| text(variable, "name")).collect();
    for panel in panels(dashboard) {
        let title = text(panel, "title");
        broken.extend(broken_panel(panel, &names).into_iter().map(|what| format!("{title:?} {what}")));
    }
    broken.extend(overlaps(dashboard));
    broken
}

fn broken_panel(panel: &Value, variables: &BTreeSet<&str>) -> Vec<String> {
    let mut broken = Vec::new();
    let mut say = |holds: bool, what: &str| {
        if !holds {
            broken.push(what.to_owned());
        }
    };
    let kind = text(panel, "type");
    say(!text(panel, "title").is_empty(), "has no title");
    say(text(panel, "description").len() > 10, "has no description");
    say(!text(&panel["fieldConfig"]["defaults"], "unit").is_empty(), "has no unit");
    let targets = panel["targets"].as_array().unwrap();
    say(kind == "text" || !targets.is_empty(), "asks for nothing");
    let ids: BTreeSet<&str> = targets.iter().map(|target| text(target, "refId")).collect();
    say(ids.len() == targets.len(), "has two targets of one name");
    let wanted = if kind == "flamegraph" { "${pyroscope}" } else { "${datasource}" };
    say(panel["datasource"]["uid"] == wanted, "asks a fixed data source");
    for target in targets {
        say(target["datasource"] == panel["datasource"], "asks another data source than it says");
        say(
            kind == "stat"
                || kind == "flamegraph"
                || text(target, "legendFormat") != "__auto"
                || kind == "table",
            "has a line without a legend",
        );
    }
    let links = panel["fieldConfig"]["defaults"]["links"].as_array().unwrap();
    for link in links {
        let url = text(link, "url");
        let is_ours = url.starts_with("/d/obi-") || url.starts_with("${page:raw}/");
        say(is_ours && !text(link, "title").is_empty(), "leads elsewhere");
        let parameter = |name: &str| value_of(url, &format!("var-{name}="));
        let is_service = url.starts_with("/d/obi-service?");
        let namespace = parameter("namespace").and_then(|value| fields(value).next());
        say(is_service == namespace.is_some(), "leads to a service without its namespace");
        say(is_service == parameter("service").is_some(), "leads to a service without its name");
        for target in targets {
            let expression = text(target, "expr");
            let columns = grouped(expression);
            say(fields(url).all(|field| columns.contains(field)), "leads by a field that it does not have");
            // A label that is empty would be no field.
            let fills = |label: &str| expression.contains(&format!("\"{label}\", \"-\", \"{label}\", \"\")"));
            say(namespace.is_none_or(fills), "leads to a service without its namespace where that is none");
        }
    }
    let whole = panel.to_string();
    for name in used_variables(&whole) {
        if !variables.contains(name) && !name.starts_with("__") && name != "pyroscope" {
            broken.push(format!("uses ${name}, which is no variable"));
        }
    }
    for expression in targets.iter().filter_map(|target| target["expr"].as_str()) {
        broken.extend(broken_expression(expression));
    }
    broken
}

/// What stands behind `key` in an address, up to the next parameter.
fn value_of<'u>(url: &'u str, key: &str) -> Option<&'u str> {
    url.split(['?', '&']).find_map(|part| part.strip_prefix(key))
}

/// Fields of the row that was clicked.
fn fields(url: &str) -> impl Iterator<Item = &str> {
    url.split("${__data.fields.").skip(1).filter_map(|rest| rest.split([':', '}']).next())
}

/// Labels by which an expression groups.
fn grouped(expression: &str) -> BTreeSet<&str> {
    let lists = expression.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
    lists.flat_map(|list| list.split(", ")).collect()
}

/// Names behind `$`, in braces or not.
fn used_variables(text: &str) -> Vec<&str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.split('$')
        .skip(1)
        .map(|rest| rest.strip_prefix('{').unwrap_or(rest))
        .map(|rest| rest.split(|c| !is_part(c)).next().unwrap_or(""))
        .collect()
}

/// Panels lie inside the columns and not on each other; a closed row's as if it were open.
fn overlaps(dashboard: &Value) -> Vec<String> {
    let mut taken: BTreeMap<(u64, u64), &str> = BTreeMap::new();
    let mut broken = Vec::new();
    for panel in panels(dashboard) {
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        let title = text(panel, "title");
        if w == 0 || h == 0 || x + w > u64::from(COLUMNS) {
            broken.push(format!("{title:?} is outside of the columns"));
        }
        for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
            if let Some(other) =
                taken.insert(cell, title).filter(|_| !broken.iter().any(|it| it.contains(title)))
            {
                broken.push(format!("{title:?} lies on {other:?}"));
            }
        }
    }
    broken
}

/// A piece of an expression.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token<'t> {
    Word(&'t str),
    Text,
    Window(&'t str),
    Sign(char),
}

fn tokens(mut rest: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let is_word = |c: char| c.is_ascii_alphanumeric() || "_:.$".contains(c);
    while let Some(first) = rest.chars().next() {
        let length = if first == '"' {
            rest[1..].find('"').unwrap_or(rest.len() - 2) + 2
        } else if first == '[' {
            rest.find(']').unwrap_or(rest.len() - 1) + 1
        } else if is_word(first) {
            rest.find(|c| !is_word(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (token, after) = rest.split_at(length);
        match first {
            '"' => tokens.push(Token::Text),
            '[' => tokens.push(Token::Window(token.trim_matches(['[', ']']))),
            _ if is_word(first) => tokens.push(Token::Word(token)),
            _ if first.is_whitespace() => {}
            _ => tokens.push(Token::Sign(first)),
        }
        rest = after;
    }
    tokens
}

/// Metrics that do not exist, labels that they do not have, counters that are looked at as they are, fixed windows.
fn broken_expression(expression: &str) -> Vec<String> {
    let tokens = tokens(expression);
    let mut broken = Vec::new();
    let mut labels: BTreeSet<&str> = BTreeSet::new();
    let mut known: BTreeSet<&'static str> = BTreeSet::from(MADE);
    let word = |at: usize| match tokens.get(at) {
        Some(Token::Word(word)) => *word,
        _ => "",
    };
    let sign = |at: usize, sign: char| tokens.get(at) == Some(&Token::Sign(sign));
    let mut at = 0;
    while at < tokens.len() {
        match tokens[at] {
            Token::Window(window) if !WINDOWS.contains(&window) => {
                broken.push(format!("has the window {window}"))
            }
            Token::Word(found)
                if ["by", "on", "group_left", "ignoring"].contains(&found) && sign(at + 1, '(') =>
            {
                at += 2;
                while !sign(at, ')') && at < tokens.len() {
                    labels.extend(Some(word(at)).filter(|word| !word.is_empty()));
                    at += 1;
                }
            }
            Token::Word(found) if sign(at + 1, '{') => {
                let Some(metric) = name::find(found) else {
                    broken.push(format!("asks for {found}, which no agent has"));
                    at += 1;
                    continue;
                };
                let is_part = metric.name != found || metric.instrument == Instrument::Histogram;
                let is_counted = metric.instrument == Instrument::Counter || is_part;
                let function = if at >= 2 && sign(at - 1, '(') { word(at - 2) } else { "" };
                if is_counted != OF_COUNTERS.contains(&function) {
                    broken.push(format!("takes {found} by `{function}`"));
                }
                known.extend(metric.labels.iter().copied());
                at += 2;
                while !sign(at, '}') && at < tokens.len() {
                    let label = word(at);
                    if !label.is_empty() && !metric.labels.contains(&label) {
                        broken.push(format!("asks {found} for {label}, which it does not have"));
                    }
                    at += 1;
                }
            }
            Token::Word(found) => {
                let is_number = found.parse::<f64>().is_ok();
                let is_applied = sign(at + 1, '(') || ["by", "without"].contains(&word(at + 1));
                if !is_number && !is_applied && !WORDS.contains(&found) {
                    broken.push(format!("has the word {found}"));
                }
            }
            _ => {}
        }
        at += 1;
    }
    broken
        .extend(labels.difference(&known).map(|label| format!("groups by {label}, which nothing there has")));
    broken
}

#[test]
fn dashboards_keep_the_rules() {
    for dashboard in super::all() {
        assert_eq!(broken(&super::json::dashboard(&dashboard)), Vec::<String>::new(), "{}", dashboard.uid);
    }
}

#[test]
fn uids_and_titles_stand_once() {
    let all = super::all();
    let distinct =
        |of: fn(&super::Dashboard) -> &'static str| all.iter().map(of).collect::<BTreeSet<_>>().len();
    assert_eq!((distinct(|it| it.uid), distinct(|it| it.title)), (all.len(), all.len()));
}

#[test]
fn wrong_expressions_are_found() {
    let check = |expression: &str, expected: &[&str]| {
        assert_eq!(broken_expression(expression), expected, "{expression}");
    };
    check("sum by (reason) (rate(obi_lost_total{}[$__rate_interval]))", &[]);
    check("sum by (reason) (obi_lost_total{})", &["takes obi_lost_total by ``"]);
    check("sum by (reason) (rate(obi_lost_total{}[5m]))", &["has the window 5m"]);
    check("sum by (route) (rate(obi_lost_total{}[$__range]))", &["groups by route, which nothing there has"]);
    check("rate(obi_series{}[$__range])", &["takes obi_series by `rate`"]);
    check("rate(obi_found_total{}[$__range])", &["asks for obi_found_total, which no agent has"]);
    check("obi_series{side=\"x\"}", &["asks obi_series for side, which it does not have"]);
    check("obi_series + obi_series{}", &["has the word obi_series"]);
    let part = "rate(http_server_request_duration_seconds_bucket{service_name=\"$s\"}[$__rate_interval])";
    check(&format!("histogram_quantile(0.5, sum by (le, http_route) ({part}))"), &[]);
    check(
        &part.replace("service_name", "server_port"),
        &["asks http_server_request_duration_seconds_bucket for server_port, which it does not have"],
    );
}

/// Each rule about panels is broken by something.
#[test]
fn wrong_panels_are_found() {
    let good = super::json::dashboard(&super::fleet::dashboard());
    let check = |change: &dyn Fn(&mut Value), expected: &str| {
        let mut changed = good.clone();
        change(&mut changed);
        let found = broken(&changed);
        assert!(found.iter().any(|what| what.contains(expected)), "{expected}: {found:?}");
    };
    assert_eq!(broken(&good), Vec::<String>::new());
    check(&|it| it["editable"] = json!(true), "can be edited");
    check(&|it| it["uid"] = json!("x".repeat(41)), "too long");
    check(&|it| it["templating"]["list"][0]["name"] = json!("ds"), "no source variable");
    check(&|it| it["panels"][1]["title"] = json!(""), "has no title");
    check(&|it| it["panels"][1]["description"] = json!(""), "has no description");
    check(&|it| it["panels"][1]["fieldConfig"]["defaults"]["unit"] = json!(""), "has no unit");
    check(&|it| it["panels"][1]["targets"] = json!([]), "asks for nothing");
    check(&|it| it["panels"][1]["datasource"]["uid"] = json!("abc"), "fixed data source");
    check(&|it| it["panels"][1]["gridPos"]["x"] = json!(23), "outside of the columns");
    check(&|it| it["panels"][2]["gridPos"]["x"] = json!(0), "lies on");
    check(&|it| it["panels"][1]["targets"][0]["expr"] = json!("obi_series{job=\"$jop\"}"), "is no variable");
    let links = |url: &str| json!([{"title": "x", "url": url}]);
    let check_link = |url: &str, expected: &str| {
        check(&|it| it["panels"][1]["fieldConfig"]["defaults"]["links"] = links(url), expected);
    };
    check_link("https://elsewhere/", "leads elsewhere");
    let name = "var-service=${__data.fields.service_name}";
    check_link(&format!("/d/obi-service?{name}"), "without its namespace");
    check_link(&format!("/d/obi-service?var-namespace=shop&{name}"), "without its namespace");
    let namespace = "var-namespace=${__data.fields.service_namespace}";
    check_link(&format!("/d/obi-service?{namespace}"), "without its name");
    check_link(&format!("/d/obi-service?{namespace}&{name}"), "by a field that it does not have");
    check_link(&format!("/d/obi-service?{namespace}&{name}"), "where that is none");
}
