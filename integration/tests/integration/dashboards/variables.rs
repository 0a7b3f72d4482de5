//! What a dashboard offers to choose from, and where its links lead: asked as Grafana asks.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use integration::fetch;
use serde_json::Value;

use super::{World, evaluate, root};

/// The shipped files, by their names without an ending.
fn dashboards() -> Vec<(String, Value)> {
    let entries = std::fs::read_dir(root().join("dashboards")).unwrap().map(|entry| entry.unwrap().path());
    let files = entries.filter(|file| file.extension().is_some_and(|it| it == "json"));
    files
        .map(|file| {
            let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap())
        })
        .collect()
}

/// Values of a variable.
fn values(prometheus: SocketAddr, query: &str) -> BTreeSet<String> {
    let query =
        ["$namespace", "$within"].iter().fold(query.to_owned(), |text, name| text.replace(name, ".*"));
    let inner = |function: &str| query.strip_prefix(function)?.strip_prefix('(')?.strip_suffix(')');
    if let Some((selector, label)) = inner("label_values").and_then(|inner| inner.rsplit_once(", ")) {
        let path = format!("/api/v1/label/{label}/values?match[]={}", fetch::encode(selector));
        let answer: Value = fetch::json(prometheus, &path).unwrap();
        return serde_json::from_value(answer["data"].clone()).unwrap();
    }
    let expression = inner("query_result").unwrap_or_else(|| panic!("not understood: {query}"));
    evaluate(prometheus, expression).series.into_iter().flat_map(|(labels, _)| labels.into_values()).collect()
}

/// Each variable offers what there is: the service that is known among the services, the agent among the instances.
pub(super) fn have_values(world: &World) {
    let (mut n, agent) = (0, world.agent.address().to_string());
    for (dashboard, text) in dashboards() {
        for variable in text["templating"]["list"].as_array().unwrap() {
            let Some(query) = variable["query"]["query"].as_str() else { continue };
            let name = variable["name"].as_str().unwrap();
            for prometheus in [&world.native, &world.classic] {
                let found = values(prometheus.address, query);
                let expected = match name {
                    "service" if dashboard == "profile" => None,
                    "service" | "server" => Some(world.known.as_str()),
                    "instance" => Some(agent.as_str()),
                    "slo" => Some("boards"),
                    _ => None,
                };
                // Services without a namespace have no such label; "all" takes them along.
                assert!(!found.is_empty() || name == "namespace", "{dashboard}: {name} offers nothing");
                let has_it = expected.is_none_or(|expected| found.contains(expected));
                assert!(has_it, "{dashboard}: {name} offers {found:?}, not {expected:?}");
            }
            n += 1;
        }
    }
    assert!(n > 8, "{n} variables");
}

/// All links to the agent's own page, with the values of the service that is known.
pub(super) fn links_lead_to_the_page(world: &World) {
    fn urls(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(name, inner)| match (name.as_str(), inner) {
                ("url", Value::String(url)) => drop(found.insert(url.clone())),
                _ => urls(inner, found),
            }),
            Value::Array(all) => all.iter().for_each(|inner| urls(inner, found)),
            _ => {}
        }
    }
    let mut found = BTreeSet::new();
    dashboards().iter().for_each(|(_, text)| urls(text, &mut found));
    let links: Vec<&str> = found.iter().filter_map(|url| url.strip_prefix("${page:raw}")).collect();
    assert!(links.len() > 3, "{found:?}");
    for link in links {
        let fields = [
            ("service_namespace", "-"),
            ("service_name", world.known.as_str()),
            ("http_route", "/"),
            ("slo", "boards"),
        ];
        let path = fields.iter().fold(link.to_owned(), |path, (field, value)| {
            path.replace(&format!("${{__data.fields.{field}:percentencode}}"), value)
        });
        assert!(!path.contains('$'), "{path}");
        let page =
            fetch::bytes(world.agent.address(), &path).unwrap_or_else(|error| panic!("{path}: {error:#}"));
        let page = String::from_utf8(page).unwrap();
        assert!(page.contains("</html>"), "{path}: {page}");
    }
}
