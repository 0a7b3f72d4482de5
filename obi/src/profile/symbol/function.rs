//! Functions that are objects in a process's memory.
//!
//! In: the address of such an object, and whose it is. Out: [`Function`]s, which get their names later. They are read
//! when they are first seen, since the process may end and the memory be used again; [`Code::is_at`] says whether it
//! was. Refuses to know where such an address comes from, and threads.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub use super::javascript::Sources;
use super::{java, javascript, python};
use crate::capture::guest::{Kind, Layout, Memory};
use crate::profile::{Fidelity, Runtime, Symbol};

/// What a frame says of its function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Object {
    /// Whose.
    pub kind: Kind,
    /// Where it is.
    pub address: u64,
    /// Where in its code the frame is, if it was compiled: what is inlined there is part of it.
    pub compiled: Option<java::CompiledFrame>,
}

/// A function that was sampled; what reads it says later what it is.
#[derive(Debug)]
pub struct Function {
    /// Which.
    pub object: Object,
    code: OnceLock<Result<Code, Unnamed>>,
    is_replaced: AtomicBool,
}

/// Why there is no name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unnamed {
    /// The process has ended, or the memory is there no more.
    Gone,
    /// That is no function.
    NoCode,
    /// Too many wait to be read.
    Full,
}

/// What the object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Code {
    /// CPython's.
    Python(python::Code),
    /// HotSpot's.
    Java(java::Method),
    /// HotSpot's, compiled, with what is inlined.
    Inlined(java::Inlined),
    /// V8's.
    JavaScript(javascript::Code),
}

impl Function {
    /// Not read yet.
    #[must_use]
    pub fn new(object: Object) -> Self {
        Self { object, code: OnceLock::new(), is_replaced: AtomicBool::new(false) }
    }

    /// Says what it is; the first who does so is believed.
    pub fn tell(&self, code: Result<Code, Unnamed>) {
        let _ = self.code.set(code);
    }

    /// What it is, once that is known.
    pub fn code(&self) -> Option<&Result<Code, Unnamed>> {
        self.code.get()
    }

    /// Something else is at its address now.
    pub fn replace(&self) {
        self.is_replaced.store(true, Ordering::Relaxed);
    }

    /// Something else is at its address.
    #[must_use]
    pub fn is_replaced(&self) -> bool {
        self.is_replaced.load(Ordering::Relaxed)
    }

    /// What a frame of it is called, whose instruction is at this position.
    #[must_use]
    pub fn symbol(&self, position: Option<u32>) -> Symbol {
        match self.code.get() {
            Some(Ok(Code::Python(code))) => code.symbol(position),
            Some(Ok(Code::Java(method))) => method.symbol(position),
            Some(Ok(Code::Inlined(inlined))) => inlined.symbol(),
            Some(Ok(Code::JavaScript(code))) => code.symbol(),
            _ => Symbol { lines: Vec::new(), fidelity: Fidelity::Address, runtime: self.object.kind.into() },
        }
    }

    /// An address for a frame at this position: others have others.
    #[must_use]
    pub fn instruction(&self, position: Option<u32>) -> u64 {
        let Object { kind, address, compiled } = self.object;
        let bytes = match kind {
            Kind::Cpython => 2,
            Kind::HotSpot | Kind::V8 => 1,
        };
        let of_object = address.wrapping_add(bytes * u64::from(position.unwrap_or_default()));
        compiled.map_or(of_object, |place| place.address)
    }
}

impl Code {
    /// Reads the object at an address. `sources` is what has been learnt of texts of the process.
    ///
    /// # Errors
    /// When its memory has gone, or something else is there.
    pub fn read(
        memory: &dyn Memory,
        layout: &Layout,
        sources: &Sources,
        object: &Object,
    ) -> Result<Self, Unnamed> {
        let address = object.address;
        match layout {
            Layout::Cpython(layout) => python::Code::read(memory, layout, address).map(Self::Python),
            Layout::HotSpot(layout) => {
                let inlined =
                    object.compiled.and_then(|place| java::Inlined::read(memory, layout, place, address));
                // What is inlined is not known everywhere, and code may have gone: then it is the method alone.
                match inlined {
                    Some(inlined) => Ok(Self::Inlined(inlined)),
                    None => java::Method::read(memory, layout, address).map(Self::Java),
                }
            }
            Layout::V8(layout) => {
                javascript::Code::read(memory, layout, sources, address).map(Self::JavaScript)
            }
        }
    }

    /// Whether it is still the one at the address.
    #[must_use]
    pub fn is_at(&self, memory: &dyn Memory, layout: &Layout, sources: &Sources, object: &Object) -> bool {
        match (self, layout) {
            (Self::Python(code), Layout::Cpython(layout)) => code.is_at(memory, layout, object.address),
            (Self::Java(method), Layout::HotSpot(layout)) => method.is_at(memory, layout, object.address),
            // A sample says which compilation it is of.
            (Self::Inlined(inlined), Layout::HotSpot(layout)) => {
                inlined.is_at(memory, layout, object.address)
            }
            (Self::JavaScript(code), Layout::V8(layout)) => {
                code.is_at(memory, layout, sources, object.address)
            }
            _ => false,
        }
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            Self::Python(code) => code.bytes(),
            Self::Java(method) => method.bytes(),
            Self::Inlined(inlined) => inlined.bytes(),
            Self::JavaScript(code) => code.bytes(),
        }
    }
}

impl From<Kind> for Runtime {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Cpython => Self::Cpython,
            Kind::HotSpot => Self::Jvm,
            Kind::V8 => Self::V8,
        }
    }
}
