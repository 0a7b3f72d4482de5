//! Where the kernel programs go that find out which request a context of CPython works for.
//!
//! In: a CPython, or its library. Out: [`ProbePoint`]s, all of them or none: where contexts are copied, whose function
//! is exported, and where they are freed, whose function their type names. Both begin by instructions that the kernel
//! emulates, or there are none. Pure.
#![forbid(unsafe_code)]

use obi_ebpf::{PYTHON_OFFSET_MASK, PYTHON_THREAD_AT};

use super::code::{CODE_BYTES, Entry, Function};
use super::elf::{Image, Source};
use super::point::{Cost, ProbePoint, Returns};
use super::program::Program;
use crate::capture::guest::{self, Contexts};

/// The probe points; none where one of them is not there or not understood. What is made of a copy is seen when the
/// function returns.
pub(super) fn plan(source: &dyn Source, image: &Image, returns: Returns) -> Vec<ProbePoint> {
    let is_allowed = returns == Returns::Allowed;
    let contexts = is_allowed.then(|| guest::contexts(source)).flatten();
    contexts.and_then(|contexts| points(source, image, contexts)).unwrap_or_default()
}

fn points(source: &dyn Source, image: &Image, contexts: Contexts) -> Option<Vec<ProbePoint>> {
    let thread_id = u64::from(contexts.thread_id);
    let cookie = (thread_id > 0 && thread_id <= u64::from(PYTHON_OFFSET_MASK))
        .then_some(thread_id << PYTHON_THREAD_AT)?;
    let point = |program, address, n_arguments, at_return: bool| {
        let code = image.code(source, address, CODE_BYTES)?;
        let Entry { address, can_return } = Function::new(address, &code).entry(n_arguments)?;
        let offset = image.offset(address).filter(|_| can_return || !at_return)?;
        Some(ProbePoint { program, offset, at_return, cost: Cost::Emulated, cookie })
    };
    // Freeing first: what is bound is forgotten in time.
    Some(vec![
        point(Program::PythonFree, contexts.free, 1, false)?,
        point(Program::PythonCopy, contexts.copy, 0, true)?,
    ])
}
