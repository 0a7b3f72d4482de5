//! The TCP ports that a process listens on.
//!
//! In: a pid. Out: ports. A socket belongs to every process that holds a descriptor of it, so workers that inherited
//! a listener have its port too. Limits: at most 65536 descriptors and the first 64 KiB of each of the namespace's
//! two tables (some 400 listeners) are looked at.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{Dir, Mode, OFlags, openat, readlinkat};

use super::facts::{Reader, open_process};
use super::proc_text;

const DESCRIPTORS_MAX: usize = 65_536;

/// The ports that the process listens on now, in order; empty when it is gone or not readable.
pub(super) fn listening(reader: &mut Reader, tgid: u32) -> Vec<u16> {
    let Some(process) = open_process(tgid) else { return Vec::new() };
    let mut listeners = Vec::new();
    for table in ["net/tcp", "net/tcp6"] {
        if let Some((text, _)) = reader.read(process.as_fd(), table) {
            listeners.extend(proc_text::listeners(text));
        }
    }
    if listeners.is_empty() {
        return Vec::new();
    }
    listeners.sort_unstable_by_key(|listener| listener.inode);
    let mut ports = Vec::new();
    for_each_socket(process.as_fd(), |inode| {
        if let Ok(index) = listeners.binary_search_by_key(&inode, |listener| listener.inode) {
            ports.push(listeners[index].port);
        }
    });
    ports.sort_unstable();
    ports.dedup();
    ports
}

fn for_each_socket(process: BorrowedFd<'_>, mut found: impl FnMut(u64)) {
    let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(descriptors) = openat(process, "fd", directory, Mode::empty()) else { return };
    let Ok(entries) = Dir::read_from(&descriptors) else { return };
    let mut target = Vec::with_capacity(64);
    for entry in entries.take(DESCRIPTORS_MAX).flatten() {
        target.clear();
        if let Ok(link) = readlinkat(&descriptors, entry.file_name(), std::mem::take(&mut target)) {
            if let Some(inode) = proc_text::socket_inode(link.as_bytes()) {
                found(inode);
            }
            target = link.into_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn our_own_listeners_are_found() {
        let listeners =
            ["127.0.0.1:0", "127.0.0.1:0", "[::1]:0"].map(|address| TcpListener::bind(address).ok());
        let expected = listeners.iter().flatten().map(|listener| listener.local_addr().unwrap().port());
        let found = listening(&mut Reader::new(), std::process::id());
        for port in expected {
            assert!(found.contains(&port), "{port} in {found:?}");
        }
        assert!(listening(&mut Reader::new(), u32::MAX).is_empty());
    }
}
