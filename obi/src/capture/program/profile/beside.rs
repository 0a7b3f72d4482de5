//! Those who sample something else than what runs: waits and page faults.
//!
//! In: what the sampler of what runs has, and the hook set's accounts of threads. Out: [`Waits`], [`PageFaults`],
//! attached, or why the kernel does not take them: all else goes on without. Their records come through the same ring.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use aya::maps::{Array, Map, MapData, MapError};
use obi_ebpf::{Flavour, wait_setting};

use super::object::{Kind, Maps, Programs, Source, Wanted, take};
use super::{Counts, WALK, WALKS, WaitSetting, attach_to, connect, online_cpus};
use crate::capture::bpf::attach::{self, Attachment};
use crate::capture::bpf::create;
use crate::capture::kernel_types::KernelTypes;
use crate::capture::program::{LoadError, SharedMaps};

/// Every so many page faults of a CPU are looked at.
pub const PAGE_FAULT_PERIOD: u32 = 64;
/// Waits of this length, ns, and longer ones are all sampled at first. Later ones are powers of two as many.
pub const THRESHOLD: u64 = 8_000_000;

/// A CPU's memory of its own for each object: another walk may be under way in it.
const OWN: [&str; 5] = ["sample", "unwind_cache", "profile_count", WALKS, "in_use"];

/// What others lend to objects beside.
pub(super) struct Lender<'a> {
    lent: Vec<(String, OwnedFd)>,
    shared: &'a SharedMaps,
    types: &'a KernelTypes,
}

/// Those who sample waits of threads that serve requests.
#[expect(missing_debug_implementations, reason = "the library's map types have none")]
pub struct Waits {
    programs: Programs,
    counts: Counts,
    setting: Array<MapData, WaitSetting>,
    threshold: u64,
    /// Why it is not known who has ended a wait; `None`: it is.
    pub no_releases: Option<String>,
    _attached: Attachment,
    // The kernel empties a map of programs when nobody in user space holds it.
    _release: Option<OwnedFd>,
}

/// Those who sample page faults.
#[expect(missing_debug_implementations, reason = "the library's map types have none")]
pub struct PageFaults {
    programs: Programs,
    counts: Counts,
    events: Vec<(u32, Attachment)>,
    _walks: Option<MapData>,
}

const SWITCHED: &str = "sched_exit_tp";
const ENDED: &str = "wait_ended";
const ENDED_EARLY: &str = "wait_ended_early";
const RELEASED: &str = "wait_released";
const WAKING: &str = "sched_waking";
const FAULT: &str = "page_fault";
/// Ends a switch, on the thread that has got the CPU. Compilers give it other names, too: `….isra.0`.
const FINISH: &str = "finish_task_switch";

impl<'a> Lender<'a> {
    pub(super) fn new(
        maps: &Maps,
        shared: &'a SharedMaps,
        types: &'a KernelTypes,
    ) -> Result<Self, LoadError> {
        let others = maps.iter().filter(|(name, _)| !OWN.contains(&name.as_str()));
        let lend = |(name, map): (&String, &MapData)| {
            let descriptor = map.fd().as_fd().try_clone_to_owned();
            let missing = |error: io::Error| LoadError::Missing(format!("map `{name}`: {error}"));
            Ok((name.clone(), descriptor.map_err(missing)?))
        };
        Ok(Self { lent: others.map(lend).collect::<Result<_, _>>()?, shared, types })
    }

    fn source(&self, set: &'static str, flavour: Flavour) -> Source<'_> {
        let own = self.lent.iter().map(|(name, map)| (name.as_str(), map.as_fd()));
        let of_set = self.shared.maps.iter().map(|(name, map)| (*name, map.as_fd()));
        let mut lent: std::collections::HashMap<_, _> = own.chain(of_set).collect();
        if let Ok(accounts) = &self.shared.accounts {
            lent.insert("account", accounts.account.as_fd());
        }
        // Neither has a hash map of its own.
        Source { set, flavour, lent, types: self.types, preallocated: false, max_entries: &|_| None }
    }

    /// Loads and attaches those who sample waits.
    pub(super) fn waits(&self, flavour: Flavour) -> Result<Waits, String> {
        let accounts = self.shared.accounts.as_ref().map_err(Clone::clone)?;
        if flavour != Flavour::Modern {
            return Err("this kernel walks stacks by tail call, and waits want one walk (5.17)".to_owned());
        }
        let waking = self.types.tracepoint(WAKING).ok_or("the kernel has no tracepoint `sched_waking`")?;
        let released = Wanted { name: RELEASED, kind: Kind::TypedTracepoint(waking) };
        let ended = match self.types.tracepoint(SWITCHED) {
            Some(of) => Wanted { name: ENDED, kind: Kind::TypedTracepoint(of) },
            None => Wanted { name: ENDED_EARLY, kind: Kind::Kprobe },
        };
        let mut made =
            self.source("waits", flavour).load(&[ended, released]).map_err(|error| error.to_string())?;
        let [(_, ended_program), (_, released_program)] = &made.programs[..] else {
            return Err("the embedded kernel object lacks a program".to_owned());
        };
        let attached = match ended.kind {
            Kind::Kprobe => attach_early(ended_program),
            _ => attach::tracing(ended_program.as_fd()),
        };
        let attached = attached.map_err(|error| format!("failed to attach `{}`: {error}", ended.name))?;
        let connected = create::set_program(accounts.release.as_fd(), 0, released_program.as_fd());
        let no_releases = connected.err().map(|error| format!("failed to connect `{RELEASED}`: {error}"));
        let maps = &mut made.maps;
        let open = |error: LoadError| error.to_string();
        let mut waits = Waits {
            counts: Counts(take(maps, "profile_count", Map::PerCpuArray).map_err(open)?),
            setting: take(maps, "wait_setting", Map::Array).map_err(open)?,
            programs: made.programs,
            threshold: 0,
            no_releases,
            _attached: attached,
            _release: accounts.release.try_clone().ok(),
        };
        waits.set_threshold(THRESHOLD).map_err(|error| format!("failed to set the threshold: {error}"))?;
        Ok(waits)
    }

    /// Loads and attaches those who sample page faults.
    pub(super) fn page_faults(&self, flavour: Flavour) -> Result<PageFaults, String> {
        let wanted = [FAULT, WALK].map(|name| Wanted { name, kind: Kind::PerfEvent });
        let refused = |error: LoadError| error.to_string();
        let mut made = self.source("faults", flavour).load(&wanted).map_err(refused)?;
        if let [_, (_, walk)] = &made.programs[..] {
            connect(&made.maps, walk).map_err(refused)?;
        }
        let counts = Counts(take(&mut made.maps, "profile_count", Map::PerCpuArray).map_err(refused)?);
        let (events, walks) = (Vec::new(), made.maps.remove(WALKS));
        let mut faults = PageFaults { programs: made.programs, counts, events, _walks: walks };
        let online = online_cpus().map_err(|error| format!("failed to list CPUs: {error}"))?;
        faults.attach(&online).map_err(|error| format!("failed to attach `{FAULT}`: {error}"))?;
        Ok(faults)
    }
}

/// To the function that ends a switch, whatever it is called.
fn attach_early(program: &OwnedFd) -> io::Result<Attachment> {
    let symbols = std::fs::read_to_string("/proc/kallsyms")?;
    let name = finish_symbol(&symbols)
        .ok_or_else(|| io::Error::other(format!("the kernel has neither `{SWITCHED}` nor `{FINISH}`")))?;
    attach::kprobe(program.as_fd(), name, false)
}

/// What the function is called in a list of the kernel's symbols.
fn finish_symbol(symbols: &str) -> Option<&str> {
    let names = symbols.lines().filter_map(|line| line.split_whitespace().nth(2));
    names.into_iter().find(|name| {
        let rest = name.strip_prefix(FINISH);
        rest.is_some_and(|rest| rest.is_empty() || (rest.starts_with('.') && !rest.contains("cold")))
    })
}

impl Waits {
    /// Waits of this length, ns, and longer ones are all sampled from now on, shorter ones as often as they are long.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_threshold(&mut self, threshold: u64) -> Result<(), MapError> {
        self.setting.set(0, WaitSetting(wait_setting { threshold }), 0)?;
        self.threshold = threshold;
        Ok(())
    }

    /// What was set last, ns.
    #[must_use]
    pub fn threshold(&self) -> u64 {
        self.threshold
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn programs(&self) -> &[(&'static str, OwnedFd)] {
        &self.programs
    }
}

impl PageFaults {
    pub(super) fn attach(&mut self, online: &[u32]) -> io::Result<usize> {
        let program = self.programs[0].1.as_fd();
        attach_to(&mut self.events, online, |cpu| attach::page_faults(program, cpu, PAGE_FAULT_PERIOD))
    }

    pub(super) fn counts(&self) -> &Counts {
        &self.counts
    }

    pub(super) fn programs(&self) -> &[(&'static str, OwnedFd)] {
        &self.programs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_switch_has_several_names() {
        let check = |symbols: &str, expected: Option<&str>| assert_eq!(finish_symbol(symbols), expected);
        check("0 t finish_task_switch.isra.0\n", Some("finish_task_switch.isra.0"));
        check("0 t finish_task_switch\n", Some("finish_task_switch"));
        check("0 t finish_task_switch.cold\n0 t finish_task_switches\n", None);
        check(
            "0 t finish_task_switch.isra.0.cold\n0 t finish_task_switch.isra.0\n",
            Some("finish_task_switch.isra.0"),
        );
    }
}
