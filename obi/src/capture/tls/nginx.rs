//! Where the kernel program goes that finds out which request nginx sends something for over TLS.
//!
//! In: an nginx. Out: a [`ProbePoint`], or none. It begins by an instruction that the kernel emulates, or there is
//! none. What is not encrypted is found out without a probe (`runtime/nginx.h`). Pure.
#![forbid(unsafe_code)]

use super::code::{CODE_BYTES, Function};
use super::elf::{Image, Source};
use super::point::{Cost, ProbePoint};
use super::program::Program;
use crate::capture::guest;

/// The probe point; none where it is not there or not understood.
pub(super) fn plan(source: &dyn Source, image: &Image) -> Option<ProbePoint> {
    let address = guest::nginx(source)?;
    let code = image.code(source, address, CODE_BYTES)?;
    let entry = Function::new(address, &code).entry(2)?;
    let offset = image.offset(entry.address)?;
    Some(ProbePoint {
        program: Program::NginxSend,
        offset,
        at_return: false,
        cost: Cost::Emulated,
        cookie: 0,
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::file::{Plan, probe_points};
    use super::super::point::Returns;
    use super::*;

    /// Of this machine, read as a file.
    #[test]
    fn the_nginx_of_this_machine_has_a_cheap_point() {
        let bytes = fs::read("/usr/sbin/nginx").unwrap();
        let Plan { points, .. } = probe_points(&bytes.as_slice(), Returns::Allowed).unwrap();
        let programs: Vec<_> = points.iter().map(|point| (point.program, point.cost)).collect();
        assert_eq!(programs, [(Program::NginxSend, Cost::Emulated)]);
        let image = Image::read(&bytes.as_slice()).unwrap();
        assert_eq!(plan(&&bytes[..bytes.len() / 2], &image), None);
    }

    #[test]
    fn other_files_have_none() {
        let bytes = fs::read("/proc/self/exe").unwrap();
        let image = Image::read(&bytes.as_slice()).unwrap();
        assert_eq!(plan(&bytes.as_slice(), &image), None);
    }
}
