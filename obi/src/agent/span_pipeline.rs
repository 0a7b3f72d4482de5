//! The right half of the pipeline: an exchange to its span, its series, its objectives and its place in the store.
//!
//! In: finished or lost exchanges. Out: nothing but changed state. Drops what the rules exclude.

use super::foreign::Foreign;
use super::open_calls::OpenCalls;
use super::process::{Directory, Identity};
use super::profile::{Report, Tell};
use super::received::Intake;
use super::room::{self, Held, Room};
use super::route_state::RouteState;
use crate::cause::{Causes, Ended, TracePosition};
use crate::clock::{Clock, monotonic_ns};
use crate::export::otlp::SpanExport;
use crate::objective::record::Recorder;
use crate::profile::Origin;
use crate::protocol::loss::{Loss, STAGE_KERNEL};
use crate::protocol::{Begun, Endpoints, Exchange, Exchanges, Side, Sink};
use crate::red::{ActiveLabels, Registry};
use crate::span::assemble::{Assembler, scheme, server_of};
use crate::span::service::{Peer, Peers};
use crate::span::{Detail, Span, SpanKind, Spent};
use crate::span_store::{Store, Usage};
use crate::stats::{self, Evidence, Stage, Stats};
use std::hash::BuildHasher as _;
use std::sync::Arc;

/// Everything right of the protocol stage.
#[derive(Debug)]
pub(super) struct SpanPipeline {
    pub(super) processes: Directory,
    /// What caused what.
    pub(super) causes: Causes,
    /// Spans whose causes are not known yet.
    pub(super) room: Room,
    pub(super) assembler: Assembler,
    pub(super) route_state: RouteState,
    pub(super) registry: Registry,
    pub(super) store: Store,
    pub(super) span_export: SpanExport,
    pub(super) stats: Stats,
    pub(super) clock: Clock,
    /// A span to write over; its buffers go round.
    pub(super) spare: Option<Box<Span>>,
    /// Objectives, if there are any.
    pub(super) objectives: Option<Recorder>,
    /// Links samples to spans; `None` where nothing is sampled.
    pub(super) profile: Option<Tell>,
    /// Spans that others send; `None` where nothing is received.
    pub(super) intake: Option<Intake>,
    /// Requests that count by received spans; `None` where none does.
    pub(super) foreign: Option<Foreign>,
    /// The pods of this node; `None` outside of Kubernetes.
    pub(super) peers: Option<Peers>,
    /// The kernel side books where the time of serving threads goes.
    pub(super) keeps_accounts: bool,
    /// When calls of requests were open.
    pub(super) open_calls: OpenCalls,
    /// The last (process, port) seen to serve, so that port rules are asked only when it changes.
    pub(super) served: (u32, u16),
}

/// The label value of a side.
pub(super) fn side_name(side: Option<Side>) -> &'static str {
    match side {
        Some(Side::Server) => "server",
        Some(Side::Client) => "client",
        None => "",
    }
}

impl SpanPipeline {
    /// Takes the sampler thread's reports, answers its questions and passes on what is new.
    pub(super) fn exchange_with_profile(&mut self) {
        let Some(mut profile) = self.profile.take() else { return };
        while let Some(report) = profile.report() {
            match report {
                Report::Cpu(samples) => samples.iter().for_each(|samples| self.registry.add_cpu(samples)),
                Report::Who(pid) => self.processes.ask(pid),
            }
        }
        while let Some((pid, who)) = self.processes.answered() {
            let Identity { service, instance, executable, is_watched } = Identity::clone(&who);
            if !is_watched {
                profile.left_out(pid);
            }
            let executable = executable.rsplit('/').next().unwrap_or_default().into();
            profile.called(pid, Origin { pid, service, instance, executable });
        }
        if let Some(traces) = self.store.kept_traces() {
            profile.keeps(traces);
        }
        profile.flush();
        self.profile = Some(profile);
    }

    /// Gives the objectives' thread what it has not got yet.
    pub(super) fn hand_over(&mut self) {
        if let Some(objectives) = &mut self.objectives {
            objectives.tick(self.clock.unix(monotonic_ns()), &mut self.store);
            objectives.flush();
        }
    }

    /// The traces that are kept whole; `None` without objectives.
    pub(super) fn evidence(&self) -> Option<Evidence> {
        let Usage { traces, bytes, refused } = self.store.kept_usage();
        let evidence = Evidence { traces: traces as u64, bytes: bytes as u64, refused };
        self.objectives.is_some().then_some(evidence)
    }

    /// Whether the kernel side books where the time of serving threads goes, or why not.
    pub(super) fn keep_accounts(&mut self, kept: Result<(), String>) {
        self.keeps_accounts = kept.is_ok();
        self.stats.waiting = Some(kept.err().unwrap_or_default());
    }

    /// Passes the requests under way to the registry.
    pub(super) fn count_active(&mut self, exchanges: &mut Exchanges) {
        let mut requests = Vec::new();
        exchanges.for_each_under_way(|under_way| {
            if under_way.is_rpc {
                // The conventions know no metric of calls under way.
                return;
            }
            let who = self.processes.identity(under_way.tgid);
            if who.is_watched {
                let kind = match under_way.side {
                    Side::Server => SpanKind::Server,
                    Side::Client => SpanKind::Client,
                };
                let (server_address, server_port) = match under_way.side {
                    Side::Server => (String::new(), 0),
                    Side::Client => server_of(under_way),
                };
                let method = self.assembler.method(under_way.request.method);
                requests.push(ActiveLabels {
                    service: Arc::clone(&who.service),
                    kind,
                    method,
                    scheme: scheme(under_way.encrypted),
                    server_address,
                    server_port,
                });
            }
        });
        self.registry.set_active(requests);
    }

    /// Who answers a call, by the address that it went to.
    fn peer_by_address(&self, exchange: &Exchange<'_>) -> Option<Peer> {
        match (exchange.side, exchange.endpoints) {
            (Side::Client, Endpoints::Ip { remote, .. }) => {
                self.peers.as_ref()?.at(remote, (exchange.started, exchange.ended))
            }
            _ => None,
        }
    }

    fn note_port(&mut self, exchange: &Exchange<'_>) {
        if let (Side::Server, Endpoints::Ip { local, .. }) = (exchange.side, exchange.endpoints) {
            let serving = (exchange.tgid, local.port());
            if self.served != serving {
                self.served = serving;
                self.processes.serves(exchange.tgid);
            }
        }
    }
}

impl SpanPipeline {
    /// Spans whose places are known by now go on their way.
    pub(super) fn settle(&mut self) {
        if self.room.is_empty() {
            return;
        }
        let Self { room, causes, .. } = self;
        for (held, place) in room.settle(causes, monotonic_ns()) {
            self.emit(held.span, held.wall_offset, &place);
        }
    }

    /// So do all others: nothing more will be seen.
    pub(super) fn settle_all(&mut self) {
        self.settle();
        for held in self.room.clear() {
            self.emit_now(held);
        }
    }

    /// Where the time of a request went, in the memory of a former span's.
    fn spent(
        &mut self,
        exchange: &Exchange<'_>,
        ended: &Ended<'_>,
        memory: Option<Box<Spent>>,
    ) -> Box<Spent> {
        let served = self.causes.is_served_by_reader(ended);
        let spent = Spent::of(exchange, served);
        if served && exchange.times.is_some() && spent.times.is_none() {
            self.stats.lose_times("inexact", 1);
        }
        let mut memory = memory.unwrap_or_default();
        *memory = spent;
        memory
    }

    /// Its edge in the service graph.
    fn connect(&mut self, span: &Span, peer: Option<&(u64, Arc<Identity>)>) {
        match span.kind {
            SpanKind::Server => {
                let caller = peer.map(|(number, identity)| (*number, &identity.service));
                self.registry.served(span, caller);
            }
            SpanKind::Internal => {}
            SpanKind::Client => self.registry.called(span, peer.map(|(_, identity)| &identity.service)),
        }
    }

    /// Where the time of a request went that no thread explains, by its calls: they have ended before.
    fn explain(&mut self, span: &mut Span) {
        if !self.keeps_accounts {
            return;
        }
        match (span.kind, span.parent_span_id, &mut span.spent) {
            // What a header names is a span of an SDK.
            (SpanKind::Client, Some(parent), _) if span.origin.evidence().is_some() => {
                self.open_calls.add(parent, (span.start, span.end));
            }
            (SpanKind::Server, _, Some(spent)) => {
                let read = span.start.saturating_add(span.queue_wait);
                spent.had_calls(self.open_calls.take(&span.span_id, (read, span.end)));
            }
            _ => {}
        }
    }

    fn emit_now(&mut self, held: Held) {
        let place = self.causes.place_now(&held.end.borrowed());
        self.emit(held.span, held.wall_offset, &place);
    }

    /// A span that is complete: counted, exported, kept.
    fn emit(&mut self, mut span: Box<Span>, wall_offset: u64, place: &TracePosition) {
        span.put(place);
        if let Some(reason) = place.origin.reason() {
            self.stats.orphan(reason);
        }
        if let Some(profile) = &mut self.profile {
            let is_shared = self.causes.is_shared(span.exchange);
            profile.ended(&span, wall_offset, (is_shared, self.causes.continued(span.exchange)));
        }
        let peer =
            self.causes.peer(span.exchange).map(|(number, tgid)| (number, self.processes.identity(tgid)));
        if let (SpanKind::Client, Some((_, identity))) = (span.kind, &peer) {
            // Both ends are seen: whatever an address says, this is who has answered.
            span.peer = Some(Peer::Service(Arc::clone(&identity.service)));
        }
        self.explain(&mut span);
        let kept = self.span_export.sample(&mut span);
        if let Some(foreign) = &mut self.foreign {
            foreign.captured(&span);
        }
        self.registry.record(&span);
        self.connect(&span, peer.as_ref());
        let (waiting, kept) = match &mut self.intake {
            Some(intake) => {
                let (waiting, kept) = intake.look(&span, kept);
                (Some(waiting), kept)
            }
            None => (None, kept),
        };
        if let Some(kept) = kept {
            self.span_export.push(&span, kept);
        }
        if let Some(objectives) = &mut self.objectives {
            objectives.record(&span);
        }
        self.spare = self.store.push(span);
        if let (Some(intake), Some(waiting)) = (&mut self.intake, waiting) {
            intake.stored(waiting, self.store.last());
        }
        if let Some(objectives) = &mut self.objectives {
            objectives.stored(&mut self.store);
        }
    }
}

/// Something was asked, and answered: neither a WebSocket nor a database's own span.
fn is_request(span: &Span) -> bool {
    matches!(span.detail, Detail::Http(_) | Detail::Rpc(_))
}

/// A number for a service and a route of it.
fn route_number(span: &Span) -> u64 {
    let operation = span.detail.operation();
    foldhash::quality::FixedState::default().hash_one((span.service.id, operation.verb, &**operation.place))
}

impl Sink for SpanPipeline {
    fn begun(&mut self, begun: &Begun<'_>) {
        // The span of an ignored process is never shown: it is no span's parent.
        if self.processes.is_watched(begun.tgid) {
            self.causes.begun(begun);
        }
    }

    fn forgotten(&mut self, number: u64) {
        self.causes.forget(number);
    }

    fn exchange(&mut self, exchange: &Exchange<'_>) {
        self.note_port(exchange);
        let who = self.processes.identity(exchange.tgid);
        if !who.is_watched {
            return self.causes.forget(exchange.number);
        }
        self.stats.receive(Stage::Span, 1);
        let mut span = self.spare.take().unwrap_or_else(|| Box::new(Span::blank()));
        // Monotonic to Unix is one addition; the difference is the same for every time of the exchange.
        let wall_offset = self.clock.unix(exchange.ended) - exchange.ended;
        self.assembler.assemble(exchange, &who.service, wall_offset, &mut span);
        span.instance = Arc::clone(&who.instance);
        span.peer = self.peer_by_address(exchange);
        let ended: Ended<'_> = room::ended(exchange, route_number(&span));
        self.causes.ended(&ended);
        let is_reported = self.keeps_accounts && span.kind == SpanKind::Server && is_request(&span);
        span.spent = match is_reported {
            false => None,
            true => Some(self.spent(exchange, &ended, span.spent.take())),
        };
        let now = monotonic_ns();
        match self.causes.place(&ended, now) {
            Ok(place) => {
                // Its calls first: they say where its time went.
                if span.kind == SpanKind::Server && !self.room.is_empty() {
                    let Self { room, causes, .. } = self;
                    for (held, place) in room.settle_calls_of(exchange.number, causes, now) {
                        self.emit(held.span, held.wall_offset, &place);
                    }
                }
                self.emit(span, wall_offset, &place);
            }
            Err(waits) => {
                if let Some(first) = self.room.hold(span, wall_offset, &ended, (waits, now)) {
                    self.emit_now(first);
                }
            }
        }
    }

    fn lost(&mut self, loss: Loss) {
        self.lost_many(loss, 1);
    }

    fn lost_many(&mut self, loss: Loss, n: u32) {
        let who = self.processes.identity(loss.tgid);
        if !who.is_watched {
            return;
        }
        let stage = if loss.stage == STAGE_KERNEL { Stage::Kernel } else { Stage::Protocol };
        let labels = stats::Loss {
            stage,
            reason: loss.reason,
            side: side_name(loss.side),
            service_name: &who.service.name,
        };
        self.stats.lose(labels, n.into());
    }
}
