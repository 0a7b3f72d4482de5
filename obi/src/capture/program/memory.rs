//! What maps take, as the kernel itself counts it.
//!
//! In: descriptors of this process, in `/proc/self/fdinfo`. Out: bytes. Refuses to know what a map is for.

use std::fs;

/// A map that this process holds open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    descriptor: u32,
    /// The kernel's number of the map: descriptors are used again.
    id: u32,
}

/// Maps that this process holds open.
#[derive(Debug, Clone, Default)]
pub struct HeldMaps(Vec<Held>);

impl HeldMaps {
    /// All of them, each once.
    pub(super) fn now() -> Self {
        let Ok(descriptors) = fs::read_dir("/proc/self/fdinfo") else { return Self::default() };
        let mut held: Vec<Held> = Vec::new();
        for entry in descriptors.flatten() {
            let descriptor = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(descriptor) = descriptor else { continue };
            if let Some((id, _)) = read(descriptor)
                && held.iter().all(|known| known.id != id)
            {
                held.push(Held { descriptor, id });
            }
        }
        Self(held)
    }

    /// Those that are not among `others`.
    pub(super) fn without(mut self, others: &Self) -> Self {
        self.0.retain(|held| others.0.iter().all(|other| other.id != held.id));
        self
    }

    /// What they take at this moment, bytes. Reads a file for each.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let bytes =
            |held: &Held| read(held.descriptor).filter(|(id, _)| *id == held.id).map(|(_, bytes)| bytes);
        self.0.iter().filter_map(bytes).sum()
    }
}

/// Number and bytes of the map behind a descriptor; `None` where it is of something else.
fn read(descriptor: u32) -> Option<(u32, u64)> {
    parse(&fs::read_to_string(format!("/proc/self/fdinfo/{descriptor}")).ok()?)
}

/// See `bpf_map_show_fdinfo` in `kernel/bpf/syscall.c`.
fn parse(text: &str) -> Option<(u32, u64)> {
    let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    Some((value("map_id:")?.parse().ok()?, value("memlock:")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_maps_have_a_number_and_a_size() {
        let check = |text: &str, expected: Option<(u32, u64)>| assert_eq!(parse(text), expected, "{text}");
        check("pos:\t0\nmap_type:\t1\nmemlock:\t8192\nmap_id:\t51\nfrozen:\t0\n", Some((51, 8192)));
        check("pos:\t0\nprog_type:\t5\nmemlock:\t4096\nprog_id:\t7\n", None);
        check("map_id:\tx\nmemlock:\t1\n", None);
        check("", None);
    }

    #[test]
    fn what_is_held_before_is_left_out() {
        let held = |ids: &[u32]| HeldMaps(ids.iter().map(|id| Held { descriptor: 0, id: *id }).collect());
        assert_eq!(held(&[1, 2, 3]).without(&held(&[2])).0, held(&[1, 3]).0);
        assert_eq!(held(&[4_000_000_000]).bytes(), 0, "a descriptor that is no map any more");
    }
}
