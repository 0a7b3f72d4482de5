//! Exchanges that are open, and those that have ended lately: what may have caused something.
//!
//! In: beginnings and ends. Out: exchanges by number, by what they are on the wire, by the trace that a header gave
//! them. Bounded. Refuses to know what follows from it.

use super::context::Parent;
use super::numbered::Numbered;
use super::{Reason, Recent, TracePosition};
use crate::protocol::{Cause, Side, Wire};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use std::collections::VecDeque;

/// Open at once. The parser has as many of each protocol at most.
const OPEN: usize = 131_072;
/// That have ended lately.
const ENDED: usize = 16_384;
/// And are remembered for so long at most, ns.
const ENDED_NS: u64 = 30_000_000_000;
/// Threads that have read requests.
const THREADS: usize = 32_768;
/// Requests of one process in one trace that are distinguished; with more, none is taken.
const SAME_TRACE: usize = 16;

/// Calls below a request that began when it had been answered.
const LATE: u16 = 256;

/// What is known of an exchange.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) number: u64,
    pub(super) side: Side,
    pub(super) tgid: u32,
    /// Thread that read or sent its request's head.
    pub(super) tid: u32,
    pub(super) started: u64,
    pub(super) span_id: [u8; 8],
    pub(super) header: Option<Parent>,
    pub(super) cause: Cause,
    /// Of a request: another one was open on its connection or thread.
    pub(super) overlaps: bool,
    /// Of a request that has ended: another one of its process was open meanwhile.
    pub(super) has_company: bool,
    /// Of a request: calls that began when it had been answered, and are below it all the same.
    pub(super) n_late: u16,
    /// Of a call: its process was serving something when it began.
    pub(super) is_beside_others: bool,
    /// Of a call: what its program's runtime says of it is not believed.
    pub(super) refused: Option<Reason>,
    pub(super) end: Option<End>,
    pub(super) place: Option<TracePosition>,
}

/// How an exchange ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) at: u64,
    /// The thread that had read the request has answered it.
    pub(super) by_reader: bool,
    /// The one that has answered it had waited for many things at once by then.
    pub(super) waits_many: bool,
    pub(super) route: u64,
    pub(super) is_upgrade: bool,
}

/// Requests that are open in a process.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    n: u32,
    /// When the last of them began, and the last one that was not alone; 0: none.
    last: u64,
    joined: u64,
}

#[derive(Debug)]
pub(super) struct Table {
    known: Numbered,
    /// Numbers and positions in the order of their ends.
    ended: VecDeque<(u64, u32)>,
    /// Requests, by process and the trace that their headers name.
    by_trace: HashMap<(u32, [u8; 16]), Vec<u64>, RandomState>,
    /// Requests open in each process.
    open: HashMap<u32, Open, RandomState>,
    /// The request that each thread has read last.
    last_read: Recent<u32, u64>,
}

impl Known {
    pub(super) fn new(
        number: u64,
        (side, tgid, tid): (Side, u32, u32),
        (started, span_id): (u64, [u8; 8]),
        (header, cause): (Option<Parent>, Cause),
    ) -> Self {
        let (overlaps, is_beside_others, has_company) = (false, false, false);
        let (end, place, n_late, refused) = (None, None, 0, None);
        Self {
            number,
            side,
            tgid,
            tid,
            started,
            span_id,
            header,
            cause,
            overlaps,
            has_company,
            n_late,
            is_beside_others,
            refused,
            end,
            place,
        }
    }

    fn is_open(&self) -> bool {
        self.end.is_none()
    }
}

impl Default for Table {
    fn default() -> Self {
        Self {
            known: Numbered::default(),
            ended: VecDeque::new(),
            by_trace: HashMap::default(),
            open: HashMap::default(),
            last_read: Recent::new(THREADS),
        }
    }
}

impl Table {
    pub(super) fn get(&self, number: u64) -> Option<&Known> {
        self.known.get(number)
    }

    /// What finds no room is never a cause.
    pub(super) fn begin(&mut self, mut known: Known) {
        self.remove(known.number);
        if self.known.len() >= OPEN + ENDED {
            return;
        }
        match known.side {
            Side::Server => self.begin_request(&mut known),
            Side::Client => {
                known.is_beside_others = self.open.contains_key(&known.tgid);
            }
        }
        self.known.insert(known);
    }

    fn begin_request(&mut self, known: &mut Known) {
        let open = self.open.entry(known.tgid).or_default();
        // Records of two processors may come in another order than they were made in.
        open.last = open.last.max(known.started);
        if open.n > 0 {
            open.joined = open.last;
        }
        open.n += 1;
        // On its connection the one before it has the number before it.
        let before = [known.number.wrapping_sub(1), self.last_read.get(known.tid).copied().unwrap_or(0)];
        for number in before {
            if let Some(other) = self.known.get_mut(number)
                && other.side == Side::Server
                && other.is_open()
            {
                other.overlaps = true;
                known.overlaps = true;
            }
        }
        self.last_read.put(known.tid, known.number);
        if let Some(header) = known.header {
            let same = self.by_trace.entry((known.tgid, header.trace_id)).or_default();
            if same.len() < SAME_TRACE {
                same.push(known.number);
            }
        }
    }

    pub(super) fn end(&mut self, number: u64, end: End) {
        let Some(position) = self.known.position(number) else { return };
        let Some(known) = self.known.at_mut(position) else { return };
        if known.end.replace(end).is_some() {
            return;
        }
        if known.side == Side::Server {
            known.has_company = self.open.get(&known.tgid).is_none_or(|open| open.joined >= known.started);
            let tgid = known.tgid;
            self.close(tgid);
        }
        self.ended.push_back((number, position));
        if self.ended.len() > ENDED {
            self.let_go();
        }
    }

    fn close(&mut self, tgid: u32) {
        if let Some(open) = self.open.get_mut(&tgid) {
            open.n -= 1;
            if open.n == 0 {
                self.open.remove(&tgid);
            }
        }
    }

    /// Keeps the place; `true` when it is that of a request that was upgraded.
    pub(super) fn set_place(&mut self, number: u64, place: TracePosition) -> bool {
        let Some(known) = self.known.get_mut(number) else { return false };
        known.place = Some(place);
        known.end.is_some_and(|end| end.is_upgrade)
    }

    pub(super) fn remove(&mut self, number: u64) {
        if let Some(known) = self.known.remove(number) {
            self.removed(&known);
        }
    }

    fn removed(&mut self, known: &Known) {
        if known.side == Side::Server && known.is_open() {
            self.close(known.tgid);
        }
        if let (Side::Server, Some(header)) = (known.side, known.header) {
            let key = (known.tgid, header.trace_id);
            if let Some(same) = self.by_trace.get_mut(&key) {
                same.retain(|held| *held != known.number);
                if same.is_empty() {
                    self.by_trace.remove(&key);
                }
            }
        }
    }

    /// Requests that this thread has read and that are open: number and beginning. Looks through all.
    pub(super) fn open_of(&self, tid: u32) -> impl Iterator<Item = (u64, u64)> {
        let requests = self.known.values().filter(move |it| it.tid == tid && it.side == Side::Server);
        requests.filter(|it| it.is_open()).map(|it| (it.number, it.started))
    }

    /// The other end of what is `side` of this exchange.
    pub(super) fn peer(&self, wire: Wire, side: Side) -> Option<&Known> {
        let other = match side {
            Side::Server => Side::Client,
            Side::Client => Side::Server,
        };
        self.known.on_wire(wire, other)
    }

    /// The one request of a process in a trace that was open at `time`; if there was none, the one that there was.
    pub(super) fn served_in(&self, tgid: u32, trace_id: [u8; 16], time: u64) -> Option<Known> {
        let same = self.by_trace.get(&(tgid, trace_id)).filter(|same| same.len() < SAME_TRACE)?;
        let begun =
            || same.iter().filter_map(|number| self.known.get(*number)).filter(|it| it.started <= time);
        let mut open = begun().filter(|it| it.end.is_none_or(|end| time <= end.at));
        match (open.next(), open.next()) {
            (Some(one), None) => Some(*one),
            (Some(_), Some(_)) => None,
            (None, _) => {
                let mut ended = begun();
                ended.next().filter(|_| ended.next().is_none()).copied()
            }
        }
    }

    /// Whether a call that began at `time` may be below this request. A request that was answered has room for a few:
    /// what goes on for ever in its trace would make a trace without an end.
    pub(super) fn admit(&mut self, number: u64, time: u64) -> bool {
        let Some(known) = self.known.get_mut(number) else { return false };
        if known.end.is_none_or(|end| time <= end.at) {
            return true;
        }
        known.n_late = known.n_late.saturating_add(1);
        known.n_late <= LATE
    }

    /// Exchanges known now.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// Lets go of what ended long before `now`.
    pub(super) fn sweep(&mut self, now: u64) {
        for _ in 0..self.ended.len() {
            let oldest = self.ended.front().and_then(|oldest| self.has_ended(*oldest)?.end);
            if oldest.is_some_and(|end| now.saturating_sub(end.at) < ENDED_NS) {
                break;
            }
            self.let_go();
        }
    }

    /// What is known of an exchange that has ended, by its number and position, if it is still the one that is there.
    fn has_ended(&self, (number, position): (u64, u32)) -> Option<&Known> {
        self.known.at(position).filter(|known| known.number == number && known.end.is_some())
    }

    /// The oldest that has ended goes, unless its place is still looked for.
    fn let_go(&mut self) {
        let Some(oldest) = self.ended.pop_front() else { return };
        match self.has_ended(oldest) {
            Some(known) if known.place.is_none() => self.ended.push_back(oldest),
            Some(_) => {
                if let Some(known) = self.known.remove_at(oldest.1) {
                    self.removed(&known);
                }
            }
            None => {} // it has gone, or the number is used again
        }
    }
}
