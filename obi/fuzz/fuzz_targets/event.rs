//! Streams of records, each as `u16` length and bytes: nothing panics, the table stays within its bounds, and
//! every span has a head of its own, and a place; what has begun ends or is forgotten.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::discover::ExecArguments;
use obi::capture::event::{Event, decode};
use obi::cause::{Causes, Ended, Part, context::Ids};
use obi::config::Parents;
use obi::protocol::{Begun, Exchange, Exchanges, Limits, Loss, Message, Semantics, Sink};
use obi::span::{Assembler, Service, Span, assemble::DEFAULT_ROUTES, method::KnownMethods};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

struct Spans(Assembler, Arc<Service>, Span, usize, Open);

/// What has begun, and what it is the cause of.
struct Open {
    begun: HashMap<u64, usize>,
    causes: Causes,
}

impl Open {
    fn ended(&mut self, exchange: &Exchange<'_>) {
        let Exchange { number, side, tgid, tid, started, cause, answerer, ended: at, .. } = *exchange;
        let (traceparent, part) = match &exchange.message {
            Message::Http(http) if matches!(http.semantics, Semantics::WebSocket(_)) => ("", Part::Socket),
            Message::Http(http) => (http.request.traceparent, Part::Whole),
            Message::Database(_) => ("", Part::Whole),
        };
        let is_own = matches!(exchange.message, Message::Http(_)) && part == Part::Whole;
        if is_own && let Some(n) = self.begun.get_mut(&number) {
            *n = n.saturating_sub(1);
        }
        let begun = Begun { number, side, tgid, tid, started, traceparent, cause };
        let ended = Ended { begun, at, answerer, route: number % 3, part };
        self.causes.ended(&ended);
        let place = self.causes.place(&ended, at).unwrap_or_else(|_| self.causes.place_now(&ended));
        assert!(place.trace_id != [0; 16] && place.span_id != [0; 8]);
    }
}

impl Sink for Spans {
    fn begun(&mut self, begun: &Begun<'_>) {
        *self.4.begun.entry(begun.number).or_default() += 1;
        self.4.causes.begun(begun);
    }

    fn forgotten(&mut self, number: u64) {
        let n = self.4.begun.get_mut(&number).expect("only what has begun is forgotten");
        *n = n.checked_sub(1).expect("once");
        self.4.causes.forget(number);
    }

    fn exchange(&mut self, exchange: &Exchange<'_>) {
        self.4.ended(exchange);
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
    let assembler = Assembler::new(KnownMethods::default(), DEFAULT_ROUTES);
    let causes = Causes::new(Ids::from_seed(1), Parents::On, true);
    let open = Open { begun: HashMap::new(), causes };
    let mut spans = Spans(assembler, Arc::default(), Span::blank(), 0, open);
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
                let _ = ExecArguments::new(bytes, parts, process.header.flags == 0);
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
    assert!(spans.4.begun.values().all(|n| *n == 0), "what has begun ends or is forgotten");
    assert!(spans.3 <= n_heads, "a span needs a head of its own");
});

fn zerocopy_bytes(words: &[u64], length: usize) -> &[u8] {
    &zerocopy::IntoBytes::as_bytes(words)[..length]
}
