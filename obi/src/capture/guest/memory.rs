//! The memory of a process, read from outside.
//!
//! In: a process. Out: bytes at its addresses. A read takes the process's memory lock and may wait for it, so only
//! threads that may wait do. The descriptor stays that of the program that it was opened for: after its end or another
//! exec nothing can be read. Refuses to write, and to know what is there.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Memory by address.
pub trait Memory {
    /// Fills `buffer` from this address on; `false`: not all of it is there.
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool;

    /// A word.
    fn word(&self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(address, &mut bytes).then(|| u64::from_le_bytes(bytes))
    }

    /// An integer of 32 bits.
    fn integer(&self, address: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.read(address, &mut bytes).then(|| u32::from_le_bytes(bytes))
    }
}

/// That of a process.
#[derive(Debug)]
pub struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens it, which needs `CAP_SYS_PTRACE` or the process's user.
    ///
    /// # Errors
    /// When it has gone, or we may not.
    pub fn open(tgid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{tgid}/mem")).map(Self)
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        self.0.read_exact_at(buffer, address).is_ok()
    }
}

/// A piece of memory, for tests: `bytes` at `start`.
#[derive(Debug, Clone, Default)]
pub struct Piece {
    /// Its first address.
    pub start: u64,
    /// What is there.
    pub bytes: Vec<u8>,
}

impl Memory for Piece {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        let at = usize::try_from(address.wrapping_sub(self.start)).unwrap_or(usize::MAX);
        let end = at.checked_add(buffer.len());
        let bytes = end.and_then(|end| self.bytes.get(at..end));
        bytes.map(|bytes| buffer.copy_from_slice(bytes)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_own_memory_is_there() {
        let value = 0x1234_5678_9abc_def0_u64;
        let memory = ProcessMemory::open(std::process::id()).unwrap();
        let address = (&raw const value).addr() as u64;
        assert_eq!(memory.word(address), Some(value));
        assert_eq!(memory.integer(address), Some(0x9abc_def0));
        assert_eq!(memory.word(8), None);
        assert_eq!(memory.word(u64::MAX - 3), None);
    }
}
