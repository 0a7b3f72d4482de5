//! Whole HTTP/2 connections, cut into segments at random: the records hold every frame as it was written, whatever
//! the cuts; what passes unseen is a known gap, and nothing is invented.

mod property;

use obi_ebpf::*;
use obi_ebpf_host::ledger::Ledger;
use obi_ebpf_host::multiplex::{Direction, Frame, Multiplex};
use obi_ebpf_host::{Connection, Faults, Kernel, Segment};
use proptest::prelude::*;

use self::property::cases;

const HEADERS: u8 = 1;
const DATA: u8 = 0;
const CONTINUATION: u8 = 9;
const COPIED: [u8; 6] = [1, 3, 4, 5, 7, 9];
const UNKNOWN: u32 = u32::MAX;
const HEAD_LIMIT: u32 = 1024;

#[derive(Debug, Clone, Copy)]
struct Plan {
    seed: u64,
    server: bool,
    cut: u8,
    /// Out of 256 segments, so many pass unseen or unreadable.
    damage: u8,
    /// The damage spares all but content.
    hide: bool,
    joined: bool,
    faults: Faults,
}

struct Played {
    kernel: Kernel,
    ledger: Ledger,
    connection: Connection,
    /// By direction (`false`: requests): when each byte passed.
    times: [Vec<u64>; 2],
}

fn size(rng: &mut fastrand::Rng, cut: u8, most: usize) -> usize {
    let size = match cut {
        0 => 1,
        1 => rng.usize(1..12),
        2 => [9, 128, 129, 1896, 1897, rng.usize(1..50), rng.usize(1..3000), most][rng.usize(..8)],
        _ => most,
    };
    size.clamp(1, most)
}

/// How many bytes from `at` on are content of a frame.
fn content_from(direction: &Direction, at: usize) -> usize {
    let frame = direction.frames.get(direction.frames.partition_point(|frame| frame.end <= at));
    frame.filter(|frame| frame.start < at && frame.kind == DATA).map_or(0, |frame| frame.end - at)
}

fn play(multiplex: &Multiplex, plan: Plan) -> Played {
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    let mut kernel = Kernel::boot(plan.seed, HEAD_LIMIT, plan.faults);
    let mut connection = kernel.connect(plan.joined);
    let directions = [&multiplex.requests, &multiplex.responses];
    let mut at = [0, 0];
    if plan.joined {
        // At the beginning of a frame: there a segment may begin.
        for (at, direction) in at.iter_mut().zip(directions) {
            *at = direction.frames[rng.usize(..direction.frames.len())].start - 9;
        }
    }
    let mut times = [vec![0; at[0]], vec![0; at[1]]];
    let mut time = 1000;
    loop {
        let left = [0, 1].map(|nth| directions[nth].bytes.len() - at[nth]);
        if left == [0, 0] {
            break;
        }
        // The preface comes first, but for the SETTINGS of a server that does not wait for it.
        let begun = at[0] >= multiplex.requests.preface;
        let greeting = if begun { left[1] } else { multiplex.responses.frames[0].end.saturating_sub(at[1]) };
        let left = [left[0], greeting];
        let which = if left[0] == 0 || (left[1] > 0 && rng.bool()) { 1 } else { 0 };
        let (direction, sending) = (directions[which], (which == 1) == plan.server);
        time += 1000;
        let unread = content_from(direction, at[which]);
        let damaged = plan.damage > 0
            && rng.u8(..) < plan.damage
            && (!plan.hide || unread > 0)
            && at[which] > direction.preface;
        let most = if damaged && plan.hide { unread } else { left[which] };
        let n = size(&mut rng, plan.cut, most);
        let bytes = direction.bytes[at[which]..at[which] + n].to_vec();
        let count = u32::try_from(n).expect("short");
        if damaged && rng.bool() {
            kernel.segment(&mut connection, sending, 0, Segment::Opaque(count, rng.bool()), time);
        } else if damaged {
            // Some of them unseen, the others behind them in the same segment.
            let seen = bytes[rng.usize(..=n)..].to_vec();
            let gap = count - u32::try_from(seen.len()).expect("short");
            kernel.segment(&mut connection, sending, gap, Segment::Buffer(&seen), time);
        } else if rng.bool() {
            kernel.segment(&mut connection, sending, 0, Segment::Buffer(&bytes), time);
        } else {
            let parts: Vec<Vec<u8>> = bytes.chunks(rng.usize(1..200)).map(<[u8]>::to_vec).collect();
            let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
            kernel.segment(&mut connection, sending, 0, Segment::Vector(&parts), time);
        }
        at[which] += n;
        times[which].resize(at[which], time);
    }
    kernel.end(&mut connection, CLOSE_LOCAL, time + 1000);
    let mut ledger = Ledger::default();
    ledger.read(&kernel);
    Played { kernel, ledger, connection, times }
}

/// What is to be reported of a direction: nothing of content but its end.
fn reported(direction: &Direction) -> Vec<&Frame> {
    let reported = |frame: &&Frame| {
        let empty = frame.kind == CONTINUATION && frame.start == frame.end && frame.flags & 4 == 0;
        (COPIED.contains(&frame.kind) && !empty) || (frame.kind == DATA && frame.flags & 1 != 0)
    };
    direction.frames.iter().filter(reported).collect()
}

/// A record's frame is one that was written; returns which.
fn check_frame(direction: &Direction, seen: &obi_ebpf_host::frames::Frame, base: usize) -> usize {
    let position = if seen.kind == DATA { seen.frame_bytes } else { 0 };
    let start = base + (seen.offset - position) as usize;
    let nth = direction.frames.iter().position(|frame| frame.start == start);
    let nth = nth.unwrap_or_else(|| panic!("no frame at {start}: {seen:?}"));
    let frame = &direction.frames[nth];
    assert_eq!((seen.kind, seen.flags, seen.stream), (frame.kind, frame.flags, frame.stream));
    assert_eq!(seen.frame_bytes as usize, frame.end - frame.start);
    if seen.kind != DATA && seen.whole {
        let payload = &direction.bytes[frame.start..frame.end];
        assert_eq!(seen.payload, payload[..seen.payload.len()], "payload of {frame:?}");
        // Where a block ends with nothing, what was left out of it lies in its frames before.
        if frame.kind != CONTINUATION || !payload.is_empty() {
            assert_eq!(seen.truncated, seen.payload.len() < payload.len(), "{seen:?} {}", payload.len());
        }
    }
    nth
}

/// Where the last byte of content of that frame's stream stands, up to its end.
fn last_content(direction: &Direction, nth: usize) -> Option<usize> {
    let stream = direction.frames[nth].stream;
    let frames = direction.frames[..=nth].iter().rev();
    let mut ends = frames.filter(|frame| (frame.kind, frame.stream) == (DATA, stream)).filter_map(|frame| {
        let is_padded = frame.flags & 8 != 0 && frame.end > frame.start;
        let padding = if is_padded { usize::from(direction.bytes[frame.start]) } else { 0 };
        let end = frame.end - padding;
        (end > frame.start + usize::from(is_padded)).then(|| end - 1)
    });
    ends.next()
}

/// Content as reported with the end of a stream.
fn check_content(frame: &Frame, seen: &obi_ebpf_host::frames::Frame, first: bool, exact: bool) {
    if frame.flags & 1 == 0
        || (frame.kind != DATA && frame.kind != HEADERS)
        || (first && frame.kind == HEADERS)
    {
        return;
    }
    if exact {
        assert_eq!(seen.body_bytes, frame.body_bytes, "content of {frame:?}");
        if let Some(messages) = frame.messages {
            assert_eq!(seen.messages, messages, "messages of {frame:?}");
        } else {
            assert!(seen.messages == UNKNOWN || frame.body_bytes < 5, "messages of {frame:?}");
        }
    } else if let (Some(messages), true) = (frame.messages, seen.messages != UNKNOWN) {
        assert_eq!(seen.messages, messages, "messages of {frame:?}");
    }
}

/// Whether no HEADERS of the stream were before: then what stands beside END_STREAM means nothing.
fn is_first_headers(direction: &Direction, nth: usize) -> bool {
    let frame = &direction.frames[nth];
    !direction.frames[..nth]
        .iter()
        .any(|it| it.kind == HEADERS && it.stream == frame.stream && it.flags & 1 == 0)
}

/// Everything is reported, exactly once, in order, with the times of its bytes.
fn check_exact(multiplex: &Multiplex, plan: Plan) {
    let played = play(multiplex, plan);
    for (which, direction) in [&multiplex.requests, &multiplex.responses].into_iter().enumerate() {
        let sent = (which == 1) == plan.server;
        let frames: Vec<_> = played.ledger.frames.frames.iter().filter(|it| it.sent == sent).collect();
        let mut expected = reported(direction).into_iter();
        let times = &played.times[which];
        let mut block = 0;
        for seen in &frames {
            let nth = check_frame(direction, seen, 0);
            let mut next = expected.next().expect("no more than what was written");
            // What is beyond the limit of a block may be left out.
            while next.start != direction.frames[nth].start && next.kind == CONTINUATION {
                assert!(block >= 4 * HEAD_LIMIT as usize, "{next:?} left out");
                next = expected.next().expect("no more than what was written");
            }
            assert_eq!(next, &direction.frames[nth]);
            block = if next.kind == CONTINUATION { block } else { 0 } + next.end - next.start;
            assert!(seen.whole && !seen.joined, "{seen:?}");
            let arrival = if next.kind == DATA {
                last_content(direction, nth).map_or(0, |at| times[at])
            } else {
                times[next.start - 9]
            };
            assert_eq!(seen.times.0, arrival, "arrival of {next:?}");
            if !seen.truncated {
                assert_eq!(seen.times.1, times[next.end - 1], "time of {next:?}");
            } else if next.kind != 7 {
                assert!(block > 4 * HEAD_LIMIT as usize || next.end - next.start > HEAD_LIMIT as usize);
            }
            check_content(next, seen, is_first_headers(direction, nth), !plan.hide || plan.damage == 0);
        }
        assert!(expected.all(|it| it.kind == CONTINUATION), "everything is reported");
    }
    assert_eq!(played.ledger.frames.apart, [], "every stream has ended");
    let side = if plan.server { SIDE_SERVER } else { SIDE_CLIENT };
    let close = played.ledger.frames.close.expect("the end is reported");
    assert_eq!((u32::from(close.side), close.last_stream), (side, multiplex.last_stream));
    assert!(played.ledger.frames.missing.values().all(|n| *n == 0), "nothing is missing");
    assert_eq!((played.kernel.lost(), played.kernel.uncovered()), (0, 0));
    assert_eq!(played.kernel.contents(), 0, "streams that have ended are forgotten");
    assert_eq!(played.ledger.accounts.len(), 0, "nothing of HTTP/1");
    drop(played.connection);
}

fn multiplex(seed: u64, n: u32) -> Multiplex {
    Multiplex::random(&mut fastrand::Rng::with_seed(seed), n)
}

fn plans() -> impl Strategy<Value = Plan> {
    (any::<u64>(), any::<bool>(), 0u8..4).prop_map(|(seed, server, cut)| Plan {
        seed,
        server,
        cut,
        damage: 0,
        hide: false,
        joined: false,
        faults: Faults::default(),
    })
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn connections_are_reported_exactly(n in 0u32..25, plan in plans()) {
        check_exact(&multiplex(plan.seed, n), plan);
    }

    /// Content may pass unseen: only the messages in it are not known then, and that is said.
    #[test]
    fn content_may_pass_unseen(n in 1u32..20, plan in plans(), damage in 1u8..200) {
        check_exact(&multiplex(plan.seed, n), Plan { damage, hide: true, ..plan });
    }
}

/// A block that is longer than the limit ends with a CONTINUATION frame without payload.
#[test]
fn a_block_that_is_cut_off_may_end_with_an_empty_frame() {
    let plan = Plan {
        seed: 15_540_545_799_642_258_551,
        server: false,
        cut: 0,
        damage: 0,
        hide: false,
        joined: false,
        faults: Faults::default(),
    };
    check_exact(&multiplex(plan.seed, 7), plan);
}

/// What is reported is what was written; what is missing shows in the sequence.
fn check_sound(multiplex: &Multiplex, plan: Plan) {
    let played = play(multiplex, plan);
    let frames = &played.ledger.frames;
    for (which, direction) in [&multiplex.requests, &multiplex.responses].into_iter().enumerate() {
        let sent = (which == 1) == plan.server;
        let joined_at =
            direction.bytes.len() - (played.times[which].iter().filter(|time| **time > 0).count());
        let mut n_seen = 0;
        for seen in frames.frames.iter().filter(|it| it.sent == sent) {
            let nth = check_frame(direction, seen, joined_at);
            n_seen += 1;
            let exact = plan.damage == 0 && !plan.joined && plan.faults.user == 0;
            check_content(&direction.frames[nth], seen, is_first_headers(direction, nth), exact);
        }
        let missing = frames.missing.get(&sent).copied().unwrap_or(0);
        let expected = reported(direction).iter().filter(|it| it.start >= joined_at).count();
        let n_continued = direction.frames.iter().filter(|it| it.kind == CONTINUATION).count();
        // A direction that was never found again has no record that could show it; the other one was joined then.
        let joined = frames.frames.iter().any(|it| it.joined) || frames.frames.is_empty();
        if frames.close.is_some() && !joined {
            assert!(
                n_seen + n_continued >= expected || missing > 0,
                "{n_seen} of {expected}, {missing} missing"
            );
        }
    }
}

proptest! {
    #![proptest_config(cases(200))]

    #[test]
    fn damage_invents_nothing(n in 1u32..20, plan in plans(), damage in 1u8..60, ring in 0u32..100, user in 0u32..20) {
        let faults = Faults { ring, user, ..Faults::default() };
        check_sound(&multiplex(plan.seed, n), Plan { damage, faults, ..plan });
    }

    #[test]
    fn joined_connections_are_found(n in 3u32..20, plan in plans(), damage in 0u8..20) {
        check_sound(&multiplex(plan.seed, n), Plan { damage, joined: true, ..plan });
    }
}

/// Nine bytes of content that come alone, and would be the header of a block that is continued.
#[test]
fn content_that_comes_like_a_header_is_none() {
    let plan = Plan {
        seed: 7_957_464_095_665_751_096,
        server: false,
        cut: 1,
        damage: 2,
        hide: false,
        joined: true,
        faults: Faults::default(),
    };
    check_sound(&multiplex(plan.seed, 10), plan);
}
