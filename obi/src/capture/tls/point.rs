//! Where in a TLS library's functions the kernel programs go.
//!
//! In: functions by name, their addresses and code. Out: the [`ProbePoint`]s with the least cost. The kernel
//! emulates some instructions at a probe and single-steps the others, some 0.4 µs against 14; a return probe is added to
//! a probe at a function's very first instruction. So places are looked for where the kernel emulates and the arguments
//! or the result are provably in their registers: at the function's entry; in front of its first jump and at the check
//! of the stack's canary; or at the entry of an inner function that gets the same arguments. Pure.
#![forbid(unsafe_code)]

use obi_ebpf::TLS_FIFTH_BIT;
use serde::Serialize;

use super::code::{Function, InnerCall};
use super::program::Program;

/// A place for a kernel program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct ProbePoint {
    /// The program.
    pub program: Program,
    /// Where in the file.
    pub offset: u64,
    /// When the function that begins here returns.
    pub at_return: bool,
    /// What the kernel does with the instruction.
    pub cost: Cost,
    /// What the program is told about the place: `enum tls_cookie`.
    pub cookie: u64,
}

/// What a hit costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cost {
    /// The kernel emulates the instruction: some 0.4 µs.
    Emulated,
    /// The kernel executes it elsewhere, in single-step mode: some 14 µs.
    SingleStepped,
}

/// A function of a TLS library that is found by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Its name.
    pub name: &'static str,
    /// Virtual address in the file's own layout.
    pub address: u64,
    /// Its machine code, as much as is known.
    pub code: Vec<u8>,
}

/// Names that are looked for.
pub const NAMES: [&str; 7] =
    ["SSL_read", "SSL_read_ex", "SSL_write", "SSL_write_ex", "SSL_do_handshake", "SSL_free", "BIO_write"];

/// Whose machine code it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// x86-64, which is looked into.
    X86,
    /// Another one: probes go to the entry and the return.
    Other,
}

/// What else is asked of a file, by virtual address.
pub trait Text {
    /// The machine code there, [`CODE_BYTES`](super::code::CODE_BYTES) of it at the most.
    fn code(&self, address: u64) -> Option<Vec<u8>>;
    /// Where in the file that is.
    fn offset(&self, address: u64) -> Option<u64>;
}

/// Decides for the functions of a file; in the order of the programs.
#[must_use]
pub fn plan(symbols: &[Symbol], machine: Machine, text: &dyn Text) -> Vec<ProbePoint> {
    let mut planner = Planner { symbols, machine, text, points: Vec::new() };
    planner.pair(READ, READ_EX);
    planner.pair(WRITE, WRITE_EX);
    for call in [HANDSHAKE, FREE, BIO_WRITE] {
        planner.single(call);
    }
    planner.points.sort_unstable();
    planner.points.dedup();
    planner.points
}

/// A function and its programs.
#[derive(Debug, Clone, Copy)]
struct Call {
    name: &'static str,
    enter: Program,
    has_result: bool,
    n_arguments: usize,
}

const READ: Call = with_result("SSL_read", Program::TlsReadEnter, 3);
const READ_EX: Call = with_result("SSL_read_ex", Program::TlsReadExEnter, 4);
const WRITE: Call = with_result("SSL_write", Program::TlsWriteEnter, 3);
const WRITE_EX: Call = with_result("SSL_write_ex", Program::TlsWriteExEnter, 4);
const HANDSHAKE: Call = with_result("SSL_do_handshake", Program::TlsHandshakeEnter, 1);
const FREE: Call = without_result("SSL_free", Program::TlsFree, 1);
const BIO_WRITE: Call = without_result("BIO_write", Program::BioWriteEnter, 3);

const fn with_result(name: &'static str, enter: Program, n_arguments: usize) -> Call {
    Call { name, enter, has_result: true, n_arguments }
}

const fn without_result(name: &'static str, enter: Program, n_arguments: usize) -> Call {
    Call { name, enter, has_result: false, n_arguments }
}

struct Planner<'a> {
    symbols: &'a [Symbol],
    machine: Machine,
    text: &'a dyn Text,
    points: Vec<ProbePoint>,
}

struct Placement {
    at_return: bool,
    cost: Cost,
    cookie: u64,
}

impl Planner<'_> {
    /// Two functions that most builds make wrappers of a third: one pair of probes there serves both.
    fn pair(&mut self, plain: Call, extended: Call) {
        let Some(inner) = self.inner(extended) else {
            self.single(plain);
            self.single(extended);
            return;
        };
        let cookie = if inner.fifth { 1 << TLS_FIFTH_BIT } else { 0 };
        self.at_entry(extended, inner.target, Cost::Emulated, cookie);
        let calls_inner = |symbol: &Symbol| Function::new(symbol.address, &symbol.code).calls(inner.target);
        if self.symbol(plain).is_some_and(|symbol| !calls_inner(symbol)) {
            self.single(plain);
        }
    }

    /// The inner function of `call`, when probes at its entry are cheap.
    fn inner(&mut self, call: Call) -> Option<InnerCall> {
        let symbol = self.symbol(call).filter(|_| self.machine == Machine::X86)?;
        let inner = Function::new(symbol.address, &symbol.code).inner_call()?;
        let code = self.text.code(inner.target)?;
        Function::new(inner.target, &code).begins_emulated().then_some(inner)
    }

    fn single(&mut self, call: Call) {
        let Some(symbol) = self.symbol(call) else { return };
        let address = symbol.address;
        if self.machine == Machine::Other {
            return self.at_entry(call, address, Cost::SingleStepped, 0);
        }
        let function = Function::new(address, &symbol.code);
        if function.begins_emulated() {
            return self.at_entry(call, address, Cost::Emulated, 0);
        }
        let results = if call.has_result { function.result_points() } else { Some(Vec::new()) };
        let (Some(entry), Some(results)) = (function.entry_point(call.n_arguments), results) else {
            return self.at_entry(call, address, Cost::SingleStepped, 0);
        };
        self.add(call.enter, entry, Placement { at_return: false, cost: Cost::Emulated, cookie: 0 });
        for result in results {
            self.add(Program::TlsExit, result, Placement { at_return: false, cost: Cost::Emulated, cookie: 0 });
        }
    }

    /// Both probes at the first instruction: the second costs no further trap.
    fn at_entry(&mut self, call: Call, address: u64, cost: Cost, cookie: u64) {
        self.add(call.enter, address, Placement { at_return: false, cost, cookie });
        if call.has_result {
            self.add(Program::TlsExit, address, Placement { at_return: true, cost, cookie: 0 });
        }
    }

    fn add(&mut self, program: Program, address: u64, placement: Placement) {
        let Placement { at_return, cost, cookie } = placement;
        let offset = self.text.offset(address);
        self.points.extend(offset.map(|offset| ProbePoint { program, offset, at_return, cost, cookie }));
    }

    fn symbol(&self, call: Call) -> Option<&Symbol> {
        self.symbols.iter().find(|symbol| symbol.name == call.name)
    }
}
