//! PostgreSQL besides one question and one answer: COPY, cancelled calls, skipped ones, transactions in one text,
//! notifications, batches.

use integration::agent::{Agent, Config};
use integration::database::{Call, Library, Server, call};
use integration::seed::seeded;
use integration::span::Span;

use super::{SECRET, SKIPPED, assert_no_secret, compare, databases, has_word, word};
use crate::gate;

/// A call, the word that its span is found by, the code of its error.
type Asked = (Call, String, &'static str);

/// A call whose text has `{id}` where its own word is to be, and `{secret}` for a literal.
fn ask(rng: &mut fastrand::Rng, text: &str, values: &[&str], code: &'static str) -> Asked {
    let id = word(rng, "call_");
    of(rng, &id, text, values, code)
}

/// The same with a word that other calls have, too.
fn of(rng: &mut fastrand::Rng, id: &str, text: &str, values: &[&str], code: &'static str) -> Asked {
    let text = text.replace("{id}", id).replace("{secret}", &word(rng, SECRET));
    let values = values.iter().map(|value| (*value).to_owned()).collect();
    (Call { text, values, words: Vec::new() }, id.to_owned(), code)
}

/// A table, made by calls that are not looked at.
fn table(server: &Server, rng: &mut fastrand::Rng, kind: &str) -> String {
    let id = word(rng, "call_");
    let make = Call { text: format!("CREATE TABLE {id} (a {kind})"), ..Call::default() };
    call(Library::Psycopg, "prepares", server.at(), &[make]).unwrap();
    id
}

/// Makes the calls: each is one span, in the time that it took, with the code that it had, and nothing else is.
#[track_caller]
fn check(agent: &mut Agent, server: &Server, library: Library, calls: &[Asked]) {
    let service = word(&mut fastrand::Rng::new(), "asks-postgres-");
    let plan: Vec<Call> = calls.iter().map(|(call, ..)| call.clone()).collect();
    let done = call(library, &service, server.at(), &plan).unwrap();
    let n_reported = plan.iter().filter(|call| !call.text.is_empty()).count();
    assert_eq!(done.len(), n_reported, "{library:?}");
    let wrong = |spans: &[Span]| {
        let spans = databases(spans, &service);
        let mut wrong = compare(library, calls, &done, &spans);
        // JDBC sets something first.
        let is_other = |span: &&&Span| {
            !span.text("db.query.text").is_some_and(|text| text.contains("call_"))
                && span.text("db.operation.name") != Some("SET")
        };
        let others: Vec<_> = spans.iter().filter(is_other).collect();
        let n_others = plan.iter().filter(|call| !call.text.is_empty() && !has_word(call)).count();
        if others.len() != n_others {
            wrong.push(format!("{library:?}: {n_others} calls without a word, but {others:?}"));
        }
        wrong
    };
    let spans = agent.spans_until(gate::PATIENCE, |spans| wrong(spans).is_empty()).unwrap();
    let wrong = wrong(spans);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let lost = agent.metric_value("obi_lost_total", &[("service_name", &service)]).unwrap();
    assert!(lost < 1.0, "{library:?}: {lost} lost");
}

/// Behind an error the server skips what comes, up to the Sync.
#[test]
fn errors_in_a_pipeline() {
    let mut rng = seeded("errors in a pipeline");
    let server = Server::postgres().unwrap();
    let mut agent = Agent::start(Config::default()).unwrap();
    let sync = || (Call::default(), String::new(), "");
    let value = word(&mut rng, SECRET);
    let mut calls = Vec::new();
    for _ in 0..20 {
        for failing in [("SELECT 1 / 0 AS {id}", "22012"), ("SELECT * FROM {id} WHERE a = $1", "42P01")] {
            let values = if failing.0.contains('$') { vec![&*value] } else { Vec::new() };
            for _ in 0..rng.usize(0..3) {
                calls.push(ask(&mut rng, "SELECT '{secret}', $1::text AS {id}", &[&value], ""));
            }
            calls.push(ask(&mut rng, failing.0, &values, failing.1));
            for _ in 0..rng.usize(0..3) {
                calls.push(ask(&mut rng, "SELECT '{secret}', $1::text AS {id}", &[&value], SKIPPED));
            }
            calls.push(sync());
        }
    }
    calls.extend([ask(&mut rng, "SELECT '{secret}' AS {id}", &[], ""), sync()]);
    check(&mut agent, &server, Library::LibpqPipeline, &calls);
    assert_no_secret(&mut agent);
}

#[test]
fn jdbc() {
    let mut rng = seeded("JDBC");
    let server = Server::postgres().unwrap();
    let mut agent = Agent::start(Config::default()).unwrap();
    for library in [Library::JdbcSimple, Library::Jdbc] {
        let (often, fails_often) = (word(&mut rng, "call_"), word(&mut rng, "call_"));
        let mut calls = Vec::new();
        for _ in 0..12 {
            let value = word(&mut rng, SECRET);
            calls.push(of(&mut rng, &often, "SELECT $1::text AS {id}", &[&value], ""));
            calls.push(ask(&mut rng, "SELECT '{secret}' AS {id}, $1::text", &[&value], ""));
            calls.push(of(&mut rng, &fails_often, "SELECT $1::integer AS {id}", &[&value], "22P02"));
            calls.push(ask(&mut rng, "SELECT * FROM {id} WHERE a = $1", &[&value], "42P01"));
        }
        check(&mut agent, &server, library, &calls);
    }
    assert_no_secret(&mut agent);
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// Each row of a batch is a call; those behind an error are not run.
    #[test]
    fn jdbc_batches() {
        let mut rng = seeded("batches of JDBC");
        let server = Server::postgres().unwrap();
        let mut agent = Agent::start(Config::default()).unwrap();
        let (texts, numbers, behind) = (
            table(&server, &mut rng, "text"),
            table(&server, &mut rng, "integer"),
            table(&server, &mut rng, "text"),
        );
        let mut calls = Vec::new();
        for _ in 0..40 {
            let value = word(&mut rng, SECRET);
            calls.push(of(&mut rng, &texts, "INSERT INTO {id} (a) VALUES ($1)", &[&value], ""));
        }
        for nth in 0..12 {
            let value = if nth == 7 { word(&mut rng, SECRET) } else { nth.to_string() };
            let code = ["", "22P02", SKIPPED][usize::from(nth >= 7) + usize::from(nth > 7)];
            calls.push(of(
                &mut rng,
                &numbers,
                "INSERT INTO {id} (a) VALUES ($1::text::integer)",
                &[&value],
                code,
            ));
        }
        for _ in 0..3 {
            let value = word(&mut rng, SECRET);
            calls.push(of(&mut rng, &behind, "INSERT INTO {id} (a) VALUES ($1)", &[&value], ""));
        }
        check(&mut agent, &server, Library::JdbcBatch, &calls);
        assert_no_secret(&mut agent);
    }

    #[test]
    fn cancelled_calls() {
        let mut rng = seeded("cancelled calls");
        let server = Server::postgres().unwrap();
        let mut agent = Agent::start(Config::default()).unwrap();
        let mut calls = Vec::new();
        for _ in 0..2 {
            let value = word(&mut rng, SECRET);
            calls.push(ask(&mut rng, "SELECT pg_sleep(30), '{secret}' AS {id}", &[], "57014"));
            calls.push(ask(&mut rng, "SELECT pg_cancel_backend($1) AS {id}", &[], ""));
            calls.push(ask(&mut rng, "SELECT pg_sleep(30), $1::text AS {id}", &[&value], "57014"));
            calls.push(ask(&mut rng, "", &[], "")); // a cancel request, which is no call
        }
        check(&mut agent, &server, Library::PsycopgCancel, &calls);
        assert_no_secret(&mut agent);
    }

    #[test]
    fn copies() {
        let mut rng = seeded("COPY");
        let server = Server::postgres().unwrap();
        let mut agent = Agent::start(Config::default()).unwrap();
        let rows: Vec<String> = (0..4_000).map(|_| word(&mut rng, SECRET)).collect();
        let rows: Vec<&str> = rows.iter().map(String::as_str).collect();
        for library in [Library::PsycopgCopy, Library::LibpqCopy] {
            let (texts, numbers, abandoned) = (
                table(&server, &mut rng, "text"),
                table(&server, &mut rng, "integer"),
                table(&server, &mut rng, "text"),
            );
            let out = "COPY (SELECT '{secret}' AS {id} FROM generate_series(1, 5000)) TO STDOUT";
            let mut calls = vec![
                of(&mut rng, &texts, "COPY {id} FROM STDIN", &rows, ""),
                ask(&mut rng, "SELECT '{secret}' AS {id}", &[], ""),
                ask(&mut rng, out, &[], ""),
                of(&mut rng, &numbers, "COPY {id} FROM STDIN", &rows[..3], "22P02"),
                ask(&mut rng, "SELECT '{secret}' AS {id}", &[], ""),
            ];
            if library == Library::PsycopgCopy {
                calls.push(of(&mut rng, &abandoned, "COPY {id} FROM STDIN", &[rows[0], "abandon"], "57014"));
            }
            calls.extend([
                ask(&mut rng, "COPY (SELECT 1 / 0 AS {id}) TO STDOUT", &[], "22012"),
                ask(&mut rng, "SELECT '{secret}' AS {id}", &[], ""),
            ]);
            check(&mut agent, &server, library, &calls);
        }
        assert_no_secret(&mut agent);
    }

    #[test]
    fn notifications() {
        let mut rng = seeded("notifications");
        let server = Server::postgres().unwrap();
        let mut agent = Agent::start(Config::default()).unwrap();
        let channel = word(&mut rng, "call_");
        let mut calls = vec![of(&mut rng, &channel, "LISTEN {id}", &[], "")];
        for _ in 0..10 {
            calls.push(of(&mut rng, &channel, "NOTIFY {id}, '{secret}'", &[], ""));
            calls.push(ask(&mut rng, "SELECT '{secret}' AS {id}", &[], ""));
        }
        calls.push(of(&mut rng, &channel, "UNLISTEN {id}", &[], ""));
        check(&mut agent, &server, Library::PsycopgNotify, &calls);
        assert_no_secret(&mut agent);
    }

    /// What is asked in one text is one call.
    #[test]
    fn transactions_in_one_text() {
        let mut rng = seeded("transactions in one text");
        let server = Server::postgres().unwrap();
        let mut agent = Agent::start(Config::default()).unwrap();
        for library in [Library::Psycopg, Library::NodePg] {
            let table = table(&server, &mut rng, "text");
            let insert = format!(
                "BEGIN; INSERT INTO {table} VALUES ('{{secret}}'), ('b'); SELECT 1 AS {{id}}; COMMIT"
            );
            let calls = [
                ask(&mut rng, &insert, &[], ""),
                ask(&mut rng, "BEGIN; SELECT 1 / 0 AS {id}, '{secret}'; COMMIT", &[], "22012"),
                ask(&mut rng, "/* {secret} */ ROLLBACK", &[], ""),
                ask(&mut rng, "BEGIN; SELECT '{secret}' AS {id}", &[], ""),
                ask(&mut rng, "SELECT FROM {id}; COMMIT", &[], "42P01"),
                ask(&mut rng, "SELECT '{secret}' AS {id}", &[], "25P02"),
                ask(&mut rng, "/* {secret} */ ROLLBACK", &[], ""),
                ask(&mut rng, "SELECT '{secret}' AS {id}", &[], ""),
            ];
            check(&mut agent, &server, library, &calls);
        }
        assert_no_secret(&mut agent);
    }
}
