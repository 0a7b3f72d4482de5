//! A connection of which some segments pass unseen or unreadable, and what is reported of it.
//!
//! In: segments, and how many bytes pass unseen. Out: the [`Ledger`] of records. Refuses to know what is sent.
#![forbid(unsafe_code)]

use crate::ledger::{Account, Fate, Ledger};
use crate::{Connection, Faults, Kernel, Segment};

/// One connection, and what has passed unseen on it.
#[derive(Debug)]
pub struct Line {
    /// The kernel side.
    pub kernel: Kernel,
    connection: Connection,
    /// What it has reported.
    pub ledger: Ledger,
    time: u64,
    /// By direction (`true`: sent): bytes unseen since the last segment.
    unseen: [u32; 2],
}

impl Default for Line {
    fn default() -> Self {
        let mut kernel = Kernel::boot(1, 8192, Faults::default());
        let connection = kernel.connect(false);
        Self { kernel, connection, ledger: Ledger::default(), time: 0, unseen: [0; 2] }
    }
}

impl Line {
    /// So many bytes pass unseen.
    pub fn miss(&mut self, sending: bool, bytes: usize) {
        self.time += 1000;
        self.unseen[usize::from(sending)] += u32::try_from(bytes).expect("short");
    }

    /// A segment passes, behind what was missed.
    pub fn pass(&mut self, sending: bool, segment: Segment<'_>) {
        self.time += 1000;
        let gap = std::mem::take(&mut self.unseen[usize::from(sending)]);
        self.kernel.segment(&mut self.connection, sending, gap, segment, self.time);
        self.ledger.read(&self.kernel);
    }

    /// The end, as the kernel side takes it: who closes looks whether all bytes have been seen.
    pub fn end(&mut self, reason: u32, is_server: bool) {
        self.time += 1000;
        if self.unseen == [0, 0] {
            self.kernel.end(&mut self.connection, reason, self.time);
        } else {
            let requests = self.unseen[usize::from(!is_server)];
            self.kernel.end_unseen(&mut self.connection, requests, self.time);
        }
        self.ledger.read(&self.kernel);
    }
}

/// The numbers that a request has in its path (`/7`) and its response in a field (`Id: 7`), as far as reported.
#[must_use]
pub fn ids(account: &Account) -> (Option<usize>, Option<usize>) {
    let between = |head: &[u8], from: &str, to: char| -> Option<usize> {
        String::from_utf8_lossy(head).split_once(from)?.1.split(to).next()?.parse().ok()
    };
    (between(&account.request.head, " /", ' '), between(&account.response.head, "Id: ", '\r'))
}

/// Whether an exchange that was not reported to its end is counted or taken back.
#[must_use]
pub fn is_counted(account: &Account) -> bool {
    matches!(account.fate, Fate::Abandoned(_) | Fate::Forgotten | Fate::Dropped)
}
