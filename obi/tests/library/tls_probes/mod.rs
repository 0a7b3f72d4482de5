//! Probes in TLS libraries and in Go's own TLS, with real programs that use them meanwhile.
//!
//! In: the compilers and libraries of this machine. Out: failure when a request fails, or when a breakpoint is where
//! none should be. Needs root.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; helpers beside `#[test]` functions are not exempt"
)]

mod go;
mod openssl;

use std::path::Path;
use std::sync::Mutex;

use obi::capture::hook_set::Preemption;
use obi::capture::program::{Maps, Programs, Settings};
use obi::capture::select;
use obi::capture::support::Support;
use obi::capture::tls::attach::Attacher;

/// The kernel's side is one per test binary: two tests at once would only wait for each other's breakpoints.
static ONE: Mutex<()> = Mutex::new(());

/// The programs of the set that the agent would choose, let loose.
fn programs() -> (Programs, Maps, Attacher) {
    let settings = Settings {
        self_tgid: std::process::id(),
        ring_bytes: 1 << 20,
        head_limit: 8192,
        tick_ns: 4_000_000,
        statistics: true,
        tls: true,
        waiting: false,
        tells_given: true,
        follows_databases: true,
        preemption: Preemption::None,
    };
    let support = Support::probe(Path::new("/sys/kernel/btf/vmlinux"));
    let mut programs = select::load(&support, None, &settings).unwrap().loaded;
    let maps = programs.start().unwrap();
    let attacher = Attacher::new(programs.take_user_programs().unwrap());
    (programs, maps, attacher)
}
