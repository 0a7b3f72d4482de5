//! Histories of processes, and what is found at which time.

use proptest::prelude::*;

use super::*;

fn mapped(start: u64, path: &str) -> Mapped<'_> {
    let inode = if path.starts_with('/') { 100 + path.len() as u64 } else { 0 };
    Mapped { start, end: start + 0x1000, offset: 0, device: (8, 1), inode, generation: 0, path }
}

fn map(processes: &mut Processes, time: u64, tgid: u32, start: u64, path: &str) {
    processes.apply(Record { time, event: Event::Mapped { tgid, mapped: mapped(start, path) } });
}

fn apply(processes: &mut Processes, time: u64, event: Event<'_>) {
    processes.apply(Record { time, event });
}

fn path(processes: &Processes, tgid: u32, address: u64, time: u64) -> String {
    processes.find(tgid, address, time).map_or("none".to_owned(), |mapping| mapping.backing.path.to_string())
}

#[test]
fn an_exec_is_reported_from_what_was_before_by_time() {
    let mut processes = Processes::default();
    apply(&mut processes, 10, Event::Fork { parent: 1, tgid: 7 });
    map(&mut processes, 11, 7, 0x1000, "/a");
    apply(&mut processes, 20, Event::Exec { tgid: 7 });
    map(&mut processes, 21, 7, 0x1000, "/bb");
    assert_eq!(path(&processes, 7, 0x1800, 15), "/a");
    assert_eq!(path(&processes, 7, 0x1800, 20), "none");
    assert_eq!(path(&processes, 7, 0x1800, 25), "/bb");
    // Also when it has ended, for a while.
    apply(&mut processes, 30, Event::Exit { tgid: 7 });
    assert_eq!(path(&processes, 7, 0x1800, 15), "/a");
    assert_eq!(path(&processes, 7, 0x1800, 29), "/bb");
    processes.sweep(30 + GRACE, |_| false);
    assert_eq!(path(&processes, 7, 0x1800, 29), "/bb");
    processes.sweep(31 + GRACE, |_| false);
    assert_eq!(path(&processes, 7, 0x1800, 29), "none");
}

#[test]
fn a_fork_has_what_its_parent_had() {
    let mut processes = Processes::default();
    map(&mut processes, 5, 7, 0x1000, "/a");
    apply(&mut processes, 10, Event::Fork { parent: 7, tgid: 8 });
    map(&mut processes, 11, 7, 0x1000, "/parent");
    map(&mut processes, 11, 8, 0x2000, "/child");
    assert_eq!(path(&processes, 8, 0x1000, 12), "/a");
    assert_eq!(path(&processes, 7, 0x1000, 12), "/parent");
    assert_eq!(
        (path(&processes, 8, 0x2000, 12), path(&processes, 7, 0x2000, 12)),
        ("/child".into(), "none".into())
    );
    // A fork shares its parent's mappings: both children are reported once, and their parent with what has gone.
    let mut n = 0;
    apply(&mut processes, 12, Event::Fork { parent: 8, tgid: 9 });
    processes.each_mapping(|_| n += 1);
    assert_eq!(n, 2 + 2, "of the parent, what went too; of both children once");
}

#[test]
fn a_number_that_is_used_again_is_another_process() {
    let mut processes = Processes::default();
    map(&mut processes, 5, 7, 0x1000, "/a");
    apply(&mut processes, 10, Event::Exit { tgid: 7 });
    apply(&mut processes, 20, Event::Fork { parent: 1, tgid: 7 });
    map(&mut processes, 25, 7, 0x1000, "/bb");
    assert_eq!(
        (path(&processes, 7, 0x1000, 9), path(&processes, 7, 0x1000, 26)),
        ("/a".into(), "/bb".into())
    );
    processes.sweep(30 + 2 * GRACE, |_| false);
    assert_eq!(processes.len().0, 1, "the second one runs");
    assert_eq!(path(&processes, 7, 0x1000, 26), "/bb");
}

/// A thread is sampled on its way out as well, behind what the kernel reports as its end: that is no reason to keep it.
#[test]
fn a_process_that_was_sampled_behind_its_end_is_forgotten() {
    let mut processes = Processes::default();
    for (tgid, runs) in [(1, false), (2, true)] {
        apply(&mut processes, 10, Event::Exec { tgid });
        apply(&mut processes, 20, Event::Exit { tgid });
        assert!(processes.sampled(tgid, 21, false));
        let _ = processes.sweep(21 + GRACE, |_| runs);
        assert!(processes.iter().any(|(known, _)| known == tgid), "its samples may still come");
        let _ = processes.sweep(22 + GRACE, |_| runs);
        assert_eq!(processes.iter().any(|(known, _)| known == tgid), runs, "{tgid}");
        // Once is enough.
        let _ = processes.sweep(22 + 2 * GRACE, |_| false);
        assert_eq!(processes.iter().any(|(known, _)| known == tgid), runs, "{tgid}");
    }
}

#[test]
fn a_process_whose_first_thread_has_ended_goes_on() {
    let mut processes = Processes::default();
    map(&mut processes, 5, 7, 0x1000, "/a");
    apply(&mut processes, 10, Event::Exit { tgid: 7 });
    processes.sweep(20 + GRACE, |tgid| tgid == 7);
    processes.sweep(20 + 5 * GRACE, |_| false);
    assert_eq!(path(&processes, 7, 0x1000, 30), "/a");
    // A sample shows it as well.
    apply(&mut processes, 40, Event::Exit { tgid: 7 });
    processes.take_changed();
    assert!(processes.sampled(7, 50, false));
    assert_eq!(processes.take_changed(), [7]);
    assert_eq!(processes.get_mut(7).unwrap().ended, None);
}

fn lists(processes: &mut Processes) -> Vec<u32> {
    let wants = processes.take_wants();
    wants.iter().filter_map(|want| if let Want::List(tgid) = want { Some(*tgid) } else { None }).collect()
}

#[test]
fn what_is_not_known_is_asked_for_and_not_too_often() {
    let mut processes = Processes::default();
    let second = BETWEEN_LISTS;
    assert!(!processes.sampled(7, second, false));
    assert!(processes.is_awaited(7));
    assert!(processes.sampled(7, second + 1, false));
    assert_eq!(lists(&mut processes), [7]);
    processes.listed(7, b"1000-2000 r-xp 0 08:01 5 /a\n", second);
    assert!(!processes.is_awaited(7));
    assert_eq!(path(&processes, 7, 0x1000, 1), "/a");
    // It is known now; an address that is not asks again, after a while.
    processes.sampled(7, 3 * second, false);
    assert_eq!(lists(&mut processes), [] as [u32; 0]);
    processes.sampled(7, 3 * second, true);
    processes.sampled(7, 3 * second + 1, true);
    assert_eq!(lists(&mut processes), [7]);
    // What was lost may have been of anybody.
    apply(&mut processes, 4 * second, Event::Lost { n: 3 });
    assert_eq!(processes.counts().records_lost, 3);
    processes.sampled(7, 5 * second, false);
    assert_eq!(lists(&mut processes), [7]);
    // A list from before an exec is of another program.
    apply(&mut processes, 6 * second, Event::Exec { tgid: 7 });
    processes.listed(7, b"1000-2000 r-xp 0 08:01 5 /a\n", 5 * second);
    assert_eq!(path(&processes, 7, 0x1000, 7 * second), "none");
}

#[test]
fn a_file_is_opened_once_and_confirmed_when_it_is_mapped_again() {
    let mut processes = Processes::default();
    let opened = |processes: &mut Processes| -> Vec<(u32, u32)> {
        let wants = processes.take_wants();
        let openings = wants.iter().filter_map(|want| match want {
            Want::Open(opening) => Some((opening.tgid, opening.parent)),
            _ => None,
        });
        openings.collect()
    };
    apply(&mut processes, 1, Event::Fork { parent: 3, tgid: 7 });
    map(&mut processes, 5, 7, 0x1000, "/a");
    map(&mut processes, 5, 8, 0x1000, "/a");
    map(&mut processes, 5, 7, 0x9000, "");
    assert_eq!(opened(&mut processes), [(7, 3)]);
    let backing = Arc::clone(&processes.find(7, 0x1000, 9).unwrap().backing);
    // It could not be opened: the process that maps it a while later is asked for it.
    backing.confirm(5);
    backing.set_file(None);
    map(&mut processes, 6, 9, 0x1000, "/a");
    assert_eq!(opened(&mut processes), []);
    map(&mut processes, 5 + CONFIRMED_FOR, 9, 0x2000, "/a");
    assert_eq!(opened(&mut processes), [(9, 0)]);
    let file = super::super::file::ExecutableFile::new(
        1,
        "/a".into(),
        std::fs::File::open("/proc/self/exe").unwrap(),
    );
    backing.set_file(Some(Arc::new(file.unwrap())));
    backing.confirm(2 * CONFIRMED_FOR);
    map(&mut processes, 4 * CONFIRMED_FOR, 9, 0x3000, "/a");
    map(&mut processes, 4 * CONFIRMED_FOR, 9, 0x4000, "/a");
    let wants = processes.take_wants();
    assert!(
        matches!(&wants[..], [Want::Confirm(again)] if Arc::ptr_eq(&again.backing, &backing)),
        "{wants:?}"
    );
    // Mapped again right after it was confirmed: that can wait a little.
    backing.confirm(4 * CONFIRMED_FOR);
    map(&mut processes, 4 * CONFIRMED_FOR + 1, 9, 0x5000, "/a");
    assert!(processes.take_wants().is_empty());
    processes.sweep(4 * CONFIRMED_FOR + 2, |_| false);
    assert!(matches!(&processes.take_wants()[..], [Want::Confirm(_)]));
    backing.confirm(2 * CONFIRMED_FOR);
    // Another file has its name: what was mapped since is that one.
    processes.replaced(&backing);
    assert_eq!(opened(&mut processes), [(9, 0)]);
    let of = |tgid, address| &processes.find(tgid, address, 5 * CONFIRMED_FOR).unwrap().backing;
    assert!(Arc::ptr_eq(of(7, 0x1000), &backing) && Arc::ptr_eq(of(9, 0x2000), &backing));
    assert!(!Arc::ptr_eq(of(9, 0x3000), &backing) && Arc::ptr_eq(of(9, 0x3000), of(9, 0x4000)));
}

#[test]
fn a_process_whose_end_was_lost_ends_when_it_is_not_found() {
    let mut processes = Processes::default();
    apply(&mut processes, 10, Event::Fork { parent: 1, tgid: 7 });
    processes.gone(7, 9);
    assert_eq!(processes.get_mut(7).unwrap().ended, None, "that was another one");
    processes.sampled(7, 15, false);
    processes.gone(7, 20);
    assert!(!processes.is_awaited(7));
    processes.gone(8, 20);
    processes.sweep(21 + GRACE, |_| false);
    assert_eq!(processes.len().0, 0);
    // Nobody asks about who has ended.
    processes.take_wants();
    processes.ask(7, 30);
    assert_eq!(lists(&mut processes), [] as [u32; 0]);
}

#[test]
fn who_is_gone_is_reported() {
    let mut processes = Processes::default();
    map(&mut processes, 5, 7, 0x1000, "/a");
    processes.take_wants();
    processes.get_mut(7).unwrap().blocks = 2;
    apply(&mut processes, 10, Event::Exit { tgid: 7 });
    assert_eq!(processes.sweep(11 + GRACE, |_| false), [(7, 2)]);
    assert_eq!(processes.len(), (0, 0));
}

#[test]
fn a_machine_with_too_many_processes_forgets_the_ended_first() {
    let mut processes = Processes::default();
    for tgid in 1..=u32::try_from(PROCESSES).unwrap() {
        map(&mut processes, 5, tgid, 0x1000, "/a");
    }
    apply(&mut processes, 6, Event::Exit { tgid: 9 });
    processes.sampled(3, 7, false);
    for tgid in [100_000, 100_001] {
        map(&mut processes, 8, tgid, 0x1000, "/a");
    }
    assert_eq!(processes.len().0, PROCESSES);
    assert_eq!(
        (path(&processes, 9, 0x1000, 8), path(&processes, 3, 0x1000, 8)),
        ("none".into(), "/a".into())
    );
    assert_eq!(processes.counts().processes_full, 2);
}

proptest! {
    /// Any order of events: what is found is what the process itself mapped there last, or inherited.
    #[test]
    fn any_history_is_taken(
        steps in prop::collection::vec((0_u8..6, 1_u32..5, 1_u32..5, 0_u64..4, 0_usize..3), 1..120),
    ) {
        let mut processes = Processes::default();
        for (time, (what, tgid, other, page, name)) in (1..).zip(steps) {
            let path = ["/a", "/bb", ""][name];
            match what {
                0 | 1 => map(&mut processes, time, tgid, 0x1000 * page, path),
                2 if tgid != other => apply(&mut processes, time, Event::Fork { parent: other, tgid }),
                3 => apply(&mut processes, time, Event::Exec { tgid }),
                4 => apply(&mut processes, time, Event::Exit { tgid }),
                _ => { processes.sampled(tgid, time, true); }
            }
            if what < 2 {
                let found = processes.find(tgid, 0x1000 * page, time);
                prop_assert_eq!(found.map(|mapping| &*mapping.backing.path), Some(path));
            }
            if what == 3 {
                prop_assert!((0..4).all(|page| processes.find(tgid, 0x1000 * page, time).is_none()));
            }
        }
        processes.sweep(1000 + GRACE, |_| false);
    }
}
