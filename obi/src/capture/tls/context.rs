//! Where the kernel programs go that find out which request a context or a greenlet of CPython works for.
//!
//! In: a CPython, or its library; uvloop; greenlet. Out: [`ProbePoint`]s, of a file all of them or none: where contexts
//! are copied, whose function is exported, and where they are freed, whose function their type names; where uvloop
//! enters them; where greenlets are made. All begin by instructions that the kernel emulates, or there are none. Pure.
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
    let points = contexts.and_then(|contexts| points(source, image, contexts));
    if let Some(points) = points {
        return points;
    }
    // Of uvloop: in programs whose contexts are not understood it says nothing.
    let modules = [
        (Program::PythonEnter, 1, guest::uvloop(source)),
        (Program::PythonGreenlet, 0, guest::greenlet(source)),
    ];
    let entered = modules.into_iter().filter_map(|(program, n_arguments, address)| {
        let address = address?;
        let code = image.code(source, address, CODE_BYTES)?;
        let entry = Function::new(address, &code).entry(n_arguments)?;
        let offset = image.offset(entry.address)?;
        Some(ProbePoint { program, offset, at_return: false, cost: Cost::Emulated, cookie: 0 })
    });
    entered.collect()
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::file::{Plan, probe_points};
    use super::*;

    fn programs(bytes: &[u8], returns: Returns) -> Vec<Program> {
        let Plan { points, .. } = probe_points(&bytes, returns).unwrap();
        assert!(points.iter().all(|point| point.cost == Cost::Emulated), "{points:?}");
        points.iter().map(|point| point.program).collect()
    }

    /// Of this machine, read as a file.
    #[test]
    fn the_interpreter_of_this_machine_has_cheap_points() {
        let bytes = fs::read("/usr/bin/python3.11").unwrap();
        let of_contexts =
            |programs: Vec<Program>| programs.into_iter().filter(|it| !it.moves_bytes()).collect::<Vec<_>>();
        let found = of_contexts(programs(&bytes, Returns::Allowed));
        assert!(found.contains(&Program::PythonFree) && found.contains(&Program::PythonCopy), "{found:?}");
        let found = of_contexts(programs(&bytes, Returns::Forbidden));
        assert!(!found.contains(&Program::PythonFree) && !found.contains(&Program::PythonCopy), "{found:?}");
    }

    #[test]
    fn other_files_have_none() {
        let bytes = fs::read("/proc/self/exe").unwrap();
        let image = Image::read(&bytes.as_slice()).unwrap();
        assert_eq!(plan(&bytes.as_slice(), &image, Returns::Allowed), []);
    }
}
