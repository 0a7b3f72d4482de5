//! Streams of records of a few connections to databases, made of the input: nothing panics, each call is handed over
//! once, and what is open stays within its bounds.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::event::Event;
use obi::protocol::{Exchange, Exchanges, Limits, Loss, Message, Sink};
use obi_ebpf::{CLOSE_DATABASE, ORDINAL_BITS, PROTOCOL_POSTGRES, close_event, event_header, frame_event};
use std::collections::HashSet;

#[derive(Default)]
struct Outcomes {
    numbers: HashSet<u64>,
}

impl Sink for Outcomes {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        assert!(exchange.arrival <= exchange.started && exchange.started <= exchange.ended);
        assert!(self.numbers.insert(exchange.number), "handed over twice: {exchange:?}");
        let Message::Database(said) = exchange.message else { panic!("no database") };
        assert!(said.summary.len() <= 255 && said.namespace.len() <= 256 && said.code.len() <= 26);
    }

    fn lost(&mut self, loss: Loss) {
        assert!(!loss.reason.is_empty());
    }

    fn lost_many(&mut self, loss: Loss, n: u32) {
        assert!(!loss.reason.is_empty() && n > 0);
    }
}

fuzz_target!(|input: &[u8]| {
    let limits = Limits { open: 3, ..Limits::default() };
    let (mut exchanges, mut outcomes) = (Exchanges::new(limits), Outcomes::default());
    let (mut rest, mut time) = (input, 1);
    let (mut sequences, mut turns, mut ended) = ([[0_u32; 2]; 4], [[0_u32; 2]; 4], [0_u64; 4]);
    while let Some((control, after)) = rest.split_first_chunk::<6>() {
        let [what, kind, length, more, pieces, gap] = *control;
        let length = (usize::from(length) | usize::from(more & 3) << 8).min(after.len());
        let (payload, after) = after.split_at(length);
        rest = after;
        time += 1;
        let (which, sent) = (usize::from(what & 3), usize::from(what >> 2 & 1));
        let header = event_header {
            time,
            tgid: 1,
            tid: 2,
            flags: u32::from(pieces & 15),
            exchange: (which as u64 + 1 + 4 * ended[which]) << ORDINAL_BITS,
            ..Default::default()
        };
        if what >> 3 == 31 {
            let [received_pieces, sent_pieces] = sequences[which];
            let header = event_header { flags: CLOSE_DATABASE, ..header };
            let close =
                close_event { header, received_pieces, sent_pieces, reason: kind, ..Default::default() };
            exchanges.accept(&Event::Close(&close), &mut outcomes);
            ended[which] += 1;
            continue;
        }
        let sequence = &mut sequences[which][sent];
        *sequence = sequence.wrapping_add(u32::from(gap & 3));
        let turn = &mut turns[which][sent];
        *turn = turn.wrapping_add(u32::from(gap >> 4));
        let frame = frame_event {
            header,
            arrival: time - 1,
            sequence: *sequence,
            stream: *turn,
            length: length as u16,
            type_: kind,
            sent: sent as u8,
            side: 2,
            protocol: PROTOCOL_POSTGRES as u8 + (which as u8 & 1),
            ..Default::default()
        };
        *sequence = sequence.wrapping_add(1);
        exchanges.accept(&Event::Frame(&frame, payload), &mut outcomes);
    }
    assert!(exchanges.open() <= 3 * 65_536 * 2);
});
