//! The files that a process executes code of.
//!
//! In: the text of `/proc/PID/maps`. Out: [`Mapping`]s, each file once. Pure; of a hostile text no more than a bounded
//! number of entries is taken.
#![forbid(unsafe_code)]

/// A file that is mapped to be executed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    /// Range of addresses, as the names in `/proc/PID/map_files` have it.
    pub range: String,
    /// Device and inode, as the kernel shows them.
    pub identity: Identity,
    /// Path inside the process's root; ends ` (deleted)` when the file has no name any more.
    pub path: String,
}

/// A file as `/proc/PID/maps` distinguishes it from others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Identity {
    /// Major and minor number of the device, as one number.
    pub device: u64,
    /// Inode.
    pub inode: u64,
}

/// Files that one process executes; those of the largest programs are a few hundred.
const MAPPINGS: usize = 1024;

/// Every file once.
#[must_use]
pub fn mappings(text: &[u8]) -> Vec<Mapping> {
    let mut found: Vec<Mapping> = Vec::new();
    for line in text.split(|byte| *byte == b'\n') {
        let Some(mapping) = mapping(line) else { continue };
        if found.len() < MAPPINGS && found.iter().all(|known| known.identity != mapping.identity) {
            found.push(mapping);
        }
    }
    found
}

/// `start-end perms offset major:minor inode path`
fn mapping(line: &[u8]) -> Option<Mapping> {
    let line = std::str::from_utf8(line).ok()?;
    let mut fields = line.splitn(6, ' ');
    let (range, permissions, _offset) = (fields.next()?, fields.next()?, fields.next()?);
    let (device, inode, path) = (fields.next()?, fields.next()?, fields.next()?.trim_start());
    let (major, minor) = device.split_once(':')?;
    let number = |text| u64::from_str_radix(text, 16).ok().filter(|number| *number < 1 << 32);
    let inode = inode.parse().ok().filter(|inode| *inode != 0)?;
    let executed = permissions.as_bytes().get(2) == Some(&b'x');
    (executed && path.starts_with('/')).then(|| Mapping {
        range: range.to_owned(),
        identity: Identity {
            device: number(major).zip(number(minor)).map_or(0, |(major, minor)| major << 32 | minor),
            inode,
        },
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_executed_file_is_reported_once() {
        fn check(text: &str, expected: &[(&str, u64, u64, &str)]) {
            let found = mappings(text.as_bytes());
            let found: Vec<_> = found
                .iter()
                .map(|m| (m.range.as_str(), m.identity.device, m.identity.inode, m.path.as_str()))
                .collect();
            assert_eq!(found, expected, "{text}");
        }
        check("", &[]);
        check(
            "55d8c4a00000-55d8c4a02000 r--p 00000000 fd:01 123                        /usr/bin/cat\n\
             55d8c4a02000-55d8c4a06000 r-xp 00002000 fd:01 123                        /usr/bin/cat\n\
             7f10a0000000-7f10a0021000 rw-p 00000000 00:00 0 \n\
             7f10a4000000-7f10a4021000 r-xp 00000000 00:00 0                          [vdso]\n\
             7f10a5000000-7f10a5021000 r-xp 00003000 08:11 77                         /opt/a b/libssl.so.3 (deleted)\n\
             7f10a6000000-7f10a6021000 r-xp 00003000 08:11 77                         /opt/a b/libssl.so.3 (deleted)\n",
            &[
                ("55d8c4a02000-55d8c4a06000", 0xfd << 32 | 1, 123, "/usr/bin/cat"),
                ("7f10a5000000-7f10a5021000", 8 << 32 | 0x11, 77, "/opt/a b/libssl.so.3 (deleted)"),
            ],
        );
        check("x r-xp 0 zz:01 5 /a\n1-2 r-xp 0 1:1 0 /b\n1-2 r-xp 0 1:1 5 memfd:x\n", &[("x", 0, 5, "/a")]);
    }

    #[test]
    fn a_process_with_more_files_than_any_has_is_cut() {
        let text: String = (1..5000).map(|n| format!("1-2 r-xp 0 1:1 {n} /lib/{n}\n")).collect();
        assert_eq!(mappings(text.as_bytes()).len(), MAPPINGS);
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in prop::collection::vec(any::<u8>(), 0..500)) {
            let _ = mappings(&text);
        }
    }
}
