//! The agent's books: what an agent without faults would make of the records of one connection.
//!
//! In: the kernel's journal. Out: one [`Account`] per exchange. Panics where the kernel breaks a promise of
//! the contract; the tests want that. Refuses to know what was sent.
#![forbid(unsafe_code)]

use crate::Entry;
use crate::frames::Frames;
use obi_ebpf::*;
use std::collections::BTreeMap;
use zerocopy::{FromBytes, IntoBytes};

/// What is known of one message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message {
    /// Bytes copied so far.
    pub head: Vec<u8>,
    /// Stream offset of the first byte.
    pub offset: u32,
    /// A first piece came.
    pub begun: bool,
    /// The last piece came.
    pub whole: bool,
    /// Not all of the head was copied.
    pub truncated: bool,
    /// Body bytes, when the end has come.
    pub ended: Option<u64>,
    /// FLAG_REQUEST_INCOMPLETE, FLAG_CLOSE_DELIMITED, FLAG_TUNNEL and to what, so far.
    pub flags: u32,
}

/// How an exchange stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// More is to come.
    Open,
    /// The response ended.
    Whole,
    /// A close event ended it: reason, and body bytes of request (if the newest) and response (if the oldest).
    Broken(u8, Option<u64>, Option<u64>),
    /// The kernel side gave up, and the agent counts one loss: `enum loss_reason`.
    Abandoned(u8),
    /// Half a request head when the connection ended: no request was made.
    Dropped,
    /// The kernel side has taken it back (and counted it, if it was an exchange).
    Forgotten,
}

/// One exchange.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    /// The request.
    pub request: Message,
    /// The response; interim ones are not kept.
    pub response: Message,
    /// Where it stands.
    pub fate: Fate,
    /// `enum side`.
    pub side: u8,
    /// The response was seen before the request's head was whole.
    pub ahead: bool,
}

/// All exchanges by number.
#[derive(Debug, Default)]
pub struct Ledger {
    /// By exchange number.
    pub accounts: BTreeMap<u64, Account>,
    /// What is not HTTP/1.
    pub frames: Frames,
    read: usize,
}

impl Ledger {
    /// Reads what is new in the journal.
    pub fn read(&mut self, kernel: &crate::Kernel) {
        for entry in kernel.journal(self.read) {
            self.read += 1;
            match entry {
                Entry::Record(words) => self.record(words.as_bytes()),
                Entry::Forgotten(number) => self.forget(number),
                Entry::Turns(number) => self.frames.end_by_turns(number),
            }
        }
    }

    /// Exchanges with that kind of fate.
    pub fn count(&self, which: impl Fn(Fate) -> bool) -> u64 {
        self.accounts.values().filter(|account| which(account.fate)).count() as u64
    }

    /// Exchanges that became spans.
    pub fn delivered(&self) -> u64 {
        self.count(|fate| matches!(fate, Fate::Whole | Fate::Broken(..)))
    }

    /// Exchanges that the agent counts as lost because the kernel said so.
    pub fn abandoned(&self) -> u64 {
        self.count(|fate| matches!(fate, Fate::Abandoned(_)))
    }

    fn record(&mut self, bytes: &[u8]) {
        if self.frames.read(bytes) {
            return;
        }
        let (header, _) = event_header::ref_from_prefix(bytes).expect("a record has a header");
        match header.kind {
            EVENT_HEAD => {
                let (head, _) = head_event::ref_from_prefix(bytes).expect("a head event");
                let start = size_of::<head_event>() - usize::from(head.lead);
                let payload =
                    bytes.get(start..start + usize::from(head.length)).expect("payload inside the record");
                assert!(usize::from(head.lead) <= CARRY_BYTES as usize);
                self.piece(head, payload);
            }
            EVENT_END => self.end(end_event::ref_from_prefix(bytes).expect("an end event").0),
            EVENT_CLOSE => self.close(close_event::ref_from_prefix(bytes).expect("a close event").0),
            other => panic!("record of kind {other}"),
        }
    }

    fn forget(&mut self, number: u64) {
        let is_open = self.accounts.get(&number).is_some_and(|account| account.fate == Fate::Open);
        if !is_open && number & ((1 << ORDINAL_BITS) - 1) == 0 {
            return; // a connection of HTTP/2 whose end could not be reported
        }
        let account =
            self.accounts.get_mut(&number).unwrap_or_else(|| panic!("{number:x} forgotten but never begun"));
        if account.fate == Fate::Whole && account.response.flags & FLAG_WEBSOCKET != 0 {
            return; // the WebSocket, whose end could not be reported
        }
        assert_eq!(account.fate, Fate::Open, "{number:x} forgotten");
        account.fate = Fate::Forgotten;
    }

    fn piece(&mut self, head: &head_event, payload: &[u8]) {
        let (number, flags) = (head.header.exchange, head.header.flags);
        let first = flags & FLAG_FIRST_PIECE != 0;
        let request = u32::from(head.message) == MESSAGE_REQUEST;
        assert!(request || u32::from(head.message) == MESSAGE_RESPONSE);
        assert_ne!(number & ((1 << ORDINAL_BITS) - 1), number, "no connection number");
        let known = self.accounts.get(&number);
        // A client may read an answer before its other thread's send has returned.
        let ahead = !request && known.is_none() && u32::from(head.side) == SIDE_CLIENT;
        let awaited = request && known.is_some_and(|account| account.ahead && !account.request.begun);
        if first && (ahead || (request && !awaited)) {
            let fresh = Account {
                request: Message::default(),
                response: Message::default(),
                fate: Fate::Open,
                side: head.side,
                ahead,
            };
            assert!(self.accounts.insert(number, fresh).is_none(), "{number:x} begun twice");
        }
        let account =
            self.accounts.get_mut(&number).unwrap_or_else(|| panic!("piece of {number:x}, never begun"));
        assert_eq!(account.fate, Fate::Open, "piece of {number:x} after its end");
        assert_eq!(account.side, head.side, "side of {number:x}");
        account.ahead |= !request && u32::from(head.side) == SIDE_CLIENT && !account.request.whole;
        let message = if request { &mut account.request } else { &mut account.response };
        assert_eq!(first, !message.begun, "first piece of {number:x}");
        assert!(!message.whole && message.ended.is_none(), "piece of {number:x} behind its head");
        if first {
            message.offset = head.offset;
            message.begun = true;
        }
        if !message.truncated && !payload.is_empty() {
            assert_eq!(head.position as usize, message.head.len(), "position in {number:x}");
            assert_eq!(head.offset, message.offset.wrapping_add(head.position), "offset in {number:x}");
        }
        assert!(!message.truncated || payload.is_empty(), "copied beyond the limit");
        message.truncated |= flags & FLAG_TRUNCATED != 0;
        message.head.extend_from_slice(payload);
        message.whole = flags & FLAG_LAST_PIECE != 0;
        message.flags |= flags
            & (FLAG_REQUEST_INCOMPLETE | FLAG_CLOSE_DELIMITED | FLAG_TUNNEL | FLAG_HTTP2 | FLAG_WEBSOCKET);
        if flags & FLAG_MESSAGE_END != 0 {
            message.ended = Some(head.body_bytes);
        }
        if flags & FLAG_INTERIM != 0 {
            assert!(!request && message.whole && message.ended.is_none());
            *message = Message::default();
        }
        self.settle(number);
    }

    fn end(&mut self, end: &end_event) {
        let number = end.header.exchange;
        let account =
            self.accounts.get_mut(&number).unwrap_or_else(|| panic!("end of {number:x}, never begun"));
        let request = u32::from(end.message) == MESSAGE_REQUEST;
        // A request that was answered early ends at last; so does one whose answer could not be reported.
        let is_late = request
            && match account.fate {
                Fate::Whole => account.ahead || account.response.flags & FLAG_REQUEST_INCOMPLETE != 0,
                fate => fate == Fate::Forgotten,
            };
        assert!(account.fate == Fate::Open || is_late, "end of {number:x} after its end: {account:?}");
        let message = if request { &mut account.request } else { &mut account.response };
        assert!(message.whole, "end of {number:x} without a whole head");
        assert!(message.ended.replace(end.body_bytes).is_none(), "{number:x} ended twice");
        message.flags |= end.header.flags & FLAG_REQUEST_INCOMPLETE;
        if !is_late {
            self.settle(number);
        }
    }

    fn close(&mut self, close: &close_event) {
        assert!(close.pending > 0, "a close event of nothing");
        for nth in 0..u64::from(close.pending) {
            let newest = nth + 1 == u64::from(close.pending);
            let Some(account) = self.accounts.get_mut(&(close.header.exchange + nth)) else { continue };
            if account.fate == Fate::Forgotten {
                continue;
            }
            assert_eq!(account.fate, Fate::Open, "closed after its end");
            account.fate = if u32::from(close.reason) >= CLOSE_ABANDONED {
                Fate::Abandoned(close.loss)
            } else if account.request.whole {
                assert_eq!(
                    close.response_started != 0 && nth == 0,
                    account.response.whole,
                    "response_started"
                );
                let request = newest.then_some(close.request_body_bytes);
                Fate::Broken(close.reason, request, (nth == 0).then_some(close.response_body_bytes))
            } else {
                Fate::Dropped
            };
        }
    }

    fn settle(&mut self, number: u64) {
        let account = self.accounts.get_mut(&number).expect("settled after an event of its own");
        let awaited = account.ahead && !account.request.whole;
        if account.response.ended.is_some() && !awaited {
            let incomplete = account.response.flags & FLAG_REQUEST_INCOMPLETE != 0;
            assert!(
                account.response.whole && (account.request.whole || incomplete),
                "{number:x} ended in pieces"
            );
            // An answer that had ended before the request's head was whole knew nothing of its body.
            assert!(
                account.request.ended.is_none() == incomplete || (account.ahead && !incomplete),
                "request of {number:x} incomplete or not"
            );
            account.fate = Fate::Whole;
        }
    }
}
