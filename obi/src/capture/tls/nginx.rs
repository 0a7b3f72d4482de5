//! Where the kernel programs go that find out which request nginx sends something for.
//!
//! In: an nginx. Out: [`ProbePoint`]s, all of them or none: where a request is made of what was read, and where bytes
//! are sent. All begin by an instruction that the kernel emulates, or there are none. Pure.
#![forbid(unsafe_code)]

use obi_ebpf::NGINX_PLAIN_BIT;

use super::code::{CODE_BYTES, Function};
use super::elf::{Image, Source};
use super::point::{Cost, ProbePoint};
use super::program::Program;
use crate::capture::guest;

/// The probe points; none where one of them is not there or not understood.
pub(super) fn plan(source: &dyn Source, image: &Image) -> Vec<ProbePoint> {
    points(source, image).unwrap_or_default()
}

fn points(source: &dyn Source, image: &Image) -> Option<Vec<ProbePoint>> {
    let functions = guest::nginx(source)?;
    let point = |program, address, n_arguments, cookie| {
        let code = image.code(source, address, CODE_BYTES)?;
        let entry = Function::new(address, &code).entry(n_arguments)?;
        let offset = image.offset(entry.address)?;
        Some(ProbePoint { program, offset, at_return: false, cost: Cost::Emulated, cookie })
    };
    let mut points = vec![
        point(Program::NginxRequest, functions.request, 1, 0)?,
        point(Program::NginxSend, functions.send, 2, 0)?,
    ];
    if let Some(address) = functions.encrypted_send {
        points.push(point(Program::NginxSend, address, 2, 1 << NGINX_PLAIN_BIT)?);
    }
    Some(points)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::file::{Plan, probe_points};
    use super::super::point::Returns;
    use super::*;

    /// Of this machine, read as a file.
    #[test]
    fn the_nginx_of_this_machine_has_cheap_points_for_every_program() {
        let bytes = fs::read("/usr/sbin/nginx").unwrap();
        let Plan { points, .. } = probe_points(&bytes.as_slice(), Returns::Allowed).unwrap();
        let n_of = |program| points.iter().filter(|point| point.program == program).count();
        assert_eq!([Program::NginxRequest, Program::NginxSend].map(n_of), [1, 2], "{points:?}");
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
