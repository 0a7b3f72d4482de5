//! Where the kernel programs go that find out which request a goroutine works for, in programs that serve and call with
//! Go's `net/http`, `golang.org/x/net/http2` or grpc-go.
//!
//! In: a Go program. Out: [`ProbePoint`]s. Functions come from Go's table, which no `strip` takes away;
//! places and offsets are proven from the machine code, not looked up by version. Of each way to serve and to
//! call there are all or none. Programs that do not both serve and call have none: nothing of theirs could be
//! found, and goroutines are made often. Pure.
#![forbid(unsafe_code)]

use obi_ebpf::{GO_CREATOR_AT, GO_NUMBER_AT, GO_OFFSET_MASK};
use object::elf;

use super::code::{GoFunction, Numbers};
use super::elf::{Image, Source};
use super::point::{Cost, ProbePoint};
use super::program::Program;
use crate::capture::executable::elf::Elf;
use crate::capture::executable::go;
use crate::capture::executable::go::pclntab::{Named, Version};

/// A way to serve or to call: its functions by the ends of their names, all in one package.
struct Way {
    is_server: bool,
    rows: &'static [Row],
}

/// A function at whose check of the stack a program goes.
struct Row {
    end: &'static str,
    program: Program,
    n_arguments: usize,
}

const fn row(end: &'static str, program: Program, n_arguments: usize) -> Row {
    Row { end, program, n_arguments }
}

const WAYS: [Way; 7] = [
    Way { is_server: true, rows: &[row("(*conn).readRequest", Program::GoRequest, 0)] },
    Way {
        is_server: true,
        rows: &[
            row("serverConn).readFrames", Program::GoReader, 1),
            row("serverConn).runHandler", Program::GoHandler, 2),
        ],
    },
    Way {
        is_server: true,
        rows: &[
            row("http2Server).HandleStreams", Program::GoReader, 1),
            row("http2Server).operateHeaders", Program::GoHeaders, 4),
        ],
    },
    // The caller waits for the answer in the first; all bytes that are sent pass the second.
    Way {
        is_server: false,
        rows: &[
            row("(*persistConn).roundTrip", Program::GoCall, 1),
            row("persistConnWriter.Write", Program::GoWrite, 2),
        ],
    },
    Way { is_server: false, rows: &[row("clientStream).doRequest", Program::GoSender, 0)] },
    Way {
        is_server: false,
        rows: &[
            row("controlBuffer).executeAndPut", Program::GoItem, 4),
            row("loopyWriter).clientHeaderHandler", Program::GoHeader, 2),
        ],
    },
    // Before grpc-go 1.80.
    Way {
        is_server: false,
        rows: &[
            row("controlBuffer).executeAndPut", Program::GoItem, 4),
            row("loopyWriter).headerHandler", Program::GoHeader, 2),
        ],
    },
];
/// What stands before the ends; forks and the copy in `net/http` have other packages of the same names.
const PACKAGES: [&str; 4] = ["net/http.", "net/http.(*http2", "/http2.(*", "/grpc/internal/transport.(*"];

/// Each `go` statement, on the stack of its thread.
const NEW: &str = "runtime.newproc.func1";
/// What makes the goroutine.
const MAKE: &str = "runtime.newproc1";
/// What gives it to a thread.
const PUT: &str = "runtime.runqput";
/// In [`MAKE`], what comes before the numbers.
const START: &str = "runtime.gostartcallfn";

/// Bytes of a function that are looked at: `roundTrip` has 4 KB.
const FUNCTION_BYTES: usize = 64 * 1024;

/// The probe points; none where one of them is not there or not understood.
pub(super) fn plan(source: &dyn Source, image: &Image) -> Vec<ProbePoint> {
    points(source, image).unwrap_or_default()
}

fn points(source: &dyn Source, image: &Image) -> Option<Vec<ProbePoint>> {
    if ![elf::EM_X86_64, elf::EM_AARCH64].contains(&image.machine()) {
        return None;
    }
    let elf = Elf::read(source).ok()?;
    elf.section(".gopclntab").or_else(|| elf.section(".data.rel.ro.gopclntab"))?;
    let program = go::Program::read(&source, &elf)?;
    if program.version() < Version::Go118 {
        return None;
    }
    let ways = WAYS.iter().flat_map(|way| way.rows).map(|row| row.end);
    let wanted: Vec<&str> = ways.chain([NEW, MAKE, PUT, START]).collect();
    Text { source, image, functions: program.named(&wanted) }.points()
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
        let mut points = vec![self.point(Program::GoCreate, made, layout)?];
        let (mut serves, mut calls) = (false, false);
        for way in &WAYS {
            for package in PACKAGES {
                let Some(found) = self.way(way, package, layout) else { continue };
                serves |= way.is_server;
                calls |= !way.is_server;
                points.extend(found);
            }
        }
        points.sort_unstable();
        points.dedup();
        (serves && calls).then_some(points)
    }

    fn way(&self, way: &Way, package: &str, layout: u64) -> Option<Vec<ProbePoint>> {
        let mut points = Vec::new();
        for row in way.rows {
            let before = points.len();
            let functions = self.functions.iter().filter(|it| {
                it.name.strip_suffix(row.end).is_some_and(|start| match package.starts_with('/') {
                    true => start.ends_with(package),
                    false => start == package,
                })
            });
            for function in functions {
                let address = self.within(function, |function| function.stack_check(row.n_arguments))?;
                points.push(self.point(row.program, address, layout)?);
            }
            if points.len() == before {
                return None;
            }
        }
        Some(points)
    }

    /// The function of this name, if there is one.
    fn named(&self, name: &str) -> Option<&Named> {
        let mut all = self.functions.iter().filter(|function| function.name == name);
        all.next().filter(|_| all.next().is_none())
    }

    fn within<T>(&self, named: &Named, find: impl Fn(&GoFunction<'_>) -> Option<T>) -> Option<T> {
        let length = usize::try_from(named.end - named.start).ok().filter(|it| *it <= FUNCTION_BYTES)?;
        let code = self.image.code(self.source, named.start, length)?;
        find(&GoFunction::whole(self.image.machine(), named.start, &code)?)
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
