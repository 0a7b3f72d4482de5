//! What streams of HTTP/2 have carried whose connection has ended before them.
//!
//! In: the record of that end, and which streams were open. Out: for each of them and each direction that the kernel
//! side has put aside, the record that it would have made if the stream had been reset. Takes them out of the kernel's
//! map. Refuses to know exchanges.

use aya::maps::{HashMap, MapData};
use obi_ebpf::{
    EVENT_FRAME, FRAME_APART, MESSAGES_UNKNOWN, ORDINAL_BITS, close_event, event_header, frame_event,
    stream_data, stream_key,
};

use super::program::{StreamData, StreamKey};

/// Takes out what is there of `streams` of the connection that has ended. No more is looked for once `close.n_aside`
/// have been found; there may be fewer, since the map makes room for others. Of one stream in each direction, which it
/// had at hand, the kernel side has reported itself.
pub fn take(
    contents: &mut HashMap<MapData, StreamKey, StreamData>,
    close: &close_event,
    streams: &[u32],
) -> impl Iterator<Item = frame_event> {
    let keys = streams.iter().flat_map(|stream| [false, true].map(|is_sent| key(close, *stream, is_sent)));
    keys.filter_map(|key| {
        let found = contents.get(&StreamKey(key), 0).ok()?;
        // Its room is free again; else the map takes it when it needs it.
        let _ = contents.remove(&StreamKey(key));
        Some(record(close, &key, &found.0))
    })
    .take(close.n_aside as usize)
}

fn key(close: &close_event, stream: u32, is_sent: bool) -> stream_key {
    let epoch = u32::from(close.epoch[usize::from(is_sent)]);
    let connection = close.header.exchange >> ORDINAL_BITS;
    stream_key { connection, stream, direction: epoch << 1 | u32::from(is_sent) }
}

fn record(close: &close_event, key: &stream_key, found: &stream_data) -> frame_event {
    let is_followed = found.unknown == 0;
    frame_event {
        header: event_header { kind: EVENT_FRAME, flags: FRAME_APART, ..close.header },
        arrival: found.last,
        body_bytes: found.bytes,
        messages: if is_followed { found.messages } else { MESSAGES_UNKNOWN },
        stream: key.stream,
        sent: u8::from(key.direction & 1 != 0),
        side: close.side,
        ..frame_event::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direction_has_its_own_key_since_it_was_lost_last() {
        let header = event_header { exchange: 7 << ORDINAL_BITS, ..event_header::default() };
        let close = close_event { header, epoch: [0, 3], ..close_event::default() };
        for (is_sent, direction) in [(false, 0), (true, 7)] {
            let stream_key { connection, stream, direction: found } = key(&close, 5, is_sent);
            assert_eq!((connection, stream, found), (7, 5, direction));
        }
    }

    #[test]
    fn what_is_found_is_reported_as_of_a_reset_stream() {
        let header = event_header { exchange: 7 << ORDINAL_BITS, time: 90, ..event_header::default() };
        let close = close_event { header, ..close_event::default() };
        let known = stream_data { bytes: 20, messages: 2, last: 60, stream: 5, ..stream_data::default() };
        for (found, messages) in [(known, 2), (stream_data { unknown: 1, ..known }, MESSAGES_UNKNOWN)] {
            let reported = record(&close, &key(&close, 5, true), &found);
            assert_eq!((reported.header.kind, reported.header.flags), (EVENT_FRAME, FRAME_APART));
            assert_eq!((reported.header.exchange, reported.header.time), (7 << ORDINAL_BITS, 90));
            assert_eq!(
                (reported.stream, reported.sent, reported.type_, reported.flags, reported.length),
                (5, 1, 0, 0, 0)
            );
            assert_eq!((reported.body_bytes, reported.messages, reported.arrival), (20, messages, 60));
        }
    }
}
