//! What a process maps to be executed, as `/proc/PID/maps` lists it.
//!
//! In: that text. Out: [`Mapped`]s in order of address. Pure; of a hostile text no more than a bounded number is taken.
#![forbid(unsafe_code)]

use super::side_band::Mapped;
use super::space::MAPPINGS;

/// Those that may be executed.
pub fn executed(text: &[u8]) -> impl Iterator<Item = Mapped<'_>> {
    text.split(|byte| *byte == b'\n').filter_map(line).take(MAPPINGS)
}

/// `start-end perms offset major:minor inode path`
fn line(line: &[u8]) -> Option<Mapped<'_>> {
    let mut rest = line;
    let mut field = || {
        let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
        let (field, behind) = rest.split_at(end);
        rest = behind.trim_ascii_start();
        std::str::from_utf8(field).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    let executed = field()?.as_bytes().get(2) == Some(&b'x');
    let (offset, (major, minor), inode) = (field()?, field()?.split_once(':')?, field()?);
    let number = |text| u64::from_str_radix(text, 16).ok();
    let short = |text| u32::from_str_radix(text, 16).ok();
    let (start, end) = (number(start)?, number(end)?);
    (executed && start < end).then_some(Mapped {
        start,
        end,
        offset: number(offset)?,
        device: (short(major)?, short(minor)?),
        inode: inode.parse().ok()?,
        generation: 0,
        path: std::str::from_utf8(rest).unwrap_or(""),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_may_be_executed_is_listed() {
        fn check(text: &str, expected: &[Mapped<'_>]) {
            assert_eq!(executed(text.as_bytes()).collect::<Vec<_>>(), expected, "{text}");
        }
        let file = |start, end, offset, path| Mapped {
            start,
            end,
            offset,
            device: (0xfd, 1),
            inode: 123,
            generation: 0,
            path,
        };
        check("", &[]);
        check(
            "55d8c4a00000-55d8c4a02000 r--p 00000000 fd:01 123                        /usr/bin/cat\n\
             55d8c4a02000-55d8c4a06000 r-xp 00002000 fd:01 123                        /usr/bin/cat\n\
             7f10a0000000-7f10a0021000 rwxp 00000000 00:00 0 \n\
             7f10a4000000-7f10a4021000 r-xp 00000000 00:00 0                          [vdso]\n\
             7f10a5000000-7f10a5021000 r-xp 00003000 fd:01 123                        /opt/a b/x.so (deleted)\n",
            &[
                file(0x55d8_c4a0_2000, 0x55d8_c4a0_6000, 0x2000, "/usr/bin/cat"),
                Mapped { device: (0, 0), inode: 0, ..file(0x7f10_a000_0000, 0x7f10_a002_1000, 0, "") },
                Mapped { device: (0, 0), inode: 0, ..file(0x7f10_a400_0000, 0x7f10_a402_1000, 0, "[vdso]") },
                file(0x7f10_a500_0000, 0x7f10_a502_1000, 0x3000, "/opt/a b/x.so (deleted)"),
            ],
        );
        check("2-1 r-xp 0 fd:01 5 /a\nx r-xp 0 1:1 0 /b\n1-2 r-xp 0 1:1 x /b\n1-2 r-xp 0 1:1\n", &[]);
    }

    #[test]
    fn our_own_code_is_in_the_list() {
        let text = std::fs::read("/proc/self/maps").unwrap();
        let here = line as *const () as u64;
        assert!(executed(&text).any(|mapped| (mapped.start..mapped.end).contains(&here)));
    }

    #[test]
    fn a_process_with_more_than_any_has_is_cut() {
        let text: String = (1..5000).map(|n| format!("{n:x}0-{n:x}1 r-xp 0 1:1 {n} /lib/{n}\n")).collect();
        assert_eq!(executed(text.as_bytes()).count(), MAPPINGS);
    }

    proptest! {
        #[test]
        fn any_text_is_taken(text in prop::collection::vec(any::<u8>(), 0..500)) {
            prop_assert!(executed(&text).all(|mapped| mapped.start < mapped.end));
        }
    }
}
