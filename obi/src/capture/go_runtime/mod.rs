//! What the runtime of a Go program keeps of itself, read from outside when a caller asks: its memory profile
//! ([`heap`]) and its goroutines ([`goroutine`]).
//!
//! In: the program's file, the memory of a process that runs it. Out: stacks of addresses with what they count. Where
//! the runtime keeps what is read from the machine code of functions in Go's table, which no `strip` takes away
//! ([`place`]). All that is read is another program's, and changes meanwhile: each word is checked, every walk is
//! bounded. The program is not stopped. Refuses to write, and to know what functions are called.
#![forbid(unsafe_code)]

pub mod goroutine;
pub mod heap;
mod layout;
mod place;

use thiserror::Error;

use self::layout::Layout;
use self::place::Places;
use super::executable::elf::Elf;
use super::executable::go;
use super::tls::elf::Source;

/// Why nothing is read of a program.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unread {
    /// Machine code is read of this processor only.
    #[error("Go programs are looked into on x86-64 only")]
    Processor,
    /// It has no table of Go's, or one that is not understood.
    #[error("its table of functions is not understood")]
    Table,
    /// It does not say which Go has made it.
    #[error("the file does not say which Go has made it")]
    NoVersion,
    /// Its goroutines look otherwise.
    #[error("{0} is older than Go 1.18")]
    Old(String),
    /// A function does not begin as it should.
    #[error("the machine code of `{0}` is not understood")]
    Code(&'static str),
    /// The linker leaves the profile out of programs that never ask for it.
    #[error(
        "it keeps no profile of its memory: nothing in it uses runtime.MemProfile (net/http/pprof does), or runtime.MemProfileRate is 0"
    )]
    NoProfile,
    /// Nothing of what it has allocated was noted, or nothing of that is in use.
    #[error("there is nothing by its runtime's profile, which has one allocation in some 512 KiB")]
    Nothing,
    /// There is more of it than is read.
    #[error("its {0} is larger than what is read of a program")]
    TooLarge(&'static str),
    /// What is there is nothing that it could be.
    #[error("what stands where its {0} should be is something else")]
    Proof(&'static str),
    /// Its memory cannot be read.
    #[error("its memory cannot be read: {0}")]
    Memory(String),
}

/// A Go program, as far as its runtime can be read.
#[derive(Debug)]
pub struct Program<S> {
    table: go::Program<S>,
    layout: Layout,
    places: Places,
}

impl<S: Source + Clone> Program<S> {
    /// Looks into the file.
    ///
    /// # Errors
    /// When it is not understood.
    pub fn read(source: &S) -> Result<Self, Unread> {
        let elf = Elf::read(source).map_err(|_| Unread::Table)?;
        if elf.machine != object::elf::EM_X86_64 {
            return Err(Unread::Processor);
        }
        let table = go::Program::read(source, &elf).ok_or(Unread::Table)?;
        let layout = Layout::of(&layout::version(source, &elf).ok_or(Unread::NoVersion)?)?;
        let places = Places::find(source, &elf, &table)?;
        Ok(Self { table, layout, places })
    }

    /// Whether a goroutine that begins at this address, in the file's own layout, is the runtime's own: such ones are
    /// none of the program's, as for `runtime.NumGoroutine`.
    fn is_of_runtime(&self, start: u64) -> bool {
        let lines = self.table.lines(start);
        let name = lines.last().map_or("", |line| &*line.function);
        name.starts_with("runtime.") && !["runtime.main", "runtime.handleAsyncEvent"].contains(&name)
    }
}
