//! Probe points in the code of real libraries, as their distributions built it.
//!
//! The bytes are those of the functions (cut where nothing behind matters); what is expected was checked by eye with
//! `llvm-objdump-19 -d -M intel --disassemble-symbols=SSL_read FILE`.

use Cost::{Emulated, SingleStepped};
use Program::{
    BioWriteEnter, TlsExit, TlsFree, TlsHandshakeEnter, TlsReadEnter, TlsReadExEnter, TlsWriteEnter,
    TlsWriteExEnter,
};
use proptest::prelude::*;

use super::*;

/// Functions of one file: name (none for an inner function), address, code.
struct Sample(&'static [(&'static str, u64, &'static str)]);

impl Sample {
    fn symbols(&self) -> Vec<Symbol> {
        let named = self.0.iter().filter(|(name, ..)| !name.is_empty());
        named.map(|(name, address, code)| Symbol { name, address: *address, code: bytes(code) }).collect()
    }
}

impl Text for Sample {
    fn code(&self, address: u64) -> Option<Vec<u8>> {
        self.0.iter().find(|(_, at, _)| *at == address).map(|(_, _, code)| bytes(code))
    }

    fn offset(&self, address: u64) -> Option<u64> {
        Some(address)
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

/// Program, address, at return, cost.
type Expected = (Program, u64, bool, Cost);

fn check_machine(machine: Machine, sample: &Sample, expected: &[Expected], cookies: &[u64]) {
    let points = plan(&sample.symbols(), machine, Returns::Allowed, sample);
    let found: Vec<Expected> =
        points.iter().map(|point| (point.program, point.offset, point.at_return, point.cost)).collect();
    assert_eq!(found, expected);
    let found: Vec<u64> = points.iter().map(|point| point.cookie).filter(|cookie| *cookie != 0).collect();
    assert_eq!(found, cookies);
}

fn check(sample: &[(&'static str, u64, &'static str)], expected: &[Expected]) {
    check_machine(Machine::X86, &Sample(sample.to_vec().leak()), expected, &[]);
}

const DEBIAN_READ: &str = "4883ec1864488b042528000000488944240831c085d2782f4889e14863d2e83dfeffff85c07e038b0424488b5424\
                           0864482b14252800000075444883c41831d231c931f631ffc3e8449ffeff488d1505d50400be4c070000488d3d62cc0400e82ca6feff31c031\
                           d2be0f010000bf14000000e849a4feffb8ffffffffebace83db1feff";
const DEBIAN_READ_EX: &str = "4883ec08e8c7fdffff31d285c00f48c24883c40831d231c931f631ffc3";
const DEBIAN_READ_INNER: &str = "4155415455534883ec3864488b042528000000488944242831c048837f30000f";

#[test]
fn debian_12_with_openssl_3_0_is_probed_where_both_kinds_of_read_come_together() {
    check(
        &[
            ("SSL_read", 0x35430, DEBIAN_READ),
            ("SSL_read_ex", 0x354c0, DEBIAN_READ_EX),
            ("SSL_write_ex", 0x35a10, "4883ec08e887fbffff31d285c00f48c24883c40831d231c931f631ffc3"),
            ("SSL_do_handshake", 0x37600, "534883ec3064488b042528000000488944242831c048837f30000f84b0000000"),
            ("SSL_free", 0x3b350, "4885ff0f84970300004155b8ffffffff"),
            ("", 0x35290, DEBIAN_READ_INNER),
            ("", 0x355a0, "41564155415455534883ec3064488b042528000000488944242831c048837f30"),
        ],
        &[
            (TlsExit, 0x35290, true, Emulated),
            (TlsExit, 0x355a0, true, Emulated),
            (TlsExit, 0x37600, true, Emulated),
            (TlsReadExEnter, 0x35290, false, Emulated),
            (TlsWriteExEnter, 0x355a0, false, Emulated),
            (TlsHandshakeEnter, 0x37600, false, Emulated),
            (TlsFree, 0x3b353, false, Emulated),
        ],
    );
}

#[test]
fn without_an_inner_function_the_jumps_of_a_function_serve() {
    // In front of the check of the length, and behind that of the canary.
    check(
        &[("SSL_read", 0x35430, DEBIAN_READ)],
        &[(TlsExit, 0x35468, false, Emulated), (TlsReadEnter, 0x35446, false, Emulated)],
    );
    // An inner function that begins with what the kernel does not emulate helps nobody.
    check(
        &[
            ("SSL_read", 0x35430, DEBIAN_READ),
            ("SSL_read_ex", 0x354c0, DEBIAN_READ_EX),
            ("", 0x35290, "4883ec3864488b0425280000"),
        ],
        &[
            (TlsExit, 0x35468, false, Emulated),
            (TlsExit, 0x354c0, true, SingleStepped),
            (TlsReadEnter, 0x35446, false, Emulated),
            (TlsReadExEnter, 0x354c0, false, SingleStepped),
        ],
    );
    check(
        &[(
            "BIO_write",
            0x1088c0,
            "4883ec1864488b042528000000488944240831c085d27e124889e14863d2e88df9ffff85c07e038b0424488b54240864482b14\
             2528000000750d4883c41831d231c931f631ffc3e8e446fcff",
        )],
        &[(BioWriteEnter, 0x1088d6, false, Emulated)],
    );
}

#[test]
fn openssl_3_5_writes_through_two_wrappers_and_counts_in_the_fifth_argument() {
    let sample = Sample(&[
        (
            "SSL_write",
            0x3ba40,
            "4883ec1885d2781b31c94863d24c8d442408e879fcffff85c00f4f4424084883c418c3e8f858feff488d1549160900be",
        ),
        ("SSL_write_ex", 0x3bac0, "4989c831c9e9d6ffffff"),
        ("SSL_do_handshake", 0x3de80, "4885ff0f84c7000000554889fd534883"),
        ("", 0x3baa0, "4883ec08e827fcffffba0000000085c00f48c24883c408c3"),
        ("", 0x3b6d0, "415741564155415455534883ec484885ff0f84a10000008b074889fd4989f549"),
    ]);
    let expected = [
        (TlsExit, 0x3b6d0, true, Emulated),
        (TlsExit, 0x3de83, true, Emulated),
        (TlsWriteExEnter, 0x3b6d0, false, Emulated),
        (TlsHandshakeEnter, 0x3de83, false, Emulated),
    ];
    check_machine(Machine::X86, &sample, &expected, &[1 << TLS_FIFTH_BIT]);
}

#[test]
fn openssl_1_1_and_node_are_probed_at_their_first_push() {
    check(
        &[
            (
                "SSL_read",
                0x393a0,
                "4883ec1885d27819488d4c24084863d2e89bfeffff85c00f4f4424084883c418c341b8f3060000ba0f",
            ),
            ("SSL_read_ex", 0x393f0, "4883ec08e857feffffba0000000085c00f48c24883c408c3"),
            ("", 0x39250, "4157415641554154554883ec3048837f30000f84fd000000448b67444889fd41"),
        ],
        &[(TlsExit, 0x39250, true, Emulated), (TlsReadExEnter, 0x39250, false, Emulated)],
    );
    check(
        &[
            ("SSL_read", 0x1a6b180, "554889e54156415541544883ec4885d20f883701000048837f30004989fd0f84"),
            ("SSL_read_ex", 0x1a6b340, "554889e54157415641554154534883ec3848837f30000f8415010000448b6f44"),
            (
                "SSL_free",
                0x1a6a150,
                "4885ff7416b8fffffffff00fc187e009000083e80185c074077e05c30f1f4000e97bd7ffff",
            ),
            ("BIO_write", 0x1ada720, "31c085d20f8e06010000554889e541574c63fa415641554189d541544989fc48"),
        ],
        &[
            (TlsExit, 0x1a6b180, true, Emulated),
            (TlsExit, 0x1a6b340, true, Emulated),
            (TlsReadEnter, 0x1a6b180, false, Emulated),
            (TlsReadExEnter, 0x1a6b340, false, Emulated),
            (TlsFree, 0x1a6a153, false, Emulated),
            (BioWriteEnter, 0x1ada724, false, Emulated),
        ],
    );
}

#[test]
fn what_is_not_proven_is_paid_for() {
    // endbr64 moves no stack: the push behind it serves.
    check(
        &[("SSL_read", 0x100, "f30f1efa554889e5")],
        &[(TlsExit, 0x104, true, Emulated), (TlsReadEnter, 0x104, false, Emulated)],
    );
    // mov edx, 5 in front of the first push: an argument is gone.
    check(
        &[("SSL_read", 0x100, "ba0500000055c3")],
        &[(TlsExit, 0x100, true, SingleStepped), (TlsReadEnter, 0x100, false, SingleStepped)],
    );
    // The same before SSL_free, which has one argument only; and without a jump, call or push.
    check(&[("SSL_free", 0x100, "ba0500000055c3")], &[(TlsFree, 0x105, false, Emulated)]);
    check(&[("SSL_free", 0x100, "4889f8c3")], &[(TlsFree, 0x100, false, SingleStepped)]);
    // A loop back into the first instructions: they are passed more than once.
    check(&[("SSL_free", 0x100, "4889f855ebfd")], &[(TlsFree, 0x100, false, SingleStepped)]);
    // mov r12, rsi keeps the buffer over the call: what is called is something else.
    check(
        &[("SSL_write_ex", 0x100, "4989f4e8f80000009090c3"), ("", 0x200, "5590c3")],
        &[(TlsExit, 0x103, true, Emulated), (TlsWriteExEnter, 0x103, false, Emulated)],
    );
    // Padding, nothing, and what no processor executes.
    check(
        &[("SSL_write", 0x100, "0606")],
        &[(TlsExit, 0x100, true, SingleStepped), (TlsWriteEnter, 0x100, false, SingleStepped)],
    );
    check(&[("SSL_free", 0x100, "")], &[(TlsFree, 0x100, false, SingleStepped)]);
    check(&[], &[]);
}

#[test]
fn another_processor_is_probed_at_entry_and_return() {
    let sample = Sample(&[("SSL_read", 0x100, "554889e5"), ("SSL_free", 0x200, "55c3")]);
    let expected = [
        (TlsExit, 0x100, true, SingleStepped),
        (TlsReadEnter, 0x100, false, SingleStepped),
        (TlsFree, 0x200, false, SingleStepped),
    ];
    check_machine(Machine::Other, &sample, &expected, &[]);
}

/// OpenSSL 3.5 of Debian 13, for arm64 (`llvm-objdump -d`).
const ARM64_READ: &str = "3f2303d5ff8300d1e30600f0630447f9fd7b01a9fd430091640040f9e40700f9040080d20203f837427c4093e3030091\
                          64ffff971f000071e10340b920c0801ae10600f0210447f9e30740f9220040f9630002eb020080d221030054fd7b41a9\
                          ff830091bf2303d5010080d2020080d2030080d2040080d2100080d2110080d2c0035fd6eb89ff970205009042001791\
                          4200089161278152a00400f000c01f91248cff9780028052020080d2e1218052848bff9700008012e2ffff17b18aff97";
const ARM64_READ_EX: &str = "3f2303d5fd7bbfa9fd0300913dffff97fd7bc1a8bf2303d5007ca00a010080d2020080d2030080d2100080d2110080d2\
                             c0035fd6";

#[test]
fn on_arm64_returns_are_probed_where_they_are_simulated() {
    const FREE: &str = "5f2403d5800500b43f2303d5fd7bbea901800091fd030091f30b00f9f30300aac0035fd6";
    let sample = Sample(&[
        ("SSL_read", 0x40a80, ARM64_READ),
        ("SSL_read_ex", 0x40b40, ARM64_READ_EX),
        ("SSL_free", 0x4ab20, FREE),
    ]);
    let expected = [
        // Both are `ret`; the others `adrp`, `bl` and `cbz`.
        (TlsExit, 0x40b00, false, Emulated),
        (TlsExit, 0x40b70, false, Emulated),
        (TlsReadEnter, 0x40a88, false, Emulated),
        (TlsReadExEnter, 0x40b4c, false, Emulated),
        (TlsFree, 0x4ab24, false, Emulated),
    ];
    check_machine(Machine::Arm64, &sample, &expected, &[]);
    // A function that ends in another one returns there: `b`.
    let sample = Sample(&[("SSL_write", 0x100, "3f2303d5bf2303d500010014")]);
    let expected = [(TlsExit, 0x100, true, SingleStepped), (TlsWriteEnter, 0x100, false, SingleStepped)];
    check_machine(Machine::Arm64, &sample, &expected, &[]);
    check_machine(
        Machine::Arm64,
        &Sample(&[("SSL_free", 0x100, "")]),
        &[(TlsFree, 0x100, false, SingleStepped)],
        &[],
    );
}

#[test]
fn without_return_probes_only_results_behind_jumps_are_seen() {
    let sample = Sample(&[
        ("SSL_read", 0x35430, DEBIAN_READ),
        ("SSL_read_ex", 0x354c0, DEBIAN_READ_EX),
        ("SSL_free", 0x3b350, "4885ff0f84970300004155b8ffffffff"),
        ("", 0x35290, DEBIAN_READ_INNER),
    ]);
    let points = plan(&sample.symbols(), Machine::X86, Returns::Forbidden, &sample);
    let found: Vec<_> = points.iter().map(|point| (point.program, point.offset, point.at_return)).collect();
    assert_eq!(found, [(TlsExit, 0x35468, false), (TlsReadEnter, 0x35446, false), (TlsFree, 0x3b353, false)]);
}

struct Flat(Vec<u8>);

impl Text for Flat {
    fn code(&self, address: u64) -> Option<Vec<u8>> {
        self.0.get(usize::try_from(address).ok()?..).map(<[u8]>::to_vec)
    }

    fn offset(&self, address: u64) -> Option<u64> {
        (address < self.0.len() as u64).then_some(address)
    }
}

proptest! {
    #[test]
    fn any_code_is_taken(code in prop::collection::vec(any::<u8>(), 0..400), starts in prop::array::uniform7(0_usize..400)) {
        let symbols: Vec<Symbol> = NAMES
            .iter()
            .zip(starts)
            .filter_map(|(name, start)| Some(Symbol { name, address: start as u64, code: code.get(start..)?.to_vec() }))
            .collect();
        let text = Flat(code);
        for point in plan(&symbols, Machine::X86, Returns::Allowed, &text) {
            prop_assert!(point.offset < text.0.len() as u64);
        }
    }
}
