//! The kernels that the matrix knows, and what Debian's package lists say of them.
//!
//! In: the text of `apt-cache show` and of apt's source lists. Out: package names and versions, which move, so none
//! is written here. Refuses to fetch.

use super::architecture::Architecture;

/// A kernel series and the Debian suite that has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// How it is called here: its series, with the architecture where that is not this machine's.
    pub series: &'static str,
    /// What it was built for.
    pub architecture: Architecture,
    /// Debian's suite.
    pub suite: &'static str,
    /// Whether the suite has security updates in an archive of their own.
    pub has_security: bool,
    /// Whether its allocator of socket storage needs `cmpxchg16b`, which QEMU before 8.1 gets slightly wrong.
    pub needs_cx16: bool,
}

/// Oldest supported to newest released.
pub const RELEASES: [Release; 4] = [
    amd64("5.10", "bullseye"),
    amd64("6.1", "bookworm"),
    amd64("6.12", "trixie"),
    Release { has_security: false, needs_cx16: true, ..amd64("7", "sid") },
];

/// The newest stable one of another architecture.
pub const ARM64: Release = Release { architecture: Architecture::Arm64, ..amd64("6.12-arm64", "trixie") };

const fn amd64(series: &'static str, suite: &'static str) -> Release {
    Release { series, architecture: Architecture::Amd64, suite, has_security: true, needs_cx16: false }
}

/// Which Debian mirror to use when this machine's own sources name none.
const DEFAULT_MIRROR: &str = "http://deb.debian.org";

impl Release {
    /// The release of this series.
    #[must_use]
    pub fn of_series(series: &str) -> Option<Self> {
        RELEASES.into_iter().chain([ARM64]).find(|release| release.series == series)
    }

    /// An apt source list with this suite alone.
    #[must_use]
    pub fn source_list(&self, mirror: &str, keyring: &str) -> String {
        let suite = self.suite;
        let mut text = format!("deb [signed-by={keyring}] {mirror}/debian {suite} main\n");
        if self.has_security {
            text += &format!("deb [signed-by={keyring}] {mirror}/debian-security {suite}-security main\n");
        }
        text
    }
}

/// `SCHEME://HOST` of the first Debian mirror in apt's source lists, in either of their formats.
#[must_use]
pub fn mirror(sources: &str) -> &str {
    sources
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .flat_map(str::split_whitespace)
        .filter(|word| word.starts_with("http://") || word.starts_with("https://"))
        .find_map(|word| {
            let address = word.trim_end_matches('/');
            address.strip_suffix("/debian-security").or_else(|| address.strip_suffix("/debian"))
        })
        .unwrap_or(DEFAULT_MIRROR)
}

/// What `apt-cache show` says of a package's newest version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Package {
    /// Its version.
    pub version: String,
    /// Names of the packages that it depends on, alternatives included.
    pub dependencies: Vec<String>,
}

impl Package {
    /// Reads the first paragraph, which is that of the newest version.
    #[must_use]
    pub fn parse(show: &str) -> Option<Self> {
        let field = |name: &str| {
            let paragraph = show.lines().take_while(|line| !line.is_empty());
            paragraph.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim).next()
        };
        let names = field("Depends").unwrap_or("").split([',', '|']);
        let names = names.filter_map(|dependency| dependency.split_whitespace().next());
        Some(Self { version: field("Version")?.to_owned(), dependencies: names.map(str::to_owned).collect() })
    }

    /// The image that a package for the newest one stands for.
    #[must_use]
    pub fn image(&self) -> Option<&str> {
        self.dependencies.iter().map(String::as_str).find(|name| is_versioned(name, "linux-image-"))
    }

    /// Newer packaging has the kernel itself and its modules in packages of their own.
    #[must_use]
    pub fn parts(&self) -> Vec<&str> {
        let is_part = |name: &&str| {
            ["linux-binary-", "linux-modules-", "linux-base-"].iter().any(|kind| is_versioned(name, kind))
        };
        self.dependencies.iter().map(String::as_str).filter(is_part).collect()
    }
}

fn is_versioned(name: &str, prefix: &str) -> bool {
    name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(|first: char| first.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_read() {
        let check = |show: &str, version: &str, image: Option<&str>, parts: &[&str]| {
            let package = Package::parse(show).expect("a version is there");
            assert_eq!(package.version, version);
            assert_eq!(package.image(), image);
            assert_eq!(package.parts(), parts);
        };
        check(
            "Package: linux-image-cloud-amd64\nVersion: 5.10.262-1\n\
             Depends: linux-image-5.10.0-46-cloud-amd64 (= 5.10.262-1)\nSize: 1484\n\n\
             Package: linux-image-cloud-amd64\nVersion: 5.10.223-1\n\
             Depends: linux-image-5.10.0-32-cloud-amd64 (= 5.10.223-1)\n",
            "5.10.262-1",
            Some("linux-image-5.10.0-46-cloud-amd64"),
            &[],
        );
        check(
            "Package: linux-image-cloud-amd64\nVersion: 7.2.13-1\n\
             Depends: linux-base-cloud-amd64 (= 7.2.13-1), linux-image-7.2.13+deb14-cloud-amd64 (= 7.2.13-1)\n",
            "7.2.13-1",
            Some("linux-image-7.2.13+deb14-cloud-amd64"),
            &[],
        );
        check(
            "Version: 7.2.13-1\nDepends: dracut | initramfs-tools (>= 0.120+deb8u2) | linux-initramfs-tool, \
             linux-base-7.2.13+deb14-cloud-amd64 (= 7.2.13-1), linux-binary-7.2.13+deb14-cloud-amd64 (= 7.2.13-1), \
             linux-modules-7.2.13+deb14-cloud-amd64 (= 7.2.13-1)\n",
            "7.2.13-1",
            None,
            &[
                "linux-base-7.2.13+deb14-cloud-amd64",
                "linux-binary-7.2.13+deb14-cloud-amd64",
                "linux-modules-7.2.13+deb14-cloud-amd64",
            ],
        );
        check("Version: 1\n\nDepends: linux-image-9\n", "1", None, &[]);
        assert_eq!(Package::parse("N: Unable to locate package linux-image-cloud-amd64\n"), None);
    }

    #[test]
    fn the_machines_own_mirror_is_used() {
        let check = |sources: &str, expected: &str| assert_eq!(mirror(sources), expected, "{sources}");
        check("deb http://ftp.example.org/debian bookworm main\n", "http://ftp.example.org");
        check(
            "Types: deb\n# http://snapshot.debian.org/archive/debian/20250520T000000Z\n\
             URIs: https://mirror.example.org/apt/debian/\nSuites: bookworm\n",
            "https://mirror.example.org/apt",
        );
        check(
            "deb [signed-by=/k] https://security.example.org/debian-security x main",
            "https://security.example.org",
        );
        check(
            "# deb http://ftp.example.org/debian x main\ndeb https://deb.nodesource.com/node_20.x n main",
            DEFAULT_MIRROR,
        );
        check("", DEFAULT_MIRROR);
    }

    #[test]
    fn a_source_list_names_one_suite() {
        let check = |series: &str, expected: &str| {
            let release = Release::of_series(series).expect("the series is known");
            assert_eq!(release.source_list("http://m", "/k"), expected);
        };
        check(
            "5.10",
            "deb [signed-by=/k] http://m/debian bullseye main\n\
             deb [signed-by=/k] http://m/debian-security bullseye-security main\n",
        );
        check("7", "deb [signed-by=/k] http://m/debian sid main\n");
    }
}
