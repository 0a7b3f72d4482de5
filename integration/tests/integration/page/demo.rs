//! `obi demo` as a newcomer meets it: something is wrong in the shop, and the page leads to the function to blame.

use std::net::SocketAddr;
use std::time::Duration;

use integration::agent;
use integration::fetch;
use integration::patience::until;
use integration::process::Program;
use rustix::process::Signal;
use serde_json::Value;

use super::{ACCEPT, link, links};

/// From the demo's start until its agent is ready.
const READY: Duration = Duration::from_secs(60);
/// From then on until the page says what is wrong.
const ALERT: Duration = Duration::from_secs(60);

fn page(address: SocketAddr, path: &str) -> String {
    fetch::get(address, path, ACCEPT).unwrap().body
}

#[test]
fn the_page_leads_from_the_demos_alert_to_the_function() {
    let _one = agent::one();
    let mut command = agent::command().unwrap();
    command.args(["demo", "--listen", "127.0.0.1:0"]);
    let mut demo = Program::spawn("obi demo", command).unwrap();
    demo.await_line("in some seconds something is wrong in the shop", READY).unwrap();
    let said = demo.await_line("  http://", READY).unwrap();
    let address: SocketAddr = said.strip_suffix("/ in a browser").unwrap().parse().unwrap();
    let overview = until("the demo's alert is on the page", ALERT, || {
        let page = page(address, "/");
        let alert = page.find("class=\"alert\"").map(|at| page[at..].to_owned());
        alert.filter(|alert| alert.contains("search-is-fast")).ok_or(page)
    });
    let objective = link(&overview, "/slos/");
    assert!(objective.starts_with("/slos/search-is-fast"), "{objective}");
    // The trace's spans, of which one is the catalog's; its profile names the function.
    let trace = link(&page(address, &objective), "/traces/");
    let spans: Value = fetch::json(address, &format!("/api/v1{trace}")).unwrap();
    let served = spans["spans"]
        .as_array()
        .unwrap()
        .iter()
        .find(|span| span["service"]["name"] == "catalog" && span["kind"] == "server");
    let id =
        served.unwrap_or_else(|| panic!("the catalog has no part in {spans}"))["span_id"].as_str().unwrap();
    let span = links(&page(address, &trace)).into_iter().find(|link| link.ends_with(id)).unwrap();
    let span = page(address, &span);
    assert!(span.contains("of it in") && span.contains("edit_distance"), "{span}");
    demo.signal(Signal::INT).unwrap();
    let ended = demo.wait(Duration::from_secs(30)).unwrap();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}
