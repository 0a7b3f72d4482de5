//! `obi demo` as a newcomer meets it: something is wrong in the shop, and the page leads to the function to blame.

use std::net::SocketAddr;
use std::time::Duration;

use integration::agent;
use integration::fetch;
use integration::patience::until;
use integration::process::{Program, free_port};
use integration::seat::Seat;
use rustix::process::Signal;
use serde_json::Value;

use super::{ACCEPT, link, links};

/// From the demo's start until its agent is ready.
const READY: Duration = Duration::from_secs(60);
/// From then on until the page says what is wrong.
const ALERT: Duration = Duration::from_secs(60);
/// How long names of a large program may take.
const NAMED: Duration = Duration::from_secs(60);
/// From then on until a minute of the demo fills the flame graph of docs/profiles.md.
const PICTURE: Duration = Duration::from_secs(90);

fn page(address: SocketAddr, path: &str) -> String {
    fetch::get(address, path, ACCEPT).unwrap().body
}

/// The id of the catalog's server span in a trace, where there is one.
fn served(address: SocketAddr, trace: &str) -> Option<String> {
    let trace: Value = fetch::json(address, &format!("/api/v1{trace}")).ok()?;
    let mut spans = trace["spans"].as_array()?.iter();
    let it = spans.find(|span| span["service"]["name"] == "catalog" && span["kind"] == "server")?;
    Some(it["span_id"].as_str()?.to_owned())
}

/// Of all CPU time, how much is spent comparing texts. Builds without optimization have functions within it.
fn share(profile: &Value) -> f64 {
    let mut functions = profile["functions"].as_array().unwrap().iter();
    let it = functions
        .find(|it| it["function"].as_str().is_some_and(|name| name.ends_with("similar::edit_distance")));
    it.map_or(0.0, |it| it["total_seconds"].as_f64().unwrap() / profile["cpu_seconds"].as_f64().unwrap())
}

#[test]
fn the_page_leads_from_the_demos_alert_to_the_function() {
    let _seat = Seat::beside_others();
    let mut command = agent::command().unwrap();
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
    command.args(["demo", "--listen", &listen.to_string()]);
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
    // A trace of the evidence; of its spans one is the catalog's, and its profile names the function. The catalog is an
    // event loop: of a request that had others beside it its page shows no function.
    let id = until("where a span's CPU time went is on its page", NAMED, || {
        let traces = links(&page(address, &objective));
        let traces = traces.into_iter().filter(|link| link.starts_with("/traces/"));
        let shown = |trace: String| {
            let id = served(address, &trace)?;
            let span = links(&page(address, &trace)).into_iter().find(|link| link.ends_with(&id))?;
            page(address, &span).contains(" of it in ").then_some(id)
        };
        traces.filter_map(shown).next().ok_or_else(|| "there is none".to_owned())
    });
    let of_span = format!("/api/v1/profiles?span={id}&format=json");
    let profile: Value = fetch::json(address, &of_span).unwrap();
    assert!(share(&profile) >= 0.5, "{profile}");
    let products = "/api/v1/profiles?service=catalog&route=/products/%7Bid%7D&format=json";
    let profile: Value = until("the picture of docs/profiles.md has enough samples", PICTURE, || {
        let profile: Value = fetch::json(address, products).map_err(|error| error.to_string())?;
        if profile["samples"].as_u64() >= Some(100) { Ok(profile) } else { Err(profile.to_string()) }
    });
    assert!(share(&profile) >= 0.5, "{profile}");
    demo.signal(Signal::INT).unwrap();
    let ended = demo.wait(Duration::from_secs(30)).unwrap();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
}
