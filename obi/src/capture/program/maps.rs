//! The maps that agent and kernel programs share.
//!
//! In: a loaded object. Out: [`Maps`], typed.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;

use aya::Ebpf;
use aya::maps::{Array, HashMap, Map, MapData, MapError, MapInfo, Queue};
use aya_obj::generated::bpf_map_type;
use obi_ebpf::{
    TALLY_RESTS, global_state, ignored_program, stream_data, stream_key, tally_key, thread_state,
};

use super::LoadError;
use super::load::ObjectMaps;
use crate::capture::bpf::create;
use crate::capture::bpf::ring::Ring;
use crate::clock::monotonic_ns;

/// Maps that the agent reads and writes while running.
#[expect(missing_debug_implementations, reason = "the library's map types have none")]
pub struct Maps {
    /// Records from the kernel.
    pub events: Ring,
    /// Which program of a process is ignored, by tgid.
    pub process: HashMap<MapData, u32, IgnoredProgram>,
    /// How many of them are to be ignored; must never be less than there are.
    pub n_ignored: Array<MapData, u32>,
    /// Losses and uncovered connections by process.
    pub tally: HashMap<MapData, TallyKey, u64>,
    /// Tallies of processes that had no room above: number kind × 16 + reason of the one value.
    pub tally_rest: Array<MapData, [u64; TALLY_RESTS as usize]>,
    /// Exchanges whose end was lost.
    pub forgotten: Queue<MapData, u64>,
    /// Current exchange by thread.
    pub thread: HashMap<MapData, u32, ThreadState>,
    /// What streams of HTTP/2 have carried, but for those at hand.
    pub contents: HashMap<MapData, StreamKey, StreamData>,
    /// The programs' global variables.
    pub global: Array<MapData, GlobalState>,
}

/// Structures that the kernel side keeps in maps, as the loading library wants them.
macro_rules! in_maps {
    ($($(#[$doc:meta])* $name:ident($structure:ident);)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name(pub $structure);

        // SAFETY: transparent over a C structure of integers without padding (its zerocopy derives refuse padding at
        // compile time), so every bit pattern is valid.
        unsafe impl aya::Pod for $name {}
    )*};
}

in_maps! {
    /// [`global_state`] as a map value.
    GlobalState(global_state);
    /// [`ignored_program`] as a map value.
    IgnoredProgram(ignored_program);
    /// [`tally_key`] as a map key.
    TallyKey(tally_key);
    /// [`thread_state`] as a map value.
    ThreadState(thread_state);
    /// [`stream_key`] as a map key.
    StreamKey(stream_key);
    /// [`stream_data`] as a map value.
    StreamData(stream_data);
}

impl Maps {
    /// Takes the maps of an object that are read and written.
    pub(super) fn take(maps: &mut ObjectMaps) -> Result<Self, LoadError> {
        Ok(Self {
            events: take(maps, "events")?,
            process: take(maps, "process")?,
            n_ignored: take(maps, "n_ignored")?,
            tally: take(maps, "tally")?,
            tally_rest: take(maps, "tally_rest")?,
            forgotten: take(maps, "forgotten")?,
            thread: take(maps, "thread")?,
            contents: take(maps, "content")?,
            global: take(maps, ".bss")?,
        })
    }

    /// Lets the programs begin: all at once, since a view of sends without receives would make broken exchanges of
    /// whole ones.
    pub(super) fn activate(&mut self, keeps_accounts: bool) -> Result<(), LoadError> {
        let begun_ns = monotonic_ns();
        let keeps_accounts = keeps_accounts.into();
        let begin =
            GlobalState(global_state { active: 1, begun_ns, keeps_accounts, ..global_state::default() });
        self.global.set(0, begin, 0).map_err(|source| LoadError::Map { name: ".bss", source })
    }
}

/// Maps of a hook set that the samplers of stacks use, too.
#[derive(Debug)]
pub struct SharedMaps {
    pub(super) maps: Vec<(&'static str, OwnedFd)>,
    /// What those who sample waits need, or why it is not there.
    pub(super) accounts: Result<Accounts, String>,
}

/// Maps of a hook set that keeps accounts of threads.
#[derive(Debug)]
pub(super) struct Accounts {
    /// The accounts.
    pub(super) account: OwnedFd,
    /// Where the scheduler's hook goes on when a thread is woken that has waited for another one.
    pub(super) release: OwnedFd,
}

impl SharedMaps {
    /// Those of no hook set: nobody is ignored, and nothing is known of what anybody serves.
    ///
    /// # Errors
    /// When the kernel makes none.
    pub fn of_nobody() -> Result<Self, LoadError> {
        let make = |name: &'static str, kind: bpf_map_type, value: usize| {
            let size = |bytes: usize| u32::try_from(bytes).expect("a few bytes");
            let map = aya_obj::Map::new_from_params(kind as u32, 4, size(value), 1, 0);
            let map = MapData::create(map, name, None).map_err(|source| LoadError::Map { name, source })?;
            let descriptor = map.fd().as_fd().try_clone_to_owned();
            Ok((name, descriptor.map_err(|error| LoadError::Missing(format!("map `{name}`: {error}")))?))
        };
        let hash = bpf_map_type::BPF_MAP_TYPE_HASH;
        Ok(Self {
            maps: vec![
                make("thread", hash, size_of::<thread_state>())?,
                make("process", hash, size_of::<ignored_program>())?,
                make("n_ignored", bpf_map_type::BPF_MAP_TYPE_ARRAY, size_of::<u32>())?,
            ],
            accounts: Err("requests are not captured".to_owned()),
        })
    }

    /// Those of a hook set; `kept` says whether it keeps accounts.
    pub(super) fn of(of_object: &ObjectMaps, kept: Result<(), String>) -> Result<Self, LoadError> {
        let open = |name: &'static str| {
            let missing = || LoadError::Missing(format!("map `{name}`"));
            let map = match of_object.get(name) {
                // Storage of threads is a map that the library does not support, and opens all the same.
                Some(
                    Map::HashMap(map)
                    | Map::LruHashMap(map)
                    | Map::Array(map)
                    | Map::ProgramArray(map)
                    | Map::Unsupported(map),
                ) => map,
                _ => return Err(missing()),
            };
            map.fd().as_fd().try_clone_to_owned().map_err(|_| missing())
        };
        let lent = |name| Ok::<_, LoadError>((name, open(name)?));
        let accounts = match kept {
            Ok(()) => Ok(Accounts { account: open("account")?, release: open("release")? }),
            Err(reason) => Err(reason),
        };
        let mut maps = vec![lent("thread")?, lent("process")?, lent("n_ignored")?];
        // What runtimes say: not in portable objects, nor in those for other machines.
        let said =
            ["goroutine", "go_process", "python_process", "greenlet_process", "async_thread"].into_iter();
        maps.extend(
            said.filter(|name| of_object.contains_key(*name)).map(lent).collect::<Result<Vec<_>, _>>()?,
        );
        Ok(Self { maps, accounts })
    }
}

/// Estimated kernel memory of one element of a hash map beyond its key and value.
pub const ELEMENT_OVERHEAD: u64 = 48;

/// Bytes of these hash maps when every element exists, in use or not.
pub(super) fn whole_bytes(maps: &ObjectMaps, names: &[&str]) -> u64 {
    let maps = names.iter().filter_map(|name| match maps.get(*name)? {
        Map::HashMap(map) => map.info().ok(),
        _ => None,
    });
    maps.map(|info| u64::from(info.max_entries()) * element_bytes(&info)).sum()
}

/// Estimated kernel memory of one connection, wherever its state is kept.
pub(super) fn connection_bytes(maps: &ObjectMaps) -> u64 {
    let info = match maps.get("connection") {
        Some(Map::HashMap(map) | Map::SkStorage(map)) => map.info().ok(),
        _ => None,
    };
    info.as_ref().map_or(0, element_bytes)
}

/// Connections that are kept with their sockets can be: a kernel may take the map and the programs, and then have no
/// memory for any (seen with 7.2 on a processor without `cmpxchg16b`, as emulators have). Tried with a socket of ours.
pub(super) fn try_storage(ebpf: &Ebpf) -> io::Result<()> {
    let Some(Map::SkStorage(map)) = ebpf.map("connection") else { return Ok(()) };
    let value = vec![0; map.info().map_err(io::Error::other)?.value_size() as usize];
    let (socket, _other) = UnixStream::pair()?;
    create::store(map.fd().as_fd(), socket.as_fd(), &value)
}

fn element_bytes(info: &MapInfo) -> u64 {
    u64::from(info.key_size() + info.value_size()) + ELEMENT_OVERHEAD
}

fn take<T: TryFrom<Map, Error = MapError>>(
    maps: &mut ObjectMaps,
    name: &'static str,
) -> Result<T, LoadError> {
    let map = maps.remove(name).ok_or_else(|| LoadError::Missing(format!("map `{name}`")))?;
    T::try_from(map).map_err(|source| LoadError::Map { name, source })
}
