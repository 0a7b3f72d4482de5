//! What a thread that reads a ring sleeps on.
//!
//! In: descriptors of rings. Out: a reason to wake: a ring that calls, a question, or time.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

/// Which of the two has called.
const RING: u64 = 0;
const BELL: u64 = 1;

/// Sleeps until something is to be done.
#[derive(Debug)]
pub(super) struct Wait {
    epoll: OwnedFd,
    bell: Arc<OwnedFd>,
}

/// Wakes the sleeper, from any thread.
#[derive(Debug, Clone)]
pub(super) struct Bell(Arc<OwnedFd>);

impl Bell {
    /// Never blocks: a counter that is full means that the sleeper has been called long since.
    pub(super) fn ring(&self) {
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }
}

impl Wait {
    /// Watches `ring`. Edge-triggered: the kernel programs call only when much is waiting, and what
    /// little there is in between waits for the timeout.
    pub(super) fn new(ring: impl AsFd) -> io::Result<Self> {
        let wait = Self::for_bell()?;
        wait.add(ring)?;
        Ok(wait)
    }

    /// Watches nothing but the bell.
    pub(super) fn for_bell() -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        epoll::add(&epoll, &bell, EventData::new_u64(BELL), EventFlags::IN)?;
        Ok(Self { epoll, bell })
    }

    /// Watches another ring, in the same way.
    pub(super) fn add(&self, ring: impl AsFd) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, ring, EventData::new_u64(RING), EventFlags::IN | EventFlags::ET)?)
    }

    pub(super) fn bell(&self) -> Bell {
        Bell(Arc::clone(&self.bell))
    }

    /// Returns early when called. An interrupted sleep is a short one.
    pub(super) fn sleep(&self, at_most: Duration) {
        let timeout = Timespec::try_from(at_most).ok();
        let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(RING) }; 2];
        let n_events = epoll::wait(&self.epoll, &mut events[..], timeout.as_ref()).unwrap_or(0);
        if events[..n_events].iter().any(|event| event.data.u64() == BELL) {
            let mut count = [0; 8];
            let _ = rustix::io::read(&*self.bell, &mut count);
        }
    }
}
