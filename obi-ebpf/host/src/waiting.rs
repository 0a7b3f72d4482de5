//! The accounts of threads that serve requests, as the kernel side keeps them.
//!
//! In: what the scheduler does with a thread. Out: where its time went. Knows no scheduler.

use std::ffi::c_void;

use obi_ebpf::WAIT_REASONS;

/// What was booked: CPU, run queue, and blocked by reason.
pub type Parts = [u64; 2 + WAIT_REASONS as usize];

/// Why a thread leaves a CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leaves {
    /// It goes on as soon as it gets another.
    Ready,
    /// It waits, for an `enum wait_reason`.
    Blocked(u32),
}

/// The account of a thread.
#[derive(Debug)]
pub struct Account(Vec<u64>);

impl Account {
    /// A request is begun.
    #[must_use]
    pub fn begin(now: u64) -> Self {
        // SAFETY: the function takes nothing and returns a constant.
        let bytes = unsafe { host_account_bytes() };
        let mut account = Self(vec![u64::MAX; (bytes as usize).div_ceil(8)]);
        // SAFETY: the memory is as large and as aligned as the structure, here and below.
        unsafe { host_times_begin(account.pointer(), 1, now) };
        account
    }

    /// The thread leaves its CPU.
    pub fn leave(&mut self, now: u64, why: Leaves) {
        let (phase, reason) = match why {
            Leaves::Ready => (1, 0),
            Leaves::Blocked(reason) => (2, reason),
        };
        // SAFETY: see `begin`.
        unsafe { host_times_leave(self.pointer(), now, phase, reason) };
    }

    /// What it waits for has come.
    pub fn wake(&mut self, now: u64) {
        // SAFETY: see `begin`.
        unsafe { host_times_wake(self.pointer(), now) };
    }

    /// It gets a CPU.
    pub fn enter(&mut self, now: u64) {
        // SAFETY: see `begin`.
        unsafe { host_times_enter(self.pointer(), now) };
    }

    /// Its request may turn out to have ended now.
    pub fn mark(&mut self, now: u64) {
        // SAFETY: see `begin`.
        unsafe { host_times_mark(self.pointer(), now) };
    }

    /// Its request has ended at `end`, which may be a while ago. `None`: too long ago to know.
    pub fn end(&mut self, end: u64) -> Option<Parts> {
        let mut parts = Parts::default();
        // SAFETY: see `begin`; the parts have room for all that is written.
        let known = unsafe { host_times_end(self.pointer(), end, parts.as_mut_ptr()) };
        (known == 1).then_some(parts)
    }

    fn pointer(&mut self) -> *mut c_void {
        self.0.as_mut_ptr().cast()
    }
}

/// What a thread in this system call waits for: an `enum wait_reason`, or more when it depends on what its first
/// argument is.
#[must_use]
pub fn reason_of_call(number: u32, arguments: [u64; 3]) -> u32 {
    let [first, second, third] = arguments;
    // SAFETY: numbers go in, a number comes out.
    unsafe { host_reason_of_call(number, first, second, third) }
}

/// What a wait of `length` ns stands for as a sample, `chance` being any number; 0: it is not sampled.
#[must_use]
pub fn draw(length: u64, threshold: u64, chance: u32) -> u64 {
    // SAFETY: numbers go in, a number comes out.
    unsafe { host_draw(length, threshold, chance) }
}

unsafe extern "C" {
    fn host_account_bytes() -> u32;
    fn host_times_begin(account: *mut c_void, exchange: u64, now: u64);
    fn host_times_leave(account: *mut c_void, now: u64, phase: u32, reason: u32);
    fn host_times_wake(account: *mut c_void, now: u64);
    fn host_times_enter(account: *mut c_void, now: u64);
    fn host_times_mark(account: *mut c_void, now: u64);
    fn host_times_end(account: *mut c_void, end: u64, parts: *mut u64) -> u32;
    fn host_draw(length: u64, threshold: u64, chance: u32) -> u64;
    fn host_reason_of_call(number: u32, first: u64, second: u64, third: u64) -> u32;
}
