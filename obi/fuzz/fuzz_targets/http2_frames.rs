//! Streams of records of a few connections of HTTP/2, made of the input with little that is wrong with them: nothing
//! panics, tables stay within their bounds, no stream has two outcomes, and at the end each has one at most.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::event::Event;
use obi::protocol::{Exchange, Exchanges, Limits, Loss, Message, Sink};
use obi_ebpf::{CLOSE_HTTP2, ORDINAL_BITS, close_event, event_header, frame_event};
use std::collections::HashSet;
use std::time::Duration;

#[derive(Default)]
struct Outcomes {
    numbers: HashSet<u64>,
    n_lost: u64,
}

impl Sink for Outcomes {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        assert!(exchange.arrival <= exchange.started && exchange.started <= exchange.ended);
        assert!(self.numbers.insert(exchange.number), "handed over twice: {exchange:?}");
        let Message::Http(http) = exchange.message else { return };
        for parameter in http.request.query.split('&').filter(|parameter| !parameter.is_empty()) {
            let cut = http.request.query.len() >= 2045;
            assert!(cut || parameter == "REDACTED" || parameter.ends_with("=REDACTED"), "{parameter}");
        }
    }

    fn lost(&mut self, loss: Loss) {
        assert!(!loss.reason.is_empty());
        self.n_lost += 1;
    }

    fn lost_many(&mut self, loss: Loss, n: u32) {
        assert!(!loss.reason.is_empty() && n > 0);
        self.n_lost += u64::from(n);
    }
}

fuzz_target!(|input: &[u8]| {
    let limits = Limits { open: 16, head_bytes: 1024, held_bytes: 64 * 1024 };
    let (mut exchanges, mut outcomes) = (Exchanges::new(limits), Outcomes::default());
    let (mut rest, mut time) = (input, 1);
    // By connection: sequences of both directions.
    let mut sequences = [[0_u32; 2]; 4];
    let mut number_of = [1_u64, 2, 3, 4];
    while let Some((control, after)) = rest.split_first_chunk::<8>() {
        let [what, kind, flags, stream, length, more, pieces, gap] = *control;
        let length = (usize::from(length) | usize::from(more & 7) << 8).min(after.len());
        let (payload, after) = after.split_at(length);
        rest = after;
        time += u64::from(gap) + 1;
        let which = usize::from(what & 3);
        let sent = usize::from(what >> 2 & 1);
        let header = event_header {
            time,
            tgid: 1,
            tid: 2,
            flags: u32::from(pieces & 15),
            exchange: number_of[which] << ORDINAL_BITS,
            ..Default::default()
        };
        if what >> 3 == 31 {
            let [received_pieces, sent_pieces] = sequences[which];
            let flags = CLOSE_HTTP2;
            let close = close_event {
                header: event_header { flags, ..header },
                last_stream: u32::from(stream),
                received_pieces,
                sent_pieces,
                reason: kind & 31,
                side: (which as u8 & 1) + 1,
                ..Default::default()
            };
            exchanges.accept(&Event::Close(&close), &mut outcomes);
            sequences[which] = [0, 0];
            number_of[which] += 4;
            continue;
        }
        let sequence = &mut sequences[which][sent];
        *sequence = sequence.wrapping_add(u32::from(gap > 250));
        let event = frame_event {
            header,
            sequence: *sequence,
            stream: u32::from(stream),
            frame_bytes: length as u32,
            length: length as u16,
            type_: kind % 10,
            flags,
            sent: sent as u8,
            side: if pieces & 16 == 0 { (which as u8 & 1) + 1 } else { 0 },
            ..Default::default()
        };
        *sequence = sequence.wrapping_add(1);
        exchanges.accept(&Event::Frame(&event, payload), &mut outcomes);
        assert!(exchanges.open() <= limits.open);
        assert!(exchanges.held_bytes() <= 4 * limits.held_bytes, "{}", exchanges.held_bytes());
    }
    exchanges.for_each_under_way(|under_way| assert!(under_way.request.path.len() <= 2048));
    exchanges.sweep(u64::MAX, Duration::ZERO, &mut outcomes);
    assert_eq!(exchanges.open(), 0);
});
