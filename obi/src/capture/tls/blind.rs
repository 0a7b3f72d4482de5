//! Which TLS a process has that is not read, and why it is not.
//!
//! In: a process whose TLS connections nobody reads. Out: [`Why`]. Looks at names of mapped libraries first, then into
//! the executable, of which it reads a bounded part. Called once for a process, off every hot path. What is not
//! recognised is said to be unknown.
#![forbid(unsafe_code)]

use super::elf::{Image, OpenFile, Source};
use super::mapping::{Mapping, mappings};
use super::place::Process;

/// The library and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Why {
    /// Path of the library, or what is compiled in; empty when unknown.
    pub library: String,
    /// Why it is not probed, in a few words.
    pub reason: String,
}

const NO_SSL_READ: &str = "it shows no SSL_read and SSL_write among its symbols";

/// Start of a library's file name, and what it is.
const LIBRARIES: [(&str, &str); 13] = [
    // Before the JVM that has loaded them.
    ("libnetty_tcnative", NO_SSL_READ),
    ("libio_grpc_netty_shaded_netty_tcnative", NO_SSL_READ),
    ("libtcnative", "it leaves TLS to OpenSSL, which is not probed"),
    ("libconscrypt_openjdk_jni", NO_SSL_READ),
    ("libgnutls.so", "what the machine code of GnuTLS does is not understood"),
    ("libssl3.so", "NSS is not probed yet"),
    ("libnspr4.so", "NSS is not probed yet"),
    ("libmbedtls.so", "it shows no mbedtls_ssl_read and mbedtls_ssl_write among its symbols"),
    ("libwolfssl.so", "it shows no wolfSSL_read and wolfSSL_write among its symbols"),
    ("libs2n.so", "s2n-tls is not probed"),
    ("librustls.so", "its functions are not found by their symbols"),
    ("libjvm.so", "the TLS of Java is compiled while it runs and is not probed"),
    ("libssl", NO_SSL_READ),
];

/// What an executable with TLS inside holds somewhere, and what that is.
const MARKS: [(&str, &str, &str); 4] = [
    ("rustls-", "rustls, compiled in", "its functions are not found by their symbols"),
    (
        "BoringSSL",
        "BoringSSL, compiled in",
        "the executable shows no SSL_read and SSL_write among its symbols",
    ),
    ("OpenSSL ", "OpenSSL, compiled in", "the executable shows no SSL_read and SSL_write among its symbols"),
    (
        "mbedtls_",
        "Mbed TLS, compiled in",
        "the executable shows no mbedtls_ssl_read and mbedtls_ssl_write among its symbols",
    ),
];

/// Bytes of an executable that are searched for marks.
const SEARCHED: u64 = 256 * 1024 * 1024;
const CHUNK: usize = 256 * 1024;

/// Finds out why nobody reads the TLS of a process.
pub(super) fn why(tgid: u32) -> Why {
    let unknown =
        || Why { library: String::new(), reason: "no TLS library that we know was found in it".to_owned() };
    let Ok(process) = Process::open(tgid) else {
        return Why { reason: "the process had ended before it was looked at".to_owned(), ..unknown() };
    };
    let mapped = mappings(&process.maps().unwrap_or_default());
    if let Some(why) = by_library(&mapped) {
        return why;
    }
    // The executable is mapped first.
    let executable = mapped.first().and_then(|mapping| process.mapped(mapping).ok());
    let opened = executable.and_then(|file| {
        let length = file.metadata().ok()?.len();
        Some(OpenFile { file, length })
    });
    opened.and_then(|file| by_content(&file)).unwrap_or_else(unknown)
}

/// How the kernel marks the name of a file that was deleted while it is mapped.
const DELETED: &str = " (deleted)";

/// What the names of mapped libraries say.
pub(super) fn by_library(mapped: &[Mapping]) -> Option<Why> {
    LIBRARIES.iter().find_map(|(start, reason)| {
        let named =
            |mapping: &&Mapping| mapping.path.rsplit('/').next().is_some_and(|name| name.starts_with(start));
        let mapping = mapped.iter().find(named)?;
        let reason = if mapping.path.ends_with(DELETED) {
            "its file was deleted while the process runs, and the agent may not open it: CAP_CHECKPOINT_RESTORE"
        } else {
            reason
        };
        Some(Why { library: mapping.path.clone(), reason: reason.to_owned() })
    })
}

/// Of a Go program without functions of Go's TLS by name.
const GO: &str = "its functions have no names that we know";

/// Whether Go has made this file.
fn is_go(source: &dyn Source) -> bool {
    Image::read(source).is_ok_and(|image| {
        [".go.buildinfo", ".note.go.buildid"].iter().any(|section| image.has_section(source, section))
    })
}

/// What an executable says of itself.
pub fn by_content(source: &dyn Source) -> Option<Why> {
    if is_go(source) {
        return Some(Why { library: "crypto/tls (Go), compiled in".to_owned(), reason: GO.to_owned() });
    }
    Image::read(source).ok()?;
    let mark = MARKS.get(first_mark(source)?)?;
    let (_, library, reason) = *mark;
    Some(Why { library: library.to_owned(), reason: reason.to_owned() })
}

/// Which of the marks there is, the first of them in the order of the table.
fn first_mark(source: &dyn Source) -> Option<usize> {
    let longest = MARKS.iter().map(|(mark, ..)| mark.len()).max()?;
    let end = source.length().min(SEARCHED);
    let mut buffer = vec![0; CHUNK + longest];
    let (mut offset, mut kept, mut best) = (0, 0, MARKS.len());
    while offset < end && best > 0 {
        let length = usize::try_from(end - offset).unwrap_or(CHUNK).min(CHUNK);
        source.read_at(offset, &mut buffer[kept..kept + length]).ok()?;
        let filled = kept + length;
        best =
            (0..best).find(|index| contains(&buffer[..filled], MARKS[*index].0.as_bytes())).unwrap_or(best);
        let keep = filled.min(longest);
        buffer.copy_within(filled - keep..filled, 0);
        (offset, kept) = (offset + length as u64, keep);
    }
    (best < MARKS.len()).then_some(best)
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    let Some((first, _)) = wanted.split_first() else { return true };
    let mut rest = bytes;
    while let Some(at) = rest.iter().position(|byte| byte == first) {
        rest = &rest[at..];
        if rest.starts_with(wanted) {
            return true;
        }
        rest = &rest[1..];
    }
    false
}
