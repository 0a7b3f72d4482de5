//! The spool against a model, against every kind of damage, and against disks without room.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::Cursor;
use std::os::unix::fs::FileExt as _;
use std::sync::LazyLock;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const MIB: u64 = 1 << 20;

fn bounds(folder: &Path, bytes: u64) -> Bounds {
    Bounds { directory: folder.to_owned(), bytes, max_age: Duration::from_secs(3_600) }
}

fn about() -> About {
    About { destination: "backend".to_owned(), signal: "traces".to_owned() }
}

fn open(folder: &Path, bytes: u64) -> (Arc<Spool>, Slot) {
    let spool = Spool::open(bounds(folder, bytes)).unwrap();
    let slot = spool.shelf("a", &about());
    (spool, slot)
}

/// The same two times, also where a second ends between them.
fn kept(n: u8, length: usize) -> Kept {
    static TIME: LazyLock<u64> = LazyLock::new(|| SteadyClock::now_by_the_system().seconds());
    let (body, query) = (vec![n; length], String::new());
    Kept { body, query, encoding: Encoding::Plain, items: u64::from(n) + 1, time: *TIME }
}

/// Takes and settles everything.
fn drained(slot: &Slot) -> Vec<Kept> {
    let mut all = Vec::new();
    while let Some(kept) = slot.take() {
        slot.done();
        all.push(kept);
    }
    all
}

fn lost(slot: &Slot) -> u64 {
    slot.counts.held().lost.iter().sum()
}

/// Written and restored is delivered, waiting or lost.
fn assert_sum(slot: &Slot) {
    let held = slot.counts.held();
    let lost_on_shelf: u64 = held.lost.iter().sum();
    assert_eq!(held.written + held.restored, held.delivered + held.items + lost_on_shelf, "{held:?}");
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let folders =
        fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()).filter(|path| path.is_dir());
    let all = folders.flat_map(|folder| fs::read_dir(folder).unwrap().flatten().map(|entry| entry.path()));
    let mut segments: Vec<PathBuf> =
        all.filter(|path| path.extension().is_some_and(|it| it == "seg")).collect();
    segments.sort();
    segments
}

#[test]
fn what_goes_in_comes_out_in_order_over_starts() {
    let folder = TempDir::new().unwrap();
    let first = Kept { query: "a=b&c".to_owned(), encoding: Encoding::Gzip, ..kept(1, 300) };
    let rest: Vec<Kept> = (2..9).map(|n| kept(n, 1_000 * usize::from(n))).collect();
    {
        let (_spool, slot) = open(folder.path(), 64 * MIB);
        slot.append(&first);
        rest[..3].iter().for_each(|kept| slot.append(kept));
        assert_eq!(slot.take().as_ref(), Some(&first));
        // One at a time.
        assert_eq!(slot.take(), None);
        slot.put_back();
        assert_eq!(slot.take().as_ref(), Some(&first));
        slot.done();
        // This one is taken when the agent ends: it comes again.
        assert_eq!(slot.take().as_ref(), Some(&rest[0]));
        assert_sum(&slot);
    }
    let (_spool, slot) = open(folder.path(), 64 * MIB);
    let restored: u64 = rest[..3].iter().map(|kept| kept.items).sum();
    assert_eq!((slot.counts.held().restored, slot.counts.held().items), (restored, restored));
    rest[3..].iter().for_each(|kept| slot.append(kept));
    assert_eq!(files(folder.path()).len(), 2, "each start begins a file");
    assert_eq!(drained(&slot), rest);
    assert_eq!(files(folder.path()), Vec::<PathBuf>::new(), "nothing is left");
    assert_eq!((slot.counts.held().bytes, lost(&slot)), (0, 0));
    assert_sum(&slot);
}

#[test]
fn a_second_agent_is_refused_and_others_are_kept_apart() {
    let folder = TempDir::new().unwrap();
    let (spool, slot) = open(folder.path(), 64 * MIB);
    assert!(matches!(Spool::open(bounds(folder.path(), MIB)), Err(SpoolError::InUse { .. })));
    let other = spool.shelf("b", &about());
    slot.append(&kept(1, 10));
    other.append(&kept(2, 10));
    assert_eq!(drained(&other), [kept(2, 10)]);
    // The same destination again, as after a reload.
    assert_eq!(drained(&spool.shelf("a", &about())), [kept(1, 10)]);
    drop((spool, slot, other));
    let spool = Spool::open(bounds(folder.path(), MIB)).unwrap();
    assert_eq!(spool.all().len(), 2, "also of those that are no destinations any more");
    assert!(spool.all().iter().all(|(of, _)| *of == about()));
    let other = TempDir::new().unwrap();
    let file = other.path().join("a");
    fs::write(&file, "").unwrap();
    assert!(matches!(Spool::open(bounds(&file, MIB)), Err(SpoolError::Folder { .. })));
    assert!(matches!(probe(&file.join("b")), Err(SpoolError::Folder { .. })));
    let free = probe(&other.path().join("c/d")).unwrap();
    assert!(free > 0 && !other.path().join("c").exists(), "{free}");
}

#[test]
fn the_oldest_of_whoever_has_most_goes_first() {
    let folder = TempDir::new().unwrap();
    let (spool, slot) = open(folder.path(), 8 * MIB);
    let small = spool.shelf("small", &about());
    small.append(&kept(200, 1_000));
    // Segments have an eighth of the bound: four records of a quarter of that.
    for n in 0..60 {
        slot.append(&kept(n, (MIB / 4) as usize));
        let bytes: u64 = spool.all().iter().map(|(_, counts)| counts.held().bytes).sum();
        assert!(bytes <= 8 * MIB, "{bytes}");
        assert_sum(&slot);
    }
    let found = drained(&slot);
    assert!(found.len() > 24, "{}", found.len());
    let expected: Vec<u8> = (60 - found.len() as u8..60).collect();
    assert_eq!(found.iter().map(|kept| kept.body[0]).collect::<Vec<_>>(), expected);
    assert_eq!(slot.counts.held().lost[Gone::Full as usize], lost(&slot));
    assert_eq!(drained(&small).len(), 1);
    // One that is larger than everything.
    let tiny = TempDir::new().unwrap();
    let (_spool, slot) = open(tiny.path(), 1_000);
    slot.append(&kept(4, 5_000));
    assert_eq!((slot.take(), slot.counts.held().lost), (None, [5, 0, 0, 0]));
}

#[test]
fn a_request_under_way_is_counted_once_when_its_file_gives_way() {
    for is_delivered in [true, false] {
        let folder = TempDir::new().unwrap();
        let (_spool, slot) = open(folder.path(), MIB);
        (0..4).for_each(|n| slot.append(&kept(n, 200_000)));
        assert_eq!(slot.take(), Some(kept(0, 200_000)));
        (4..12).for_each(|n| slot.append(&kept(n, 200_000)));
        if is_delivered {
            slot.done()
        } else {
            slot.put_back()
        }
        assert_sum(&slot);
        assert_eq!(slot.counts.held().delivered, u64::from(is_delivered));
        assert!(drained(&slot).len() >= 3);
        assert_sum(&slot);
    }
}

#[test]
fn what_is_too_old_goes() {
    let folder = TempDir::new().unwrap();
    let (_spool, slot) = open(folder.path(), 64 * MIB);
    let old = Kept { time: slot.now() - 7_200, ..kept(1, 10) };
    slot.append(&old);
    slot.append(&kept(2, 10));
    // A clock that was set back.
    slot.append(&Kept { time: slot.now() + 100_000, ..kept(3, 10) });
    let found = drained(&slot);
    assert_eq!(found.iter().map(|kept| kept.body[0]).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(slot.counts.held().lost, [0, 2, 0, 0]);
    assert_sum(&slot);
    // Also where nothing is taken any more.
    slot.append(&old);
    slot.spool.shelf("other", &about()).expire();
    assert_eq!((slot.counts.held().bytes, slot.counts.held().lost), (0, [0, 4, 0, 0]));
}

/// A machine is switched on, its clock is set when the agent runs; that is killed and starts again a day later.
#[test]
fn a_clock_that_was_not_set_makes_nothing_too_old() {
    const UP: u64 = 40;
    let folder = TempDir::new().unwrap();
    let spool = Spool::open_by(bounds(folder.path(), 64 * MIB), SteadyClock::at(UP)).unwrap();
    let slot = spool.shelf("a", &about());
    slot.append(&Kept { time: slot.now(), ..kept(1, 10) });
    slot.expire();
    drop((slot, spool));
    let (_spool, slot) = open(folder.path(), 64 * MIB);
    slot.append(&kept(2, 10));
    slot.expire();
    assert_eq!(drained(&slot).iter().map(|kept| kept.body[0]).collect::<Vec<_>>(), [1, 2]);
    assert_eq!(lost(&slot), 0);
    assert_sum(&slot);
}

/// A file of five records, and where each begins.
fn made(folder: &Path) -> (PathBuf, Vec<Kept>, Vec<u64>) {
    let (_spool, slot) = open(folder, 64 * MIB);
    let all: Vec<Kept> = (0..5).map(|n| kept(n, 20 + 7 * usize::from(n))).collect();
    let mut begins = Vec::new();
    for kept in &all {
        begins.push(slot.counts.held().bytes);
        slot.append(kept);
    }
    begins.push(slot.counts.held().bytes);
    (files(folder).remove(0), all, begins)
}

#[test]
fn a_file_cut_at_any_byte_loses_what_was_cut() {
    let folder = TempDir::new().unwrap();
    let (file, all, begins) = made(folder.path());
    let whole = fs::read(&file).unwrap();
    for length in 0..=whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        let (_spool, slot) = open(folder.path(), 64 * MIB);
        let n_whole = begins[1..].iter().filter(|begin| **begin <= length as u64).count();
        assert_eq!(drained(&slot), all[..n_whole], "{length}");
        let is_clean = begins.contains(&(length as u64));
        // Its header says how much a cut record had; without one it is one.
        let begin = begins.iter().rfind(|begin| **begin <= length as u64).unwrap();
        let has_header = length as u64 - begin >= record::HEADER_BYTES as u64;
        let items = if is_clean {
            0
        } else if has_header {
            all[n_whole].items
        } else {
            1
        };
        assert_eq!(slot.counts.held().lost, [0, 0, items, 0], "{length}");
        assert_eq!(files(folder.path()), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_flipped_bit_costs_one_record() {
    let folder = TempDir::new().unwrap();
    let (file, all, begins) = made(folder.path());
    let whole = fs::read(&file).unwrap();
    for at in 0..whole.len() {
        for bit in 0..8 {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            fs::write(&file, &bytes).unwrap();
            let (_spool, slot) = open(folder.path(), 64 * MIB);
            let damaged = begins.iter().rposition(|begin| *begin <= at as u64).unwrap();
            let found = drained(&slot);
            let is_mark = at as u64 - begins[damaged] == record::DONE_AT;
            let rest: Vec<Kept> = all
                .iter()
                .enumerate()
                .filter(|(n, _)| is_mark || *n != damaged)
                .map(|(_, kept)| kept.clone())
                .collect();
            assert_eq!(found, rest, "bit {bit} of {at}");
            let is_lost = slot.counts.held().lost[Gone::Corrupt as usize] > 0;
            assert_eq!(is_lost, !is_mark, "bit {bit} of {at}");
        }
    }
}

/// Damage to a file that is in use.
#[test]
fn damage_while_running_is_counted() {
    let folder = TempDir::new().unwrap();
    let (_spool, slot) = open(folder.path(), 64 * MIB);
    (0..4).for_each(|n| slot.append(&kept(n, 100)));
    let file = OpenOptions::new().write(true).open(&files(folder.path())[0]).unwrap();
    // The header of the second, the payload of the third.
    file.write_all_at(&[0; 36], 136).unwrap();
    file.write_all_at(&[9; 36], 2 * 136 + 50).unwrap();
    assert_eq!(drained(&slot), [kept(0, 100), kept(3, 100)]);
    assert_eq!(slot.counts.held().lost, [0, 0, 2 + 3, 0]);
    assert_sum(&slot);
    // The whole folder is gone.
    slot.append(&kept(5, 100));
    fs::remove_dir_all(files(folder.path())[0].parent().unwrap()).unwrap();
    slot.append(&kept(6, 100));
    slot.append(&kept(7, 100));
    assert_eq!(drained(&slot), [kept(6, 100), kept(7, 100)]);
    assert_sum(&slot);
}

/// A file system of one mebibyte, as long as the test runs: needs root.
struct SmallDisk(TempDir);

impl SmallDisk {
    fn mount() -> Self {
        use rustix::mount::{MountFlags, mount};
        let folder = TempDir::new().unwrap();
        mount("tmpfs", folder.path(), "tmpfs", MountFlags::empty(), Some(c"size=1m")).unwrap();
        Self(folder)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH).unwrap();
    }
}

#[test]
fn a_full_disk_costs_the_oldest() {
    let disk = SmallDisk::mount();
    let path = disk.0.path();
    let (spool, slot) = open(path, 64 * MIB);
    for n in 0..100 {
        slot.append(&kept(n, 50_000));
        assert_sum_with_unwritten(&slot, n);
    }
    // Another program takes all the room.
    let filler = fs::write(path.join("filler"), vec![1; 1 << 20]);
    assert!(filler.is_err());
    slot.append(&kept(100, 50_000));
    assert_sum_with_unwritten(&slot, 100);
    fs::remove_file(path.join("filler")).unwrap();
    slot.append(&kept(101, 50_000));
    let found = drained(&slot);
    assert_eq!(found.last(), Some(&kept(101, 50_000)));
    assert_eq!(slot.counts.held().lost[Gone::Full as usize], lost(&slot));
    drop((spool, slot));
}

/// Everything that was ever handed over, up to `n`, is waiting or lost.
#[track_caller]
fn assert_sum_with_unwritten(slot: &Slot, n: u8) {
    let produced: u64 = (0..=u64::from(n)).map(|n| n + 1).sum();
    let held = slot.counts.held();
    assert_eq!(produced, held.items + held.delivered + held.lost.iter().sum::<u64>(), "{held:?}");
}

proptest! {
    /// Any file is read to its end, and what is found in it was written by us.
    #[test]
    fn hostile_files_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..2_000), at in 0usize..2_000) {
        let mut file = bytes.clone();
        let record = record_of(b"abc");
        let at = at.min(file.len());
        file.splice(at..at, record);
        let (whole, _) = read_all(&mut Cursor::new(file)).unwrap();
        prop_assert_eq!(whole, [b"abc".to_vec()]);
        prop_assert!(read_all(&mut Cursor::new(bytes)).unwrap().0.is_empty());
    }

    /// Random use with kills in between: nothing that was appended is lost, nothing is out of order, and after a kill
    /// at most what was taken comes again.
    #[test]
    fn the_spool_is_a_queue(steps in proptest::collection::vec(0u8..100, 1..120)) {
        let folder = TempDir::new().unwrap();
        let mut model: VecDeque<(u64, usize)> = VecDeque::new();
        let (mut spool, mut slot) = open(folder.path(), 64 * MIB);
        let mut is_taken = false;
        for (n, step) in (0_u64..).zip(steps) {
            match step {
                0..50 => {
                    let length = usize::from(step) * 997;
                    slot.append(&Kept { items: n + 1, ..kept(step, length) });
                    model.push_back((n + 1, length));
                }
                50..70 => {
                    let found = slot.take();
                    if is_taken {
                        prop_assert!(found.is_none());
                    } else {
                        let found = found.map(|kept| (kept.items, kept.body.len()));
                        prop_assert_eq!(found, model.front().copied());
                        is_taken = found.is_some();
                    }
                }
                70..80 => {
                    slot.done();
                    if std::mem::take(&mut is_taken) {
                        model.pop_front();
                    }
                }
                80..90 => {
                    slot.put_back();
                    is_taken = false;
                }
                _ => {
                    // All that a kill leaves is in the files.
                    drop((slot, spool));
                    (spool, slot) = open(folder.path(), 64 * MIB);
                    is_taken = false;
                }
            }
            let held = slot.counts.held();
            prop_assert_eq!(held.items, model.iter().map(|(n, _)| n).sum::<u64>());
            prop_assert_eq!(held.lost, [0; 4]);
        }
        drop(spool);
    }
}
