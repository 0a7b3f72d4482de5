//! Pages of the program itself that nothing runs any more.
//!
//! In: nothing. Out: nothing. Most of what is mapped of the program is what its start has run: libraries that parse,
//! relocate and load. The kernel takes such pages away when memory is short; until then they count as ours. What is
//! needed again is mapped again out of the page cache, in a microsecond. Refuses to touch what may have been written.

use std::ffi::c_void;
use std::ops::Range;

/// Lets go of all of them. Those in use are back at once.
pub(super) fn let_go() {
    // SAFETY: the callback is called before this returns, only reads what it is given, and does not unwind.
    unsafe { libc::dl_iterate_phdr(Some(of_program), std::ptr::null_mut()) };
}

/// Called for the program first, and, since it returns 1, for no library.
unsafe extern "C" fn of_program(info: *mut libc::dl_phdr_info, _: usize, _: *mut c_void) -> libc::c_int {
    // SAFETY: the C library gives a valid description, whose headers are as many as it says.
    let (base, headers) = unsafe {
        let info = &*info;
        (info.dlpi_addr, std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)))
    };
    // SAFETY: it takes a number.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let Ok(page) = u64::try_from(page) else { return 1 };
    for header in headers.iter().filter(|header| is_read_only(header)) {
        let pages = pages(base + header.p_vaddr, header.p_filesz, page);
        let (Ok(start), Ok(length)) =
            (usize::try_from(pages.start), usize::try_from(pages.end - pages.start))
        else {
            continue;
        };
        // SAFETY: a private mapping of the program's own file that was never writable, so every page is the file's,
        // and reading one again gives the same bytes. A refusal changes nothing.
        unsafe { libc::madvise(std::ptr::with_exposed_provenance_mut(start), length, libc::MADV_DONTNEED) };
    }
    1
}

/// Relocated addresses are in a part that says it is writable, although it is not any more.
fn is_read_only(header: &libc::Elf64_Phdr) -> bool {
    header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0
}

/// Whole pages that hold so many bytes from there on.
fn pages(start: u64, length: u64, page: u64) -> Range<u64> {
    start / page * page..(start + length).next_multiple_of(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_bytes_is_whole_pages() {
        let check = |start, length, expected: Range<u64>| {
            assert_eq!(pages(start, length, 4096), expected, "{start:#x}, {length:#x}");
        };
        check(0, 1, 0..0x1000);
        check(0x1fff, 2, 0x1000..0x3000);
        check(0x2000, 0x1000, 0x2000..0x3000);
        check(0x2010, 0, 0x2000..0x3000);
    }

    #[test]
    fn the_program_goes_on_and_is_smaller() {
        static RELOCATED: [&str; 2] = ["one", "two"];
        let resident = || -> u64 {
            let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
            let own = std::env::current_exe().unwrap();
            let mut is_own = false;
            maps.lines()
                .filter_map(|line| {
                    if line.split_once('-').is_some_and(|(start, _)| u64::from_str_radix(start, 16).is_ok()) {
                        is_own = line.ends_with(&*own.to_string_lossy());
                    }
                    let size = line.strip_prefix("Rss:")?.trim().strip_suffix(" kB")?;
                    is_own.then(|| size.parse::<u64>().unwrap())
                })
                .sum()
        };
        let before = resident();
        let_go();
        let after = resident();
        assert!(after < before, "{before} kB before, {after} kB after");
        assert_eq!(std::hint::black_box(&RELOCATED).concat(), "onetwo");
    }
}
