//! A hash map of the kernel's, as bytes: written by the agent, read by kernel programs.
//!
//! In: a map's descriptor, keys and values. Out: nothing but errors. Refuses to know what is in them.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use aya_obj::generated::{bpf_cmd, bpf_map_type};

use super::{call, empty, make};

/// A map. All of its users may share one.
#[derive(Debug)]
pub struct Hash {
    descriptor: OwnedFd,
    key_bytes: usize,
    value_bytes: usize,
}

/// Sizes of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Of a key, bytes.
    pub key_bytes: usize,
    /// Of a value, bytes.
    pub value_bytes: usize,
}

impl Hash {
    /// A map that a loaded object has, with keys and values of these sizes.
    #[must_use]
    pub fn of(descriptor: OwnedFd, shape: Shape) -> Self {
        Self { descriptor, key_bytes: shape.key_bytes, value_bytes: shape.value_bytes }
    }

    /// Creates one that allocates on demand.
    ///
    /// # Errors
    /// As `bpf(2)` says.
    pub fn create(shape: Shape, most: u32) -> io::Result<Self> {
        /// `BPF_F_NO_PREALLOC`
        const ON_DEMAND: u32 = 1;
        let size = |bytes: usize| u32::try_from(bytes).map_err(io::Error::other);
        let mut attributes = empty();
        // SAFETY: every field of the union's member is a plain integer, and all bytes are initialised.
        let map = unsafe { &mut attributes.__bindgen_anon_1 };
        map.map_type = bpf_map_type::BPF_MAP_TYPE_HASH as u32;
        map.key_size = size(shape.key_bytes)?;
        map.value_size = size(shape.value_bytes)?;
        map.max_entries = most;
        map.map_flags = ON_DEMAND;
        make(bpf_cmd::BPF_MAP_CREATE, &mut attributes).map(|descriptor| Self::of(descriptor, shape))
    }

    /// Puts a value in the place of what the key had.
    ///
    /// # Errors
    /// As `bpf(2)` says: `E2BIG` when the map is full, `ENOMEM` when the kernel has no memory.
    pub fn put(&self, key: &[u8], value: &[u8]) -> io::Result<()> {
        if key.len() != self.key_bytes || value.len() != self.value_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.element(bpf_cmd::BPF_MAP_UPDATE_ELEM, key, value.as_ptr() as u64)
    }

    /// Takes a key out.
    ///
    /// # Errors
    /// As `bpf(2)` says: `ENOENT` when it is not there.
    pub fn remove(&self, key: &[u8]) -> io::Result<()> {
        if key.len() != self.key_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.element(bpf_cmd::BPF_MAP_DELETE_ELEM, key, 0)
    }

    /// Reads what the key has.
    ///
    /// # Errors
    /// As `bpf(2)` says: `ENOENT` when it is not there.
    pub fn get(&self, key: &[u8]) -> io::Result<Vec<u8>> {
        if key.len() != self.key_bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The kernel writes values of a multiple of eight bytes.
        let mut value = vec![0; self.value_bytes.next_multiple_of(8)];
        self.element(bpf_cmd::BPF_MAP_LOOKUP_ELEM, key, value.as_mut_ptr() as u64)?;
        value.truncate(self.value_bytes);
        Ok(value)
    }

    fn element(&self, command: bpf_cmd, key: &[u8], value: u64) -> io::Result<()> {
        let mut attributes = empty();
        // SAFETY: every field of the union's member is a plain integer, and all bytes are initialised.
        let element = unsafe { &mut attributes.__bindgen_anon_2 };
        element.map_fd = self.descriptor.as_raw_fd().unsigned_abs();
        element.key = key.as_ptr() as u64;
        element.__bindgen_anon_1.value = value;
        call(command, &mut attributes).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_there_until_it_is_removed() {
        let map = Hash::create(Shape { key_bytes: 4, value_bytes: 6 }, 2).unwrap();
        map.put(b"key1", b"value1").unwrap();
        map.put(b"key1", b"value2").unwrap();
        assert_eq!(map.get(b"key1").unwrap(), b"value2");
        map.put(b"key2", b"value3").unwrap();
        assert_eq!(map.put(b"key3", b"value4").unwrap_err().raw_os_error(), Some(libc::E2BIG));
        map.remove(b"key1").unwrap();
        assert_eq!(map.get(b"key1").unwrap_err().raw_os_error(), Some(libc::ENOENT));
        assert_eq!(map.put(b"key", b"value1").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(map.get(b"").unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(map.remove(b"").unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
