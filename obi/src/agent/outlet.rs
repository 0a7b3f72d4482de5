//! The right half of the pipeline: an exchange to its span, its series, its objectives and its place in the store.
//!
//! In: finished or lost exchanges. Out: nothing but changed state. Drops what the rules exclude.

use super::process::{Directory, Identity};
use super::profile::{Report, Tell};
use super::route_state::RouteState;
use crate::clock::Clock;
use crate::export::otlp::Tap;
use crate::objective::record::Recorder;
use crate::profile::Origin;
use crate::protocol::loss::{Loss, STAGE_KERNEL};
use crate::protocol::{Endpoints, Exchange, Exchanges, Side, Sink};
use crate::red::{ActiveLabels, Registry};
use crate::span::assemble::{Assembler, scheme, server_of};
use crate::span::{Span, SpanKind};
use crate::span_store::Store;
use crate::stats::{self, Stage, Stats};

/// Everything right of the protocol stage.
#[derive(Debug)]
pub(super) struct Outlet {
    pub(super) processes: Directory,
    pub(super) assembler: Assembler,
    pub(super) route_state: RouteState,
    pub(super) registry: Registry,
    pub(super) store: Store,
    pub(super) tap: Tap,
    pub(super) stats: Stats,
    pub(super) clock: Clock,
    /// A span to write over; its buffers go round.
    pub(super) spare: Option<Span>,
    /// Objectives, if there are any.
    pub(super) objectives: Option<Recorder>,
    /// Who links samples to spans; nobody where nothing is sampled.
    pub(super) profile: Option<Tell>,
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

impl Outlet {
    /// Takes what the thread of samples tells, and tells it what it asks and what is new.
    pub(super) fn exchange_with_profile(&mut self) {
        let Some(mut profile) = self.profile.take() else { return };
        while let Some(report) = profile.report() {
            match report {
                Report::Cpu(samples) => samples.iter().for_each(|samples| self.registry.add_cpu(samples)),
                Report::Who(pid) => {
                    let Identity { service, instance, executable, .. } = self.processes.identity(pid);
                    let executable = executable.rsplit('/').next().unwrap_or_default().into();
                    profile.called(pid, Origin { pid, service, instance, executable });
                }
            }
        }
        profile.flush();
        self.profile = Some(profile);
    }

    /// Gives the objectives' thread what it has not got yet.
    pub(super) fn hand_over(&mut self) {
        if let Some(objectives) = &mut self.objectives {
            objectives.flush();
        }
    }

    /// Tells the registry which requests are under way.
    pub(super) fn count_active(&mut self, exchanges: &mut Exchanges) {
        let mut requests = Vec::new();
        exchanges.for_each_under_way(|under_way| {
            if under_way.is_rpc {
                // The conventions know no metric of calls under way.
                return;
            }
            let Identity { service, is_watched, .. } = self.processes.identity(under_way.tgid);
            if is_watched {
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
                    service,
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

impl Sink for Outlet {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        self.note_port(exchange);
        let Identity { service, instance, is_watched, .. } = self.processes.identity(exchange.tgid);
        if !is_watched {
            return;
        }
        self.stats.receive(Stage::Span, 1);
        let mut span = self.spare.take().unwrap_or_else(Span::blank);
        // Monotonic to Unix is one addition; the difference is the same for every time of the exchange.
        let wall_offset = self.clock.unix(exchange.ended) - exchange.ended;
        self.assembler.assemble(exchange, &service, wall_offset, &mut span);
        span.instance = instance;
        if let Some(profile) = &mut self.profile {
            profile.ended(exchange, &span);
        }
        let kept = self.tap.sample(&mut span);
        self.registry.record(&span);
        if let Some(kept) = kept {
            self.tap.push(&span, kept);
        }
        if let Some(objectives) = &mut self.objectives {
            objectives.record(&span);
        }
        self.spare = self.store.push(span);
        if let Some(objectives) = &mut self.objectives {
            objectives.stored(&mut self.store);
        }
    }

    fn lost(&mut self, loss: Loss) {
        self.lost_many(loss, 1);
    }

    fn lost_many(&mut self, loss: Loss, n: u32) {
        let Identity { service, is_watched, .. } = self.processes.identity(loss.tgid);
        if !is_watched {
            return;
        }
        let stage = if loss.stage == STAGE_KERNEL { Stage::Kernel } else { Stage::Protocol };
        let labels = stats::Loss {
            stage,
            reason: loss.reason,
            side: side_name(loss.side),
            service_name: &service.name,
        };
        self.stats.lose(labels, n.into());
    }
}
