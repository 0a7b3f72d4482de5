//! What `doctor` reports of profiles.
//!
//! In: the kernel's types, section `profile`. Out: whether stacks can be sampled, walked by tables and named; and why
//! not. Loads what `obi run` would, and lets go of it at once.

use std::fmt::Write as _;

use serde::Serialize;

use crate::capture::kernel_types::KernelTypes;
use crate::capture::mapping::rings::Rings;
use crate::capture::program::profile::{Profiler, ProfilerSettings};
use crate::capture::program::{SharedMaps, flavour_name};
use crate::config;
use crate::profile::symbol::{Bounds, Symbols};

/// Everything about profiles.
#[derive(Debug, Default, Serialize)]
pub(super) struct Profiles {
    /// CPUs that would be sampled; 0: none.
    cpus: usize,
    /// Which of its objects the kernel took: `modern` or `portable`.
    object: Option<&'static str>,
    /// Why nothing is sampled.
    pub(super) error: Option<String>,
    /// The kernel reports what processes map, as it changes.
    mappings_are_reported: bool,
    /// Functions of the kernel have names.
    kernel_names: bool,
    /// `kernel.perf_event_paranoid`: above 0, sampling every process takes `CAP_PERFMON`.
    perf_event_paranoid: Option<i32>,
}

impl Profiles {
    pub(super) fn new(config: &config::Profile, types: Option<&KernelTypes>) -> Self {
        let paranoid = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid");
        let perf_event_paranoid = paranoid.ok().and_then(|text| text.trim().parse().ok());
        let none = |error: String| Self { error: Some(error), perf_event_paranoid, ..Self::default() };
        if !config.enabled {
            return none("profile.enabled is false".to_owned());
        }
        let Some(types) = types else { return none("there is no kernel type information".to_owned()) };
        let settings = ProfilerSettings {
            self_tgid: std::process::id(),
            hertz: config.frequency,
            ring_bytes: 1 << 16,
            table_bytes: config.table_bytes.into(),
            mapping_blocks: 64,
            statistics: false,
            off_cpu: false,
            page_faults: config.page_faults,
        };
        let rings = Rings::open();
        if let Err(error) = &rings {
            return none(format!("events of mappings: {error}"));
        }
        let loaded = SharedMaps::of_nobody().and_then(|shared| Profiler::load(&settings, &shared, types));
        match loaded {
            Ok((profiler, _)) => Self {
                cpus: profiler.n_cpus(),
                object: Some(flavour_name(profiler.flavour())),
                error: None,
                mappings_are_reported: true,
                kernel_names: !Symbols::open(Bounds::default()).statistics().kernel_is_hidden,
                perf_event_paranoid,
            },
            Err(error) => {
                Self { mappings_are_reported: true, ..none(format!("{:#}", anyhow::Error::from(error))) }
            }
        }
    }

    pub(super) fn write(&self, text: &mut String) {
        let _ = match (&self.error, self.object) {
            (None, Some(object)) => {
                writeln!(text, "\nprofiles: {} CPUs sampled ({object} object)", self.cpus)
            }
            (error, _) => {
                let error = error.as_deref().unwrap_or("nothing could be tried");
                writeln!(text, "\nprofiles: none\n  because: {error}")
            }
        };
        if self.error.is_none() && !self.kernel_names {
            let _ = writeln!(
                text,
                "{:>9}  names of the kernel's functions\n{:>9}  -> CAP_SYSLOG, and kernel.kptr_restrict below 2",
                "MISSING", ""
            );
        }
        if let (Some(_), Some(paranoid)) = (&self.error, self.perf_event_paranoid) {
            let _ = writeln!(
                text,
                "{:>9}  -> CAP_PERFMON and CAP_BPF (or root){}; kernel.perf_event_paranoid is {paranoid}",
                "",
                if paranoid > 2 {
                    ", and CAP_SYS_ADMIN while kernel.perf_event_paranoid is above 2"
                } else {
                    ""
                }
            );
        }
    }
}
