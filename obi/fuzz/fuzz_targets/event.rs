//! Streams of records, each as `u16` length and bytes: nothing panics, the table stays within its bounds, and
//! every span has a head of its own.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::discover::Given;
use obi::capture::event::{Event, decode};
use obi::protocol::{Exchange, Exchanges, Limits, Loss, Sink};
use obi::span::{Assembler, Service, Span, assemble::DEFAULT_ROUTES, context::Ids, method::KnownMethods};
use std::sync::Arc;
use std::time::Duration;

struct Spans(Assembler, Arc<Service>, Span, usize);

impl Sink for Spans {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        assert!(exchange.arrival <= exchange.started && exchange.started <= exchange.ended);
        self.0.assemble(exchange, &self.1, 1, &mut self.2);
        assert!(!self.2.name().to_string().is_empty());
        self.2.attributes(|name, value| assert!(!name.is_empty() && value.to_string().len() < 8192));
        self.3 += 1;
    }

    fn lost(&mut self, loss: Loss) {
        assert!(!loss.reason.is_empty());
    }

    fn lost_many(&mut self, loss: Loss, n: u32) {
        assert!(!loss.reason.is_empty() && n > 0);
    }
}

fuzz_target!(|input: &[u8]| {
    let limits = Limits { open: 8, head_bytes: 1024, held_bytes: 16 * 1024 };
    let mut exchanges = Exchanges::new(limits);
    let assembler = Assembler::new(Ids::from_seed(1), KnownMethods::default(), DEFAULT_ROUTES);
    let mut spans = Spans(assembler, Arc::default(), Span::blank(), 0);
    let mut rest = input;
    let mut n_heads = 0;
    // The decoder wants 8-byte alignment.
    let mut aligned = [0u64; 512];
    while let Some((length, after)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(after.len()).min(4096);
        let (record, after) = after.split_at(length);
        rest = after;
        for (word, bytes) in aligned.iter_mut().zip(record.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let bytes = zerocopy_bytes(&aligned, length);
        if let Ok(event) = decode(bytes) {
            if let Event::Process(process, bytes) = event {
                let parts = (process.n_arguments as usize, process.n_path as usize);
                let _ = Given::new(bytes, parts, process.header.flags == 0);
            }
            // A WebSocket is an outcome beside its upgrade's; losses of HTTP/2 streams are counted by their numbers.
            n_heads += match event {
                Event::Head(..) => 2,
                Event::Frame(..) => 1,
                _ => 0,
            };
            exchanges.accept(&event, &mut spans);
        }
        assert!(exchanges.open() <= 3 * limits.open);
        assert!(exchanges.held_bytes() <= 3 * (4 * limits.held_bytes + 16 * 1024));
    }
    exchanges.sweep(u64::MAX, Duration::ZERO, &mut spans);
    assert_eq!(exchanges.open(), 0);
    assert!(spans.3 <= n_heads, "a span needs a head of its own");
});

fn zerocopy_bytes(words: &[u64], length: usize) -> &[u8] {
    &zerocopy::IntoBytes::as_bytes(words)[..length]
}
