//! Where in a TLS library's functions the kernel programs go.
//!
//! In: functions by name, their addresses and code. Out: the [`ProbePoint`]s with the least cost. The kernel
//! emulates some instructions at a probe and single-steps the others, some 0.4 µs against 14; a return probe comes with
//! a probe where the return address is on top of the stack. So places are looked for that the kernel emulates, with the
//! arguments or the result provably in their registers: near the function's beginning, before its stack pointer moves;
//! in front of its first jump and at the check of the stack's canary; or in an inner function that gets the same
//! arguments. Pure.
#![forbid(unsafe_code)]

use obi_ebpf::TLS_FIFTH_BIT;
use serde::Serialize;

use super::code::{CODE_BYTES, Entry, Function, InnerCall, arm64};
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
    /// What the program learns about the place: `enum tls_cookie`, or where what it reports is, `enum tls_layout_bit`.
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

/// Names that are looked for: OpenSSL's and those of its relatives, GnuTLS, Mbed TLS, wolfSSL.
pub const NAMES: [&str; 23] = [
    "SSL_read",
    "SSL_read_ex",
    "SSL_write",
    "SSL_write_ex",
    "SSL_sendfile",
    "SSL_do_handshake",
    "SSL_free",
    "BIO_write",
    RECORD_RECEIVE,
    RECORD_RECEIVE_SEQUENCE,
    "gnutls_record_send2",
    "gnutls_record_uncork",
    "gnutls_handshake",
    "gnutls_deinit",
    "mbedtls_ssl_read",
    "mbedtls_ssl_write",
    "mbedtls_ssl_handshake",
    "mbedtls_ssl_free",
    "wolfSSL_read",
    "wolfSSL_write",
    "wolfSSL_connect",
    "wolfSSL_accept",
    "wolfSSL_free",
];

/// Whose machine code it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// x86-64, which is looked into.
    X86,
    /// arm64, which is looked into likewise, but not for functions without a name.
    Arm64,
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

/// Whether return probes may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returns {
    /// They do no harm.
    Allowed,
    /// This kernel ends sandboxed programs by them (`capture/bpf/trial.rs`).
    Forbidden,
}

/// Decides for the functions of a file; in the order of the programs. A function whose result would be seen by a return
/// probe only is left out where those are forbidden.
#[must_use]
pub fn plan(symbols: &[Symbol], machine: Machine, returns: Returns, text: &dyn Text) -> Vec<ProbePoint> {
    let mut planner = Planner { symbols, machine, returns, text, points: Vec::new() };
    planner.pair(READ, READ_EX);
    planner.pair(WRITE, WRITE_EX);
    for call in SINGLES {
        planner.single(call);
    }
    planner.typed_read();
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
/// Functions that are probed each for itself.
const SINGLES: [Call; 17] = [
    with_result("SSL_sendfile", Program::TlsSendfileEnter, 5),
    with_result("SSL_do_handshake", Program::TlsHandshakeEnter, 1),
    without_result("SSL_free", Program::TlsFree, 1),
    without_result("BIO_write", Program::BioWriteEnter, 3),
    with_result("gnutls_record_send2", Program::TlsWriteEnter, 3),
    with_result("gnutls_record_uncork", Program::TlsUncorkEnter, 1),
    with_result("gnutls_handshake", Program::TlsHandshakeEnter, 1),
    without_result("gnutls_deinit", Program::TlsFree, 1),
    with_result("mbedtls_ssl_read", Program::TlsReadEnter, 3),
    with_result("mbedtls_ssl_write", Program::TlsWriteEnter, 3),
    with_result("mbedtls_ssl_handshake", Program::TlsHandshakeEnter, 1),
    without_result("mbedtls_ssl_free", Program::TlsFree, 1),
    with_result("wolfSSL_read", Program::TlsReadEnter, 3),
    with_result("wolfSSL_write", Program::TlsWriteEnter, 3),
    with_result("wolfSSL_connect", Program::TlsHandshakeEnter, 1),
    with_result("wolfSSL_accept", Program::TlsHandshakeEnter, 1),
    without_result("wolfSSL_free", Program::TlsFree, 1),
];
/// GnuTLS reads in a function without a name, which both of these end in.
const RECORD_RECEIVE: &str = "gnutls_record_recv";
const RECORD_RECEIVE_SEQUENCE: &str = "gnutls_record_recv_seq";
const TYPED_READ: Call = with_result("", Program::TlsTypedReadEnter, 4);

const fn with_result(name: &'static str, enter: Program, n_arguments: usize) -> Call {
    Call { name, enter, has_result: true, n_arguments }
}

const fn without_result(name: &'static str, enter: Program, n_arguments: usize) -> Call {
    Call { name, enter, has_result: false, n_arguments }
}

/// The type of a record with data.
const DATA: u64 = 23;
/// Functions around the innermost one; OpenSSL has two.
const WRAPPERS: usize = 3;

struct Planner<'a> {
    symbols: &'a [Symbol],
    machine: Machine,
    returns: Returns,
    text: &'a dyn Text,
    points: Vec<ProbePoint>,
}

#[derive(Debug, Clone, Copy)]
struct Site {
    address: u64,
    cost: Cost,
    cookie: u64,
}

impl<'a> Planner<'a> {
    /// Two functions that most builds make wrappers of a third: one pair of probes there serves both.
    fn pair(&mut self, plain: Call, extended: Call) {
        let Some((InnerCall { target, fifth }, entry)) = self.inner(extended) else {
            self.single(plain);
            self.single(extended);
            return;
        };
        let cookie = if fifth { 1 << TLS_FIFTH_BIT } else { 0 };
        self.at_entry(extended, Site { address: entry, cost: Cost::Emulated, cookie });
        let calls_inner = |symbol: &Symbol| Function::new(symbol.address, &symbol.code).calls(target);
        if self.symbol(plain).is_some_and(|symbol| !calls_inner(symbol)) {
            self.single(plain);
        }
    }

    /// The innermost function that gets the arguments of `call`, and where near its beginning probes are cheap.
    fn inner(&self, call: Call) -> Option<(InnerCall, u64)> {
        let usable = self.machine == Machine::X86 && self.returns == Returns::Allowed;
        let symbol = self.symbol(call).filter(|_| usable)?;
        let mut inner = Function::new(symbol.address, &symbol.code).inner_call(false)?;
        for _ in 0..WRAPPERS {
            let code = self.text.code(inner.target)?;
            let function = Function::new(inner.target, &code);
            let n_arguments = if inner.fifth { 5 } else { 4 };
            match function.inner_call(inner.fifth) {
                Some(next) => inner = next,
                None => {
                    let entry = function.entry(n_arguments).filter(|entry| entry.can_return)?;
                    return Some((inner, entry.address));
                }
            }
        }
        None
    }

    fn single(&mut self, call: Call) {
        for symbol in self.symbols.iter().filter(|symbol| symbol.name == call.name) {
            match self.machine {
                Machine::Arm64 => self.on_arm64(call, symbol),
                _ => self.function(call, &Function::new(symbol.address, &symbol.code)),
            }
        }
    }

    /// Returns are simulated there, too: where all of them are known, no return probe is needed.
    fn on_arm64(&mut self, call: Call, symbol: &Symbol) {
        let function = arm64::Function::whole(symbol.address, &symbol.code);
        let first = Site { address: symbol.address, cost: Cost::SingleStepped, cookie: 0 };
        let emulated = |address| Site { address, cost: Cost::Emulated, ..first };
        let n_arguments = u32::try_from(call.n_arguments).unwrap_or(u32::MAX);
        let entry = function.entry(n_arguments).map_or(first, emulated);
        match function.returns(symbol.code.len() < CODE_BYTES) {
            _ if !call.has_result => self.add(call.enter, false, entry),
            Some(returns) => {
                self.add(call.enter, false, entry);
                for address in returns {
                    self.add(Program::TlsExit, false, emulated(address));
                }
            }
            None if self.returns == Returns::Allowed => self.at_entry(call, first),
            None => {}
        }
    }

    /// The function that GnuTLS's functions for reading end in, which gets the type of the wanted record besides.
    fn typed_read(&mut self) {
        let of = |name: &str| self.symbols.iter().find(|symbol| symbol.name == name);
        let (Some(plain), Some(with_sequence)) = (of(RECORD_RECEIVE), of(RECORD_RECEIVE_SEQUENCE)) else {
            return;
        };
        if self.machine != Machine::X86 {
            // They read no other records than those with data.
            for name in [RECORD_RECEIVE, RECORD_RECEIVE_SEQUENCE] {
                self.single(with_result(name, Program::TlsReadEnter, 3));
            }
            return;
        }
        let inner = Function::new(with_sequence.address, &with_sequence.code).typed_call(DATA);
        let is_inner = |target: &u64| Function::new(plain.address, &plain.code).calls(*target);
        let Some(target) = inner.filter(is_inner) else { return };
        let Some(code) = self.text.code(target) else { return };
        // Its end is not known; the next function that is known jumps to it.
        let next =
            self.symbols.iter().filter_map(|symbol| symbol.address.checked_sub(target)).filter(|n| *n > 0);
        let length = next.min().and_then(|length| usize::try_from(length).ok()).unwrap_or(code.len());
        self.function(TYPED_READ, &Function::new(target, &code[..code.len().min(length)]));
    }

    fn function(&mut self, call: Call, function: &Function<'_>) {
        let first = Site { address: function.address(), cost: Cost::SingleStepped, cookie: 0 };
        let entry = function.entry(call.n_arguments).filter(|_| self.machine == Machine::X86);
        let results = function.result_points();
        let returns = self.returns == Returns::Allowed;
        match (entry, results) {
            (Some(Entry { address, can_return }), _) if can_return && returns || !call.has_result => {
                self.at_entry(call, Site { address, cost: Cost::Emulated, ..first });
            }
            (Some(Entry { address, .. }), Some(results)) => {
                self.add(call.enter, false, Site { address, cost: Cost::Emulated, ..first });
                for address in results {
                    self.add(Program::TlsExit, false, Site { address, cost: Cost::Emulated, ..first });
                }
            }
            _ if returns || !call.has_result => self.at_entry(call, first),
            _ => {}
        }
    }

    /// Both probes at one instruction, where the return address is on top of the stack: the second costs no further
    /// trap.
    fn at_entry(&mut self, call: Call, place: Site) {
        self.add(call.enter, false, place);
        if call.has_result {
            self.add(Program::TlsExit, true, Site { cookie: 0, ..place });
        }
    }

    fn add(&mut self, program: Program, at_return: bool, place: Site) {
        let Site { address, cost, cookie } = place;
        let offset = self.text.offset(address);
        self.points.extend(offset.map(|offset| ProbePoint { program, offset, at_return, cost, cookie }));
    }

    fn symbol(&self, call: Call) -> Option<&'a Symbol> {
        self.symbols.iter().find(|symbol| symbol.name == call.name)
    }
}

#[cfg(test)]
mod tests;
