//! Where the kernel programs go that tell which request a goroutine works for, in programs that serve and call with
//! Go's `net/http`.
//!
//! In: a Go program. Out: [`ProbePoint`]s, all of them or none. Functions come from Go's table, which no `strip` takes
//! away; places and offsets are proven from the machine code, not looked up by version. Programs that do not both serve
//! and call have none: nothing of theirs could be found, and goroutines are made often. Pure.
#![forbid(unsafe_code)]

use obi_ebpf::{GO_CREATOR_AT, GO_NUMBER_AT, GO_OFFSET_MASK};
use object::elf;

use super::code::{Function, Numbers};
use super::elf::{Image, Source};
use super::point::{Cost, ProbePoint};
use super::program::Program;
use crate::capture::executable::elf::Elf;
use crate::capture::executable::go;
use crate::capture::executable::go::pclntab::{Named, Version};

/// A goroutine that serves a connection reads each request by it.
const REQUEST: &str = "net/http.(*conn).readRequest";
/// Whoever calls waits in it for the answer.
const CALL: &str = "net/http.(*persistConn).roundTrip";
/// All that is sent on the client's connections passes it.
const WRITE: &str = "net/http.persistConnWriter.Write";
/// Each `go` statement, on the stack of its thread.
const NEW: &str = "runtime.newproc.func1";
/// What makes the goroutine.
const MAKE: &str = "runtime.newproc1";
/// What gives it to a thread.
const PUT: &str = "runtime.runqput";
/// In [`MAKE`], what comes before the numbers.
const START: &str = "runtime.gostartcallfn";
const WANTED: [&str; 7] = [REQUEST, CALL, WRITE, NEW, MAKE, PUT, START];

/// Bytes of a function that are looked at: `roundTrip` has 4 KB.
const FUNCTION_BYTES: usize = 64 * 1024;

/// The probe points; none where one of them is not there or not understood.
pub(super) fn plan(source: &dyn Source, image: &Image) -> Vec<ProbePoint> {
    points(source, image).unwrap_or_default()
}

fn points(source: &dyn Source, image: &Image) -> Option<Vec<ProbePoint>> {
    if image.machine() != elf::EM_X86_64 {
        return None;
    }
    let elf = Elf::read(source).ok()?;
    elf.section(".gopclntab").or_else(|| elf.section(".data.rel.ro.gopclntab"))?;
    let program = go::Program::read(&source, &elf)?;
    if program.version() < Version::Go118 {
        return None;
    }
    let mut functions = program.named(&WANTED);
    functions.retain(|function| WANTED.get(function.wanted) == Some(&function.name.as_str()));
    Text { source, image, functions }.points()
}

struct Text<'a> {
    source: &'a dyn Source,
    image: &'a Image,
    functions: Vec<Named>,
}

impl Text<'_> {
    fn points(&self) -> Option<Vec<ProbePoint>> {
        let (make, start, put) = (self.named(MAKE)?, self.named(START)?, self.named(PUT)?);
        let numbers = self.within(make, |function| function.numbers(start.start))?;
        let layout = layout(numbers)?;
        let made = self.within(self.named(NEW)?, |function| function.handed_on(make.start, put.start))?;
        Some(vec![
            self.at_check(REQUEST, Program::GoRequest, 0, layout)?,
            self.at_check(CALL, Program::GoCall, 1, layout)?,
            self.at_check(WRITE, Program::GoWrite, 2, layout)?,
            self.point(Program::GoCreate, made, layout)?,
        ])
    }

    /// The function of this name, if there is one.
    fn named(&self, name: &str) -> Option<&Named> {
        let mut all = self.functions.iter().filter(|function| function.name == name);
        all.next().filter(|_| all.next().is_none())
    }

    fn within<T>(&self, named: &Named, find: impl Fn(&Function<'_>) -> Option<T>) -> Option<T> {
        let length = usize::try_from(named.end - named.start).ok().filter(|it| *it <= FUNCTION_BYTES)?;
        let code = self.image.code(self.source, named.start, length)?;
        find(&Function::whole(named.start, &code))
    }

    fn at_check(&self, name: &str, program: Program, n_arguments: usize, layout: u64) -> Option<ProbePoint> {
        let address = self.within(self.named(name)?, |function| function.stack_check(n_arguments))?;
        self.point(program, address, layout)
    }

    fn point(&self, program: Program, address: u64, cookie: u64) -> Option<ProbePoint> {
        let offset = self.image.offset(address)?;
        Some(ProbePoint { program, offset, at_return: false, cost: Cost::Emulated, cookie })
    }
}

fn layout(numbers: Numbers) -> Option<u64> {
    let fits = |offset: u64| Some(offset).filter(|offset| *offset <= u64::from(GO_OFFSET_MASK));
    Some(fits(numbers.own)? << GO_NUMBER_AT | fits(numbers.creator)? << GO_CREATOR_AT)
}
