//! Hash maps that take all their memory at once, as kernels before 6.1 need it.
//!
//! In: a kernel object whose hash maps allocate on demand (`BPF_F_NO_PREALLOC`). Out: the same in which they do not.
//! Before 6.1 such maps call the kernel's allocator from wherever a program runs, which can deadlock in a kprobe.
//! The loading library takes map flags from the object alone, so the object is changed: the member that holds the
//! flags gets a name that nobody knows.
#![forbid(unsafe_code)]

use object::{Object as _, ObjectSection as _};

use crate::capture::btf::Types;

/// Elements of the largest maps where all of them take memory: all maps together stay below 25 MB.
pub(super) const MAX_ENTRIES: [(&str, u32); 3] =
    [("connection", 4608), ("spare", 256), ("tls_connection", 2048)];

/// `BPF_MAP_TYPE_HASH`
const HASH: u32 = 1;

/// The object with preallocated hash maps; `None` when it cannot be understood.
pub(super) fn preallocated(mut object: Vec<u8>) -> Option<Vec<u8>> {
    let file = object::File::parse(&*object).ok()?;
    let (offset, size) = file.section_by_name(".BTF")?.file_range()?;
    let (offset, size) = (usize::try_from(offset).ok()?, usize::try_from(size).ok()?);
    let names = Types::parse(object.get(offset..offset.checked_add(size)?)?).ok()?.flag_names(HASH);
    for name in names {
        // The string one byte on: `ap_flags`.
        let name = object.get_mut(offset + name..)?.first_chunk_mut::<4>()?;
        *name = (u32::from_ne_bytes(*name) + 1).to_ne_bytes();
    }
    Some(object)
}

#[cfg(test)]
mod tests {
    use aya_obj::generated::bpf_map_type;
    use obi_ebpf::Flavour;

    use super::*;
    use crate::capture::hook_set::HookSet;
    use crate::capture::program::ELEMENT_OVERHEAD;

    /// Which maps of an object have flags, by kind.
    fn flags(object: &[u8]) -> Vec<(String, u32, u32)> {
        let object = aya_obj::Object::parse(object).unwrap();
        let mut flags: Vec<_> =
            object.maps.iter().map(|(name, map)| (name.clone(), map.map_type(), map.map_flags())).collect();
        flags.sort();
        flags
    }

    #[test]
    fn only_hash_maps_lose_their_flags() {
        let mut n_objects = 0;
        for set in HookSet::ALL {
            for flavour in [Flavour::Modern, Flavour::Portable] {
                let Some(object) = obi_ebpf::object(set.name(), flavour) else { continue };
                n_objects += 1;
                let (before, after) = (flags(&object), flags(&preallocated(object).unwrap()));
                assert!(
                    before.iter().any(|map| map.1 == HASH && map.2 != 0),
                    "{set} {flavour:?}: {before:?}"
                );
                for ((name, kind, flags), (same, _, after)) in before.into_iter().zip(after) {
                    assert_eq!(name, same);
                    assert_eq!(after, if kind == HASH { 0 } else { flags }, "{set} {flavour:?} {name}");
                }
            }
        }
        assert!(n_objects > 0);
        assert_eq!(HASH, bpf_map_type::BPF_MAP_TYPE_HASH as u32);
    }

    #[test]
    fn all_maps_stay_within_the_budget() {
        const BUDGET: u64 = 25_000_000;
        let sets = obi_ebpf::OBJECTS.iter().filter(|object| object.set != "profile");
        for obi_ebpf::KernelObject { set, flavour, .. } in sets {
            let object = aya_obj::Object::parse(&obi_ebpf::object(set, *flavour).unwrap()).unwrap();
            let bytes = object.maps.iter().map(|(name, map)| {
                let changed =
                    MAX_ENTRIES.iter().find(|(changed, _)| changed == name && map.map_type() == HASH);
                let n = changed.map_or(map.max_entries(), |(_, most)| *most);
                if map.map_type() == bpf_map_type::BPF_MAP_TYPE_RINGBUF as u32 {
                    return u64::from(n);
                }
                u64::from(n) * (u64::from(map.key_size() + map.value_size()) + ELEMENT_OVERHEAD)
            });
            let bytes: u64 = bytes.sum();
            assert!((8 << 20..=BUDGET).contains(&bytes), "{set} {flavour:?}: {bytes} bytes");
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        assert_eq!(preallocated(b"\x7fELF".to_vec()), None);
        assert_eq!(preallocated(Vec::new()), None);
    }
}
