//! The framing scan alone, as tables: newlines, framing headers, chunk sizes.

use obi_ebpf_host::{first_newline, scan_chunk, scan_head};
use proptest::prelude::*;

const MORE: u32 = 0;
const HEAD_END: u32 = 1;
const NOT_HTTP: u32 = 2;
const HTTP2: u32 = 3;
const TLS: u32 = 4;
const MALFORMED: u32 = 5;

const START: u32 = 0;
const HEAD: u32 = 1;
const LENGTH: u32 = 2;
const CHUNK_SIZE: u32 = 4;
const CHUNK_BODY: u32 = 5;
const TRAILER: u32 = 6;
const UNTIL_CLOSE: u32 = 7;

proptest! {
    #[test]
    fn newlines_are_found_as_by_hand(any in any::<[u8; 8]>(), mask in any::<u8>()) {
        for filler in [any[0], 0x0a, 0x0b, 0x8a, 0x09, 0xff, 0x00] {
            let mut bytes = any;
            for (bit, byte) in bytes.iter_mut().enumerate() {
                if mask & (1 << bit) != 0 {
                    *byte = filler;
                }
            }
            let flags = bytes.map(|byte| if byte == b'\n' { 0x80 } else { 0 });
            let first = bytes.iter().position(|byte| *byte == b'\n').map_or(0, |at| at as u32 + 1);
            prop_assert_eq!(first_newline(u64::from_le_bytes(bytes)), (u64::from_le_bytes(flags), first));
        }
    }
}

/// A whole head with `field` as a line: what follows it, and the content length.
fn check_field(first: &str, field: &str, result: u32, mode: u32, length: u64) {
    let head = scan_head(format!("{first}\r\n{field}\r\n\r\n").as_bytes());
    assert_eq!((head.result, head.content_length), (result, length), "{field:?}");
    if result == HEAD_END {
        assert_eq!(head.mode, mode, "{field:?}");
    }
}

#[test]
fn fields_that_frame_a_request() {
    let check = |field, result, mode, length| check_field("POST / HTTP/1.1", field, result, mode, length);
    check("Content-Length: 5", HEAD_END, LENGTH, 5);
    check("content-length:5", HEAD_END, LENGTH, 5);
    check("CONTENT-LENGTH:\t5 \t", HEAD_END, LENGTH, 5);
    check("Content-Length: 0", HEAD_END, START, 0);
    check("Content-Length: 000000000000017", HEAD_END, LENGTH, 17);
    check("Content-Length: 9223372036854775807", HEAD_END, LENGTH, 9_223_372_036_854_775_807);
    check("Content-Length: 12\r\nContent-Length: 12", HEAD_END, LENGTH, 12);
    check("Content-Length: 5\nX: y", HEAD_END, LENGTH, 5);
    check("Transfer-Encoding: chunked", HEAD_END, CHUNK_SIZE, 0);
    check("Transfer-Encoding:chunked", HEAD_END, CHUNK_SIZE, 0);
    check("transfer-encoding: GZIP,Chunked", HEAD_END, CHUNK_SIZE, 0);
    check("Transfer-Encoding: chunked ", HEAD_END, CHUNK_SIZE, 0);
    check("Transfer-Encoding: chunked\t  \t", HEAD_END, CHUNK_SIZE, 0);
    check("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked", HEAD_END, CHUNK_SIZE, 0);
    check("Transfer-Encoding: chunked\r\nContent-Length: 5", HEAD_END, CHUNK_SIZE, 5);
    for decoy in
        ["X-Content-Length: 5", "Content-Length-2: 5", "Content-Lengt: 5", "Content-Length : 5", "X: chunked"]
    {
        check(decoy, HEAD_END, START, 0);
    }
}

#[test]
fn fields_that_frame_nothing_sure() {
    for length in ["", " ", "+5", "-5", "0x5", "5,5", "5 5", "5;", "99999999999999999999", "5\u{b}"] {
        let head = scan_head(format!("POST / HTTP/1.1\r\nContent-Length: {length}\r\n\r\n").as_bytes());
        assert_eq!(head.result, MALFORMED, "{length:?}");
    }
    // The number does not fit the window: its first digits are not its value.
    let spaces = " ".repeat(20);
    assert_eq!(
        scan_head(format!("POST / HTTP/1.1\r\nContent-Length:{spaces}12345\r\n\r\n").as_bytes()).result,
        MALFORMED
    );
    let different = "POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n";
    assert_eq!(scan_head(different.as_bytes()).result, MALFORMED);
}

#[test]
fn fields_that_frame_a_response() {
    let check = |status, field, mode| {
        check_field(
            &format!("HTTP/1.1 {status}"),
            field,
            HEAD_END,
            mode,
            if field.contains("Length") { 5 } else { 0 },
        );
    };
    check("200 OK", "Content-Length: 5", LENGTH);
    check("200", "Content-Length: 5", LENGTH);
    check("200 OK", "X: y", UNTIL_CLOSE);
    check("200 OK", "Transfer-Encoding: gzip", UNTIL_CLOSE);
    check("200 OK", "Transfer-Encoding: xchunked", UNTIL_CLOSE);
    check("200 OK", "Transfer-Encoding: chunked, gzip", UNTIL_CLOSE);
    check("200 OK", "Transfer-Encoding: chunked", CHUNK_SIZE);
    for bodiless in ["100 Continue", "101 Switching Protocols", "204 No Content", "304 Not Modified"] {
        check(bodiless, "Content-Length: 5", START);
    }
}

#[test]
fn start_lines() {
    for (line, result) in [
        ("GET / HTTP/1.1\r\n\r\n", HEAD_END),
        ("\r\n\r\nGET / HTTP/1.0\n\n", HEAD_END),
        ("A b HTTP/1.1\r\n\r\n", HEAD_END),
        ("M-SEARCH * HTTP/1.1\r\n\r\n", HEAD_END),
        ("GET /a b HTTP/1.1\r\n\r\n", HEAD_END),
        ("HTTP/1.1 200 OK\r\n\r\n", HEAD_END),
        ("HTTP/1.1 2", MORE),
        ("GET", MORE),
        ("HTT", MORE),
        ("\r", MORE),
        ("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", HTTP2),
        ("\u{16}\u{3}\u{1}\u{2}\0\u{1}\0\u{1}", TLS),
        ("\u{16}", TLS),
        ("GET /\r\n", NOT_HTTP),
        ("GET / HTTP/3.0\r\n\r\n", NOT_HTTP),
        ("get / HTTP/1.1\r\n\r\n", HEAD_END),
        ("CUSTOM2 / HTTP/1.1\r\n\r\n", HEAD_END),
        ("get key HTTP\r\n", NOT_HTTP),
        ("HTTP/1.1 099 No\r\n\r\n", NOT_HTTP),
        ("HTTP/1.1 2x0 No\r\n\r\n", NOT_HTTP),
        ("HTTP/1.1 20\r\n", NOT_HTTP),
        ("SSH-2.0-OpenSSH_9.2\r\n", NOT_HTTP),
        ("220 mail ESMTP\r\n", NOT_HTTP),
        ("EHLO example.com\r\n", NOT_HTTP),
        ("*1\r\n$4\r\nPING\r\n", NOT_HTTP),
        ("\0\0\0\u{8}\u{4}", NOT_HTTP),
    ] {
        let head = scan_head(line.as_bytes());
        assert_eq!(head.result, result, "{line:?}");
        if result == MORE {
            assert_eq!(head.mode, HEAD);
        }
    }
}

#[test]
fn chunk_sizes() {
    const BEGINS: u32 = 1;
    const END: u32 = 2;
    const BAD: u32 = 3;
    let check = |text: &str, result, mode, remaining: u64| {
        let chunk = scan_chunk(text.as_bytes());
        assert_eq!((chunk.result, chunk.used as usize), (result, text.len()), "{text:?}");
        if result != BAD {
            assert_eq!((chunk.mode, chunk.remaining), (mode, remaining), "{text:?}");
        }
    };
    check("5\r\n", BEGINS, CHUNK_BODY, 7);
    check("a\n", BEGINS, CHUNK_BODY, 12);
    check("1aF\r\n", BEGINS, CHUNK_BODY, 0x1af + 2);
    check("fffffffffffffff\r\n", BEGINS, CHUNK_BODY, 0x0fff_ffff_ffff_ffff + 2);
    check("000000000000005\r\n", BEGINS, CHUNK_BODY, 7);
    check("5;name=\"v;1f\"\r\n", BEGINS, CHUNK_BODY, 7);
    check("5 \t;x\r\n", BEGINS, CHUNK_BODY, 7);
    check("0\r\n", MORE, TRAILER, 0);
    check("0\r\n\r\n", END, TRAILER, 0);
    check("0;x\n\n", END, TRAILER, 0);
    check("0\r\nX: y\r\nZ: 5\r\n\r\n", END, TRAILER, 0);
    check("\n", BAD, 0, 0);
    check("\r\n", BAD, 0, 0);
    check(";x\r\n", BAD, 0, 0);
    check("g", BAD, 0, 0);
    check("-", BAD, 0, 0);
    check("1111111111111111", BAD, 0, 0);
}
