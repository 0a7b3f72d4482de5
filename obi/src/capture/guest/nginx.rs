//! nginx: the function in which it sends over TLS.
//!
//! In: an nginx, which exports it for modules that are linked with it. Out: its address. Refuses to know what is done
//! with it, and what the function does. Pure.

use crate::capture::guest::symbol;
use crate::capture::tls::elf::Source;

/// Every nginx has it: it makes requests.
pub(super) const EXPORTED: &[u8] = b"ngx_http_create_request";
const ENCRYPTED_SEND: &[u8] = b"ngx_ssl_write";

/// As [`crate::capture::guest::nginx`].
pub(in crate::capture::guest) fn encrypted_send(source: &dyn Source) -> Option<u64> {
    let [request, encrypted_send] = symbol::addresses(source, [EXPORTED, ENCRYPTED_SEND])?;
    request.and(encrypted_send)
}
