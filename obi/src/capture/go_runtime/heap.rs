//! Memory of a Go program, in use and allocated so far, by the stacks that have allocated it: its runtime's own
//! profile.
//!
//! In: where the runtime keeps its buckets, the process's memory. Out: [`Site`]s. The runtime notes one allocation in
//! some 512 KiB (`runtime.MemProfileRate`); what that stands for is estimated as its own profiles do
//! (`runtime/pprof`, `scaleHeapSample`). Buckets are never freed, their stacks never change, new ones come first: going
//! along them while the program runs meets no torn list. Counts are those of the last collection of garbage.
//! Refuses to know names.

use foldhash::fast::RandomState;
use hashbrown::HashSet;

use super::{Program, Unread};
use crate::capture::guest::Memory;
use crate::capture::tls::elf::Source;

/// What one stack has allocated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// Addresses behind calls, as the process sees them, leaf first.
    pub stack: Vec<u64>,
    /// Bytes that are still in use, estimated.
    pub in_use: u64,
    /// Bytes since the program began, likewise.
    pub allocated: u64,
}

/// All of a process's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heap {
    /// By stack.
    pub sites: Vec<Site>,
    /// Mean of bytes between two allocations that were noted.
    pub rate: u64,
}

/// Buckets that are read, and words of their stacks.
const BUCKETS: usize = 1 << 18;
const WORDS: usize = 1 << 22;
/// `runtime.bucket`: its fields before the stack. `next`, `allnext`, `typ`, `hash`, `size`, `nstk`.
const HEAD: usize = 48;
/// `runtime.memProfile`.
const OF_MEMORY: u64 = 1;
/// Frames of a stack; `GODEBUG=profstackdepth` allows as many.
const FRAMES: u64 = 1024;
/// `runtime.memRecord`: what was published, and what will be with the next three collections; four words each.
const RECORD: usize = 16 * 8;
/// `runtime.MemProfileRate` is no larger, unless it means never.
const LARGEST_RATE: u64 = 1 << 40;

impl<S: Source + Clone> Program<S> {
    /// What a process of this program has allocated. `bias` is to be added to the file's addresses.
    ///
    /// # Errors
    /// When the program notes nothing, or what is there is no profile.
    pub fn heap(&self, memory: &impl Memory, bias: u64) -> Result<Heap, Unread> {
        let (head, rate) = self.places.heap.clone()?;
        let word = |address: u64| {
            memory
                .word(bias.wrapping_add(address))
                .ok_or_else(|| Unread::Memory("no such address".to_owned()))
        };
        let rate = word(rate)?;
        if rate == 0 || rate > LARGEST_RATE {
            return Err(Unread::NoProfile);
        }
        heap(memory, word(head)?, rate)
    }
}

/// What the buckets of a list say, of which the first one lies at `head`.
///
/// # Errors
/// When it is no such list.
pub fn heap(memory: &impl Memory, head: u64, rate: u64) -> Result<Heap, Unread> {
    Ok(Heap { sites: sites(&buckets(memory, head)?, rate), rate })
}

/// A stack, and what it has allocated and freed.
#[derive(Debug)]
struct Bucket {
    stack: Vec<u64>,
    /// As of the last collection.
    published: Counts,
    /// With all that has happened since.
    latest: Counts,
}

/// Allocations and frees, of those that were noted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Counts {
    objects: [u64; 2],
    bytes: [u64; 2],
}

impl Counts {
    fn add(self, words: &[u64]) -> Self {
        let sum = |[made, freed]: [u64; 2], at: usize| {
            let of = |at: usize| words.get(at).copied().unwrap_or_default();
            [made.wrapping_add(of(at)), freed.wrapping_add(of(at + 1))]
        };
        Self { objects: sum(self.objects, 0), bytes: sum(self.bytes, 2) }
    }

    /// Objects and bytes that are there.
    fn in_use(self) -> (u64, u64) {
        let left = |[made, freed]: [u64; 2]| made.saturating_sub(freed);
        (left(self.objects), left(self.bytes))
    }

    /// Those that were made.
    fn allocated(self) -> (u64, u64) {
        (self.objects[0], self.bytes[0])
    }
}

fn buckets(memory: &impl Memory, mut address: u64) -> Result<Vec<Bucket>, Unread> {
    let (mut buckets, mut n_words) = (Vec::new(), 0);
    let mut seen = HashSet::<u64, RandomState>::default();
    let unread = || Unread::Memory("a bucket is not there".to_owned());
    while address != 0 {
        if !seen.insert(address) {
            return Err(Unread::Proof("memory profile"));
        }
        if buckets.len() >= BUCKETS || n_words >= WORDS {
            return Err(Unread::TooLarge("memory profile"));
        }
        let mut head = [0; HEAD];
        if !memory.read(address, &mut head) {
            return Err(unread());
        }
        let [_, next, kind, _, _, frames] = words(&head)[..] else { return Err(unread()) };
        if kind != OF_MEMORY || frames > FRAMES {
            return Err(Unread::Proof("memory profile"));
        }
        let frames = usize::try_from(frames).map_err(|_| Unread::Proof("memory profile"))?;
        let mut rest = vec![0; frames * 8 + RECORD];
        if !memory.read(address.wrapping_add(HEAD as u64), &mut rest) {
            return Err(unread());
        }
        let mut stack = words(&rest);
        let record = stack.split_off(frames);
        n_words += frames;
        let published = Counts::default().add(&record[..4]);
        let latest = record.chunks(4).fold(Counts::default(), Counts::add);
        buckets.push(Bucket { stack, published, latest });
        address = next;
    }
    Ok(buckets)
}

/// Before the first collection nothing has been published: then what has happened counts, as for `runtime.MemProfile`.
fn sites(buckets: &[Bucket], rate: u64) -> Vec<Site> {
    let is_early = buckets.iter().all(|bucket| bucket.published == Counts::default());
    let sites = buckets.iter().filter_map(|bucket| {
        let counts = if is_early { bucket.latest } else { bucket.published };
        let [in_use, allocated] =
            [counts.in_use(), counts.allocated()].map(|(objects, bytes)| estimate(objects, bytes, rate));
        (allocated > 0).then(|| Site { stack: bucket.stack.clone(), in_use, allocated })
    });
    sites.collect()
}

/// Bytes that so many noted ones stand for: an object of `size` bytes is noted with a probability of
/// 1 − e^(−size / rate).
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an estimate; both are far below 2^53"
)]
fn estimate(objects: u64, bytes: u64, rate: u64) -> u64 {
    if objects == 0 || bytes == 0 || rate <= 1 {
        return bytes;
    }
    let size = bytes as f64 / objects as f64;
    (bytes as f64 / -(-size / rate as f64).exp_m1()) as u64
}

fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::capture::guest::memory::Piece;

    const AT: u64 = 0x7000;

    /// A bucket as it lies in memory: where the next one is, its stack, its record.
    fn bucket(next: u64, stack: &[u64], record: [u64; 16]) -> Vec<u64> {
        let frames = stack.len() as u64;
        [&[0, next, OF_MEMORY, 0, 0, frames], stack, &record].concat()
    }

    fn memory(words: &[u64]) -> Piece {
        Piece { start: AT, bytes: words.iter().flat_map(|word| word.to_le_bytes()).collect() }
    }

    fn record(published: [u64; 4], next: [u64; 4]) -> [u64; 16] {
        let mut record = [0; 16];
        record[..4].copy_from_slice(&published);
        record[4..8].copy_from_slice(&next);
        record
    }

    #[test]
    fn what_was_published_is_in_use() {
        let first = bucket(AT + 24 * 8, &[7, 8], record([3, 1, 300, 100], [5, 0, 500, 0]));
        let second = bucket(0, &[9], record([2, 2, 64, 64], [0; 4]));
        let found = buckets(&memory(&[first, second].concat()), AT).unwrap();
        // The second one has freed everything.
        let second = Site { stack: vec![9], in_use: 0, allocated: 64 };
        assert_eq!(sites(&found, 1), [Site { stack: vec![7, 8], in_use: 200, allocated: 300 }, second]);
    }

    #[test]
    fn before_the_first_collection_everything_counts() {
        let only = bucket(0, &[7], record([0; 4], [5, 1, 500, 100]));
        let found = buckets(&memory(&only), AT).unwrap();
        assert_eq!(sites(&found, 1), [Site { stack: vec![7], in_use: 400, allocated: 500 }]);
    }

    #[test]
    fn small_objects_stand_for_many() {
        let check = |objects, bytes, rate, expected| {
            assert_eq!(estimate(objects, bytes, rate), expected, "{objects} {bytes} {rate}");
        };
        check(0, 0, 524_288, 0);
        check(1, 16, 1, 16);
        // By `scaleHeapSample` of runtime/pprof.
        check(1, 16, 524_288, 524_296);
        check(2, 1_048_576, 524_288, 1658822);
        check(1, 1 << 30, 524_288, 1 << 30);
    }

    #[test]
    fn what_is_no_profile_is_refused() {
        let check = |words: &[u64], expected: Unread| {
            assert_eq!(buckets(&memory(words), AT).err(), Some(expected), "{words:x?}");
        };
        let mut other = bucket(0, &[7], [0; 16]);
        other[2] = 2;
        check(&other, Unread::Proof("memory profile"));
        other[2] = OF_MEMORY;
        other[5] = FRAMES + 1;
        check(&other, Unread::Proof("memory profile"));
        other[5] = FRAMES;
        check(&other, Unread::Memory("a bucket is not there".to_owned()));
        check(&[], Unread::Memory("a bucket is not there".to_owned()));
    }

    proptest! {
        #[test]
        fn whatever_is_there_ends(
            words in proptest::collection::vec(prop_oneof![any::<u64>(), AT..AT + 800, 0_u64..9], 0..100),
        ) {
            if let Ok(found) = buckets(&memory(&words), AT) {
                prop_assert!(found.len() <= BUCKETS);
                sites(&found, 524_288);
            }
        }
    }
}
