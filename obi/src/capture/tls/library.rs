//! Where TLS libraries lie before anybody maps them.
//!
//! In: the text of the loader's cache (`/etc/ld.so.cache`). Out: paths. Pure; takes any bytes.
#![forbid(unsafe_code)]

/// Where the cache is.
pub(super) const CACHE: &str = "/etc/ld.so.cache";

/// Directories of systems without a cache (musl), and of images where it was not made.
const DIRECTORIES: [&str; 10] = [
    "/lib",
    "/usr/lib",
    "/usr/local/lib",
    "/lib64",
    "/usr/lib64",
    "/usr/local/lib64",
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];
const NAMES: [&str; 5] =
    ["libssl.so.3", "libcrypto.so.3", "libssl.so.1.1", "libcrypto.so.1.1", "libgnutls.so.30"];
/// Beginnings of their names, whatever the version.
const BEGINNINGS: [&str; 5] = ["libssl.so", "libcrypto.so", "libgnutls.so", "libmbedtls.so", "libwolfssl.so"];
/// Paths taken of one cache.
const PATHS: usize = 64;

/// Paths of TLS libraries. Each may not exist, and several may be one file.
pub(super) fn paths(cache: &[u8]) -> Vec<String> {
    // Strings end with zeros; everything else in the cache looks like none of ours.
    let strings = cache.split(|byte| *byte == 0).filter_map(|bytes| std::str::from_utf8(bytes).ok());
    let cached = strings.filter(|path| is_library(path)).map(str::to_owned);
    let usual = DIRECTORIES.iter().flat_map(|directory| NAMES.map(|name| format!("{directory}/{name}")));
    let mut paths: Vec<String> = cached.take(PATHS).chain(usual).collect();
    paths.sort_unstable();
    paths.dedup();
    paths
}

fn is_library(path: &str) -> bool {
    let Some((_, name)) = path.rsplit_once('/') else { return false };
    path.starts_with('/')
        && path.len() < 4096
        && BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_and_the_usual_places_are_looked_at() {
        fn check(cache: &[u8], expected: &[&str]) {
            let found = paths(cache);
            assert!(found.iter().any(|path| path == "/usr/lib/libssl.so.1.1"));
            let beyond: Vec<_> = found.iter().filter(|path| path.starts_with("/opt")).collect();
            assert_eq!(beyond, expected);
        }
        check(b"", &[]);
        check(
            b"glibc-ld.so.cache1.1\0\x02\0libssl.so.3\0/opt/tls/libssl.so.3\0/opt/tls/libssl3.so\0/opt/libcrypto.so.42\0",
            &["/opt/libcrypto.so.42", "/opt/tls/libssl.so.3"],
        );
        let many: String = (0..1000).map(|n| format!("/opt/{n:04}/libssl.so\0")).collect();
        assert_eq!(paths(many.as_bytes()).iter().filter(|path| path.starts_with("/opt")).count(), PATHS);
    }
}
