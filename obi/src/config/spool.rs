//! Key `export.spool`: what destinations do not take waits on the disk.
//!
//! In: what the user wrote. Out: where and how much. Refuses to know files.

use std::path::PathBuf;
use std::time::Duration;

use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize};

use super::export::{file, period, write_period};
use super::value;

/// When requests go to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// When a destination has taken nothing for five seconds, when half of `queue_bytes` is in use, and at the end.
    Spill,
    /// All of them, before they are sent.
    Always,
}

/// Key `export.spool`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Spool {
    /// Bytes of all files together, 16 MiB to 16 TiB, or 0 for no spool; the oldest file of the destination that has
    /// most gives way. A twentieth of the file system stays free in any case. Default: `0`. Example: `1 GiB`.
    #[serde(deserialize_with = "bytes")]
    pub bytes: u64,
    /// Folder of the files, an absolute path; one agent at a time. It holds paths and names of users' requests: it is
    /// for the agent's user alone. Default: `/var/lib/obi/export`. Example: `/data/obi/export`.
    #[serde(deserialize_with = "folder")]
    pub directory: PathBuf,
    /// `spill` writes what a destination has not taken for five seconds, what is more than half of `queue_bytes`, and
    /// what is left at the end; `always` writes everything before it is sent, so that a kill costs a second at most.
    /// Default: `spill`. Example: `always`.
    pub mode: Mode,
    /// Bytes per second that each destination and signal gets from the disk at most, 64 KiB to 1 GiB. Default: `10
    /// MiB`. Example: `1 MiB`.
    #[serde(deserialize_with = "value::bytes::<_, 65_536, 1_073_741_824>")]
    pub drain: u32,
    /// What has waited longer is counted as lost, 1m to 720h. Default: `24h`. Example: `2h`, for receivers of metrics
    /// that refuse older samples.
    #[serde(serialize_with = "write_period", deserialize_with = "period::<_, 60_000, 2_592_000_000>")]
    pub max_age: Duration,
}

impl Default for Spool {
    fn default() -> Self {
        Self {
            bytes: 0,
            directory: PathBuf::from("/var/lib/obi/export"),
            mode: Mode::Spill,
            drain: 10 << 20,
            max_age: Duration::from_secs(24 * 3_600),
        }
    }
}

fn bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let size = value::size(deserializer)?.filter(|size| *size == 0 || (16 << 20..=16 << 40).contains(size));
    size.ok_or_else(|| D::Error::custom("is not valid, expected a size from 16 MiB to 16 TiB, or 0 for none"))
}

fn folder<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    let path = file(deserializer)?;
    path.ok_or_else(|| {
        D::Error::custom("is not valid, expected an absolute path, such as /var/lib/obi/export")
    })
}
