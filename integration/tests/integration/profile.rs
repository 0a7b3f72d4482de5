//! Samples of the whole machine with the requests they were taken in, by real servers under load.

mod purity;
mod truth;

use std::time::{Duration, Instant};

use integration::agent::{Agent, Config};
use integration::client::{self, Kind};
use integration::patience::patience;
use integration::seed::seeded;
use integration::server::language;
use integration::{fetch, load};
use serde_json::Value;

/// A look at a CPU comes 99 times a second, a request takes a millisecond of it.
const CALLS: usize = 200;
const LIMIT: Duration = Duration::from_secs(120);

/// From a route's profile to a span of it, and to the profile of exactly that request.
#[test]
fn a_request_leads_to_its_profile() {
    let mut rng = seeded("profile");
    let agent = Agent::start(Config::default().set("profile", "enabled", true)).unwrap();
    let server = language::python_http("threading").unwrap();
    let ask = |path: &str| -> Value { fetch::json(agent.address(), path).unwrap() };
    let all = format!("/api/v1/profiles?format=json&service={}", fetch::encode(&server.service));
    let begun = Instant::now();
    let profile = loop {
        let calls = load::calls(&mut rng, &server.features, Kind::Shape, CALLS);
        client::call(Kind::Shape, &server.address, &calls, 2).unwrap();
        let profile = ask(&all);
        if profile["spans"].as_array().is_some_and(|spans| !spans.is_empty()) {
            break profile;
        }
        assert!(begun.elapsed() < patience(LIMIT), "no sample in a request: {profile}");
    };
    let functions = profile["functions"].as_array().unwrap();
    // The interpreter has its names from its own table of symbols.
    let is_named = functions
        .iter()
        .any(|function| function["function"].as_str().is_some_and(|name| name.contains("Py")));
    assert!(is_named, "{profile}");
    for sampled in profile["spans"].as_array().unwrap() {
        let spans = ask(sampled["trace"].as_str().unwrap());
        let found =
            spans["spans"].as_array().unwrap().iter().find(|span| span["span_id"] == sampled["span_id"]);
        let span = found.unwrap_or_else(|| panic!("{sampled} has no span in {spans}"));
        assert_eq!(span["service"]["name"], server.service.as_str());
        let own = ask(&format!("{}&format=json", span["profile"].as_str().unwrap()));
        assert!(own["samples"].as_u64().is_some_and(|samples| samples > 0), "{own}");
    }
    let metrics = agent.metrics().unwrap();
    assert!(metrics.sum("obi_server_request_cpu_samples_total", &[("service_name", &server.service)]) > 0.0);
}
