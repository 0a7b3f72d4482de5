//! Rows of PostgreSQL: what the kernel programs take for each 64 KiB of them, small rows beside large ones.
//!
//! In: an effort. Out: rows of the table, by the side that is watched. Refuses to know what a call costs: of each
//! answer there is one, and 100 and more times 64 KiB.

use anyhow::bail;
use integration::agent::Agent;
use integration::database::{Call, Library, Server, call};
use integration::seed::note;
use serde_json::json;

use crate::Effort;
use crate::nginx::{settled, watching};
use crate::table::{Row, Table};

const KIB_64: f64 = 65_536.0;
const CLIENT: &str = "asks-for-rows";
const SERVER: &str = "postgres";
/// Of a row with one column: type, length, number of columns, length of the column.
const HEADER_BYTES: usize = 11;
/// Answers that a figure is the median of.
const TIMES: usize = 5;

/// Adds the rows.
pub(crate) fn measure(_: Effort, table: &mut Table) -> anyhow::Result<()> {
    let server = Server::postgres()?;
    for (doing, service) in [("received", CLIENT), ("sent", SERVER)] {
        note(&format!("rows of PostgreSQL that are {doing}"));
        // A database's own side is followed only when it has spans.
        let config = watching(&[json!({"service": service})], true);
        let agent =
            Agent::start(config.set("protocol", "databases", json!({"server_spans": service == SERVER})))?;
        for (n_rows, bytes, bar) in [(200_000, 38, "≤ 40 µs"), (2_000, 4_096, "")] {
            let answer = Answer { n_rows, bytes };
            answer.micros(&agent, &server)?; // tables and caches first
            let times: anyhow::Result<Vec<f64>> =
                (0..TIMES).map(|_| answer.micros(&agent, &server)).collect();
            let what = format!("kernel programs per 64 KiB {doing} in rows of {bytes} bytes");
            table.add(Row::spread_of(&what, &times?, "µs", bar));
        }
    }
    Ok(())
}

/// Rows of one size.
#[derive(Debug, Clone, Copy)]
struct Answer {
    n_rows: usize,
    /// Of a row as it is sent.
    bytes: usize,
}

impl Answer {
    /// Run time of all kernel programs for 64 KiB of the answer, microseconds.
    fn micros(self, agent: &Agent, server: &Server) -> anyhow::Result<f64> {
        let Self { n_rows, bytes } = self;
        let text = format!("SELECT repeat('x', {}) FROM generate_series(1, {n_rows})", bytes - HEADER_BYTES);
        let before = settled(agent)?.sum("obi_bpf_program_run_seconds_total", &[]);
        call(Library::Psql, CLIENT, server.at(), &[Call { text, ..Call::default() }])?;
        let taken = settled(agent)?.sum("obi_bpf_program_run_seconds_total", &[]) - before;
        if taken <= 0.0 {
            bail!("obi_bpf_program_run_seconds_total does not grow: statistics are off in this kernel");
        }
        #[expect(clippy::cast_precision_loss, reason = "sizes of a benchmark")]
        let moved = (n_rows * bytes) as f64 / KIB_64;
        Ok(taken * 1e6 / moved)
    }
}
