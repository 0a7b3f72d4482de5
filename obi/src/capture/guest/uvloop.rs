//! uvloop, a loop for CPython's asyncio: the function by which it enters contexts.
//!
//! In: uvloop's extension module. Out: the address of its `Context_Enter(PyObject *)`, which it happens to export.
//! Refuses to know what is done with it. Pure.

use crate::capture::guest::symbol;
use crate::capture::tls::elf::Source;

/// The function, and what shows whose it is: the module's name, and that its functions work for uvloop's sockets.
const NAMES: [&[u8]; 3] = [b"Context_Enter", EXPORTED, b"MakeUnixSockPyAddr"];
pub(super) const EXPORTED: &[u8] = b"PyInit_loop";

/// As [`crate::capture::guest::uvloop`].
pub(in crate::capture::guest) fn enters(source: &dyn Source) -> Option<u64> {
    let [enter, module, sockets] = symbol::addresses(source, NAMES)?;
    module.and(sockets).and(enter)
}
