//! Whether return probes are harmless here.
//!
//! In: the running kernel. Out: an answer, found out with a child of ours. On x86-64 from 6.11 on a probed function
//! returns through a system call of the kernel's own, and some kernels ask the program's seccomp filter about it, which
//! knows nothing of it: a sandboxed program would be killed by being watched. Fixed in 6.14 and its stable relatives.

use std::hint::black_box;
use std::io;
use std::os::fd::AsFd as _;

use super::attach::Attachment;
use super::create::{self, Kind};
use super::uprobe::{self, ProbeSite, Target};

/// What came of it.
#[derive(Debug)]
pub struct Trial {
    /// A sandboxed program lives on.
    pub harmless: bool,
    /// The probe, to be ended when there is time: that takes the kernel a while.
    pub probe: Option<Attachment>,
}

/// Probes the return of a function of ours, and lets a child call it that allows its program no unknown system calls.
///
/// # Errors
/// When the trial itself fails.
pub fn return_probe(multi: bool) -> io::Result<Trial> {
    if cfg!(not(target_arch = "x86_64")) {
        return Ok(Trial { harmless: true, probe: None });
    }
    let program = create::program(if multi { Kind::UprobeMulti } else { Kind::Kprobe })?;
    let executable = std::fs::File::open("/proc/self/exe")?;
    let target = Target { file: executable.as_fd(), at_return: true, process: None };
    let place = ProbeSite { offset: offset_of(returning as *const () as u64)?, cookie: 0 };
    let probe = match multi {
        true => uprobe::multi(program.as_fd(), target, &[place])?,
        false => uprobe::single(program.as_fd(), target, place)?,
    };
    Ok(Trial { harmless: survives()?, probe: Some(probe) })
}

/// The function that is probed.
#[inline(never)]
extern "C" fn returning() -> u32 {
    black_box(1)
}

/// Where in our executable's file an address is.
fn offset_of(address: u64) -> io::Result<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let offset = maps.lines().find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let offset = fields.nth(1)?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end, offset) = (number(start)?, number(end)?, number(offset)?);
        (start..end).contains(&address).then(|| address - start + offset)
    });
    offset.ok_or_else(|| io::Error::other("our own code is in no mapping"))
}

/// `uretprobe(2)` of x86-64.
const URETPROBE: u32 = 335;

/// Whether a child whose filter kills it at `uretprobe` returns from [`returning`].
fn survives() -> io::Result<bool> {
    let statement = |code: u32, k| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let mut filter = [
        // The number of the system call is the first word of what a filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0),
        libc::sock_filter { jf: 1, ..statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, URETPROBE) },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_KILL_PROCESS),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let length = filter.len() as u16;
    let program = libc::sock_fprog { len: length, filter: filter.as_mut_ptr() };
    // SAFETY: the child calls nothing but system calls and a function that touches no memory, and ends without running
    // anything of ours.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above; the filter lives in the child's copy of this stack.
        unsafe {
            let refused = libc::prctl(libc::PR_SET_DUMPABLE, 0) != 0
                || libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0
                || libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) != 0;
            if !refused {
                black_box(returning());
            }
            libc::_exit(i32::from(refused));
        }
    }
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut status = 0;
    loop {
        // SAFETY: the status is a live integer; the child is ours and nobody else waits for it.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        if waited == child {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // One that could not have a filter has ended by itself, too: then there are no sandboxed programs here.
    Ok(libc::WIFEXITED(status))
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_sandboxed_child_tells() {
        let trial = return_probe(uprobe::is_multi_supported()).unwrap();
        let offset = offset_of(returning as *const () as u64).unwrap();
        // The child could notice: a breakpoint is there as long as the probe lives.
        let executable = std::fs::File::open("/proc/self/exe").unwrap();
        let mut original = [0];
        std::os::unix::fs::FileExt::read_exact_at(&executable, &mut original, offset).unwrap();
        let mapped = || uprobe::mapped_byte(executable.as_fd(), offset).unwrap();
        assert_ne!(mapped(), original[0]);
        drop(trial.probe);
        // A child that another test has just forked holds the probe, too: until it executes something itself.
        let deadline = Instant::now() + Duration::from_secs(60);
        while mapped() != original[0] && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!((mapped(), returning()), (original[0], 1));
        assert!(offset_of(1).is_err());
    }
}
