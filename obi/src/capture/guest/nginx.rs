//! nginx: the functions in which it makes requests of what was read, and sends.
//!
//! In: an nginx, which exports them for modules that are linked with it. Out: [`Functions`]. Refuses to know what is
//! done with it, and what the functions do. Pure.

use crate::capture::guest::symbol;
use crate::capture::tls::elf::Source;

/// Addresses in the file's own layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Functions {
    /// Makes a request: `ngx_http_create_request(ngx_connection_t *)`.
    pub request: u64,
    /// Sends a chain of buffers: `ngx_linux_sendfile_chain(ngx_connection_t *, ngx_chain_t *, off_t)`.
    pub send: u64,
    /// Sends bytes over TLS: `ngx_ssl_write(ngx_connection_t *, u_char *, size_t)`.
    pub encrypted_send: Option<u64>,
}

const NAMES: [&[u8]; 3] = [EXPORTED, b"ngx_linux_sendfile_chain", b"ngx_ssl_write"];
pub(super) const EXPORTED: &[u8] = b"ngx_http_create_request";

/// As [`crate::capture::guest::nginx`].
pub(in crate::capture::guest) fn functions(source: &dyn Source) -> Option<Functions> {
    let [request, send, encrypted_send] = symbol::addresses(source, NAMES)?;
    Some(Functions { request: request?, send: send?, encrypted_send })
}
