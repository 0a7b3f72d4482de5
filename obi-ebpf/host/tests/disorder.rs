//! Messages, halves of messages and other protocols in any order, in both directions, whatever fails: what was begun
//! ends, is given up, or is taken back, so that the agent keeps nothing.

mod property;

use obi_ebpf_host::ledger::{Fate, Ledger};
use obi_ebpf_host::{Faults, Kernel, Segment};
use proptest::prelude::*;

use self::property::cases;

/// What a segment may hold.
const FRAGMENTS: &[&str] = &[
    "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "HEAD / HTTP/1.1\r\n\r\n",
    "CONNECT a:1 HTTP/1.1\r\n\r\n",
    "GET / HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\n",
    "POST / HTTP/1.1\r\nContent-Length: 4\r\n\r\nbody",
    "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
    "POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
    "POST / HTTP/1.1\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n",
    "4\r\nbody\r\n0\r\n\r\n",
    "body",
    "GET / HTTP/1.1\r\nX-Long: 0123456789012345678901234567890123456789\r\n",
    "X-Long: 0123456789012345678901234567890123456789\r\n",
    "\r\n",
    "GET / HTTP/1.1\r\n",
    "LLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLLL",
    "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody",
    "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
    "HTTP/1.1 200 OK\r\n\r\n",
    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    "HTTP/1.1 200 OK\r\nX-Long: 0123456789012345678901234567890123456789\r\n",
    "HTTP/1.1 200 OK\r\nContent-Length: nonsense\r\n\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "HTTP/1.1 101 On\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    "HTTP/1.1 101 On\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n",
    "HTTP/1.1 101 On\r\nConnection: Upgrade\r\nUpgrade: other\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "PRI * HTTP/2.0\r\n\r\nnot",
    "\0\0\0\u{4}\0\0\0\0\0",
    "\0\0\0\u{4}\0\0\0\0\0\0\0\0\u{4}\u{1}\0\0\0\0\0\0\0\u{4}\0\0\0\0\0",
    "\0\0\u{4}\u{1}\u{4}\0\0\0\u{1}\u{2}\u{4}\u{6}\u{7}",
    "\0\0\u{4}\u{1}\u{5}\0\0\0\u{1}\u{8}\u{8}\u{8}\u{8}",
    "\0\0\u{4}\0\u{1}\0\0\0\u{1}body",
    "\0\0\u{4}\u{3}\0\0\0\0\u{1}\0\0\0\u{8}",
    "\u{1}\u{4}body",
    "\u{8}\0",
    "\u{16}\u{3}\u{1}handshake",
    "+OK of something else\r\n",
];

#[derive(Debug, Clone, Copy)]
struct Pass {
    sending: bool,
    gap: u8,
    /// Which one; or so many bytes that cannot be read, or (`true`) never were in user memory.
    fragment: Result<usize, (u8, bool)>,
    /// The ring has no room, as far as chance wants it.
    is_full: bool,
}

fn passes() -> impl Strategy<Value = Vec<Pass>> {
    let gap = prop_oneof![12 => Just(0_u8), 1 => 1_u8..9];
    let fragment = prop_oneof![
        16 => (0..FRAGMENTS.len()).prop_map(Ok),
        1 => (1_u8..30, any::<bool>()).prop_map(Err),
    ];
    let pass = (any::<bool>(), gap, fragment, prop::bool::weighted(0.1))
        .prop_map(|(sending, gap, fragment, is_full)| Pass { sending, gap, fragment, is_full });
    proptest::collection::vec(pass, 1..12)
}

/// What may fail beside the ring. Notes find room: a request that is lost without one may be counted twice.
fn faults() -> impl Strategy<Value = Faults> {
    let often = || prop_oneof![6 => Just(0_u32), 1 => Just(64)];
    let all = (often(), often(), often());
    all.prop_map(|(user, spare, steps)| Faults { user, spare, steps, ..Faults::default() })
}

proptest! {
    #![proptest_config(cases(20_000))]

    #[test]
    fn nothing_is_left_open(
        passes in passes(), faults in faults(), joined in prop::bool::weighted(0.2), seed in any::<u64>(), reason in 1_u32..5,
    ) {
        let mut kernel = Kernel::boot(seed, 8192, faults);
        let mut connection = kernel.connect(joined);
        let mut ledger = Ledger::default();
        let mut time = 0;
        // Each start line may be of an exchange of its own, and what cannot be read; what follows an upgrade is lost by
        // itself.
        let mut most = 0;
        for pass in &passes {
            time += 1000;
            kernel.set_faults(Faults { ring: if pass.is_full { 160 } else { 0 }, ..faults });
            let segment = match pass.fragment {
                Ok(nth) => {
                    let of = |text| FRAGMENTS[nth].matches(text).count() as u64;
                    most += of("HTTP/") + of("Upgrade: websocket") + of("Upgrade: h2c");
                    Segment::Buffer(FRAGMENTS[nth].as_bytes())
                }
                Err((bytes, is_kernels)) => {
                    most += 1;
                    Segment::Opaque(bytes.into(), is_kernels)
                }
            };
            most += u64::from(pass.gap > 0);
            kernel.segment(&mut connection, pass.sending, pass.gap.into(), segment, time);
            ledger.read(&kernel);
        }
        kernel.end(&mut connection, reason, time);
        ledger.read(&kernel);
        prop_assert_eq!(kernel.notes(), 0);
        prop_assert_eq!(kernel.current(), 0);
        prop_assert_eq!(ledger.count(|fate| fate == Fate::Open), 0, "{:?}", ledger.accounts);
        for account in ledger.accounts.values().filter(|account| account.fate == Fate::Whole) {
            let has_body = account.response.ended != Some(0);
            prop_assert!(!has_body || !account.request.head.starts_with(b"HEAD "), "{:?}", account);
        }
        prop_assert!(kernel.uncovered() <= 1);
        let counted = ledger.delivered() + ledger.abandoned() + kernel.lost();
        prop_assert!(counted <= most, "{} counted of {}", counted, most);
    }
}
