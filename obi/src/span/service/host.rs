//! The machine, as resource attributes.
//!
//! In: files and system calls, once at the start. Out: [`Host`]. Refuses to know processes.

use std::io::Read as _;

use crate::clock::{Clock, boot_ns, monotonic_ns};
use crate::span::Resource;

/// What is known of the machine.
#[derive(Debug, Clone, Default)]
pub struct Host {
    /// `host.name`.
    pub name: String,
    /// `host.id`: the machine id; empty when there is none.
    pub id: String,
    /// `host.arch`; empty for one that the conventions do not know.
    pub arch: &'static str,
    /// Boot, ns since the Unix epoch; 0 when unknown.
    pub booted: u64,
    /// The kernel's id of this run of the machine.
    pub booted_id: String,
}

/// Where the machine's id is, as the conventions say. The first process's root comes first: in a container that sees
/// the machine's processes, `/etc/machine-id` may be the image's.
const MACHINE_IDS: [&str; 3] = ["/proc/1/root/etc/machine-id", "/etc/machine-id", "/var/lib/dbus/machine-id"];

impl Host {
    /// Looks at this machine.
    #[must_use]
    pub fn read() -> Self {
        let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let id = MACHINE_IDS.iter().find_map(|path| machine_id(&read(path)?)).unwrap_or_default();
        let booted = Clock::now().unix(monotonic_ns()).saturating_sub(boot_ns());
        let booted_id = read("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
        Self { name, id, booted_id, arch: arch(std::env::consts::ARCH), booted }
    }

    /// Adds what holds for every service on it.
    pub(super) fn describe(&self, resource: &mut Resource) {
        resource.text("host.name", &self.name);
        resource.text("host.id", &self.id);
        resource.text("host.arch", self.arch);
        resource.text("os.type", "linux");
    }
}

fn read(path: &str) -> Option<String> {
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(256).read_to_string(&mut text).ok()?;
    Some(text)
}

/// 32 hexadecimal digits; an image that has not been set up has none, or a word.
fn machine_id(text: &str) -> Option<String> {
    let id = text.trim();
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_ascii_lowercase())
}

/// The conventions' word for an architecture.
fn arch(name: &str) -> &'static str {
    match name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "arm" => "arm32",
        "x86" => "x86",
        "s390x" => "s390x",
        "powerpc64" => "ppc64",
        _ => "",
    }
}

/// `2023-11-21T09:25:34.853Z`: ISO 8601, in UTC, of nanoseconds since the Unix epoch.
pub(super) fn iso8601(unix: u64) -> String {
    let (milliseconds, days) = (unix / 1_000_000, unix / 86_400_000_000_000);
    let (year, month, day) = civil(days);
    let of_day = milliseconds % 86_400_000;
    let (hour, minute, second) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", of_day % 1000)
}

/// Year, month and day so many days after 1970-01-01, in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(is_leap(year)) {
        left -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let february = 28 + u64::from(is_leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        fn check(unix_ms: u64, expected: &str) {
            assert_eq!(iso8601(unix_ms * 1_000_000), expected);
        }
        check(0, "1970-01-01T00:00:00.000Z");
        check(1_700_558_734_853, "2023-11-21T09:25:34.853Z");
        check(951_782_400_000, "2000-02-29T00:00:00.000Z");
        check(1_709_251_199_999, "2024-02-29T23:59:59.999Z");
        check(4_107_542_400_000, "2100-03-01T00:00:00.000Z");
        check(1_735_689_599_000, "2024-12-31T23:59:59.000Z");
    }

    #[test]
    fn ids_of_machines() {
        fn check(text: &str, expected: Option<&str>) {
            assert_eq!(machine_id(text).as_deref(), expected, "{text:?}");
        }
        check("fdbf79e8af94cb7f9e8df36789187052\n", Some("fdbf79e8af94cb7f9e8df36789187052"));
        check("FDBF79E8AF94CB7F9E8DF36789187052", Some("fdbf79e8af94cb7f9e8df36789187052"));
        check("uninitialized\n", None);
        check("", None);
    }

    #[test]
    fn this_machine_has_a_name_and_a_boot() {
        let host = Host::read();
        assert!(!host.name.is_empty() && host.booted > 1_500_000_000_000_000_000, "{host:?}");
    }
}
