//! Samples of the whole machine with the requests they were taken in, by real servers under load.

mod java;
mod loops;
mod moment;
mod node;
mod purity;
mod python;
mod towers;
mod truth;

use std::process::Command;
use std::time::{Duration, Instant};

use integration::agent::{Agent, Config};
use integration::client::{self, Kind};
use integration::patience::patience;
use integration::seed::{note, seeded};
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
    // Its threads' time is booked, so no estimate is made of its samples.
    let metrics = agent.metrics().unwrap();
    let spent = |source: &str| {
        let labels = [("service_name", &*server.service), ("obi_cpu_source", source)];
        metrics.sum("obi_server_request_cpu_seconds_total", &labels)
    };
    assert!(spent("booked") > 0.0);
    let lost = metrics.sum("obi_lost_times_total", &[]);
    let seen =
        metrics.sum("http_server_request_duration_seconds_count", &[("service_name", &server.service)]);
    note(&format!("of {seen} requests {lost} have lost their times"));
    let unbooked = || {
        let spans = ask(&format!("/api/v1/spans?limit=1000&service={}", fetch::encode(&server.service)));
        let spans = spans["spans"].as_array().unwrap().clone();
        spans.into_iter().filter(|span| span["attributes"]["obi.cpu_ns"].is_null()).collect::<Vec<_>>()
    };
    assert_eq!(spent("sampled"), 0.0, "{lost} requests have lost their times; not booked: {:?}", unbooked());
}

/// Runs of a program that lives for a fifth of a second.
const RUNS: usize = 30;

/// A program that has been sampled before is known to the kernel side soon after it begins again.
#[test]
fn programs_that_live_shortly_have_stacks() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("short");
    std::fs::copy("/bin/dash", &program).unwrap();
    let config = Config::default().set("profile", "enabled", true).set(
        "discover",
        "include",
        serde_json::json!([{"executable": program}]),
    );
    let agent = Agent::start(config).unwrap();
    let run = || {
        let mut command = Command::new(&program);
        let status = command.args(["-c", "i=0; while [ $i -lt 150000 ]; do i=$((i+1)); done"]).status();
        assert!(status.unwrap().success());
    };
    let counts = || {
        let metrics = agent.metrics().unwrap();
        let unknown = metrics.sum("obi_profile_truncated_stacks_total", &[("reason", "no_process")]);
        (metrics.sum("obi_profile_samples_total", &[]), unknown)
    };
    // The first ones make the program known; its file is looked at meanwhile.
    (0..5).for_each(|_| run());
    let before = counts();
    (0..RUNS).for_each(|_| run());
    let wanted = before.0 + RUNS as f64;
    agent.metrics_until(LIMIT, |metrics| metrics.sum("obi_profile_samples_total", &[]) > wanted).unwrap();
    let after = counts();
    let (samples, unknown) = (after.0 - before.0, after.1 - before.1);
    note(&format!("of {samples} samples {unknown} are of a process that was not known yet"));
    assert!(unknown < samples / 8.0, "{unknown} of {samples}");
}
