//! Before Linux 5.11 kernel maps count as locked memory of the user who makes them.
//!
//! In: this process's limit, which is raised where that is allowed. Out: a [`Check`], by making a map of the usual
//! size. Newer kernels charge the control group, and the limit is nothing to them. Refuses to change anybody else's.
#![forbid(unsafe_code)]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::Check;
use crate::capture::bpf::create;

const NAME: &str = "locked memory";
const REMEDY: &str = "raise the limit (`LimitMEMLOCK=infinity` of a systemd unit, `--ulimit memlock=-1` of docker, \
                      `ulimit -l unlimited` of a shell), or add CAP_SYS_RESOURCE";

/// The ring buffer at its default, which is most of what maps take.
const RING_BYTES: u32 = 8 << 20;

pub(super) fn check() -> Check {
    let limit = raise();
    let Some(bytes) = limit.current else { return Check::available(NAME) };
    match create::ring(RING_BYTES) {
        Ok(_) => Check::available(NAME),
        Err(error) => Check::missing(
            NAME,
            format!("failed to create a map of {RING_BYTES} bytes with a limit of {bytes}: {error}"),
            REMEDY,
        ),
    }
}

/// Raises the limit as far as that is allowed.
fn raise() -> Rlimit {
    let given = getrlimit(Resource::Memlock);
    let wishes = [Rlimit { current: None, maximum: None }, Rlimit { current: given.maximum, ..given }];
    // Refused without CAP_SYS_RESOURCE when it is above the hard limit: then the check says whether that matters.
    let _ = wishes.into_iter().try_for_each(|wish| match setrlimit(Resource::Memlock, wish) {
        Ok(()) => Err(()),
        Err(_) => Ok(()),
    });
    getrlimit(Resource::Memlock)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_never_lowered() {
        let before = getrlimit(Resource::Memlock);
        let after = raise();
        let bytes = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
        assert!(bytes(after.current) >= bytes(before.current), "{before:?} {after:?}");
        assert_eq!(bytes(after.current), bytes(after.maximum));
    }
}
