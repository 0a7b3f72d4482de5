//! Where the kernel programs go that find out which request a callback of Node's event loop works for.
//!
//! In: a Node. Out: [`ProbePoint`]s, all of them or none: where callbacks begin, by what, and where promises go on.
//! All begin by an instruction that the kernel emulates, or there are none. Pure.
#![forbid(unsafe_code)]

use obi_ebpf::{NODE_IN_R8_BIT, NODE_NUMBERS_AT, NODE_OFFSET_MASK, NODE_OWN_AT};

use super::code::{CODE_BYTES, Function};
use super::elf::{Image, Source};
use super::point::{Cost, ProbePoint};
use super::program::Program;
use crate::capture::guest::{self, Loop, Text};

/// The probe points; none where one of them is not there or not understood.
pub(super) fn plan(source: &dyn Source, image: &Image) -> Vec<ProbePoint> {
    let points = guest::event_loop(source).and_then(|event_loop| File { source, image }.points(&event_loop));
    points.unwrap_or_default()
}

struct File<'a> {
    source: &'a dyn Source,
    image: &'a Image,
}

impl File<'_> {
    fn points(&self, event_loop: &Loop) -> Option<Vec<ProbePoint>> {
        let numbers = self.within(event_loop.number, |function| function.double_of())?;
        let layout = u64::from(event_loop.in_fifth) << NODE_IN_R8_BIT | fits(numbers)? << NODE_NUMBERS_AT;
        let own = self.within(event_loop.object_scope, |function| function.doubles_of_second_argument())?;
        let of_object = fits(own)? << NODE_OWN_AT;
        // Where promises go on is known, or else that they go on behind the end of a scope.
        let (microtasks, at_close) = match event_loop.microtasks {
            Some(microtasks) => (microtasks, 0),
            None => (event_loop.close, 1),
        };
        let mut points = vec![
            self.point(Program::NodeScope, event_loop.scope, 5, layout)?,
            self.point(Program::NodeScope, event_loop.object_scope.address, 2, of_object)?,
            self.point(Program::NodeRead, event_loop.read, 0, 0)?,
            self.point(Program::NodeMicrotasks, microtasks, 0, at_close)?,
        ];
        for phase in event_loop.phases {
            points.push(self.point(Program::NodePhase, phase, 0, 0)?);
        }
        Some(points)
    }

    fn point(&self, program: Program, address: u64, n_arguments: usize, cookie: u64) -> Option<ProbePoint> {
        let code = self.code(address)?;
        let entry = Function::new(address, &code).entry(n_arguments)?;
        let offset = self.image.offset(entry.address)?;
        Some(ProbePoint { program, offset, at_return: false, cost: Cost::Emulated, cookie })
    }

    fn within(&self, text: Text, find: impl Fn(&Function<'_>) -> Option<u64>) -> Option<u64> {
        let length = usize::try_from(text.size).ok().filter(|length| *length <= CODE_BYTES)?;
        let code = self.image.code(self.source, text.address, length)?;
        find(&Function::new(text.address, &code))
    }

    fn code(&self, address: u64) -> Option<Vec<u8>> {
        self.image.code(self.source, address, CODE_BYTES)
    }
}

/// What a cookie has room for.
fn fits(offset: u64) -> Option<u64> {
    (1..=u64::from(NODE_OFFSET_MASK)).contains(&offset).then_some(offset)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::file::{Plan, probe_points};
    use super::super::point::Returns;
    use super::*;

    /// Of this machine, read as a file.
    #[test]
    fn the_node_of_this_machine_has_cheap_points_for_every_program() {
        let bytes = fs::read("/usr/bin/node").unwrap();
        let Plan { points, .. } = probe_points(&bytes.as_slice(), Returns::Allowed).unwrap();
        let n_of = |program| points.iter().filter(|point| point.program == program).count();
        let programs = [Program::NodeScope, Program::NodeRead, Program::NodeMicrotasks, Program::NodePhase];
        assert_eq!(programs.map(n_of), [2, 1, 1, 4], "{points:?}");
        assert!(points.iter().all(|point| point.cost == Cost::Emulated));
        let image = Image::read(&bytes.as_slice()).unwrap();
        assert_eq!(plan(&&bytes[..bytes.len() / 2], &image), []);
    }

    #[test]
    fn other_files_have_none() {
        let bytes = fs::read("/proc/self/exe").unwrap();
        let image = Image::read(&bytes.as_slice()).unwrap();
        assert_eq!(plan(&bytes.as_slice(), &image), []);
    }
}
