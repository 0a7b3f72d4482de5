//! What caused what: exchanges to their places in traces.
//!
//! In: requests as they begin and as they end, with what the kernel says of them. Out: a [`TracePosition`] for each
//! span: its ids, its parent and how sure that is; or that it must wait. Facts come from the kernel, verdicts are made
//! here, by what all exchanges together show. Pure: time is an argument. Refuses to know names.
//!
//! - [`context`]: `traceparent`, ids that follow from what is known when a request begins.
//! - [`evidence`]: how sure a parent is. [`decide`]: the rules by threads and by runtimes.
//! - `outstanding`: what else an event loop's requests waited for.
//! - `table`: exchanges that are open, or have ended lately, `numbered`. `synchronous`: routes that stay on one thread.
//! - `thread`: whether a thread's time and samples are of one request.
//!
//! A call's trace is that of the request that caused it; a request's is that of the call at the other end of its
//! connection, if that is on this machine. So a place is found along callers, up to the first that has none.
#![forbid(unsafe_code)]

pub mod context;
pub mod decide;
pub mod evidence;
mod numbered;
mod outstanding;
mod recent;
mod synchronous;
mod table;
mod thread;

pub use evidence::{Evidence, Origin, Reason};

use crate::config::Parents;
use crate::protocol::{Answerer, Begun, Side};
use context::{FLAG_RANDOM, FLAG_SAMPLED, Ids, Parent};
use decide::{Facts, Said, by_runtime, by_thread};
use outstanding::Outstanding;
use recent::Recent;
use synchronous::Synchronous;
use table::{End, Known, Table};

/// Place of a span in its trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TracePosition {
    /// Never all zero.
    pub trace_id: [u8; 16],
    /// Of the span itself; never all zero.
    pub span_id: [u8; 8],
    /// `None` for a root.
    pub parent_span_id: Option<[u8; 8]>,
    /// Trace flags that this agent knows: sampled (1) and random trace id (2).
    pub flags: u8,
    /// How the parent was found.
    pub origin: Origin,
}

/// An exchange that is over.
#[derive(Debug, Clone, Copy)]
pub struct Ended<'a> {
    /// How it began, for those of which nothing else was heard.
    pub begun: Begun<'a>,
    /// Last byte of the response, or the moment it broke; `CLOCK_MONOTONIC`, ns.
    pub at: u64,
    /// Who answered it.
    pub answerer: Option<Answerer>,
    /// A number for its service and route: the same for the same ones.
    pub route: u64,
    /// What it is beside a request and its response.
    pub part: Part,
}

/// Of exchanges that become something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Part {
    /// It does not.
    #[default]
    Whole,
    /// The request that is upgraded.
    Upgrade,
    /// The WebSocket that it becomes: a child of the request. Both have the same number, and may end hours apart.
    Socket,
}

/// What is to be found out first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// Whether the other end of the connection is on this machine: its record may come later, by some milliseconds.
    Peer,
    /// Who answers the request that may be the cause.
    Answer,
}

/// So long a request waits for the record of the call at the other end, ns. The kernel delivers data inside of the call
/// that sends it, and that call's record is written when it returns: its thread may be preempted in between.
pub const PEER_WAIT_NS: u64 = 100_000_000;
/// A call waits for the answer to the request that may have caused it no longer than this, ns.
pub const ANSWER_WAIT_NS: u64 = 60_000_000_000;
/// Callers up to the first.
const DEPTH: u32 = 64;
/// Connections whose other end is not on this machine.
const FOREIGN: usize = 16_384;
/// Processes that are loops.
const LOOPS: usize = 4_096;
/// Requests that were upgraded.
const UPGRADED: usize = 16_384;

/// Numbers of exchanges are below this bit: with it, that of the WebSocket which one was upgraded to.
const SOCKET: u64 = 1 << 63;

/// Finds the places of spans. Owned by one task.
#[derive(Debug)]
pub struct Causes {
    ids: Ids,
    parents: Parents,
    sees_waits: bool,
    table: Table,
    routes: Synchronous,
    /// Routes whose goroutines have gone on when the request had been answered.
    outlived: Synchronous,
    outstanding: Outstanding,
    /// By process: threads that wait for many things at once read requests there.
    loops: Recent<u32, ()>,
    foreign: Recent<(u32, u32), ()>,
    upgraded: Recent<u64, TracePosition>,
}

impl Causes {
    /// `sees_waits`: the kernel side reports which threads wait for many things at once. Without, no thread is trusted.
    #[must_use]
    pub fn new(ids: Ids, parents: Parents, sees_waits: bool) -> Self {
        Self {
            ids,
            parents,
            sees_waits,
            table: Table::default(),
            routes: Synchronous::new(),
            outlived: Synchronous::new(),
            outstanding: Outstanding::new(),
            loops: Recent::new(LOOPS),
            foreign: Recent::new(FOREIGN),
            upgraded: Recent::new(UPGRADED),
        }
    }

    /// A request's head has come.
    pub fn begun(&mut self, begun: &Begun<'_>) {
        if begun.side == Side::Server && begun.cause.waits_many {
            self.loops.put(begun.tgid, ());
        }
        let mut known = self.known(begun);
        match begun.side {
            Side::Server => self.outstanding.request_begins(begun.tid, begun.number, begun.started),
            Side::Client if begun.cause.by_runtime => self.follow_up(&mut known),
            Side::Client => {}
        }
        self.table.begin(known);
    }

    /// It is over. Its place is asked for from now on.
    pub fn ended(&mut self, ended: &Ended<'_>) {
        let begun = Begun { number: number_of(ended), ..ended.begun };
        if self.table.get(begun.number).is_none() {
            self.begun(&begun);
        }
        let by_reader = ended.answerer.map(|answerer| answerer.tid == begun.tid);
        if let (Side::Server, Some(by_reader)) = (begun.side, by_reader) {
            self.routes.answered(ended.route, by_reader);
        }
        let end = End {
            at: ended.at,
            by_reader: by_reader == Some(true),
            waits_many: ended.answerer.is_some_and(|answerer| answerer.waits_many),
            route: ended.route,
            is_upgrade: ended.part == Part::Upgrade,
        };
        match begun.side {
            Side::Server => self.outstanding.request_ends(begun.tid, begun.number, ended.at),
            Side::Client => self.outstanding.call_ends(begun.number, ended.at),
        }
        self.table.end(begun.number, end);
    }

    /// A request that had begun will not be heard of again.
    pub fn forget(&mut self, number: u64) {
        if let Some(known) = self.table.get(number) {
            self.outstanding.request_ends(known.tid, number, known.started);
            self.outstanding.call_ends(number, known.started);
        }
        self.table.remove(number);
    }

    /// Lets go of what ended long before `now`.
    pub fn sweep(&mut self, now: u64) {
        self.table.sweep(now);
    }

    /// The place of the span of an exchange that has ended.
    ///
    /// # Errors
    /// When more has to be seen before; to be asked again.
    pub fn place(&mut self, ended: &Ended<'_>, now: u64) -> Result<TracePosition, Waits> {
        let number = number_of(ended);
        match self.table.get(number).copied() {
            Some(known) => self.resolve(&known, now, DEPTH),
            // It found no room.
            None => Ok(self.by_header(&self.known(&Begun { number, ..ended.begun }))),
        }
    }

    /// As [`Self::place`], by what is known now.
    pub fn place_now(&mut self, ended: &Ended<'_>) -> TracePosition {
        // Nothing is waited for at the end of time.
        self.place(ended, u64::MAX).unwrap_or_else(|_| {
            let known = self.known(&Begun { number: number_of(ended), ..ended.begun });
            let place = self.root(&known, Origin::Unknown(Reason::PendingRoom));
            self.table.set_place(known.number, place);
            place
        })
    }

    /// The other end of an exchange, if it is on this machine: its number and process.
    #[must_use]
    pub fn peer(&self, number: u64) -> Option<(u64, u32)> {
        let known = self.table.get(number)?;
        let peer = self.table.peer(known.cause.wire?, known.side)?;
        Some((peer.number, peer.tgid))
    }

    fn known(&self, begun: &Begun<'_>) -> Known {
        let Begun { number, side, tgid, tid, started, traceparent, cause } = *begun;
        let is_socket = number & SOCKET != 0;
        let span_id = match is_socket {
            true => self.ids.socket_id(number, started),
            false => self.ids.span_id(number, started),
        };
        let header = context::parse_traceparent(traceparent).filter(|_| !is_socket);
        Known::new(number, (side, tgid, tid), (started, span_id), (header, cause))
    }
}

impl Causes {
    /// The candidate may be an earlier call, and is then what that was made for. Where promises sent this call, the
    /// candidate is believed if no other request could go on; it counts as its in any case ([`outstanding`]).
    fn follow_up(&mut self, call: &mut Known) {
        let named = self
            .table
            .get(call.cause.candidate)
            .map(|named| (named.side, named.cause.candidate, named.refused));
        if let Some((Side::Client, request, refused)) = named {
            (call.cause.candidate, call.refused) = (request, refused);
        }
        let (tid, request) = (call.tid, call.cause.candidate);
        if request == 0 {
            return;
        }
        let is_followed = self.outstanding.follow(tid, self.table.open_of(tid));
        if let Some(behind) = call.cause.behind {
            let at = call.started.saturating_sub(behind);
            if !is_followed || !self.outstanding.all_others_wait(tid, request, at) {
                call.refused.get_or_insert(Reason::Ambiguous);
            }
        }
        self.outstanding.call_begins(tid, request, (call.number, call.started));
    }

    fn resolve(&mut self, known: &Known, now: u64, depth: u32) -> Result<TracePosition, Waits> {
        if let Some(place) = known.place {
            return Ok(place);
        }
        let place = match known.side {
            _ if depth == 0 || self.parents == Parents::Off => self.by_header(known),
            _ if known.number & SOCKET != 0 => self.of_socket(known, now, depth)?,
            Side::Server => self.of_server(known, now, depth)?,
            Side::Client => self.of_client(known, now, depth)?,
        };
        // On the way up it may have been met again, which cannot be: then it is no one's child.
        if let Some(place) = self.table.get(known.number).and_then(|known| known.place) {
            return Ok(place);
        }
        if self.table.set_place(known.number, place) {
            self.upgraded.put(known.number, place);
        }
        Ok(place)
    }

    /// Caused by the call at the other end of its connection.
    fn of_server(&mut self, known: &Known, now: u64, depth: u32) -> Result<TracePosition, Waits> {
        let Some(wire) = known.cause.wire else { return Ok(self.by_header(known)) };
        if let Some(caller) = self.table.peer(wire, Side::Server).copied() {
            if known.header.is_some() && !self.is_relay(&caller) {
                return Ok(self.by_header(known));
            }
            let above = self.resolve(&caller, now, depth - 1)?;
            return Ok(below(known, &caller, above, Evidence::Certain));
        }
        // A header has the last word about what is not seen here: there is nothing to wait for.
        if known.header.is_some() {
            return Ok(self.by_header(known));
        }
        let connection = (wire.asked, wire.answered);
        if self.foreign.get(connection).is_none() {
            if now.saturating_sub(known.started) < PEER_WAIT_NS {
                return Err(Waits::Peer);
            }
            self.foreign.put(connection, ());
        }
        Ok(self.by_header(known))
    }

    /// A call whose header is that of a request, passed on as it came: the span that it names is further up. One that
    /// the application has written itself names a span of its own.
    fn is_relay(&self, call: &Known) -> bool {
        let Some(header) = call.header else { return false };
        let served = self.table.served_in(call.tgid, header.trace_id, call.started);
        served.and_then(|served| served.header).is_some_and(|held| held.span_id == header.span_id)
    }

    /// Caused by the request that its process was serving.
    fn of_client(&mut self, known: &Known, now: u64, depth: u32) -> Result<TracePosition, Waits> {
        if let Some(header) = known.header {
            let place = self.by_header(known);
            // The application has passed on what it got: the trace shows with which request.
            let served = self.table.served_in(known.tgid, header.trace_id, known.started);
            return Ok(match served.filter(|served| self.table.admit(served.number, known.started)) {
                Some(served) => TracePosition {
                    parent_span_id: Some(served.span_id),
                    origin: Origin::Found(Evidence::Certain),
                    ..place
                },
                None => place,
            });
        }
        // Of who was started, and of promises, the evidence is strong at most.
        let is_certain = !known.cause.is_started && known.cause.behind.is_none();
        if known.cause.by_runtime && (is_certain || self.parents != Parents::Certain) {
            return match self.by_runtime(known) {
                Ok(Some((served, evidence))) => {
                    let above = self.resolve(&served, now, depth - 1)?;
                    Ok(below(known, &served, above, evidence))
                }
                Ok(None) => Ok(self.root(known, Origin::Root)),
                Err(doubt) => self.doubted(known, doubt, now),
            };
        }
        if self.parents == Parents::Certain {
            return Ok(self.root(known, Origin::Root));
        }
        match self.by_thread(known) {
            Ok(Some(served)) => {
                let above = self.resolve(&served, now, depth - 1)?;
                Ok(below(known, &served, above, Evidence::Strong))
            }
            Ok(None) => Ok(self.root(known, Origin::Root)),
            Err(doubt) => self.doubted(known, doubt, now),
        }
    }

    fn doubted(&self, known: &Known, doubt: Doubt, now: u64) -> Result<TracePosition, Waits> {
        match doubt {
            Doubt::Known(reason) => Ok(self.root(known, Origin::Unknown(reason))),
            Doubt::Wait if now.saturating_sub(known.started) < ANSWER_WAIT_NS => Err(Waits::Answer),
            Doubt::Wait => Ok(self.root(known, Origin::Unknown(Reason::PendingRoom))),
        }
    }

    /// The request that the program's runtime names, and how sure that is; `None` when its process serves nothing.
    fn by_runtime(&mut self, call: &Known) -> Result<Option<(Known, Evidence)>, Doubt> {
        let is_started = call.cause.is_started;
        if let Some(reason) = call.refused {
            return Err(Doubt::Known(reason));
        }
        if call.cause.candidate == 0 {
            return if call.is_beside_others { Err(Doubt::Known(Reason::NoContext)) } else { Ok(None) };
        }
        let served = self.table.get(call.cause.candidate).copied().ok_or(Doubt::Known(Reason::Lost))?;
        let inside = served.end.is_none_or(|end| call.started <= end.at);
        if let (true, Some(end)) = (is_started, served.end) {
            self.outlived.answered(end.route, inside);
        }
        let said = Said {
            same_process: served.side == Side::Server && served.tgid == call.tgid,
            inside,
            is_started,
            is_behind: call.cause.behind.is_some(),
            outlives: served.end.is_some_and(|end| self.outlived.is_asynchronous(end.route)),
        };
        let evidence = by_runtime(said).map_err(Doubt::Known)?;
        // Nothing speaks against it so far.
        if is_started && served.end.is_none() { Err(Doubt::Wait) } else { Ok(Some((served, evidence))) }
    }

    /// The request that the calling thread serves; `None` when its process serves nothing.
    fn by_thread(&mut self, call: &Known) -> Result<Option<Known>, Doubt> {
        let is_loop = self.loops.get(call.tgid).is_some();
        if call.cause.candidate == 0 {
            return match call.is_beside_others {
                false => Ok(None),
                true if is_loop || call.cause.waits_many || !self.sees_waits => {
                    Err(Doubt::Known(Reason::RuntimeUnproven))
                }
                true => Err(Doubt::Known(Reason::OtherThread)),
            };
        }
        let Some(served) = self.table.get(call.cause.candidate).copied() else {
            return Err(Doubt::Known(Reason::Lost));
        };
        let facts = Facts {
            sees_waits: self.sees_waits,
            waits_many: call.cause.waits_many || served.end.is_some_and(|end| end.waits_many),
            is_loop,
            same_thread: (served.tgid, served.tid) == (call.tgid, call.tid),
            overlaps: served.overlaps,
            inside: served.end.is_none_or(|end| call.started <= end.at),
            same_answerer: served.end.is_none_or(|end| end.by_reader),
            is_asynchronous: served.end.is_some_and(|end| self.routes.is_asynchronous(end.route)),
        };
        by_thread(facts).map_err(Doubt::Known)?;
        // Nothing speaks against it so far.
        if served.end.is_some() { Ok(Some(served)) } else { Err(Doubt::Wait) }
    }

    /// A child of the request that was upgraded.
    fn of_socket(&mut self, known: &Known, now: u64, depth: u32) -> Result<TracePosition, Waits> {
        let number = known.number & !SOCKET;
        let upgrade = match (self.upgraded.get(number).copied(), self.table.get(number).copied()) {
            (Some(place), _) => place,
            (None, Some(upgrade)) => self.resolve(&upgrade, now, depth - 1)?,
            (None, None) => return Ok(self.root(known, Origin::Root)),
        };
        Ok(TracePosition {
            span_id: known.span_id,
            parent_span_id: Some(upgrade.span_id),
            origin: Origin::Found(Evidence::Certain),
            ..upgrade
        })
    }

    /// Below the span that the header names, or a root.
    fn by_header(&self, known: &Known) -> TracePosition {
        match known.header {
            Some(Parent { trace_id, span_id, flags }) => TracePosition {
                trace_id,
                span_id: known.span_id,
                parent_span_id: Some(span_id),
                flags,
                origin: Origin::Header,
            },
            None => self.root(known, Origin::Root),
        }
    }

    fn root(&self, known: &Known, origin: Origin) -> TracePosition {
        TracePosition {
            trace_id: self.ids.trace_id(known.number, known.started),
            span_id: known.span_id,
            parent_span_id: None,
            flags: FLAG_SAMPLED | FLAG_RANDOM,
            origin,
        }
    }
}

fn number_of(ended: &Ended<'_>) -> u64 {
    ended.begun.number | if ended.part == Part::Socket { SOCKET } else { 0 }
}

/// Why the calling thread's request is not taken for the cause.
enum Doubt {
    Known(Reason),
    /// It may be, when its answer says so.
    Wait,
}

/// Below `caller`, whose own place is `above`.
fn below(known: &Known, caller: &Known, above: TracePosition, evidence: Evidence) -> TracePosition {
    TracePosition {
        trace_id: above.trace_id,
        span_id: known.span_id,
        parent_span_id: Some(caller.span_id),
        flags: above.flags,
        origin: Origin::Found(evidence),
    }
}

#[cfg(test)]
mod tests;
