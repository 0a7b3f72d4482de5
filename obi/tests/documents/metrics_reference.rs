//! `docs/metrics.md`: the metrics of spans, made of the one table that the exporters walk along.
//!
//! And of `docs/telemetry.md` the table of reasons of losses, which is written by hand: it has them all.
//!
//! In: [`FAMILIES`]. Out: the file, with `UPDATE_REFERENCE=1` (`make reference`); else a failure where it is out of
//! date.

use std::fmt::Write as _;
use std::path::Path;

use obi::protocol::loss::{OF_PROTOCOL, kernel_reason};
use obi::red::{FAMILIES, Family, Instrument};

const HEAD: &str = "\
<!-- Made by `make reference` from obi/src/red/family.rs. Do not edit. -->
# Metrics of spans

Each is counted once, from every span, sampled or not, and shown at `/metrics` and over OTLP.
A histogram is `_bucket`, `_sum` and `_count` in Prometheus's text, a native histogram beside that in protobuf; a counter ends in `_total`.
Every series has `service_name` and `service_namespace` too, over OTLP as attributes of the resource.
Edges of the service graph (`traces_service_graph_…`) have neither in Prometheus; over OTLP their resource is the server, or the client of a virtual one.
`otel_metric_overflow` is there only on series that stand for what found no room (`metrics.series_limit`).

| Prometheus | OTLP | unit | type | labels | what it is |
|---|---|---|---|---|---|
";

const TAIL: &str = "
`target_info` has the other attributes of each service's resource.
What the agent says about itself: [docs/telemetry.md](telemetry.md#the-agent-about-itself).
";

fn row(family: &Family) -> String {
    let (kind, suffix) = match family.instrument {
        Instrument::Histogram => ("histogram", ""),
        Instrument::Counter => ("counter", "_total"),
        Instrument::Gauge => ("gauge", ""),
    };
    let labels: Vec<_> = family.labels.iter().map(|label| format!("`{}`", label.prometheus)).collect();
    let Family { name, prometheus, unit, help, .. } = family;
    let unit = if unit.is_empty() { String::new() } else { format!("`{unit}`") };
    format!("| `{prometheus}{suffix}` | `{name}` | {unit} | {kind} | {} | {help} |", labels.join(" "))
}

#[test]
fn the_reference_is_up_to_date() {
    let mut text = HEAD.to_owned();
    for family in FAMILIES {
        writeln!(text, "{}", row(family)).expect("writing to a string cannot fail");
    }
    text.push_str(TAIL);
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/metrics.md");
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&file, &text).expect("docs/ can be written");
    }
    let written = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(written == text, "docs/metrics.md is out of date: run `make reference`");
}

#[test]
fn every_reason_of_a_loss_has_a_row() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/telemetry.md");
    let text = std::fs::read_to_string(&file).expect("docs/telemetry.md can be read");
    let kernel = (1..obi_ebpf::LOSS_REASONS).map(kernel_reason).chain(["hook_missed"]);
    let rows =
        kernel.map(|reason| ("kernel", reason)).chain(OF_PROTOCOL.iter().map(|reason| ("protocol", *reason)));
    for (stage, reason) in rows {
        assert!(
            text.contains(&format!("| `{stage}` | `{reason}` | ")),
            "docs/telemetry.md has no row for {reason}"
        );
    }
}
