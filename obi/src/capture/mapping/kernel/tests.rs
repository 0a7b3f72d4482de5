//! Maps of the kernel that no program uses, searched as the kernel side does.

use proptest::prelude::*;

use obi_ebpf::MAPPING_EVAL;

use super::*;

fn reported(entries: &[mapping_entry]) -> Vec<(u64, u64, u64, u32)> {
    entries.iter().map(|entry| (entry.start, entry.end, entry.origin, entry.table)).collect()
}

#[test]
fn a_mapping_is_cut_along_its_tables() {
    fn check(address: u64, spans: &[(u64, u64, u32)], expected: &[(u64, u64, u64, u32)]) {
        let spans: Vec<Span> = spans
            .iter()
            .map(|(first, last, table)| Span { first: *first, last: *last, table: *table })
            .collect();
        let plain = mapping_entry { start: 0x1000, end: 0x2000, ..mapping_entry::default() };
        let mut entries = Vec::new();
        under_tables(plain, address, &spans, &mut entries);
        assert_eq!(reported(&entries), expected, "{address:#x} {spans:?}");
    }
    check(0x400, &[], &[(0x1000, 0x2000, 0, 0)]);
    check(0x400, &[(0x400, 0x1400, 7)], &[(0x1000, 0x2000, 0x1000, 7)]);
    // A table that begins before the mapping, and ends in it.
    check(0x400, &[(0x100, 0x500, 7)], &[(0x1000, 0x1100, 0xd00, 7), (0x1100, 0x2000, 0, 0)]);
    // Two tables, gaps before, between and behind; one that does not concern the mapping.
    check(
        0x400,
        &[(0x500, 0x600, 7), (0x700, 0x800, 8), (0x9000, 0x9100, 9)],
        &[
            (0x1000, 0x1100, 0, 0),
            (0x1100, 0x1200, 0x1100, 7),
            (0x1200, 0x1300, 0, 0),
            (0x1300, 0x1400, 0x1300, 8),
            (0x1400, 0x2000, 0, 0),
        ],
    );
    // An executable whose layout is above where it is mapped.
    check(
        u64::MAX - 0x800,
        &[(u64::MAX - 0x700, u64::MAX - 0x600, 7)],
        &[(0x1000, 0x1100, 0, 0), (0x1100, 0x1200, 0x1100, 7), (0x1200, 0x2000, 0, 0)],
    );
}

/// A map that no program uses.
pub(crate) fn empty<K, V>(most: u32) -> HashMap<MapData, K, V>
where
    K: aya::Pod,
    V: aya::Pod,
{
    let kind = aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_HASH as u32;
    let size = |bytes: usize| u32::try_from(bytes).unwrap();
    let on_demand = aya_obj::generated::BPF_F_NO_PREALLOC;
    let map =
        aya_obj::Map::new_from_params(kind, size(size_of::<K>()), size(size_of::<V>()), most, on_demand);
    HashMap::try_from(aya::maps::Map::HashMap(MapData::create(map, "test", None).unwrap())).unwrap()
}

fn empty_blocks(most: u32) -> Blocks {
    Blocks::new(empty(most))
}

/// As the kernel side does it.
fn find(map: &Blocks, tgid: u32, address: u64) -> Option<u32> {
    let get = |number| {
        let block = map.get(tgid, number)?;
        assert_eq!((block.key.tgid, block.key.block), (tgid, number));
        Some(block)
    };
    let last = |block: &mapping_block| {
        assert!(block.entry[block.n_entries as usize..].iter().all(|entry| entry.start == UNUSED_START));
        block.entry.iter().rev().find(|entry| entry.start <= address).copied()
    };
    let top = get(0)?;
    let mut entry = last(&top)?;
    if top.index != 0 {
        entry = last(&get(entry.table)?)?;
    }
    (address < entry.end).then_some(entry.table)
}

#[test]
fn what_a_process_maps_is_found_in_the_kernel() {
    let mut map = empty_blocks(1000);
    let entries = |count: u32| -> Vec<mapping_entry> {
        let entry = |n: u32| mapping_entry {
            start: 0x1000 * u64::from(n),
            end: 0x1000 * u64::from(n) + 0x800,
            table: n,
            ..mapping_entry::default()
        };
        (1..=count).map(entry).collect()
    };
    let mut before = 0;
    for count in [0, 1, 61, 62, 500, 61, 3] {
        before = map.put(7, &entries(count), before).unwrap();
        for n in 1..=count {
            let start = 0x1000 * u64::from(n);
            assert_eq!(find(&map, 7, start), Some(n), "{count}");
            assert_eq!(find(&map, 7, start + 0x7ff), Some(n), "{count}");
            assert_eq!(find(&map, 7, start + 0x800), None, "{count}");
        }
        assert_eq!(find(&map, 7, 0x1000 * u64::from(count + 1)), None);
        assert!(map.get(7, before).is_none(), "{count}");
    }
    map.remove(7, before);
    assert_eq!(find(&map, 7, 0x1000), None);
    // One with more than anything has: what leads to the rest is full.
    let count = map.put(8, &entries(5000), 0).unwrap();
    assert_eq!((count, find(&map, 8, 0x1000), find(&map, 8, 0x1000 * 5000)), (62, Some(1), None));
}

#[test]
fn a_full_map_keeps_nothing_of_a_process() {
    let mut map = empty_blocks(3);
    let entries = vec![mapping_entry { start: 1, end: 2, ..mapping_entry::default() }; 200];
    assert!(map.put(7, &entries, 0).is_err());
    assert!((0..5).all(|block| map.get(7, block).is_none()));
    assert_eq!(map.put(8, &entries[..100], 0).unwrap(), 3);
}

proptest! {
    #[test]
    fn entries_tile_the_mapping(
        address in any::<u64>(),
        spans in prop::collection::vec((any::<u32>(), 1_u64..0x900), 0..6),
    ) {
        let mut spans: Vec<Span> = spans
            .iter()
            .map(|(at, length)| address.wrapping_add(u64::from(*at) % 0x3000).wrapping_sub(0x1000)..*length)
            .map(|range| Span { first: range.start, last: range.start.saturating_add(range.end), table: 5 })
            .collect();
        spans.sort_by_key(|span| span.first);
        spans.dedup_by(|next, before| next.first < before.last);
        let plain = mapping_entry { start: 0x1000, end: 0x2000, ..mapping_entry::default() };
        let mut entries = Vec::new();
        under_tables(plain, address, &spans, &mut entries);
        prop_assert_eq!(entries.first().map(|entry| entry.start), Some(0x1000));
        prop_assert_eq!(entries.last().map(|entry| entry.end), Some(0x2000));
        prop_assert!(entries.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].start < pair[0].end));
    }
}

#[test]
fn the_evaluating_function_is_marked_where_it_lies() {
    let entry =
        |start: u64, end: u64, table: u32| mapping_entry { start, end, table, ..mapping_entry::default() };
    let check = |range: Range<u64>, expected: &[(u64, u64, u32, u32)]| {
        let mut entries = vec![entry(0x1000, 0x2000, 1), entry(0x2000, 0x3000, 2), entry(0x8000, 0x9000, 3)];
        flag(&mut entries, &range, MAPPING_EVAL);
        let reported: Vec<_> =
            entries.iter().map(|entry| (entry.start, entry.end, entry.table, entry.flags)).collect();
        assert_eq!(reported, expected, "{range:x?}");
    };
    let rest = (0x8000, 0x9000, 3, 0);
    check(
        0x1800..0x1900,
        &[
            (0x1000, 0x1800, 1, 0),
            (0x1800, 0x1900, 1, MAPPING_EVAL),
            (0x1900, 0x2000, 1, 0),
            (0x2000, 0x3000, 2, 0),
            rest,
        ],
    );
    check(
        0x1800..0x2800,
        &[
            (0x1000, 0x1800, 1, 0),
            (0x1800, 0x2000, 1, MAPPING_EVAL),
            (0x2000, 0x2800, 2, MAPPING_EVAL),
            (0x2800, 0x3000, 2, 0),
            rest,
        ],
    );
    check(0x1000..0x2000, &[(0x1000, 0x2000, 1, MAPPING_EVAL), (0x2000, 0x3000, 2, 0), rest]);
    check(0x4000..0x5000, &[(0x1000, 0x2000, 1, 0), (0x2000, 0x3000, 2, 0), rest]);
}
