//! Plays a conversation to the kernel side, cut into segments at random, and keeps what was played.
//!
//! In: a [`Conversation`] and a [`Plan`]. Out: the kernel, the agent's [`Ledger`], and how far the streams got.
#![forbid(unsafe_code)]

use crate::conversation::{Conversation, Kind, Stream};
use crate::ledger::Ledger;
use crate::{Connection, Faults, Kernel, Segment};
use fastrand::Rng;

/// How to cut a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// Each byte for itself.
    Bytes,
    /// A few bytes.
    Tiny,
    /// Anything, sizes around the bounds of pieces preferred.
    Any,
    /// As much as there is.
    Whole,
}

/// How to play a conversation.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// What decides where there is a choice.
    pub seed: u64,
    /// The observed process is the server.
    pub server: bool,
    /// Segments.
    pub cut: Cut,
    /// Bytes of a head that are copied.
    pub head_limit: u32,
    /// Parts of bodies pass unseen or unreadable.
    pub hide: bool,
    /// Anything may pass unseen or unreadable, so often out of 256 segments.
    pub damage: u8,
    /// A request may be sent before the response to the one before it has passed.
    pub pipelined: bool,
    /// The connection may end before everything is said.
    pub cut_short: bool,
    /// `enum close_reason`.
    pub reason: u8,
    /// What fails.
    pub faults: Faults,
}

/// What was played.
#[derive(Debug)]
pub struct Played {
    /// Counters and maps.
    pub kernel: Kernel,
    /// The agent's books.
    pub ledger: Ledger,
    /// The connection, ended.
    pub connection: Connection,
    /// Bytes of the request stream that passed.
    pub requests: usize,
    /// Bytes of the response stream that passed.
    pub responses: usize,
    /// By exchange: the response ended before the request did.
    pub incomplete: Vec<bool>,
    /// Exchange number of the first request.
    pub first: u64,
}

/// Plays it to the end, or until it is cut short, and ends the connection.
#[must_use]
pub fn play(conversation: &Conversation, plan: &Plan) -> Played {
    let mut rng = Rng::with_seed(plan.seed);
    let mut kernel = Kernel::boot(plan.seed, plan.head_limit, plan.faults);
    let connection = kernel.connect(false);
    let mut played = Played {
        kernel,
        ledger: Ledger::default(),
        connection,
        requests: 0,
        responses: 0,
        incomplete: vec![false; conversation.exchanges.len()],
        first: 1 << obi_ebpf::ORDINAL_BITS,
    };
    let mut time = 1000;
    loop {
        let may_request = askable(conversation, plan, played.responses).saturating_sub(played.requests);
        let may_answer = answerable(conversation, played.requests) - played.responses;
        if (may_request == 0 && may_answer == 0) || (plan.cut_short && rng.u8(..20) == 0) {
            break;
        }
        let answer = may_answer > 0 && (may_request == 0 || rng.bool());
        let sending = answer == plan.server;
        time += 1000;
        if answer {
            let before = played.responses;
            played.responses += segment(
                &mut played,
                plan,
                &mut rng,
                (&conversation.responses, before, may_answer),
                sending,
                time,
            );
            for (nth, exchange) in conversation.exchanges.iter().enumerate() {
                let ends = before < exchange.response.end && exchange.response.end <= played.responses;
                if ends && !exchange.until_close {
                    played.incomplete[nth] = played.requests < exchange.request.end;
                }
            }
        } else {
            let before = played.requests;
            played.requests += segment(
                &mut played,
                plan,
                &mut rng,
                (&conversation.requests, before, may_request),
                sending,
                time,
            );
        }
        played.ledger.read(&played.kernel);
        let open = conversation.exchanges.iter().any(|exchange| {
            exchange.request.head.end <= played.requests
                && (played.responses < exchange.response.end || exchange.until_close)
        });
        if !open && plan.damage == 0 {
            assert_eq!(
                played.kernel.current(),
                0,
                "nothing is being served: {:?}",
                played.kernel.state(&played.connection)
            );
            assert_eq!(played.kernel.notes(), 0, "no request is pending");
        }
    }
    played.kernel.end(&mut played.connection, u32::from(plan.reason), time + 1000);
    played.ledger.read(&played.kernel);
    if let Some((nth, exchange)) = conversation.exchanges.iter().enumerate().next_back()
        && exchange.until_close
    {
        played.incomplete[nth] = played.requests < exchange.request.end;
    }
    assert_eq!(played.kernel.current(), 0, "served after the end");
    assert_eq!(played.kernel.notes(), 0, "the connection has ended");
    played
}

/// How far the requests may get: without pipelining, one at a time.
fn askable(conversation: &Conversation, plan: &Plan, responses: usize) -> usize {
    let waiting = conversation.exchanges.iter().find(|exchange| exchange.response.end > responses);
    match waiting {
        Some(exchange) if !plan.pipelined => exchange.request.end,
        _ => conversation.requests.bytes.len(),
    }
}

/// How far the responses may get: no answer before its request's head has passed.
fn answerable(conversation: &Conversation, requests: usize) -> usize {
    let waiting = conversation.exchanges.iter().find(|exchange| exchange.request.head.end > requests);
    waiting.map_or(conversation.responses.bytes.len(), |exchange| exchange.first_answer)
}

fn size(rng: &mut Rng, cut: Cut, most: usize) -> usize {
    let size = match cut {
        Cut::Bytes => 1,
        Cut::Tiny => rng.usize(1..6),
        Cut::Whole => most,
        Cut::Any => match rng.u8(..5) {
            // Around the bounds of carry, slack and the two record sizes.
            0 => [40, 41, 47, 48, 49, 295, 296, 297, 344, 1831, 1832, 1833][rng.usize(..12)],
            1 => rng.usize(1..50),
            2 => rng.usize(1..400),
            3 => rng.usize(1..4000),
            _ => most,
        },
    };
    size.clamp(1, most)
}

/// Plays one segment of what may come next; returns the bytes that passed.
fn segment(
    played: &mut Played,
    plan: &Plan,
    rng: &mut Rng,
    (stream, at, most): (&Stream, usize, usize),
    sending: bool,
    time: u64,
) -> usize {
    let damaged = plan.damage > 0 && rng.u8(..) < plan.damage;
    let unread = stream.kinds[at..at + most].iter().take_while(|kind| **kind != Kind::Framing).count();
    let (kernel, connection) = (&mut played.kernel, &mut played.connection);
    let mut gap = 0;
    if (plan.hide && unread > 0 && rng.bool()) || damaged {
        let hidden = size(rng, plan.cut, if damaged { most } else { unread });
        if rng.bool() {
            let opaque = Segment::Opaque(u32::try_from(hidden).expect("short"), rng.bool());
            kernel.segment(connection, sending, 0, opaque, time);
            return hidden;
        }
        gap = hidden;
        if rng.bool() || gap == most {
            kernel.segment(
                connection,
                sending,
                u32::try_from(gap).expect("short"),
                Segment::Buffer(&[]),
                time,
            );
            return gap;
        }
    }
    let length = size(rng, plan.cut, most - gap);
    // Allocated exactly, so that a sanitizer sees a read beyond it.
    let bytes = stream.bytes[at + gap..at + gap + length].to_vec();
    let gap_bytes = u32::try_from(gap).expect("short");
    if rng.bool() {
        kernel.segment(connection, sending, gap_bytes, Segment::Buffer(&bytes), time);
    } else {
        let parts = scatter(rng, &bytes);
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        kernel.segment(connection, sending, gap_bytes, Segment::Vector(&parts), time);
    }
    gap + length
}

fn scatter(rng: &mut Rng, mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut parts = Vec::new();
    while !bytes.is_empty() {
        if rng.u8(..4) == 0 {
            parts.push(Vec::new());
            continue;
        }
        let most = if rng.bool() { bytes.len() } else { bytes.len().min(60) };
        let (part, rest) = bytes.split_at(rng.usize(1..=most));
        parts.push(part.to_vec());
        bytes = rest;
    }
    parts
}
