//! Databases through the libraries that services use: each call is a span, and no value leaves the machine's memory.

mod postgres;
mod redis;

use std::collections::BTreeMap;
use std::process::Command;

use integration::agent::{Agent, Config, OPENMETRICS};
use integration::database::{Call, Done, Library, Port, Server, call};
use integration::hook::HookSet;
use integration::patience::{patience, slowness};
use integration::process;
use integration::seed::seeded;
use integration::span::{Kind, Span};
use serde_json::json;

use crate::gate;

/// What a program says of a call that the server did not run, behind an error.
const SKIPPED: &str = "skipped";
/// In every value and key.
const SECRET: &str = "zqsecret";

fn word(rng: &mut fastrand::Rng, beginning: &str) -> String {
    format!("{beginning}{:016x}", rng.u64(..))
}

/// Statements, each with a name of its own that is no literal, and values that must be seen nowhere.
fn statements(rng: &mut fastrand::Rng, may_fail: bool) -> Vec<(Call, String, &'static str)> {
    (0..30)
        .map(|nth| {
            let (id, value) = (word(rng, "call_"), word(rng, SECRET));
            let literal = word(rng, SECRET);
            let (text, values, code) = match nth % 6 {
                0 => (format!("SELECT $1::text AS {id}"), vec![value], ""),
                1 => (format!("SELECT '{literal}' AS {id}, {} AS n", rng.u32(..)), vec![], ""),
                2 => (
                    format!("SELECT $1 || '{literal}' AS {id} FROM generate_series(1, 3000)"),
                    vec![value],
                    "",
                ),
                3 if may_fail => (format!("SELECT 1 / 0 AS {id}"), vec![], "22012"),
                4 if may_fail => (format!("SELECT * FROM {id} WHERE a = $1"), vec![value], "42P01"),
                _ => (format!("/* {literal} */ VALUES ({}) -- {id}\n", rng.u16(..)), vec![], ""),
            };
            (Call { text, values, words: Vec::new() }, id, code)
        })
        .collect()
}

fn databases<'s>(spans: &'s [Span], service: &str) -> Vec<&'s Span> {
    let is_ours = |span: &&Span| span.service.name == service && span.text("db.system.name").is_some();
    spans.iter().filter(is_ours).collect()
}

/// A call's own word is in its text, unless that was a comment: those are counted. Calls of the same word are in order.
fn compare(
    library: Library,
    calls: &[(Call, String, &'static str)],
    done: &[Done],
    spans: &[&Span],
) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut asked: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (nth, (call, id, code)) in calls.iter().enumerate().filter(|(_, (call, ..))| has_word(call)) {
        let runs = asked.entry(id).or_default();
        runs.extend((*code != SKIPPED).then_some(nth));
        if let Some(done) = done.iter().find(|done| done.nth == nth && done.code != *code) {
            wrong.push(format!("{library:?}: {done:?} of {:?}", call.text));
        }
    }
    for (id, runs) in asked {
        let is_own = |span: &&&Span| span.text("db.query.text").is_some_and(|text| text.contains(id));
        let mut found: Vec<_> = spans.iter().filter(is_own).collect();
        found.sort_by_key(|span| span.start_unix_nano.get());
        if found.len() != runs.len() {
            wrong.push(format!("{library:?}: {} spans of {runs:?}, {id}", found.len()));
            continue;
        }
        for (nth, span) in runs.into_iter().zip(found) {
            let (asked, _, code) = &calls[nth];
            let seen = span.text("db.response.status_code").unwrap_or_default();
            if seen != *code || (span.status == "error") == code.is_empty() {
                wrong.push(format!("{library:?}: {seen:?} instead of {code:?} for {:?}", asked.text));
            }
            let done = done.iter().find(|done| done.nth == nth);
            wrong.extend(done.and_then(|done| is_outside(span, done)));
        }
    }
    wrong
}

/// What is wrong with the times of a call's span.
fn is_outside(span: &Span, done: &Done) -> Option<String> {
    let (start, end) = (span.start_unix_nano.get(), span.end_unix_nano.get());
    // The clocks of time() and of the agent are the same, read at different moments; and some libraries report an
    // error before ReadyForQuery has come.
    let slack = 2_000_000 * u64::from(slowness());
    let is_outside = start + slack < done.started || end > done.ended + slack || start > end;
    is_outside.then(|| format!("{}: {start}..{end} of {done:?}", span.service.name))
}

/// Whether a call is found by a word of its own.
fn has_word(call: &Call) -> bool {
    !call.text.is_empty() && !call.text.starts_with("/*")
}

#[test]
fn postgres() {
    let mut rng = seeded("PostgreSQL");
    let server = Server::postgres().unwrap();
    let mut agent = Agent::start(Config::default()).unwrap();
    let mut wrong = Vec::new();
    let encrypted =
        [Library::Psql, Library::Psycopg, Library::Asyncpg].map(|library| (library, server.encrypted()));
    for (library, at) in Library::POSTGRES.map(|library| (library, server.at())).into_iter().chain(encrypted)
    {
        // Behind an error a pipeline is over.
        let calls = statements(&mut rng, library != Library::PsycopgPipeline);
        if at.is_encrypted {
            await_library(&mut agent, library, at);
        }
        let service = word(&mut rng, "asks-postgres-");
        let plan: Vec<Call> = calls.iter().map(|(call, ..)| call.clone()).collect();
        let done = call(library, &service, at, &plan).unwrap();
        let is_enough = |spans: &[Span]| {
            let last = &calls.iter().rfind(|(call, ..)| !call.text.starts_with("/*")).unwrap().1;
            let has = |span: &&Span| span.text("db.query.text").is_some_and(|text| text.contains(last));
            databases(spans, &service).iter().any(has)
        };
        let spans = databases(agent.spans_until(gate::PATIENCE, is_enough).unwrap(), &service);
        wrong.extend(compare(library, &calls, &done, &spans));
        let n_values = spans.iter().filter(|span| span.text("db.operation.name") == Some("VALUES")).count();
        let n_asked = calls.iter().filter(|(call, ..)| call.text.starts_with("/*")).count();
        if n_values != n_asked {
            wrong.push(format!("{library:?}: {n_values} of {n_asked} VALUES"));
        }
        let is_right = |span: &&&Span| {
            span.kind == Kind::Client
                && span.text("db.system.name") == Some("postgresql")
                && span.text("db.namespace") == Some("postgres")
                && span.text("server.address") == Some("127.0.0.1")
                && span.number("server.port") == Some(server.port.into())
        };
        if spans.iter().filter(is_right).count() != spans.len() {
            wrong.push(format!("{library:?}: {spans:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_no_secret(&mut agent);
}

/// Asks until the library's calls over TLS are seen: one that brings a TLS library of its own is probed when it is
/// first used.
#[track_caller]
fn await_library(agent: &mut Agent, library: Library, at: Port) {
    const TRIES: usize = 20;
    let service = format!("first-{library:?}");
    let ask = [Call { text: "SELECT 1".to_owned(), ..Call::default() }];
    let is_seen = (0..TRIES).any(|_| {
        call(library, &service, at, &ask).unwrap();
        let spans =
            agent.spans_until(gate::PATIENCE / 10, |spans| !databases(spans, &service).is_empty()).unwrap();
        !databases(spans, &service).is_empty()
    });
    assert!(is_seen, "{library:?} over TLS is not seen");
}

/// No value is in anything that the agent says.
#[track_caller]
fn assert_no_secret(agent: &mut Agent) {
    for span in agent.spans().unwrap() {
        let text = format!("{span:?}");
        assert!(!text.contains(SECRET), "{text}");
    }
    assert!(!agent.scrape(OPENMETRICS).unwrap().body.contains(SECRET));
    assert!(!agent.stderr().unwrap().contains(SECRET));
}

fn commands(rng: &mut fastrand::Rng) -> Vec<(Call, &'static str)> {
    (0..200)
        .map(|_| {
            let (key, value) = (word(rng, SECRET), word(rng, SECRET).repeat(rng.usize(1..300)));
            let (words, code) = match rng.u8(..7) {
                0 => (vec!["GET", &key], ""),
                1 => (vec!["set", &key, &value], ""),
                2 => (vec!["LPUSH", "zqsecretlist", &value, "b", "c"], ""),
                3 => (vec!["LRANGE", "zqsecretlist", "0", "-1"], ""),
                4 => (vec!["GET", "zqsecretlist"], "WRONGTYPE"),
                5 => (vec!["MSET", &key, &value, "zqsecret-b", ""], ""),
                _ => (vec!["PING"], ""),
            };
            let words = words.into_iter().map(str::to_owned).collect();
            (Call { words, ..Call::default() }, code)
        })
        .collect()
}

#[test]
fn redis() {
    let mut rng = seeded("Redis");
    let server = Server::redis().unwrap();
    let mut agent = Agent::start(Config::default()).unwrap();
    // The list is there before it is asked for.
    let prepare =
        Call { words: ["RPUSH", "zqsecretlist", "a"].map(str::to_owned).to_vec(), ..Call::default() };
    call(Library::RedisPy, "prepares", server.at(), &[prepare]).unwrap();
    for library in Library::REDIS {
        let mut calls = commands(&mut rng);
        if library == Library::RedisPySubscribe {
            calls.retain(|(_, code)| code.is_empty());
        }
        let service = word(&mut rng, "asks-redis-");
        let plan: Vec<Call> = calls.iter().map(|(call, _)| call.clone()).collect();
        let done = call(library, &service, server.at(), &plan).unwrap();
        assert_eq!(done.len(), if library.is_silent() { 0 } else { calls.len() }, "{library:?}");
        let mut expected: BTreeMap<(String, &str), usize> = BTreeMap::new();
        for (call, code) in &calls {
            *expected.entry((call.words[0].to_uppercase(), *code)).or_default() += 1;
        }
        let count = |spans: &[Span]| {
            let mut seen: BTreeMap<(String, String), usize> = BTreeMap::new();
            for span in databases(spans, &service) {
                let text = |name| span.text(name).unwrap_or_default().to_owned();
                *seen.entry((text("db.operation.name"), text("db.response.status_code"))).or_default() += 1;
            }
            seen
        };
        // Libraries say more than they are asked to: how they are called, and which protocol they want.
        let is_right = |spans: &[Span]| {
            let seen = count(spans);
            expected.iter().all(|((operation, code), n)| {
                seen.get(&(operation.clone(), (*code).to_owned())).is_some_and(|seen| seen == n)
            })
        };
        let spans = agent.spans_until(gate::PATIENCE, is_right).unwrap();
        assert!(is_right(spans), "{library:?}: {:?} instead of {expected:?}", count(spans));
        let lost = agent.metric_value("obi_lost_total", &[("service_name", &service)]).unwrap();
        assert!(lost < 1.0, "{library:?}: {lost} lost");
    }
    assert_no_secret(&mut agent);
}

/// Texts may stay out, and a database's own process has spans when they are wanted: they are in no metric of clients.
#[test]
fn postgres_without_text() {
    let mut rng = seeded("PostgreSQL without text");
    let server = Server::postgres().unwrap();
    let config =
        Config::default().set("protocol", "databases", json!({"query_text": false, "server_spans": true}));
    let mut agent = Agent::start(config).unwrap();
    let service = word(&mut rng, "asks-postgres-");
    let calls =
        [Call { text: "SELECT count(*) FROM pg_class WHERE oid > 16384".to_owned(), ..Call::default() }];
    call(Library::Psycopg, &service, server.at(), &calls).unwrap();
    let is_call = |span: &Span| span.text("db.query.summary") == Some("SELECT pg_class");
    let both = |spans: &[Span]| {
        [Kind::Client, Kind::Server]
            .iter()
            .all(|kind| spans.iter().any(|span| span.kind == *kind && is_call(span)))
    };
    let spans = agent.spans_until(gate::PATIENCE, both).unwrap();
    assert!(both(spans), "{spans:?}");
    assert!(spans.iter().all(|span| span.text("db.query.text").is_none()));
    let (client, server) = (
        spans.iter().find(|span| span.kind == Kind::Client && is_call(span)).unwrap(),
        spans.iter().find(|span| span.kind == Kind::Server && is_call(span)).unwrap(),
    );
    assert_eq!(client.service.name, service);
    assert!(server.duration_seconds <= client.duration_seconds, "{server:?} {client:?}");
    let metrics = agent.metrics().unwrap();
    let calls = "db_client_operation_duration_seconds_count";
    assert!((metrics.sum(calls, &[("db_query_summary", "SELECT pg_class")]) - 1.0).abs() < 0.5);
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// As fast as it goes, commands are spans or counted as lost, and none is wrong.
    #[test]
    fn pipelines_at_full_speed() {
        let server = Server::redis().unwrap();
        for set in [HookSet::Socket, HookSet::Syscall] {
            let agent = Agent::start(
                Config::default().set("capture", "hooks", set.name()).set("web", "spans", 1_000).set(
                    "web",
                    "span_bytes",
                    1 << 20,
                ),
            )
            .unwrap();
            let service = "redis-benchmark";
            let mut command = Command::new("redis-benchmark");
            command.args([
                "-p",
                &server.port.to_string(),
                "-n",
                "100000",
                "-P",
                "50",
                "-c",
                "10",
                "-q",
                "-t",
                "set,get",
            ]);
            process::run(service, command, patience(gate::PATIENCE * 4)).unwrap();
            // It asks twice for a setting, before the first test.
            let expected = 200_002.0;
            let counted = |metrics: &integration::exposition::Exposition| {
                metrics.sum("obi_spans_total", &[("service_name", service)])
                    + metrics.sum("obi_lost_total", &[("service_name", service)])
            };
            let metrics =
                agent.metrics_until(gate::PATIENCE, |metrics| counted(metrics) >= expected).unwrap();
            let spans = metrics.sum("obi_spans_total", &[("service_name", service)]);
            assert!((counted(&metrics) - expected).abs() < 0.5, "{set}: {} of {expected}", counted(&metrics));
            assert!(spans >= 1_000.0, "{set}: {spans} spans of {expected} calls");
            let calls = "db_client_operation_duration_seconds_count";
            let right = metrics.sum(calls, &[("service_name", service), ("error_type", "")]);
            assert!((right - spans).abs() < 0.5, "{set}: {right} of {spans} without an error");
            agent.stop().unwrap();
        }
    }
}
