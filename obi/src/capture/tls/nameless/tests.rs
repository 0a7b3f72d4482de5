//! Against programs whose names are known: what is found without them is what they name.

use std::fs;
use std::path::Path;
use std::process::Command;

use proptest::prelude::*;

use super::super::file::probe_points;
use super::super::point::Returns;
use super::*;

/// Uses all that a server and a client use.
const PROGRAM: &str = "
#include <openssl/ssl.h>
int main(void) {
    SSL *ssl = SSL_new(SSL_CTX_new(TLS_method()));
    char byte; size_t n;
    return SSL_accept(ssl) + SSL_read(ssl, &byte, 1) + SSL_write(ssl, &byte, 1) + SSL_read_ex(ssl, &byte, 1, &n);
}
";

/// That program with OpenSSL compiled in: with names and without.
fn program(folder: &Path, arguments: &[&str]) -> (Vec<u8>, Vec<u8>) {
    let (source, named) = (folder.join("program.c"), folder.join("program"));
    fs::write(&source, PROGRAM).unwrap();
    let mut command = Command::new("cc");
    command.arg(&source).arg("-o").arg(&named).args(arguments);
    command.args(["-Wl,-Bstatic", "-lssl", "-lcrypto", "-Wl,-Bdynamic", "-lpthread", "-ldl"]);
    assert!(command.status().unwrap().success());
    let stripped = folder.join("stripped");
    assert!(Command::new("strip").arg("-s").arg("-o").arg(&stripped).arg(&named).status().unwrap().success());
    (fs::read(named).unwrap(), fs::read(stripped).unwrap())
}

fn found(bytes: &[u8]) -> Option<Result<Vec<Symbol>, Unfound>> {
    look(&bytes, &Image::read(&bytes).unwrap()).symbols
}

#[test]
fn openssl_is_found_where_it_was_named() {
    let folder = tempfile::tempdir().unwrap();
    for arguments in [&["-O2"][..], &["-no-pie"]] {
        let (named, stripped) = program(folder.path(), arguments);
        let image = Image::read(&named.as_slice()).unwrap();
        let names = ["bio_write_intern", "SSL_sendfile"];
        let [gather, send] =
            names.map(|name| image.functions(&named.as_slice(), &[name]).unwrap()[0].address);
        let found = found(&stripped).unwrap().unwrap();
        let count = found.iter().filter(|symbol| !["BIO_write", "SSL_sendfile"].contains(&symbol.name));
        for Symbol { name, address, .. } in &found {
            let expected = match *name {
                "BIO_write" => gather,
                "SSL_sendfile" => send,
                name => image.functions(&named.as_slice(), &[name]).unwrap()[0].address,
            };
            assert_eq!(*address, expected, "{name}");
        }
        assert_eq!(count.count(), 5, "{arguments:?}");
        // The same places are probed; those of the functions that free and that go by other ones differ.
        let points = |bytes: &[u8]| {
            let mut points = probe_points(&bytes, Returns::Allowed).unwrap().points;
            points.retain(|point| point.program.moves_bytes());
            points.iter().map(|point| (point.program, point.offset, point.cost)).collect::<Vec<_>>()
        };
        assert_eq!(points(&stripped), points(&named), "{arguments:?}");
        assert_eq!(points(&stripped).len(), 2);
    }
}

/// A copy of a string makes a second function fit, or the only one unknown: then nothing is probed, and that is said.
#[test]
fn what_is_not_unique_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (_, stripped) = program(folder.path(), &[]);
    fn check(file: &[u8], from: &[u8], to: &[u8], expected: &str) {
        let mut bytes = file.to_vec();
        let places: Vec<usize> = memchr::memmem::find_iter(file, from).collect();
        assert!(!places.is_empty(), "{from:?}");
        for place in places {
            bytes[place..place + to.len()].copy_from_slice(to);
        }
        let plan = probe_points(&bytes.as_slice(), Returns::Allowed).unwrap();
        let why = plan.not_probed.unwrap_or_default();
        assert!(
            plan.points.is_empty() && why.contains(expected) && why.is_empty() == expected.is_empty(),
            "{why}"
        );
    }
    check(&stripped, b"\0SSL_read\0", b"\0SSL_rexd\0", "its `SSL_read` is not found");
    check(&stripped, b"\0SSL_peek\0", b"\0SSL_read\0", "its `SSL_read` is not found");
    check(&stripped, b"\0ssl_write_internal\0", b"\0ssl_write_enternal\0", "its `ssl_write_internal` is not");
    check(&stripped, b"\0bio_write_intern\0", b"\0bio_write_jntern\0", "its `bio_write_intern` is not");
    check(&stripped, b"\0SSL_do_handshake\0", b"\0SSL_do_handsbake\0", "its `SSL_do_handshake` is not");
    check(&stripped, b"\0.eh_frame_hdr\0", b"\0.eh_frame_hxr\0", "no table says where");
    check(&stripped, b"ssl/ssl_lib.c\0", b"ssl/sss_lib.c\0", "");
}

/// What is found lies in the file, whatever was done to strings, code and the table of functions.
#[test]
fn a_damaged_program_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let (_, stripped) = program(folder.path(), &[]);
    let mut rng = fastrand::Rng::with_seed(7);
    for _ in 0..16 {
        let mut bytes = stripped.clone();
        for _ in 0..20_000 {
            let at = rng.usize(0x1000..bytes.len());
            bytes[at] = rng.u8(..);
        }
        for point in probe_points(&bytes.as_slice(), Returns::Allowed).unwrap_or_default().points {
            assert!(point.offset < bytes.len() as u64);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    /// References, strings and the table of functions may hold anything.
    #[test]
    fn any_code_is_taken(bytes in prop::collection::vec(any::<u8>(), 0..600), files in prop::collection::vec(0_u64..700, 3)) {
        let function = super::super::code::Function::new(0, &bytes);
        let _ = (function.error_reasons(&files, 16), function.called(), function.loads_at(16));
        let _ = (function.typed_call(23), function.inner_call(false));
    }
}
