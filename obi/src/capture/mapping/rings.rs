//! The side-band of all CPUs, in order of time.
//!
//! In: the rings of the kernel's events. Out: [`Record`]s. Two CPUs write without regard to each other, so what is
//! newer than the moment at which reading began waits for the next time: something older may still be on its way.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};

use super::side_band::{Record, parse};
use crate::capture::bpf::side_band::SideBand;
use crate::capture::program::profile::online_cpus;

/// One ring per CPU.
#[derive(Debug)]
pub struct Rings {
    rings: Vec<SideBand>,
    /// Records read, one behind the other.
    bytes: Vec<u8>,
    /// Time, start and end of each.
    order: Vec<(u64, usize, usize)>,
    malformed: u64,
}

/// Memory of a ring in pages, on machines with up to so many CPUs: a busy build makes some 100 KB a second.
const PAGES: [(usize, usize); 3] = [(16, 64), (64, 32), (usize::MAX, 16)];
/// Where locked memory is short.
const FEWEST_PAGES: usize = 4;

impl Rings {
    /// Opens one for each CPU that is online. Needs `CAP_PERFMON`.
    ///
    /// # Errors
    /// When the kernel refuses one.
    pub fn open() -> io::Result<Self> {
        let cpus = online_cpus()?;
        let pages =
            PAGES.iter().find(|(most, _)| cpus.len() <= *most).map_or(FEWEST_PAGES, |(_, pages)| *pages);
        let open = |cpu: &u32| SideBand::open(*cpu, pages).or_else(|_| SideBand::open(*cpu, FEWEST_PAGES));
        let rings = cpus.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Self { rings, bytes: Vec::new(), order: Vec::new(), malformed: 0 })
    }

    /// Hands over, in order, what was written before `horizon` (`CLOCK_MONOTONIC`, nanoseconds), which is to be the
    /// time just before the call.
    pub fn drain(&mut self, horizon: u64, mut apply: impl FnMut(Record<'_>)) {
        let Self { rings, bytes, order, malformed } = self;
        for ring in rings {
            ring.drain(|record| match parse(record) {
                Ok(Record { time, .. }) => {
                    order.push((time, bytes.len(), bytes.len() + record.len()));
                    bytes.extend_from_slice(record);
                }
                Err(error) => {
                    tracing::debug!(%error, "side-band");
                    *malformed += 1;
                }
            });
        }
        order.sort_by_key(|(time, start, _)| (*time, *start));
        let ripe = order.partition_point(|(time, ..)| *time <= horizon);
        for (_, start, end) in &order[..ripe] {
            if let Ok(record) = parse(&bytes[*start..*end]) {
                apply(record);
            }
        }
        let mut kept = Vec::new();
        order.drain(..ripe);
        for (_, start, end) in order {
            let begins = kept.len();
            kept.extend_from_slice(&bytes[*start..*end]);
            (*start, *end) = (begins, kept.len());
        }
        if kept.is_empty() {
            bytes.clear();
        } else {
            *bytes = kept;
        }
    }

    /// Records that were none.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// Memory of all of them, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.rings.iter().map(|ring| ring.bytes() as u64).sum()
    }

    /// Readable when a program has begun, or something alike has happened.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.iter().map(|ring| ring.as_fd())
    }
}
