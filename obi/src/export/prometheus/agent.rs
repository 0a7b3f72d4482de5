//! The agent's own families: `obi_*` and `process_*`.
//!
//! In: [`crate::stats::Snapshot`], spans per service, the process. Out: samples through prometheus-client.
//! Refuses to know formats.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeCounterValue, EncodeGaugeValue, EncodeLabelSet, LabelSetEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::label;
use crate::counter::Counter;
use crate::export::{Metrics, Unseen};
use crate::kubernetes::view::View as Kubernetes;
use crate::profile::view::View as Profile;
use crate::receive::View as Receive;
use crate::red::{self, EVIDENCE, ServiceTotals, seconds};
use crate::stats::{Evidence, HookSetState, Lane, Process, Program, Reloads, Snapshot, Spooled, Stage};

#[derive(Debug)]
pub(super) struct Collector {
    pub(super) metrics: Arc<Metrics>,
    pub(super) unseen: Unseen,
}

impl prometheus_client::collector::Collector for Collector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (stats, unseen) = (&self.metrics.stats, self.unseen);
        let mut out = Families(encoder);
        write_flow(&mut out, stats, unseen)?;
        write_spans(&mut out, &self.metrics.red.services, unseen)?;
        write_budget(&mut out, &self.metrics.red, unseen)?;
        write_capture(&mut out, stats)?;
        stats.profile.as_ref().map_or(Ok(()), |profile| write_profile(&mut out, profile))?;
        stats.kubernetes.as_ref().map_or(Ok(()), |kubernetes| write_kubernetes(&mut out, kubernetes))?;
        stats.sent_to_us.as_ref().map_or(Ok(()), |received| write_received(&mut out, received))?;
        write_reloads(&mut out, stats.reloads)?;
        write_exports(&mut out, stats)?;
        write_spool(&mut out, stats)?;
        out.info("obi_build", "Version of the agent", &[("version", env!("CARGO_PKG_VERSION"))])?;
        self.metrics.process.map_or(Ok(()), |process| write_process(&mut out, &process))
    }
}

fn write_flow(out: &mut Families<'_>, stats: &Snapshot, unseen: Unseen) -> fmt::Result {
    // What enters the kernel stage is every system call on the machine: not counted.
    let user_stages = Stage::ALL.iter().zip(stats.received).filter(|(stage, _)| **stage != Stage::Kernel);
    let received = user_stages.map(|(stage, n)| ([("stage", stage.name())], n));
    out.counter(("obi_received_events", "Events that entered a stage of the agent", None), received)?;

    let shown = |counter: &Counter| if unseen.in_stats(counter.born) { 0 } else { counter.value };
    let lost = stats.lost.iter().map(|(loss, counter)| {
        let labels = [
            ("stage", loss.stage.name()),
            ("reason", loss.reason),
            ("side", loss.side),
            ("service_name", &*loss.service_name),
        ];
        (labels, shown(counter))
    });
    out.counter(("obi_lost", "Exchanges that were lost, by stage and reason", None), lost)?;

    let uncovered = stats.uncovered.iter().map(|(reason, counter)| ([("reason", *reason)], shown(counter)));
    let help = "Connections that the agent can see but not read";
    out.counter(("obi_uncovered_connections", help, None), uncovered)?;

    let late = stats.read_late.iter().map(|(reason, counter)| ([("reason", *reason)], shown(counter)));
    let help = "Connections counted as uncovered that the agent has read from some time on";
    out.counter(("obi_uncovered_connections_read_later", help, None), late)?;

    let unknown =
        stats.unknown_parents.iter().map(|(reason, counter)| ([("reason", *reason)], shown(counter)));
    let help = "Calls of processes that were serving requests, whose parent is not known";
    out.counter(("obi_unknown_parents", help, None), unknown)?;

    let untimed = stats.lost_times.iter().map(|(reason, counter)| ([("reason", *reason)], shown(counter)));
    let help = "Requests without the times of their threads, though these were booked";
    out.counter(("obi_lost_times", help, None), untimed)?;

    let help = "Forks, execs and exits that were lost; what they said is read from /proc";
    out.counter(("obi_lost_process_events", help, None), [([], stats.lost_process_events)])?;
    let help = "Times that a process was not read in time; what it did has the name known until then";
    out.counter(("obi_late_processes", help, None), [([], stats.late_processes)])?;
    let help = "What the last two hours of all services take, up to web.history_bytes";
    out.gauge(("obi_history", help, Some(&BYTES)), stats.history_bytes)?;
    stats.evidence.map_or(Ok(()), |evidence| write_evidence(out, evidence))
}

fn write_evidence(out: &mut Families<'_>, evidence: Evidence) -> fmt::Result {
    let help = "Traces that are kept whole, as they show why an objective burns";
    out.gauge(("obi_evidence_traces", help, None), evidence.traces)?;
    let help = "What spans of kept traces take beyond the recent ones";
    out.gauge(("obi_evidence", help, Some(&BYTES)), evidence.bytes)?;
    let help = "Spans of kept traces that found no room in slo.evidence_bytes";
    out.counter(("obi_evidence_refused_spans", help, None), [([], evidence.refused)])
}

fn write_spans(out: &mut Families<'_>, services: &[ServiceTotals], unseen: Unseen) -> fmt::Result {
    const SIDES: (&str, [&str; 2]) = ("side", ["server", "client"]);
    let made = |totals: &ServiceTotals| [totals.server_spans, totals.client_spans];
    out.counter(("obi_spans", "Spans made", None), by_service(services, unseen, SIDES, made))?;
    let help = "Spans whose request head was longer than capture.head_limit: what lay beyond was not seen";
    let truncated = by_service(services, unseen, SIDES, |totals| totals.truncated_heads);
    out.counter(("obi_truncated_heads", help, None), truncated)?;
    let help = "Spans whose parent had to be found, as no header names it, by how sure it is";
    let parents = by_service(services, unseen, ("evidence", EVIDENCE), |totals| totals.parents);
    out.counter(("obi_parents", help, None), parents)
}

/// Counters of services, each by a label with few values. Services of one name in several namespaces share a series:
/// its labels do not distinguish them.
fn by_service<'a, const N: usize>(
    services: &'a [ServiceTotals],
    unseen: Unseen,
    (label, values): (&'static str, [&'static str; N]),
    counters: impl Fn(&ServiceTotals) -> [Counter; N],
) -> impl Iterator<Item = ([(&'static str, &'a str); 2], u64)> {
    let mut sums = BTreeMap::<(&'static str, &'a str), u64>::new();
    for totals in services {
        for (value, counter) in values.into_iter().zip(counters(totals)) {
            if counter.value > 0 {
                let shown = if unseen.in_red(counter.born) { 0 } else { counter.value };
                *sums.entry((value, &totals.service.name)).or_default() += shown;
            }
        }
    }
    sums.into_iter().map(move |((value, service), n)| ([(label, value), ("service_name", service)], n))
}

/// What the series budget came to; `/api/v1/cardinality` shows more.
fn write_budget(out: &mut Families<'_>, red: &red::Snapshot, unseen: Unseen) -> fmt::Result {
    let limit = ("obi_series_limit", "Series of spans that may be, histograms counted as one", None);
    out.gauge(limit, red.usage.limit as u64)?;
    let shares = &red.usage.shares;
    let overflow: usize = shares.iter().map(|share| share.overflow_series).sum();
    let series: usize = shares.iter().map(|share| share.series).sum();
    let header = ("obi_series", "Series of spans, histograms counted as one", None);
    let mut family = out.family(header, MetricType::Gauge)?;
    for (kind, n) in [("ordinary", series), ("overflow", overflow)] {
        family.encode_family(&LabelSet(&[("kind", kind)]))?.encode_gauge(&(n as u64))?;
    }
    let mut folded = BTreeMap::<&str, u64>::new();
    for share in shares.iter().filter(|share| share.folded.value > 0) {
        let shown = if unseen.in_red(share.folded.born) { 0 } else { share.folded.value };
        *folded.entry(&share.service.name).or_default() += shown;
    }
    let samples = folded.into_iter().map(|(service, n)| ([("service_name", service)], n));
    out.counter(("obi_folded_spans", "Spans that a metric counted in overflow", None), samples)
}

fn write_capture(out: &mut Families<'_>, stats: &Snapshot) -> fmt::Result {
    out.gauge(("obi_watched_processes", "Processes watched now", None), stats.watched_processes)?;
    if !stats.hook_set.is_empty() {
        out.info("obi_hook", "The set of kernel hooks in use", &[("set", stats.hook_set)])?;
    }
    if !stats.hook_sets.is_empty() {
        let help = "Every set of kernel hooks: used, spare, unsupported here, or refused by the kernel";
        let mut family = out.family(("obi_hook_set", help, None), MetricType::Info)?;
        for HookSetState { set, state, .. } in &stats.hook_sets {
            family.encode_info(&LabelSet(&[("set", set), ("state", state)]))?;
        }
    }
    write_programs(out, &stats.programs)?;
    let mut family = out.family(
        ("obi_bpf_map", "Kernel memory of the maps, elements times element size", Some(&BYTES)),
        MetricType::Gauge,
    )?;
    for map in &stats.maps {
        family.encode_family(&LabelSet(&[("subsystem", map.subsystem)]))?.encode_gauge(&map.bytes)?;
    }
    Ok(())
}

fn write_reloads(out: &mut Families<'_>, reloads: Reloads) -> fmt::Result {
    let counts = [("applied", reloads.applied), ("refused", reloads.refused)];
    let help = "Times that the configuration was read again, by what became of it";
    let counts = counts.map(|(outcome, n)| ([("outcome", outcome)], n));
    out.counter(("obi_config_reloads", help, None), counts)?;
    let help = "Whether the configuration was valid when it was last read";
    out.gauge(("obi_config_last_reload_successful", help, None), u64::from(!reloads.failing))
}

/// A family that this kernel has no numbers for is left out.
fn write_programs(out: &mut Families<'_>, programs: &[Program]) -> fmt::Result {
    let run = |program: &Program| program.run.map(|run| ([("program", program.name)], run));
    let runs: Vec<_> = programs.iter().filter_map(run).collect();
    if !runs.is_empty() {
        let time = runs.iter().map(|(labels, (nanoseconds, _))| (*labels, seconds(*nanoseconds)));
        let help = "Time spent in a kernel program since it was loaded";
        out.counter(("obi_bpf_program_run", help, Some(&SECONDS)), time)?;
        let runs = runs.iter().map(|(labels, (_, runs))| (*labels, *runs));
        out.counter(("obi_bpf_program_runs", "Runs of a kernel program since it was loaded", None), runs)?;
    }
    let misses: Vec<_> = programs
        .iter()
        .filter_map(|program| program.misses.map(|misses| ([("program", program.name)], misses)))
        .collect();
    if !misses.is_empty() {
        let help = "Runs of a kernel program that the kernel skipped";
        out.counter(("obi_bpf_program_misses", help, None), misses)?;
    }
    Ok(())
}

/// Nothing when nothing is exported. All reasons of losses are there from the start, so that a first loss is an
/// increase.
fn write_exports(out: &mut Families<'_>, stats: &Snapshot) -> fmt::Result {
    fn labels(lane: &Lane) -> [(&'static str, &str); 2] {
        [("destination", &lane.destination), ("signal", lane.signal)]
    }
    if stats.lanes.is_empty() {
        return Ok(());
    }
    let sent = stats.lanes.iter().map(|lane| (labels(lane), lane.sent));
    out.counter(
        ("obi_export_sent", "Spans, points of metrics and samples that a destination took", None),
        sent,
    )?;
    let lost = stats.lanes.iter().flat_map(|lane| {
        let [destination, signal] = labels(lane);
        lane.lost.iter().map(move |(reason, n)| ([destination, signal, ("reason", *reason)], *n))
    });
    let help = "Spans, points of metrics and samples that did not reach a destination, by reason";
    out.counter(("obi_export_lost", help, None), lost)?;
    let retries = stats.lanes.iter().map(|lane| (labels(lane), lane.retries));
    out.counter(("obi_export_retries", "Requests sent again to a destination", None), retries)?;
    if let Some(n) = stats.unsampled {
        let help = "Spans that head sampling kept from being exported";
        out.counter(("obi_export_unsampled_spans", help, None), [([], n)])?;
    }
    let mut family = out.family(
        ("obi_export_queue_items", "Spans, points of metrics and samples waiting for a destination", None),
        MetricType::Gauge,
    )?;
    for lane in &stats.lanes {
        family.encode_family(&LabelSet(&labels(lane)))?.encode_gauge(&lane.queued_items)?;
    }
    let mut family = out.family(
        ("obi_export_queue", "Memory of what waits for a destination", Some(&BYTES)),
        MetricType::Gauge,
    )?;
    for lane in &stats.lanes {
        family.encode_family(&LabelSet(&labels(lane)))?.encode_gauge(&lane.queued_bytes)?;
    }
    let mut family = out.family(
        (
            "obi_export_attempt",
            "Memory of the request under way to a destination, beside what waits",
            Some(&BYTES),
        ),
        MetricType::Gauge,
    )?;
    for lane in &stats.lanes {
        family.encode_family(&LabelSet(&labels(lane)))?.encode_gauge(&lane.attempt_bytes)?;
    }
    Ok(())
}

/// Of destinations that have a place on the disk.
fn write_spool(out: &mut Families<'_>, stats: &Snapshot) -> fmt::Result {
    let Some(is_usable) = stats.is_spool_usable else { return Ok(()) };
    let help = "Whether the spool can be used";
    out.gauge(("obi_export_spool_usable", help, None), u64::from(is_usable))?;
    let spooled: Vec<_> = stats
        .lanes
        .iter()
        .filter_map(|lane| {
            let labels = [("destination", &*lane.destination), ("signal", lane.signal)];
            lane.spooled.map(|spooled| (labels, spooled))
        })
        .collect();
    let now = unix_seconds();
    let age = |oldest: u64| if oldest == 0 { 0 } else { now.saturating_sub(oldest) };
    let mut gauge = |header: Header, value: &dyn Fn(&Spooled) -> u64| {
        let mut family = out.family(header, MetricType::Gauge)?;
        for (labels, spooled) in &spooled {
            family.encode_family(&LabelSet(labels))?.encode_gauge(&value(spooled))?;
        }
        Ok(())
    };
    let bytes = ("obi_export_spool", "Bytes on the disk that wait for a destination", Some(&BYTES));
    gauge(bytes, &|spooled| spooled.bytes)?;
    let items = ("obi_export_spool_items", "What waits on the disk for a destination, in items", None);
    gauge(items, &|spooled| spooled.items)?;
    let oldest = ("obi_export_spool_oldest", "Age of what has waited longest on the disk", Some(&SECONDS));
    gauge(oldest, &|spooled| age(spooled.oldest))?;
    let mut counter = |name, help, value: fn(&Spooled) -> u64| {
        out.counter((name, help, None), spooled.iter().map(|(labels, spooled)| (*labels, value(spooled))))
    };
    counter("obi_export_spool_written", "Items that were put on the disk", |spooled| spooled.written)?;
    let help = "Items on the disk that their destination has settled";
    counter("obi_export_spool_delivered", help, |spooled| spooled.delivered)?;
    let help = "Items on the disk that an earlier run of the agent had left";
    counter("obi_export_spool_restored", help, |spooled| spooled.restored)
}

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn write_profile(out: &mut Families<'_>, profile: &Profile) -> fmt::Result {
    let samples = ("obi_profile_samples", "Stacks that were sampled and arrived", None);
    out.counter(samples, [([], profile.samples)])?;
    let mut by = |header: Header, label: &'static str, counts: &[(&'static str, u64)]| {
        out.counter(header, counts.iter().map(|(word, n)| ([(label, *word)], *n)))
    };
    by(
        ("obi_profile_skipped_looks", "Looks at a CPU that took no sample", None),
        "reason",
        &profile.skipped,
    )?;
    by(("obi_profile_lost_samples", "Samples that were lost", None), "reason", &profile.lost)?;
    let truncated = ("obi_profile_truncated_stacks", "Stacks whose walk ended before the first frame", None);
    by(truncated, "reason", &profile.truncated)?;
    let frames = ("obi_profile_frames", "Frames that were named, by what names them", None);
    by(frames, "fidelity", &profile.frames)?;
    let links = (
        "obi_profile_links",
        "Samples taken while an exchange was served, by whether its span covers them",
        None,
    );
    by(links, "outcome", &profile.links)?;
    by(("obi_profile_failures", "What went wrong beside the samples", None), "reason", &profile.failures)?;
    let memory = ("obi_profile_memory", "Memory of the agent that profiles take", Some(&BYTES));
    let mut family = out.family(memory, MetricType::Gauge)?;
    for (what, bytes) in &profile.memory {
        family.encode_family(&LabelSet(&[("what", *what)]))?.encode_gauge(bytes)?;
    }
    let held = "Samples of the last minutes that can be asked for";
    out.gauge(("obi_profile_held_samples", held, None), profile.held)?;
    out.gauge(("obi_profile_files", "Files with code that are held open", None), profile.files)?;
    let tables = "Of these files, those with tables in the kernel to walk stacks by";
    out.gauge(("obi_profile_table_files", tables, None), profile.tables)
}

fn write_kubernetes(out: &mut Families<'_>, kubernetes: &Kubernetes) -> fmt::Result {
    let help = "What gives the names of pods: kubelet, api, logs or none";
    out.info("obi_kubernetes_source", help, &[("source", kubernetes.source)])?;
    let help = "Whether pods are reported as they come and go: 0 while names are as of the last news";
    out.gauge(("obi_kubernetes_live", help, None), u64::from(kubernetes.live))?;
    let header = ("obi_kubernetes_pods", "Pods of this node whose names are known", None);
    let mut family = out.family(header, MetricType::Gauge)?;
    for (state, n) in [("present", kubernetes.pods), ("ended", kubernetes.ended)] {
        family.encode_family(&LabelSet(&[("state", state)]))?.encode_gauge(&(n as u64))?;
    }
    let header = ("obi_kubernetes_peers", "Objects that name what is not on this node", None);
    let mut family = out.family(header, MetricType::Gauge)?;
    for (kind, n) in [("service", kubernetes.services), ("endpointslice", kubernetes.slices)] {
        family.encode_family(&LabelSet(&[("kind", kind)]))?.encode_gauge(&(n as u64))?;
    }
    let help = "Messages about pods and services";
    out.counter(("obi_kubernetes_events", help, None), [([], kubernetes.events)])?;
    let help = "Messages about pods and services that were not used, by reason";
    let unused = [("undecodable", kubernetes.undecodable), ("no_room", kubernetes.refused)];
    let unused = unused.map(|(reason, n)| ([("reason", reason)], n));
    out.counter(("obi_kubernetes_unused_events", help, None), unused)?;
    let help = "Streams of pods or services that did not begin or broke";
    out.counter(("obi_kubernetes_failures", help, None), [([], kubernetes.failures)])?;
    let help = "Processes in pods that were not known when these were named, by reason";
    let unresolved = kubernetes.unresolved;
    let unresolved = [("unknown_pod", unresolved.unknown_pod), ("no_source", unresolved.no_source)];
    let unresolved = unresolved.map(|(reason, n)| ([("reason", reason)], n));
    out.counter(("obi_kubernetes_unresolved_processes", help, None), unresolved)
}

fn write_received(out: &mut Families<'_>, received: &Receive) -> fmt::Result {
    let mut by = |header: Header, label: &'static str, counts: &[(&'static str, u64)]| {
        out.counter(header, counts.iter().map(|(name, n)| ([(label, *name)], *n)))
    };
    let help = "Spans that SDKs have sent, by who counts their event: the captured exchange, or nothing";
    by(("obi_received_spans", help, None), "counted", &received.spans)?;
    let help = "Spans that were sent and not taken, by reason";
    by(("obi_received_rejected_spans", help, None), "reason", &received.rejected)?;
    by(("obi_received_requests", "Requests of OTLP that were taken", None), "signal", &received.requests)?;
    let help = "Requests of OTLP that were not taken, by reason";
    by(("obi_received_refused_requests", help, None), "reason", &received.refused)?;
    let help = "Points of metrics and records of logs that were passed on to destinations";
    by(("obi_received_passed_items", help, None), "signal", &received.passed)?;
    let help = "Received spans that wait for the exchange they may belong to";
    out.gauge(("obi_received_waiting_spans", help, None), received.waiting as u64)?;
    let help = "Captured spans that wait to be exported, since an SDK may report the same event";
    out.gauge(("obi_received_held_spans", help, None), received.held as u64)?;
    let help = "Memory of what was received and is still here";
    out.gauge(("obi_received", help, Some(&BYTES)), received.bytes)
}

fn write_process(out: &mut Families<'_>, process: &Process) -> fmt::Result {
    let cpu = ("process_cpu", "User and system CPU time of the agent", Some(&SECONDS));
    out.counter(cpu, [([], process.cpu_seconds)])?;
    out.gauge(
        ("process_resident_memory", "Resident memory of the agent", Some(&BYTES)),
        process.resident_bytes,
    )?;
    out.gauge(
        ("process_virtual_memory", "Virtual memory of the agent", Some(&BYTES)),
        process.virtual_bytes,
    )?;
    out.gauge(("process_open_fds", "Open file descriptors of the agent", None), process.open_fds)?;
    if let Some(max_fds) = process.max_fds {
        out.gauge(("process_max_fds", "Limit of open file descriptors", None), max_fds)?;
    }
    out.gauge(
        ("process_start_time", "Start of the agent since the Unix epoch", Some(&SECONDS)),
        process.start_time_seconds,
    )
}

/// Name without unit and type suffix, help, unit.
type Header = (&'static str, &'static str, Option<&'static Unit>);

static SECONDS: Unit = Unit::Seconds;
static BYTES: Unit = Unit::Bytes;

/// Writes whole families.
struct Families<'a>(DescriptorEncoder<'a>);

impl Families<'_> {
    fn family(
        &mut self,
        (name, help, unit): Header,
        kind: MetricType,
    ) -> Result<prometheus_client::encoding::MetricEncoder<'_>, fmt::Error> {
        self.0.encode_descriptor(name, help, unit, kind)
    }

    fn counter<'l, const N: usize, V: EncodeCounterValue>(
        &mut self,
        header: Header,
        samples: impl IntoIterator<Item = ([(&'static str, &'l str); N], V)>,
    ) -> fmt::Result {
        let mut family = self.family(header, MetricType::Counter)?;
        for (labels, value) in samples {
            if labels.is_empty() {
                family.encode_counter::<NoLabelSet, _, f64>(&value, None)?;
            } else {
                family
                    .encode_family(&LabelSet(&labels))?
                    .encode_counter::<NoLabelSet, _, f64>(&value, None)?;
            }
        }
        Ok(())
    }

    fn gauge(&mut self, header: Header, value: impl EncodeGaugeValue) -> fmt::Result {
        self.family(header, MetricType::Gauge)?.encode_gauge(&value)
    }

    fn info(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
    ) -> fmt::Result {
        self.family((name, help, None), MetricType::Info)?.encode_info(&LabelSet(labels))
    }
}

#[derive(Debug)]
struct LabelSet<'a>(&'a [(&'static str, &'a str)]);

impl EncodeLabelSet for LabelSet<'_> {
    fn encode(&self, out: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, value)| label(out, name, *value))
    }
}
