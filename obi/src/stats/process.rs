//! What the agent's own process costs, from `/proc/self`.
//!
//! Out: [`Process`], the values of the `process_*` metrics. Refuses to know how they are exported.

use std::sync::OnceLock;

use procfs::process::LimitValue;
use procfs::{ProcError, WithCurrentSystemInfo};

/// The agent's own process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Process {
    /// User and system time, seconds.
    pub cpu_seconds: f64,
    /// Resident memory, bytes.
    pub resident_bytes: u64,
    /// Virtual memory, bytes.
    pub virtual_bytes: u64,
    /// Open file descriptors.
    pub open_fds: u64,
    /// Limit of open file descriptors; `None` when unlimited.
    pub max_fds: Option<u64>,
    /// Start, seconds since the Unix epoch.
    pub start_time_seconds: f64,
}

impl Process {
    /// Reads `/proc/self` once.
    ///
    /// # Errors
    /// When `/proc` is not mounted or not readable.
    #[expect(clippy::cast_precision_loss, reason = "ticks of decades stay far below 2^53")]
    pub fn read() -> Result<Self, ProcError> {
        let process = procfs::process::Process::myself()?;
        let stat = process.stat()?;
        let per_second = procfs::ticks_per_second() as f64;
        let max_fds = match process.limits()?.max_open_files.soft_limit {
            LimitValue::Value(limit) => Some(limit),
            LimitValue::Unlimited => None,
        };
        Ok(Self {
            cpu_seconds: (stat.utime + stat.stime) as f64 / per_second,
            resident_bytes: stat.rss_bytes().get(),
            virtual_bytes: stat.vsize,
            open_fds: process.fd_count()? as u64,
            max_fds,
            start_time_seconds: start_time(
                procfs::boot_time_secs()? as f64 + stat.starttime as f64 / per_second,
            ),
        })
    }
}

/// What was read first. The kernel gives the time of boot by the present clock, so it moves when that is set; a
/// receiver that sees the start move takes the process for a new one and counts everything again.
fn start_time(now: f64) -> f64 {
    static FIRST: OnceLock<f64> = OnceLock::new();
    *FIRST.get_or_init(|| now)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_plausible() {
        let process = Process::read().expect("tests run with /proc");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        assert!(process.resident_bytes > 100_000 && process.virtual_bytes >= process.resident_bytes);
        assert!(process.open_fds >= 3 && process.cpu_seconds >= 0.0);
        assert_eq!(start_time(process.start_time_seconds + 3600.0), process.start_time_seconds, "it stays");
        let age = now.as_secs_f64() - process.start_time_seconds;
        assert!((-2.0..86_400.0).contains(&age), "started {age} s ago");
    }
}
