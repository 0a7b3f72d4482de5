//! Statements, and what may be shown of them.

use super::Statement;
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    name: String,
    input: Input,
    expected: Expected,
}

#[derive(Deserialize)]
struct Input {
    #[serde(rename = "db.system.name")]
    system: String,
    query: String,
}

#[derive(Deserialize)]
struct Expected {
    #[serde(rename = "db.query.text")]
    texts: Vec<String>,
    #[serde(rename = "db.query.summary")]
    summary: String,
}

/// The cases of the semantic conventions themselves (docs/non-normative/database-test-cases).
#[test]
fn cases_of_the_semantic_conventions() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("cases.json")).unwrap();
    assert_eq!(cases.len(), 24);
    for Case { name, input, expected } in cases {
        assert_eq!(input.system, "other_sql");
        let read = Statement::read(&input.query);
        assert!(expected.texts.contains(&read.text), "{name}: {:?}", read.text);
        assert_eq!(read.summary, expected.summary, "{name}");
    }
}

#[test]
fn texts() {
    let check = |sql: &str, expected: &str| assert_eq!(Statement::read(sql).text, expected, "{sql}");
    check("SELECT $1::int, E'a\\'b', x'ff', U&'d', $$s$$, $t$ $$ 's' $t$", "SELECT $1::int, ?, ?, ?, ?, ?");
    check("SELECT a-1, b - 2, (c)-3, -4", "SELECT a-?, b - ?, (c)-?, ?");
    check("SELECT \"a b\".\"c''d\" FROM t WHERE x = 'cut of", "SELECT \"a b\".\"c''d\" FROM t WHERE x = ?");
    check("SELECT 1 /* cut of", "SELECT ?");
    check("SELECT /* a /* b */ c */ 1", "SELECT  ?");
    check("SELECT \"cut of", "SELECT");
    check("SELECT 12abc, 0x1F, 1_000, 1e5", "SELECT ?, ?, ?, ?");
    check("CREATE USER u PASSWORD 'secret'", "CREATE USER u PASSWORD ?");
    check("SELECT :name, ?, a::text", "SELECT :name, ?, a::text");
    check("", "");
}

#[test]
fn summaries() {
    let check = |sql: &str, expected: &str| assert_eq!(Statement::read(sql).summary, expected, "{sql}");
    check("select extract(year from born) from people", "select people");
    check("SELECT substring(a FROM 2) FROM t WHERE a IS DISTINCT FROM b", "SELECT t");
    check("SELECT * FROM generate_series(1, 5)", "SELECT");
    check("SELECT * FROM t FOR UPDATE", "SELECT t");
    check("INSERT INTO t(a) VALUES (1) ON CONFLICT DO UPDATE SET a = 2", "INSERT t");
    check("WITH x AS (SELECT 1 FROM a) UPDATE b SET c = 1 FROM x", "SELECT a UPDATE b x");
    check("DELETE FROM ONLY public.t USING u WHERE t.a = u.a", "DELETE public.t u");
    check("UPDATE t SET a = 1", "UPDATE t");
    check("BEGIN", "BEGIN");
    check("SET search_path TO x", "SET");
    check("CREATE UNIQUE INDEX IF NOT EXISTS i ON t (a)", "CREATE INDEX i");
    check("TRUNCATE a", "TRUNCATE a");
    check("CALL p(1)", "CALL p");
    check("COPY t FROM STDIN", "COPY t");
    check("SELECT 1; SELECT 2 FROM b", "SELECT SELECT b");
    check("/* only */", "");
    check("EXPLAIN ANALYZE SELECT * FROM t", "EXPLAIN ANALYZE SELECT t");
    check("SELECT a FROM t UNION ALL SELECT a FROM u", "SELECT t SELECT u");
    check("TABLE t", "");
}

#[test]
fn operation_and_collection() {
    let check = |sql: &str, operation: &str, collection: &str| {
        let read = Statement::read(sql);
        assert_eq!((read.operation, read.collection.as_str()), (operation, collection), "{sql}");
    };
    check("select * from t", "SELECT", "t");
    check("select * from t, u", "SELECT", "");
    check("insert into t select * from u", "", "");
    check("create table t (a int)", "CREATE TABLE", "t");
}

#[test]
fn a_summary_is_never_cut_inside_a_name() {
    let tables: Vec<String> = (0..60).map(|nth| format!("table_{nth}")).collect();
    let read = Statement::read(&format!("SELECT * FROM {}", tables.join(", ")));
    assert!((240..=255).contains(&read.summary.len()), "{}", read.summary);
    assert!(read.summary.split(' ').skip(1).all(|name| tables.iter().any(|table| table == name)));
}

proptest! {
    #[test]
    fn no_literal_is_left(
        word in "zq[a-z]{8}",
        pieces in proptest::collection::vec("[a-z ,()=*.]{0,12}|'|\"|\\$\\$|--|/\\*|\\*/|\n|E'|\\\\|[0-9]", 0..20),
        cut in 0usize..200,
    ) {
        let quoted = format!("SELECT a FROM t WHERE b = '{word}' AND c = $q${word}$q$ AND d = E'\\'{word}' AND e = 1{word}");
        let read = Statement::read(&quoted[..cut.min(quoted.len())]);
        prop_assert!(!read.text.contains(&word) && !read.summary.contains(&word));
        // Whatever the text is, reading it ends, and the summary is bounded.
        let any = pieces.concat();
        let read = Statement::read(&any);
        prop_assert!(read.summary.len() <= 255);
    }

    #[test]
    fn any_text(sql in "\\PC{0,200}") {
        let read = Statement::read(&sql);
        prop_assert!(read.text.len() <= sql.len());
    }
}
