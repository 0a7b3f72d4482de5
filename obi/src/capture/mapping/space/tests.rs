//! Mappings over each other, and what is found at which time.

use proptest::prelude::*;

use super::super::backing::Backings;
use super::super::side_band::Mapped;
use super::*;

fn mapping(backings: &mut Backings, range: (u64, u64), path: &str, since: u64) -> Mapping {
    let inode = if path.starts_with('/') { path.len() as u64 } else { 0 };
    let mapped =
        Mapped { start: range.0, end: range.1, offset: 0, device: (1, 1), inode, generation: 0, path };
    Mapping { start: range.0, end: range.1, offset: 0, backing: backings.of(&mapped), since }
}

fn reported(space: &Space) -> Vec<(u64, u64, u64, &str)> {
    space.now().iter().map(|m| (m.start, m.end, m.offset, &*m.backing.path)).collect()
}

fn path(found: Option<&Arc<Mapping>>) -> &str {
    found.map_or("none", |mapping| &mapping.backing.path)
}

#[test]
fn what_a_new_mapping_overlaps_has_gone() {
    fn check(known: &[(u64, u64, &str)], new: (u64, u64, &str), expected: &[(u64, u64, u64, &str)]) {
        let (mut backings, mut space) = (Backings::default(), Space::default());
        for (start, end, path) in known {
            space.map(mapping(&mut backings, (*start, *end), path, 1));
        }
        space.map(mapping(&mut backings, (new.0, new.1), new.2, 2));
        assert_eq!(reported(&space), expected, "{known:?} {new:?}");
    }
    check(&[], (10, 20, "/a"), &[(10, 20, 0, "/a")]);
    check(&[(10, 20, "/a")], (20, 30, "/b"), &[(10, 20, 0, "/a"), (20, 30, 0, "/b")]);
    check(&[(10, 20, "/a")], (10, 20, "/b"), &[(10, 20, 0, "/b")]);
    check(&[(10, 40, "/a")], (20, 30, "/b"), &[(10, 20, 0, "/a"), (20, 30, 0, "/b"), (30, 40, 20, "/a")]);
    check(
        &[(10, 20, "/a"), (20, 30, "/b")],
        (15, 25, "/c"),
        &[(10, 15, 0, "/a"), (15, 25, 0, "/c"), (25, 30, 5, "/b")],
    );
    // Code made at run time grows together.
    check(&[(10, 20, ""), (30, 40, "")], (20, 30, ""), &[(10, 40, 0, "")]);
    check(&[(10, 20, "")], (15, 30, ""), &[(10, 30, 0, "")]);
    check(&[(10, 20, "/a"), (30, 40, "")], (20, 30, ""), &[(10, 20, 0, "/a"), (20, 40, 0, "")]);
}

#[test]
fn what_is_known_changes_nothing() {
    let (mut backings, mut space) = (Backings::default(), Space::default());
    let mut map = |range, path, since| space.map(mapping(&mut backings, range, path, since));
    assert_eq!(map((10, 20), "/a", 1), Outcome::Changed);
    assert_eq!(map((10, 20), "/a", 2), Outcome::Known);
    assert_eq!(map((30, 60), "", 2), Outcome::Changed);
    assert_eq!(map((40, 50), "", 3), Outcome::Known);
    assert_eq!(map((10, 20), "/b", 3), Outcome::Changed);
}

#[test]
fn an_address_is_found_as_of_its_time() {
    let (mut backings, mut space) = (Backings::default(), Space::default());
    space.map(mapping(&mut backings, (10, 20), "/a", 0));
    space.map(mapping(&mut backings, (10, 20), "/b", 100));
    let before_fork = space.fork();
    space.map(mapping(&mut backings, (10, 20), "/c", 200));
    for (time, expected) in [(50, "/a"), (99, "/a"), (100, "/b"), (199, "/b"), (200, "/c"), (u64::MAX, "/c")]
    {
        assert_eq!(path(space.find(15, time)), expected, "{time}");
    }
    assert_eq!((path(space.find(20, 300)), path(space.find(9, 300))), ("none", "none"));
    assert_eq!(path(before_fork.find(15, 300)), "/b");
    space.forget_former(150);
    assert_eq!((path(space.find(15, 50)), path(space.find(15, 150))), ("none", "/b"));
    assert_eq!(space.former().count(), 1);
}

#[test]
fn a_list_replaces_what_is_older() {
    let (mut backings, mut space) = (Backings::default(), Space::default());
    space.map(mapping(&mut backings, (10, 20), "/a", 0));
    space.map(mapping(&mut backings, (30, 40), "/bb", 0));
    space.map(mapping(&mut backings, (50, 60), "/later", 300));
    let kept = Arc::clone(space.at(10).unwrap());
    let listed: Vec<Mapping> = [((10, 20), "/a"), ((70, 80), "/ccc")]
        .map(|(range, path)| mapping(&mut backings, range, path, 0))
        .into();
    assert!(space.replace(listed.clone(), 200));
    assert_eq!(reported(&space), [(10, 20, 0, "/a"), (50, 60, 0, "/later"), (70, 80, 0, "/ccc")]);
    assert!(Arc::ptr_eq(&kept, space.at(10).unwrap()));
    assert_eq!((path(space.find(35, 199)), path(space.find(35, 200))), ("/bb", "none"));
    assert!(!space.replace(listed, 200));
}

#[test]
fn a_process_that_maps_too_much_is_full() {
    let (mut backings, mut space) = (Backings::default(), Space::default());
    for n in 0..MAPPINGS as u64 {
        assert_eq!(space.map(mapping(&mut backings, (20 * n, 20 * n + 10), "/a", 0)), Outcome::Changed);
    }
    assert_eq!(space.map(mapping(&mut backings, (50_000, 50_010), "/a", 0)), Outcome::Full);
    assert_eq!(space.map(mapping(&mut backings, (2, 4), "/bb", 0)), Outcome::Full);
    assert_eq!(space.map(mapping(&mut backings, (0, 10), "/bb", 0)), Outcome::Changed);
    assert_eq!(space.now().len(), MAPPINGS);
}

proptest! {
    /// Against an array of what is at each address.
    #[test]
    fn every_address_is_in_what_was_mapped_there_last(
        steps in prop::collection::vec((0_u64..60, 1_u64..20, 0_usize..3), 1..60),
    ) {
        let (mut backings, mut space) = (Backings::default(), Space::default());
        let mut expected = vec![("none", 0); 100];
        for (time, (start, length, which)) in steps.into_iter().enumerate() {
            let (name, end) = (["", "/a", "/bb"][which], start + length);
            space.map(mapping(&mut backings, (start, end), name, time as u64));
            for (at, cell) in (0..).zip(&mut expected) {
                if (start..end).contains(&at) {
                    *cell = (name, at - start);
                }
            }
            for (at, (path_there, offset)) in (0..).zip(&expected) {
                let found = space.find(at, u64::MAX);
                prop_assert_eq!(path(found), *path_there, "at {}", at);
                if let Some(found) = found.filter(|found| !found.backing.path.is_empty()) {
                    prop_assert_eq!(found.file_offset(at), *offset, "at {}", at);
                }
            }
            prop_assert!(space.now().windows(2).all(|pair| pair[0].end <= pair[1].start));
        }
    }
}
