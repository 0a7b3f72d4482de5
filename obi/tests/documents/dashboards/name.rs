//! Every metric that may stand in an expression, and its labels.
//!
//! In: the table of families, and lists of what the agent, its objectives and its rules add. Out: look-ups. The lists
//! are held against a running agent and a real Prometheus by `integration`'s `dashboards`.

use std::sync::LazyLock;

use obi::red::{FAMILIES, Instrument};

use Instrument::{Counter, Gauge};

/// A metric as Prometheus has it.
#[derive(Debug, Clone)]
pub(crate) struct Metric {
    /// Without `_bucket` and the like, with `_total`.
    pub(crate) name: String,
    pub(crate) instrument: Instrument,
    pub(crate) labels: Vec<&'static str>,
}

/// The agent about itself, and objectives on one machine.
const AGENT: &[(&str, Instrument, &[&str])] = &[
    ("obi_received_events_total", Counter, &["stage"]),
    ("obi_lost_total", Counter, &["stage", "reason", "side", "service_name"]),
    ("obi_uncovered_connections_total", Counter, &["reason"]),
    ("obi_uncovered_connections_read_later_total", Counter, &["reason"]),
    ("obi_unknown_parents_total", Counter, &["reason"]),
    ("obi_lost_process_events_total", Counter, &[]),
    ("obi_late_processes_total", Counter, &[]),
    ("obi_spans_total", Counter, &["side", "service_name"]),
    ("obi_truncated_heads_total", Counter, &["side", "service_name"]),
    ("obi_parents_total", Counter, &["evidence", "service_name"]),
    ("obi_series_limit", Gauge, &[]),
    ("obi_series", Gauge, &["kind"]),
    ("obi_folded_spans_total", Counter, &["service_name"]),
    ("obi_watched_processes", Gauge, &[]),
    ("obi_hook_info", Gauge, &["set"]),
    ("obi_bpf_map_bytes", Gauge, &["subsystem"]),
    ("obi_bpf_program_run_seconds_total", Counter, &["program"]),
    ("obi_bpf_program_runs_total", Counter, &["program"]),
    ("obi_bpf_program_misses_total", Counter, &["program"]),
    ("obi_config_reloads_total", Counter, &["outcome"]),
    ("obi_config_last_reload_successful", Gauge, &[]),
    ("obi_export_sent_total", Counter, &["destination", "signal"]),
    ("obi_export_lost_total", Counter, &["destination", "signal", "reason"]),
    ("obi_export_retries_total", Counter, &["destination", "signal"]),
    ("obi_export_queue_items", Gauge, &["destination", "signal"]),
    ("obi_export_queue_bytes", Gauge, &["destination", "signal"]),
    ("obi_export_spool_bytes", Gauge, &["destination", "signal"]),
    ("obi_profile_samples_total", Counter, &[]),
    ("obi_profile_lost_samples_total", Counter, &["reason"]),
    ("obi_profile_truncated_stacks_total", Counter, &["reason"]),
    ("obi_profile_frames_total", Counter, &["fidelity"]),
    ("obi_profile_links_total", Counter, &["outcome"]),
    ("obi_profile_memory_bytes", Gauge, &["what"]),
    ("obi_build_info", Gauge, &["version"]),
    ("process_cpu_seconds_total", Counter, &[]),
    ("process_resident_memory_bytes", Gauge, &[]),
    ("process_start_time_seconds", Gauge, &[]),
    ("slo_events_total", Counter, &["slo", "service", "outcome"]),
    ("slo_error_budget_remaining_ratio", Gauge, &["slo", "service"]),
    ("slo_objective_ratio", Gauge, &["slo", "service"]),
    ("slo_coverage_ratio", Gauge, &["slo", "service"]),
    ("slo_burn_rate", Gauge, &["slo", "service", "window"]),
    ("slo_alert_firing", Gauge, &["slo", "service", "severity"]),
    ("obi_slo_notifications_total", Counter, &["peer", "outcome"]),
    ("obi_slo_notifications_waiting", Gauge, &["peer"]),
    ("obi_slo_store_failures_total", Counter, &[]),
    ("obi_slo_store_unsaved_time", Gauge, &[]),
];

/// What Prometheus makes itself, by the rules of `obi slo rules` among others.
const RULES: &[(&str, Instrument, &[&str])] = &[
    ("up", Gauge, &[]),
    ("ALERTS", Gauge, &["alertname", "alertstate", "severity", "slo", "service"]),
    (slo::rules::BURN_RATE, Gauge, &["slo", "service", "window"]),
    (slo::rules::BUDGET_REMAINING, Gauge, &["slo", "service"]),
    (slo::rules::OBJECTIVE, Gauge, &["slo", "service"]),
    (slo::rules::PERIOD_COVERAGE, Gauge, &["slo", "service"]),
];

/// On every series that was scraped.
const SCRAPED: [&str; 2] = ["instance", "job"];
/// The service that a family of spans is about; edges have two of their own.
const SERVICE: [&str; 2] = ["service_namespace", "service_name"];

static METRICS: LazyLock<Vec<Metric>> = LazyLock::new(|| {
    let families = FAMILIES.iter().map(|family| {
        let suffix = if family.instrument == Counter { "_total" } else { "" };
        let is_edge = family.labels.iter().any(|label| label.prometheus == "client");
        let mut labels: Vec<_> = family.labels.iter().map(|label| label.prometheus).collect();
        labels.extend(SERVICE.iter().filter(|_| !is_edge));
        labels.extend(SCRAPED);
        Metric { name: format!("{}{suffix}", family.prometheus), instrument: family.instrument, labels }
    });
    let own = AGENT.iter().chain(RULES).map(|(name, instrument, labels)| {
        let labels = labels.iter().copied().chain(SCRAPED).collect();
        Metric { name: (*name).to_owned(), instrument: *instrument, labels }
    });
    families.chain(own).collect()
});

/// Panics at one that does not exist: a dashboard with it must not be made.
pub(crate) fn metric(name: &str) -> Metric {
    find(name).unwrap_or_else(|| panic!("no metric is called {name}"))
}

/// The metric that a name in an expression stands for, a part of a histogram as well.
pub(crate) fn find(name: &str) -> Option<Metric> {
    let is_part = |metric: &Metric| {
        let rest = name.strip_prefix(metric.name.as_str())?;
        let is_histogram = metric.instrument == Instrument::Histogram;
        Some(rest.is_empty() || is_histogram && ["_bucket", "_count", "_sum"].contains(&rest))
    };
    METRICS.iter().find(|metric| is_part(metric) == Some(true)).cloned()
}
