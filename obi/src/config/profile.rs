//! Section `profile`.
//!
//! In: what the user wrote. Out: how often CPUs are looked at, and how much memory that may take.

use std::time::Duration;

use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};

use super::export::{period, write_period};
use super::value::{self, Scalar};

/// Section `profile`. Every CPU is looked at many times a second, whatever runs on it; samples of the last minutes stay
/// here for `/api/v1/profiles` and `obi profile`, and go to the destinations that take profiles.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Profile {
    /// Sample stacks. Default: `true`. Example: `false`.
    pub enabled: bool,
    /// Find out where the time of each server span went: on a CPU, waiting for one, or blocked, by reason (`on`,
    /// `off`). Takes hooks in the scheduler, below 0.1 µs for each switch to a thread that serves nothing;
    /// independent of `enabled`. Default: `on`. Example: `off`, on machines that switch a million times a second and
    /// more.
    #[serde(serialize_with = "write_switch", deserialize_with = "switch")]
    pub waiting: bool,
    /// Sample waits of threads that serve requests, with the stacks that they wait in, and of locks with the
    /// stack of who has ended the wait (`on`, `off`): types `off_cpu`, `wall` and `lock`. Needs `waiting`;
    /// a program more at each switch of threads. Default: `off`. Example: `on`.
    #[serde(serialize_with = "write_switch", deserialize_with = "switch")]
    pub off_cpu: bool,
    /// Sample page faults, every 64th of each CPU, with their stacks (`on`, `off`): type `page_faults`. Makes each page
    /// fault of the machine a little slower. Default: `off`. Example: `on`, to find out who makes memory grow.
    #[serde(serialize_with = "write_switch", deserialize_with = "switch")]
    pub page_faults: bool,
    /// Send memory in use of Go programs, by the stacks that have allocated it, to the destinations that take profiles,
    /// once a minute (`on`, `off`): type `heap`. Questions for it need no switch. Default: `off`. Example: `on`.
    #[serde(serialize_with = "write_switch", deserialize_with = "switch")]
    pub heap: bool,
    /// Looks at each CPU per second, 1 to 1000. A number that other clocks do not have, too, falls into step with none
    /// of them. Default: `99`. Example: `19`, on machines with very many CPUs.
    #[serde(deserialize_with = "value::number::<_, 1, 1_000>")]
    pub frequency: u32,
    /// Time between two exports of what was sampled, 1s to 10m. Default: `10s`. Example: `60s`.
    #[serde(serialize_with = "write_period", deserialize_with = "period::<_, 1_000, 600_000>")]
    pub interval: Duration,
    /// Memory for samples of the last minutes, 1 MiB to 2 GiB; the oldest give way. Default: `32 MiB`. Example: `128
    /// MiB`, to look further back.
    #[serde(deserialize_with = "value::bytes::<_, 1_048_576, 2_147_483_648>")]
    pub store_bytes: u32,
    /// How long samples are held, 1m to 24h, while `store_bytes` has room for them. Default: `15m`. Example: `2h`, with
    /// a larger `store_bytes`.
    #[serde(serialize_with = "write_period", deserialize_with = "period::<_, 60_000, 86_400_000>")]
    pub retention: Duration,
    /// Kernel memory for the tables by which stacks are walked, 4 MiB to 1 GiB; those of files that are seldom sampled
    /// give way. All kernel maps of profiles stay below 64 MB with the default on machines with few CPUs. Default:
    /// `48 MiB`. Example: `128 MiB`, with many large executables.
    #[serde(deserialize_with = "value::bytes::<_, 4_194_304, 1_073_741_824>")]
    pub table_bytes: u32,
    /// Memory for names of functions, 1 MiB to 1 GiB; those that were not asked for lately are looked up again.
    /// Default: `32 MiB`. Example: `16 MiB`.
    #[serde(deserialize_with = "value::bytes::<_, 1_048_576, 1_073_741_824>")]
    pub symbol_bytes: u32,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            enabled: true,
            waiting: true,
            off_cpu: false,
            page_faults: false,
            heap: false,
            frequency: 99,
            interval: Duration::from_secs(10),
            store_bytes: 32 << 20,
            retention: Duration::from_secs(15 * 60),
            table_bytes: 48 << 20,
            symbol_bytes: 32 << 20,
        }
    }
}

fn switch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    match value::scalar(deserializer)? {
        Some(Scalar::Truth(on)) => Ok(on),
        Some(Scalar::Text(text)) if text == "on" => Ok(true),
        Some(Scalar::Text(text)) if text == "off" => Ok(false),
        _ => Err(D::Error::custom("is not valid, expected on or off")),
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands over references")]
fn write_switch<S: Serializer>(on: &bool, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(if *on { "on" } else { "off" })
}

impl Profile {
    /// CPU time that one look stands for, ns.
    #[must_use]
    pub fn period(&self) -> u64 {
        1_000_000_000 / u64::from(self.frequency.max(1))
    }
}
