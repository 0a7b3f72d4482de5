//! Node's event loop: the functions in which its callbacks begin.
//!
//! In: a Node, which exports them all for modules that are linked with it. Out: [`Loop`]. Refuses to know what is done
//! with it, and what the functions do. Pure.

use crate::capture::executable::elf::Elf;
use crate::capture::guest::symbol;
use crate::capture::tls::elf::Source;

/// Addresses in the file's own layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loop {
    /// Begins the scope of a callback: `node::InternalCallbackScope(Environment *, …, const async_context &, …)`.
    pub scope: u64,
    /// The context is its fifth argument, as since Node 22, not its fourth.
    pub in_fifth: bool,
    /// Likewise, for an object with numbers of its own: `node::InternalCallbackScope(AsyncWrap *, int)`.
    pub object_scope: Text,
    /// Gives the program what was read from a stream.
    pub read: u64,
    /// Begin what is no callback with a number: timers, immediates, handles that close, messages of other threads.
    pub phases: [u64; 4],
    /// Runs what promises have left to do.
    pub microtasks: Option<u64>,
    /// Ends a scope: with the last of it, promises go on.
    pub close: u64,
    /// Tells the number of what runs, whose place it has to know: `node::AsyncHooksGetExecutionAsyncId(Isolate *)`.
    pub number: Text,
}

/// A function that is looked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text {
    /// Address in the file's own layout.
    pub address: u64,
    /// Bytes.
    pub size: u64,
}

const NUMBER: &[u8] = EXPORTED;
pub(super) const EXPORTED: &[u8] = b"_ZN4node29AsyncHooksGetExecutionAsyncIdEPN2v87IsolateE";
const OBJECT_SCOPE: &[u8] = b"_ZN4node21InternalCallbackScopeC1EPNS_9AsyncWrapEi";
const SCOPE: &[u8] = b"_ZN4node21InternalCallbackScopeC1EPNS_11EnvironmentE";
/// The context, in the names of such constructors.
const CONTEXT: &[u8] = b"RKNS_13async_contextE";
/// What stands before the context since Node 22 takes two registers.
const VARIANT: &[u8] = b"St7variantI";
const NAMES: [&[u8]; 7] = [
    b"_ZN4node15LibuvStreamWrap8OnUvReadElPK8uv_buf_t",
    b"_ZN4node11Environment9RunTimersEP10uv_timer_s",
    b"_ZN4node11Environment14CheckImmediateEP10uv_check_s",
    b"_ZN4node10HandleWrap7OnCloseEP11uv_handle_s",
    b"_ZN4node6worker11MessagePort9OnMessageENS1_21MessageProcessingModeE",
    b"_ZN2v88internal14MicrotaskQueue17PerformCheckpointEPNS_7IsolateE",
    b"_ZN4node21InternalCallbackScope5CloseEv",
];

/// As [`crate::capture::guest::event_loop`].
pub(in crate::capture::guest) fn event_loop(source: &dyn Source) -> Option<Loop> {
    let elf = Elf::read(source).ok().filter(|elf| elf.machine == object::elf::EM_X86_64)?;
    let (mut number, mut scope, mut object_scope, mut found) = (None, None, None, [None; NAMES.len()]);
    symbol::linked(&elf, source, |name, symbol| {
        // Most names are of something else.
        if !name.starts_with(b"_ZN") {
            return;
        }
        if name == NUMBER {
            number = Some(symbol);
        } else if name == OBJECT_SCOPE {
            object_scope = Some(symbol);
        } else if name.starts_with(SCOPE) && contains(name, CONTEXT) {
            scope = Some((symbol.address, contains(name, VARIANT)));
        } else if let Some(index) = NAMES.iter().position(|wanted| *wanted == name) {
            found[index] = Some(symbol.address);
        }
    });
    let [read, timers, immediates, closes, messages, microtasks, close] = found;
    let (scope, in_fifth) = scope?;
    let text = |symbol: symbol::Symbol| Text { address: symbol.address, size: symbol.size };
    Some(Loop {
        scope,
        in_fifth,
        object_scope: text(object_scope?),
        read: read?,
        phases: [timers?, immediates?, closes?, messages?],
        microtasks,
        close: close?,
        number: text(number?),
    })
}

fn contains(name: &[u8], part: &[u8]) -> bool {
    memchr::memmem::find(name, part).is_some()
}
