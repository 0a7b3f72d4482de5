//! Profiles of waits, against what the serving threads have measured themselves: by function, and by who ends a wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use integration::agent::{Agent, Config};
use integration::fetch;
use integration::patience::{patience, slowness};
use integration::seed::{note, request_id, seeded};
use serde_json::{Value, json};

use super::{LIMIT, Serving, Truth, ask_for, compiled, get, python, spans};

/// Of sums by function.
const OFF: f64 = 0.02;
/// The same in an emulated kernel, where a switch, which lies between our clock and the program's, takes 20 times as
/// long.
const OFF_EMULATED: f64 = 0.1;
/// Standard deviations that chance is given.
const CHANCE: f64 = 4.5;
/// Of waits for a lock, those whose holder is named.
const NAMED: f64 = 0.99;

fn agent() -> Agent {
    let routes = json!(["/spend/{id}/{tasks}", "/report/{id}/{tasks}", "/checkout/{id}/{tasks}"]);
    let config = Config::default()
        .alone()
        .set("profile", "enabled", true)
        .set("profile", "page_faults", "on")
        .set("profile", "off_cpu", "on");
    Agent::start(config.set("trace", "routes", routes)).unwrap()
}

/// Asks until stacks of the server are whole: a process that has just begun is not known to the kernel side yet.
/// Returns how many requests that took.
fn warm(agent: &Agent, serving: &Serving) -> usize {
    let (begun, since, mut n) = (Instant::now(), now(), 0);
    loop {
        n += get(serving.address, (0..10).map(|_| format!("/spend/{}/child.9000", request_id()))).len();
        let stacks = folded(agent, &path(serving, since, "type=off_cpu"));
        if stacks.iter().any(|(stack, _)| stack.contains("child;")) {
            return n;
        }
        assert!(begun.elapsed() < patience(LIMIT), "no whole stack: {stacks:?}");
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs_f64()
}

/// What the agent says of a service since a time.
fn path(serving: &Serving, since: f64, more: &str) -> String {
    format!("/api/v1/profiles?service={}&from={since:.3}&{more}", fetch::encode(&serving.service))
}

/// The same once nothing is on its way any more: all samples have come, and belong to requests.
fn settled(agent: &Agent, path: &str) -> Value {
    let begun = Instant::now();
    let mut before = Value::Null;
    loop {
        let profile: Value = fetch::json(agent.address(), path).unwrap();
        if profile["samples"] == profile["linked"]["samples"] && profile["samples"] == before["samples"] {
            return profile;
        }
        assert!(begun.elapsed() < patience(LIMIT), "samples in no request: {profile}");
        before = profile;
        thread::sleep(Duration::from_millis(300));
    }
}

/// Stacks, root first, and their seconds.
fn folded(agent: &Agent, path: &str) -> Vec<(String, f64)> {
    let body = fetch::get(agent.address(), &format!("{path}&format=folded"), "*/*").unwrap().body;
    let parse = |line: &str| {
        let (stack, value) = line.rsplit_once(' ').unwrap();
        (stack.to_owned(), value.parse::<f64>().unwrap() / 1e9)
    };
    body.lines().map(parse).collect()
}

/// By task: how long threads have waited in it, and how much chance may add, seconds. A wait shorter than the
/// threshold is sampled with a probability in proportion to its length.
fn waited<'a>(truths: impl Iterator<Item = &'a Truth>, threshold: f64) -> BTreeMap<String, (f64, f64)> {
    let mut sums = BTreeMap::<String, (f64, f64)>::new();
    for (task, wall, cpu, delay) in truths.flat_map(|truth| &truth.tasks) {
        let waited = wall.saturating_sub(cpu + delay) as f64 / 1e9;
        let (sum, variance) = sums.entry(task.clone()).or_default();
        *sum += waited;
        *variance += if waited < threshold { waited * (threshold - waited) } else { 0.0 };
    }
    sums.into_iter().map(|(task, (sum, variance))| (task, (sum, CHANCE * variance.sqrt()))).collect()
}

/// The threshold only falls while there are few waits: what it was at first is the most.
const THRESHOLD: f64 = 0.008;

fn off() -> f64 {
    if slowness() > 1 { OFF_EMULATED } else { OFF }
}

fn waits_of_functions_add_up(serving: &Serving, functions: &[(&str, &str)], seed: &str) {
    let mut rng = seeded(seed);
    let mut agent = agent();
    let tasks: Vec<&str> = functions.iter().map(|(task, _)| *task).collect();
    let warmed = warm(&agent, serving);
    let since = now();
    let answers = ask_for(&mut rng, serving.address, (&tasks, 500..20_000));
    spans(&mut agent, serving, answers.len() + warmed);
    let profile = settled(&agent, &path(serving, since, "type=off_cpu&format=json"));
    let folded = folded(&agent, &path(serving, since, "type=off_cpu"));
    let truth = waited(answers.values(), THRESHOLD);
    for (task, function) in functions {
        let is_in = |stack: &str| stack.split(';').any(|name| name == *function);
        // Where a child is made, glibc has no table: such stacks say so, and have no callers.
        let reason = format!("[waiting: {task}];");
        let is_marked =
            |stack: &str| stack.contains(&reason) && stack.contains("[callers unknown: ") && !is_in(stack);
        let sum = |which: &dyn Fn(&str) -> bool| {
            folded.iter().filter(|(stack, _)| which(stack)).map(|(_, seconds)| seconds).sum::<f64>()
        };
        let (said, marked) = (sum(&is_in), sum(&is_marked));
        let (reported, chance) = truth[*task];
        note(&format!(
            "{}: {function}: {said:.4} s and {marked:.4} s marked, itself {reported:.4} s, chance {chance:.4} s",
            serving.service
        ));
        assert!(marked == 0.0 || *task == "child", "{function}: {marked} s without callers: {folded:?}");
        assert!(
            (said + marked - reported).abs() <= off() * reported + chance,
            "{function}: {said} s of {reported} s: {folded:?}"
        );
    }
    let (said, reported) =
        (profile["off_cpu_seconds"].as_f64().unwrap(), truth.values().map(|(sum, _)| sum).sum::<f64>());
    let chance = truth.values().map(|(_, chance)| chance * chance).sum::<f64>().sqrt();
    note(&format!("{}: all: {said:.4} s, itself {reported:.4} s, chance {chance:.4} s", serving.service));
    assert!((said - reported).abs() <= off() * reported + chance, "{said} s of {reported} s: {profile}");
    // Running and waiting is both.
    let wall =
        settled(&agent, &path(serving, since, "type=wall&route=/spend/%7Bid%7D/%7Btasks%7D&format=json"));
    let of = |reason: &str| {
        let reasons = wall["reasons"].as_array().unwrap().iter();
        reasons
            .filter(|of| of["reason"] == reason)
            .map(|of| of["wall_seconds"].as_f64().unwrap())
            .sum::<f64>()
    };
    let (waiting, all) =
        (wall["wall_seconds"].as_f64().unwrap() - of("running"), wall["wall_seconds"].as_f64());
    assert!((waiting - said).abs() < 1e-3 && all.is_some_and(|all| all > said), "{said} s waiting: {wall}");
}

#[test]
fn waits_are_those_of_functions() {
    let functions = [
        ("sleep", "waiting_server::sleep"),
        ("lock", "waiting_server::take"),
        ("condition", "waiting_server::condition"),
        ("poll", "waiting_server::look"),
        ("network", "waiting_server::receive"),
        ("pipe", "waiting_server::pipe"),
        ("child", "waiting_server::child"),
    ];
    waits_of_functions_add_up(&compiled(), &functions, "off-cpu-compiled");
}

/// A lock that one function holds and another waits for, each in requests of its own route.
#[test]
fn a_wait_for_a_lock_names_the_request_that_held_it() {
    let (mut agent, serving) = (agent(), compiled());
    let warmed = warm(&agent, &serving);
    let since = now();
    let is_over = AtomicBool::new(false);
    let (address, over) = (serving.address, &is_over);
    let answers = thread::scope(|scope| {
        let path = |route: &str, task: &str| format!("/{route}/{}/{task}", request_id());
        let held = scope.spawn(move || {
            let more =
                std::iter::from_fn(|| (!over.load(Ordering::Relaxed)).then(|| path("report", "hold.12000")));
            get(address, more).len()
        });
        let answers = get(address, (0..100).map(|_| path("checkout", "sleep.3000-want.0")));
        over.store(true, Ordering::Relaxed);
        spans(&mut agent, &serving, answers.len() + held.join().unwrap() + warmed);
        answers
    });
    let route = "route=/checkout/%7Bid%7D/%7Btasks%7D";
    let profile = settled(&agent, &path(&serving, since, &format!("type=lock&{route}&format=json")));
    let folded = folded(&agent, &path(&serving, since, &format!("type=lock&{route}")));
    let (mut all, mut named) = (0.0, 0.0);
    for (stack, value) in &folded {
        let value = *value;
        let (waits, holds) =
            stack.split_once(";[released by /report/{id}/{tasks}];").unwrap_or((stack.as_str(), ""));
        if waits.contains("waiting_server::want") {
            all += value;
            named += if holds.contains("waiting_server::hold") { value } else { 0.0 };
            assert!(waits.contains(";[waiting: lock];[at 0x"), "{stack}");
        }
    }
    let (reported, chance) = waited(answers.values(), THRESHOLD)["want"];
    note(&format!("waits for a lock: {all:.4} s, itself {reported:.4} s, of a known holder {named:.4} s"));
    assert!(
        (all - reported).abs() <= off() * reported + chance,
        "{all} s of {reported} s, chance {chance}: {profile}"
    );
    assert!(named >= NAMED * all && all > 0.2, "{named} s of {all} s have a holder: {folded:?}");
}

/// Memory that a function touches first.
#[test]
fn page_faults_are_those_of_functions() {
    const PERIOD: f64 = 64.0;
    let mut rng = seeded("page-faults");
    let (mut agent, serving) = (agent(), python());
    let warmed = warm(&agent, &serving);
    let since = now();
    let answers = ask_for(&mut rng, serving.address, (&["touch"], 200..400));
    spans(&mut agent, &serving, answers.len() + warmed);
    let pages = |path: &String| {
        let tasks = path.rsplit('/').next().unwrap().split('-');
        tasks.map(|task| task.split_once('.').unwrap().1.parse::<f64>().unwrap()).sum::<f64>()
    };
    let reported: f64 = answers.keys().map(pages).sum();
    let begun = Instant::now();
    loop {
        let profile: Value =
            fetch::json(agent.address(), &path(&serving, since, "type=page_faults&format=json")).unwrap();
        let listed = profile["functions"].as_array().unwrap().iter();
        let said: f64 = listed
            .filter(|listed| listed["function"] == "touch")
            .map(|listed| listed["total_count"].as_f64().unwrap())
            .sum();
        if (said - reported).abs() <= 0.05 * reported + CHANCE * (PERIOD * reported).sqrt() && said > 0.0 {
            note(&format!("page faults: {said}, pages touched {reported}"));
            return;
        }
        assert!(begun.elapsed() < patience(Duration::from_secs(10)), "{said} of {reported}: {profile}");
        thread::sleep(Duration::from_millis(300));
    }
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    #[test]
    fn waits_are_those_of_an_interpreters_functions() {
        let functions = [("poll", "poll"), ("network", "network"), ("pipe", "pipe"), ("child", "child")];
        waits_of_functions_add_up(&python(), &functions, "off-cpu-python");
    }
}
