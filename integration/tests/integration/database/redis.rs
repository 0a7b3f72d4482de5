//! Redis besides one command and one reply: transactions, lines, pushes of RESP 3, commands that wait.

use std::collections::BTreeMap;

use integration::agent::{Agent, Config};
use integration::database::{Call, Library, Server, call};
use integration::seed::seeded;
use integration::span::Span;

use super::{SECRET, assert_no_secret, databases, is_outside, word};
use crate::gate;

/// A command as an array, with `{k}`, a key, and `{v}`, a value, in it.
fn array(secrets: &[String; 2], words: &str) -> Call {
    let words = fill(secrets, words).split(' ').map(str::to_owned).collect();
    Call { words, ..Call::default() }
}

/// The same as a line.
fn line(secrets: &[String; 2], text: &str) -> Call {
    Call { text: fill(secrets, text), ..Call::default() }
}

fn fill([key, value]: &[String; 2], text: &str) -> String {
    text.replace("{k}", key).replace("{v}", value)
}

fn secrets(rng: &mut fastrand::Rng) -> [String; 2] {
    [word(rng, SECRET), word(rng, SECRET)]
}

/// Over one connection, one after the other: the spans are the calls in their order, each in the time that it took.
#[track_caller]
fn check_in_order(agent: &mut Agent, server: &Server, calls: &[(Call, &str)]) {
    let service = word(&mut fastrand::Rng::new(), "asks-redis-");
    let plan: Vec<Call> = calls.iter().map(|(call, _)| call.clone()).collect();
    let done = call(Library::RedisSocket, &service, server.at(), &plan).unwrap();
    let expected: Vec<(String, String)> = calls
        .iter()
        .map(|(call, code)| {
            let word = call.words.first().map_or_else(|| call.text.split(' ').next(), |word| Some(word));
            (word.unwrap_or_default().to_uppercase(), (*code).to_owned())
        })
        .collect();
    let codes: Vec<_> = done.iter().map(|done| &*done.code).collect();
    assert_eq!(codes, calls.iter().map(|(_, code)| *code).collect::<Vec<_>>(), "as the program has it");
    let seen = |spans: &[Span]| -> Vec<(String, String)> {
        let mut spans = databases(spans, &service);
        spans.sort_by_key(|span| span.start_unix_nano.get());
        let text = |span: &Span, name| span.text(name).unwrap_or_default().to_owned();
        let pair = |span: &&Span| (text(span, "db.operation.name"), text(span, "db.response.status_code"));
        spans.iter().map(pair).collect()
    };
    let spans = agent.spans_until(gate::PATIENCE, |spans| seen(spans).len() >= expected.len()).unwrap();
    assert_eq!(seen(spans), expected);
    let mut spans = databases(spans, &service);
    spans.sort_by_key(|span| span.start_unix_nano.get());
    let outside: Vec<_> = spans.iter().zip(&done).filter_map(|(span, done)| is_outside(span, done)).collect();
    assert!(outside.is_empty(), "{}", outside.join("\n"));
    let lost = agent.metric_value("obi_lost_total", &[("service_name", &service)]).unwrap();
    assert!(lost < 1.0, "{lost} lost");
}

/// What libraries say by themselves: as many spans as commands that the server has counted.
#[test]
fn as_the_server_counts() {
    let mut rng = seeded("as Redis counts");
    let mut agent = Agent::start(Config::default()).unwrap();
    for library in [Library::RedisPyTransaction, Library::RedisPyPushes] {
        let server = Server::redis().unwrap();
        let mut calls = Vec::new();
        for _ in 0..20 {
            let s = secrets(&mut rng);
            let words = ["SET {k} {v}", "GET {k}", "GET {k}", "SET {k} b", "PUBLISH news {v}", "GET {k}"];
            calls.extend(words.map(|words| array(&s, words)));
        }
        let before = server.commands().unwrap();
        let service = word(&mut rng, "asks-redis-");
        let done = call(library, &service, server.at(), &calls).unwrap();
        assert_eq!(done.len(), calls.len(), "{library:?}");
        // Whether the server is ready, and what it has counted, is asked over connections of their own.
        let asked_by_us = ["INFO", "PING", "COMMAND"];
        let expected: BTreeMap<String, usize> = server
            .commands()
            .unwrap()
            .into_iter()
            .filter(|(word, _)| !asked_by_us.contains(&&**word))
            .map(|(word, n)| (word.clone(), n - before.get(&word).unwrap_or(&0)))
            .collect();
        let count = |spans: &[Span]| {
            let mut seen: BTreeMap<String, usize> = BTreeMap::new();
            // What the server does not know, it does not count.
            for span in databases(spans, &service).iter().filter(|span| span.status != "error") {
                *seen.entry(span.text("db.operation.name").unwrap_or_default().to_owned()).or_default() += 1;
            }
            seen
        };
        let spans = agent.spans_until(gate::PATIENCE, |spans| count(spans) == expected).unwrap();
        assert_eq!(count(spans), expected, "{library:?}");
        let lost = agent.metric_value("obi_lost_total", &[("service_name", &service)]).unwrap();
        assert!(lost < 1.0, "{library:?}: {lost} lost");
    }
    assert_no_secret(&mut agent);
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// A command may take as long as it was asked to wait.
    #[test]
    fn commands_that_wait() {
        let mut rng = seeded("commands that wait");
        let server = Server::redis().unwrap();
        let mut agent = Agent::start(Config::default()).unwrap();
        let s = secrets(&mut rng);
        let calls = [
            (array(&s, "BLPOP {k} 0.4"), ""),
            (array(&s, "RPUSH {k} {v}"), ""),
            (array(&s, "BLPOP {k} 0.4"), ""),
            (array(&s, "BLMOVE {k} {k}b LEFT RIGHT 0.4"), ""),
            (array(&s, "PING"), ""),
        ];
        check_in_order(&mut agent, &server, &calls);
        let is_long = |span: &&&Span| span.duration_seconds >= 0.4;
        let spans = agent.spans().unwrap();
        let spans: Vec<&Span> =
            spans.iter().filter(|span| span.service.name.starts_with("asks-redis-")).collect();
        let long: Vec<_> = spans.iter().filter(is_long).map(|span| span.text("db.operation.name")).collect();
        assert_eq!(long, [Some("BLPOP"), Some("BLMOVE")]);
        assert_no_secret(&mut agent);
    }

    /// A command may be a line, behind one that is not.
    #[test]
    fn lines() {
        let mut rng = seeded("lines of Redis");
        let server = Server::redis().unwrap();
        let mut agent = Agent::start(Config::default()).unwrap();
        let s = secrets(&mut rng);
        let mut calls = vec![(array(&s, "PING"), "")];
        for _ in 0..10 {
            calls.extend([
                (line(&s, "PING"), ""),
                (line(&s, "set {k} {v}"), ""),
                (line(&s, "get {k}"), ""),
                (array(&s, "GET {k}"), ""),
                (line(&s, "LPUSH {k} {v} {v} {v}"), "WRONGTYPE"),
                (line(&s, "ECHO \"{v} {k}\""), ""),
            ]);
        }
        check_in_order(&mut agent, &server, &calls);
        assert_no_secret(&mut agent);
    }

    /// Pushes answer subscriptions, and nothing else.
    #[test]
    fn pushes() {
        let mut rng = seeded("pushes of Redis");
        let server = Server::redis().unwrap();
        let mut agent = Agent::start(Config::default()).unwrap();
        let s = secrets(&mut rng);
        let mut calls = vec![(array(&s, "HELLO 3"), ""), (array(&s, "CLIENT TRACKING ON"), "")];
        for _ in 0..5 {
            calls.extend([
                (array(&s, "SET {k} {v}"), ""),
                (array(&s, "GET {k}"), ""),
                (array(&s, "SET {k} b"), ""), // the server says that it changed
                (array(&s, "SUBSCRIBE {k}"), ""),
                (array(&s, "PUBLISH {k} {v}"), ""), // and its message comes
                (array(&s, "LPUSH {k} {v}"), "WRONGTYPE"),
                (array(&s, "HGETALL {k}x"), ""),
                (array(&s, "PSUBSCRIBE {k}*"), ""),
                (array(&s, "PUBLISH {k} {v}"), ""),
                (array(&s, "UNSUBSCRIBE {k}"), ""),
                (array(&s, "PUNSUBSCRIBE {k}*"), ""),
                (array(&s, "GET {k}"), ""),
            ]);
        }
        check_in_order(&mut agent, &server, &calls);
        assert_no_secret(&mut agent);
    }

    /// What is queued is answered at once, and EXEC holds the work; a command that is refused spoils the transaction.
    #[test]
    fn transactions() {
        let mut rng = seeded("transactions of Redis");
        let server = Server::redis().unwrap();
        let mut agent = Agent::start(Config::default()).unwrap();
        let s = secrets(&mut rng);
        let calls = [
            (array(&s, "PING"), ""),
            (array(&s, "WATCH {k}"), ""),
            (array(&s, "MULTI"), ""),
            (array(&s, "SET {k} {v}"), ""),
            (array(&s, "LPUSH {k} {v} a b"), ""), // fails inside the answer of EXEC
            (array(&s, "GET {k}"), ""),
            (array(&s, "EXEC"), ""),
            (array(&s, "MULTI"), ""),
            (array(&s, "GET {k} {v}"), "ERR"),
            (array(&s, "EXEC"), "EXECABORT"),
            (array(&s, "MULTI"), ""),
            (array(&s, "MULTI"), "ERR"),
            (array(&s, "SET {k} {v}"), ""),
            (array(&s, "DISCARD"), ""),
            (array(&s, "LPUSH {k} {v}"), "WRONGTYPE"),
            (array(&s, "EVAL return{redis.call('get',KEYS[1]),{1,{2,'a'}}} 1 {k}"), ""),
        ];
        check_in_order(&mut agent, &server, &calls);
        assert_no_secret(&mut agent);
    }
}
