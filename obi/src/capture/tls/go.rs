//! Where the kernel programs go in Go's own TLS.
//!
//! In: a Go program. Out: [`ProbePoint`]s, or why there are none. All that a connection carries passes one function
//! in each direction, under that direction's lock: `writeRecordLocked`, once for each write, however long, and
//! `decrypt`, once for each record. Their places come from Go's table of functions, which no `strip` takes away, and
//! are proven from the machine code, not looked up by version. Forks of the package (uTLS) have the same functions
//! and are taken alike. Pure.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use obi_ebpf::{
    TLS_GO_ARM64_OBJECT, TLS_GO_ARM64_RECEIVE, TLS_GO_ARM64_RECORD, TLS_GO_ARM64_SEND, TLS_GO_OBJECT,
    TLS_GO_RECEIVE, TLS_GO_RECORD, TLS_GO_SEND, TLS_HOME_AT,
};
use object::elf;
use thiserror::Error;

use super::code::{GoFunction, Received};
use super::elf::{Image, Source};
use super::point::{Cost, ProbePoint};
use super::program::Program;
use crate::capture::executable::elf::Elf;
use crate::capture::executable::go;
use crate::capture::executable::go::pclntab::{Named, Version};

/// Why Go's TLS in a file is not probed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Unproven {
    /// Another one than x86-64 and arm64.
    #[error("Go's TLS is probed on x86-64 and arm64 only")]
    Machine,
    /// It hands arguments over in memory.
    #[error("it was built by Go before 1.17 (arm64: 1.18), which hands arguments over in memory")]
    Old,
    /// It may have been put into its callers (by profile-guided optimization).
    #[error("Go's TLS has no function `{0}` of its own here")]
    Missing(&'static str),
    /// It is other than what is known.
    #[error("what the machine code of Go's TLS does in `{0}` is not understood")]
    Code(&'static str),
}

/// A function at whose check of the stack a program goes.
struct Row {
    function: &'static str,
    program: Program,
    n_arguments: usize,
    /// Where what it reports is, on x86-64 and on arm64.
    layouts: [u64; 2],
}

const fn row(function: &'static str, program: Program, n_arguments: usize, layouts: [u64; 2]) -> Row {
    Row { function, program, n_arguments, layouts }
}

const OBJECT: [u64; 2] = [TLS_GO_OBJECT, TLS_GO_ARM64_OBJECT];

const WRITE: &str = "(*Conn).writeRecordLocked";
const RECORD: &str = "(*Conn).write";
const CLOSE: &str = "(*Conn).Close";
const READ: &str = "(*Conn).readRecordOrCCS";
const DECRYPT: &str = "(*halfConn).decrypt";
/// A program that is only client or only server may have been linked without the other's, and forks have others: the
/// record with the hello shows the beginning as well.
const HANDSHAKES: [&str; 2] = ["(*Conn).clientHandshake", "(*Conn).serverHandshake"];

const ROWS: [Row; 5] = [
    row(WRITE, Program::TlsNowSend, 4, [TLS_GO_SEND, TLS_GO_ARM64_SEND]),
    row(RECORD, Program::TlsNowRecord, 3, [TLS_GO_RECORD, TLS_GO_ARM64_RECORD]),
    row(HANDSHAKES[0], Program::TlsNowBegin, 1, OBJECT),
    row(HANDSHAKES[1], Program::TlsNowBegin, 1, OBJECT),
    row(CLOSE, Program::TlsNowEnd, 1, OBJECT),
];
const WANTED: [&str; 7] = [WRITE, RECORD, CLOSE, READ, DECRYPT, HANDSHAKES[0], HANDSHAKES[1]];

/// Bytes of a function that are looked at; the longest, `readRecordOrCCS`, has 12 KB.
const FUNCTION_BYTES: usize = 64 * 1024;
/// Packages with these functions in one program.
const PACKAGES: usize = 16;

/// The probe points of a Go program; `None` for other files, and for programs without Go's TLS.
pub(super) fn plan(source: &dyn Source, image: &Image) -> Option<Result<Vec<ProbePoint>, Unproven>> {
    let elf = Elf::read(source).ok()?;
    elf.section(".gopclntab").or_else(|| elf.section(".data.rel.ro.gopclntab"))?;
    let program = go::Program::read(&source, &elf)?;
    let packages = packages(program.named(&WANTED));
    let text = Text { source, image };
    let mut plans = packages.values().map(|package| text.points(package, program.version()));
    let first = plans.next()?;
    Some(plans.fold(first, |all, next| match (all, next) {
        (Ok(all), Ok(next)) => Ok([all, next].concat()),
        // What can be read is.
        (Ok(points), Err(_)) | (Err(_), Ok(points)) => Ok(points),
        (Err(why), Err(_)) => Err(why),
    }))
}

/// A package's functions, by the ends of their names.
type Package = BTreeMap<&'static str, Named>;

/// Those that send and receive records.
fn packages(named: Vec<Named>) -> BTreeMap<String, Package> {
    let mut packages: BTreeMap<String, Package> = BTreeMap::new();
    for function in named {
        let Some(end) = WANTED.get(function.wanted) else { continue };
        let Some(package) = function.name.strip_suffix(end).map(str::to_owned) else { continue };
        if packages.len() < PACKAGES || packages.contains_key(&package) {
            packages.entry(package).or_default().entry(end).or_insert(function);
        }
    }
    packages.retain(|_, package| package.contains_key(WRITE) && package.contains_key(READ));
    packages
}

struct Text<'a> {
    source: &'a dyn Source,
    image: &'a Image,
}

impl Text<'_> {
    fn points(&self, package: &Package, version: Version) -> Result<Vec<ProbePoint>, Unproven> {
        let oldest = match self.image.machine() {
            elf::EM_X86_64 => Version::Go116,
            elf::EM_AARCH64 => Version::Go118,
            _ => return Err(Unproven::Machine),
        };
        if version < oldest {
            return Err(Unproven::Old);
        }
        let mut points = vec![self.receive(package)?];
        for row in ROWS {
            match self.at_check(package, &row) {
                Ok(point) => points.push(point),
                // The socket shows the end as well.
                Err(_) if row.function == CLOSE => {}
                Err(Unproven::Missing(_)) if HANDSHAKES.contains(&row.function) => {}
                Err(why) => return Err(why),
            }
        }
        points.sort_unstable();
        Ok(points)
    }

    fn at_check(&self, package: &Package, row: &Row) -> Result<ProbePoint, Unproven> {
        let named = package.get(row.function).ok_or(Unproven::Missing(row.function))?;
        let unknown = || Unproven::Code(row.function);
        let code = self.code(named).ok_or_else(unknown)?;
        let function = self.function(named.start, &code).ok_or_else(unknown)?;
        let address = function.stack_check(row.n_arguments).ok_or_else(unknown)?;
        self.point(row.program, address, self.choose(row.layouts)).ok_or_else(unknown)
    }

    /// Where a record has been decrypted.
    fn receive(&self, package: &Package) -> Result<ProbePoint, Unproven> {
        let get = |name| package.get(name).ok_or(Unproven::Missing(name));
        let (read, decrypt) = (get(READ)?, get(DECRYPT)?.start);
        let unknown = || Unproven::Code(READ);
        let code = self.code(read).ok_or_else(unknown)?;
        let function = self.function(read.start, &code);
        let Received { address, home } =
            function.and_then(|function| function.received(decrypt)).ok_or_else(unknown)?;
        // A cookie has room for homes that are not farther away.
        let home = u64::from(u16::try_from(home).map_err(|_| unknown())?);
        let layout = self.choose([TLS_GO_RECEIVE, TLS_GO_ARM64_RECEIVE]) | home << TLS_HOME_AT;
        self.point(Program::TlsNowReceive, address, layout).ok_or_else(unknown)
    }

    fn function<'a>(&self, address: u64, code: &'a [u8]) -> Option<GoFunction<'a>> {
        GoFunction::whole(self.image.machine(), address, code)
    }

    /// Of a layout for x86-64 and one for arm64.
    fn choose(&self, [on_x86, on_arm64]: [u64; 2]) -> u64 {
        if self.image.machine() == elf::EM_AARCH64 { on_arm64 } else { on_x86 }
    }

    fn point(&self, program: Program, address: u64, cookie: u64) -> Option<ProbePoint> {
        let offset = self.image.offset(address)?;
        Some(ProbePoint { program, offset, at_return: false, cost: Cost::Emulated, cookie })
    }

    fn code(&self, function: &Named) -> Option<Vec<u8>> {
        let length =
            usize::try_from(function.end - function.start).ok().filter(|length| *length <= FUNCTION_BYTES)?;
        self.image.code(self.source, function.start, length)
    }
}
