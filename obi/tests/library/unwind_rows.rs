//! Every rule of real files, followed by the kernel side's own code, against an independent evaluation of the same
//! DWARF.
//!
//! In: this machine's C library, loader, TLS library, interpreter, and this test. Out: a failure that lists rows whose
//! caller is another one. The world is made up: memory at an address is a function of the address, so a walk that
//! reads the right places finds the same.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; helpers beside `#[test]` functions are not exempt"
)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

use gimli::{
    BaseAddresses, CfaRule, CieOrFde, EhFrame, EndianSlice, EvaluationResult, LittleEndian, Location,
    Register, RegisterRule, UnwindContext, UnwindExpression, UnwindSection as _, UnwindTableRow, Value,
};
use obi::capture::tls::elf::OpenFile;
use obi::capture::unwind::{self, Table};
use obi_ebpf::{
    MAPPING_ENTRIES, STACK_COMPLETE, STACK_NO_RULE, UNUSED_START, UNWIND_NONE, mapping_block, mapping_entry,
    mapping_key, unwind_chunk, unwind_key,
};
use obi_ebpf_host::unwind::{Cache, Frame, World, unwind};
use object::{Object as _, ObjectSection as _};

const PROCESS: u32 = 7;
/// Where the files are mapped, and where stacks are.
const BIAS: u64 = 0x5555_0000_0000;
const STACK: u64 = 0x7ffe_0000_0000;

const FRAME: Register = Register(6);
const RETURN: Register = Register(16);

/// A word of the stack: an address further up on it.
fn word(address: u64) -> u64 {
    STACK + 0x10_0000 + (address.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) * 8
}

/// The stack pointer is below all others.
fn value(register: u16) -> u64 {
    if register == 7 { STACK + 0x800 } else { STACK + 0x1_0000 + u64::from(register) * 0x90 }
}

struct Made {
    chunks: Vec<Vec<unwind_chunk>>,
    block: mapping_block,
}

impl Made {
    fn new(tables: &[Table]) -> Self {
        let key = mapping_key { tgid: PROCESS, block: 0 };
        let unused = mapping_entry { start: UNUSED_START, ..mapping_entry::default() };
        let mut block =
            mapping_block { key, n_entries: 0, index: 0, entry: [unused; MAPPING_ENTRIES as usize] };
        for ((table, to), number) in tables.iter().zip(&mut block.entry).zip(1..) {
            let (start, end) = (BIAS + table.first, BIAS + table.last);
            *to = mapping_entry { start, end, origin: start, table: number, flags: 0 };
        }
        let chunks = tables.iter().zip(1..).map(|(table, number)| {
            let mut chunks: Vec<unwind_chunk> = table.chunks(number).collect();
            chunks.sort_by_key(|chunk| chunk.key.chunk);
            chunks
        });
        Self { chunks: chunks.collect(), block }
    }
}

impl World for Made {
    fn chunk(&self, key: unwind_key) -> Option<&unwind_chunk> {
        self.chunks.get(key.table as usize - 1)?.get(key.chunk as usize)
    }

    fn block(&self, key: mapping_key) -> Option<&mapping_block> {
        (key.tgid == PROCESS && key.block == 0).then_some(&self.block)
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        for (part, place) in bytes.chunks_mut(8).zip((address..).step_by(8)) {
            part.copy_from_slice(&word(place).to_le_bytes());
        }
        true
    }
}

type Bytes<'a> = EndianSlice<'a, LittleEndian>;
type Section<'a> = EhFrame<Bytes<'a>>;
type Row = UnwindTableRow<usize>;

/// What DWARF says: the caller's registers, or nothing where there is no caller.
#[derive(Debug, PartialEq, Eq)]
enum Caller {
    None,
    Registers { pc: u64, sp: u64, fp: Option<u64> },
}

fn evaluate(section: &Section<'_>, expression: UnwindExpression<usize>, pc: u64, first: Option<u64>) -> u64 {
    let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
    let mut evaluation = expression.get(section).unwrap().evaluation(encoding);
    if let Some(first) = first {
        evaluation.set_initial_value(first);
    }
    let mut state = evaluation.evaluate().unwrap();
    loop {
        state = match state {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = if register == RETURN { pc } else { value(register.0) };
                evaluation.resume_with_register(Value::Generic(value)).unwrap()
            }
            EvaluationResult::RequiresMemory { address, .. } => {
                evaluation.resume_with_memory(Value::Generic(word(address))).unwrap()
            }
            other => panic!("{other:?}"),
        };
    }
    let result = evaluation.result();
    match result[..] {
        [gimli::Piece { location: Location::Address { address }, .. }] => address,
        _ => panic!("{result:?}"),
    }
}

fn caller(section: &Section<'_>, row: &Row, pc: u64) -> Caller {
    if matches!(row.register(RETURN), Some(RegisterRule::Undefined)) {
        return Caller::None;
    }
    let frame = match *row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => value(register.0).wrapping_add_signed(offset),
        CfaRule::Expression(expression) => evaluate(section, expression, pc, None),
    };
    let register = |register: Register| match row.register(register) {
        None | Some(RegisterRule::SameValue) => Some(value(register.0)),
        Some(RegisterRule::Register(other)) => Some(value(other.0)),
        Some(RegisterRule::ValOffset(offset)) => Some(frame.wrapping_add_signed(offset)),
        Some(RegisterRule::Offset(offset)) => Some(word(frame.wrapping_add_signed(offset))),
        Some(RegisterRule::Expression(expression)) => {
            Some(word(evaluate(section, expression, pc, Some(frame))))
        }
        _ => None,
    };
    let sp = match row.register(Register(7)) {
        Some(RegisterRule::Expression(_)) => register(Register(7)).unwrap(),
        _ => frame,
    };
    Caller::Registers { pc: register(RETURN).unwrap(), sp, fp: register(FRAME) }
}

/// What the kernel side says.
fn walked(made: &Made, cache: &mut Cache, pc: u64, exact: bool) -> Option<Caller> {
    let mut other = [0; 32];
    for (number, register) in (0..16).zip(&mut other) {
        *register = value(number);
    }
    let (exact, sp, fp) = (u8::from(exact), value(7), value(6));
    let (all, tgid) = (1, PROCESS);
    let mut frame =
        Frame { pc, sp, fp, link: 0, other, tgid, exact, all, pointer: 0, ended: 0, end: 0, pad: 0 };
    unwind(made, Some(cache), &mut frame);
    let Frame { pc, sp, fp, .. } = frame;
    match (frame.ended, frame.end) {
        (1, STACK_COMPLETE) => Some(Caller::None),
        (0, _) if frame.pointer == 0 => Some(Caller::Registers { pc, sp, fp: Some(fp) }),
        // No rule: by frame pointer, or not at all.
        (0, _) | (1, STACK_NO_RULE) => None,
        (_, end) => panic!("the walk ended at {:#x} for reason {end}", pc - BIAS),
    }
}

/// Rows of a few instructions in functions that change stacks or threads of control, whose caller is in no memory that
/// the walk could know of: the return address is in a register (`vfork`, `longjmp`, `setcontext` on its way), or both
/// are in the context that `setcontext` restores.
const EXPLAINED: [&str; 2] =
    ["return address Some(Register(", "CFA from register 1, return address Some(Offset(168))"];

/// What came of a file.
#[derive(Debug, Default)]
struct Tally {
    functions: usize,
    rows: usize,
    addresses: u64,
    mismatches: Vec<String>,
    /// Rows without a rule of ours, by what DWARF says of them.
    not_followed: BTreeMap<String, usize>,
}

/// How rows look that have no rule of ours, without their numbers.
fn kind(section: &Section<'_>, row: &Row) -> String {
    let text = match *row.cfa() {
        CfaRule::RegisterAndOffset { register, .. } => format!("CFA from register {}", register.0),
        CfaRule::Expression(expression) => {
            let bytes = expression.get(section).unwrap().0;
            format!("CFA by an expression of {} bytes", bytes.len())
        }
    };
    let offset = match *row.cfa() {
        CfaRule::RegisterAndOffset { offset, .. } if offset % 8 != 0 => ", not by whole words",
        CfaRule::RegisterAndOffset { offset, .. } if offset < 0 => ", below it",
        _ => "",
    };
    let place = match row.register(RETURN) {
        Some(RegisterRule::Offset(-8)) => String::new(),
        other => format!(", return address {other:?}"),
    };
    text + offset + &place
}

fn check(path: &Path) -> Tally {
    let file = std::fs::File::open(path).unwrap();
    let length = file.metadata().unwrap().len();
    let source = OpenFile { file, length };
    let tables = unwind::build(&source).unwrap();
    let made = Made::new(&tables);
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let part = file.section_by_name(".eh_frame").unwrap();
    let section = EhFrame::new(part.data().unwrap(), LittleEndian);
    let text = file.section_by_name(".text").unwrap().address();
    let bases = BaseAddresses::default().set_eh_frame(part.address()).set_text(text);
    let (mut context, mut tally, mut cache) = (UnwindContext::new(), Tally::default(), Cache::default());
    let mut entries = section.entries(&bases);
    while let Some(entry) = entries.next().unwrap() {
        let CieOrFde::Fde(partial) = entry else { continue };
        let function = partial.parse(|section, bases, at| section.cie_from_offset(bases, at)).unwrap();
        tally.functions += 1;
        let mut rows = function.rows(&section, &bases, &mut context).unwrap();
        while let Some(row) = rows.next_row().unwrap() {
            tally.rows += 1;
            check_row(&section, row, &made, &mut cache, &mut tally);
        }
    }
    assert!(!tables.is_empty() && tally.rows > 0);
    tally
}

/// Addresses at each end of a row that are looked up, and between them one of so many: to look up all of them takes
/// an unoptimised test a minute. `OBI_TEST_EVERY_ADDRESS` does.
const AT_ENDS: u64 = 8;
const BETWEEN: usize = 16;
static STEP: LazyLock<usize> =
    LazyLock::new(|| if std::env::var_os("OBI_TEST_EVERY_ADDRESS").is_some() { 1 } else { BETWEEN });

fn addresses(row: &Row) -> impl Iterator<Item = u64> {
    let (start, end) = (row.start_address(), row.end_address());
    // What depends on the address itself is looked up at each.
    let step = if matches!(row.cfa(), CfaRule::Expression(_)) { 1 } else { *STEP };
    let first = end.min(start + AT_ENDS);
    let last = first.max(end.saturating_sub(AT_ENDS));
    (start..first).chain((first..last).step_by(step)).chain(last..end)
}

/// Addresses of a row as the next instruction, and its first one as a byte of a call.
fn check_row(section: &Section<'_>, row: &Row, made: &Made, cache: &mut Cache, tally: &mut Tally) {
    for address in addresses(row) {
        let pc = BIAS + address;
        let expected = caller(section, row, pc);
        tally.addresses += 1;
        let Some(found) = walked(made, cache, pc, true) else {
            *tally.not_followed.entry(kind(section, row)).or_default() += 1;
            return;
        };
        // A frame pointer that DWARF has no value for is none of ours.
        let same = match (&found, &expected) {
            (Caller::Registers { pc, sp, .. }, Caller::Registers { pc: at, sp: stack, fp: None }) => {
                (pc, sp) == (at, stack)
            }
            _ => found == expected,
        };
        if !same && tally.mismatches.len() < 50 {
            tally.mismatches.push(format!("{address:#x}: {found:x?}, not {expected:x?}: {row:?}"));
        }
        // What depends on the address itself does not hold behind a call.
        if address == row.start_address() && !matches!(row.cfa(), CfaRule::Expression(_)) {
            assert_eq!(walked(made, cache, pc + 1, false), Some(found), "{address:#x}");
        }
    }
}

/// The first of these that is there.
fn first<'a>(candidates: &[&'a str]) -> &'a str {
    candidates
        .iter()
        .find(|path| Path::new(path).exists())
        .unwrap_or_else(|| panic!("none of {candidates:?}"))
}

fn library(name: &str) -> String {
    let directories =
        ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"];
    let paths: Vec<String> = directories.iter().map(|directory| format!("{directory}/{name}")).collect();
    first(&paths.iter().map(String::as_str).collect::<Vec<_>>()).to_owned()
}

#[test]
#[cfg(target_arch = "x86_64")]
fn every_rule_finds_the_caller_that_dwarf_says() {
    let own = std::env::current_exe().unwrap();
    let libraries = ["libc.so.6", "libstdc++.so.6", "ld-linux-x86-64.so.2", "libssl.so.3", "libcrypto.so.3"];
    let libraries = libraries.map(library);
    let python = first(&["/usr/bin/python3", "/usr/local/bin/python3"]);
    let mut failed = Vec::new();
    for path in libraries.iter().map(Path::new).chain([Path::new(python), own.as_path()]) {
        let tally = check(path);
        let Tally { functions, rows, addresses, mismatches, not_followed } = tally;
        println!(
            "{}: {functions} functions, {rows} rows, {addresses} addresses, {} mismatches, not followed: \
             {not_followed:?}",
            path.display(),
            mismatches.len()
        );
        let unexplained: Vec<&String> =
            not_followed.keys().filter(|kind| !EXPLAINED.iter().any(|known| kind.contains(known))).collect();
        assert!(unexplained.is_empty(), "{}: {unexplained:?}", path.display());
        failed.extend(mismatches.into_iter().map(|text| format!("{} {text}", path.display())));
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn what_has_no_rule_is_between_functions() {
    let source = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
    let length = source.metadata().unwrap().len();
    let rows = unwind::rows(&OpenFile { file: source, length }).unwrap();
    assert!(rows.windows(2).all(|pair| pair[0].address < pair[1].address && pair[0].rule != pair[1].rule));
    assert_eq!(rows.last().unwrap().rule, UNWIND_NONE);
}
