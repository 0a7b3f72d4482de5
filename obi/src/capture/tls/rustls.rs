//! Where the kernel programs go in rustls.
//!
//! In: a Rust program with symbols. Out: [`ProbePoint`]s, all of them or none, and then why. Each record that is sent
//! is made by the `encrypt` of a `MessageEncrypter`, whichever library of ciphers it belongs to: those functions are
//! called through a table, so they stay functions at every level of optimization. Each record that was received is
//! handed to the connection's state by one function; where in that state the encrypter is, which distinguishes one
//! connection from others, is proven from the machine code. What a message looks like in memory is proven at each
//! hit, by the kernel programs. Pure.
#![forbid(unsafe_code)]

use iced_x86::Register;
use obi_ebpf::{RUSTLS_ENCRYPTER_AT, RUSTLS_PRESENT_BIT, RUSTLS_SEQUENCE_AT};
use object::elf;
use thiserror::Error;

use super::code::{Encrypter, Function, Inner};
use super::elf::{Image, Located, Source};
use super::point::{Cost, ProbePoint, Returns};
use super::program::Program;

/// Why rustls in a file is not probed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Unproven {
    /// Another one than x86-64.
    #[error("rustls is probed on x86-64 only")]
    Machine,
    /// Functions that return cannot be seen here.
    #[error("rustls is probed where functions return, which this kernel does not allow")]
    Returns,
    /// It has other functions, or they were put into their callers.
    #[error("rustls has no function `{0}` of its own here")]
    Missing(&'static str),
    /// It is other than what is known.
    #[error("where rustls keeps what encrypts its records is not found in its machine code")]
    Code,
    /// It was there, and its symbols are gone.
    #[error("rustls is compiled in, and without the program's symbols its functions are not found")]
    Stripped,
}

/// What names of functions contain, in the older way to write them and in the newer one.
const ENCRYPTER: &str = "MessageEncrypter";
const STATE: &str = "11CommonState";
const LAYER: &str = "11RecordLayer";
/// Made of what is sent since 0.23; earlier versions hand over something else.
const CHUNKS: &str = "14OutboundChunks";
const PREFIXED: &str = "15PrefixedPayload";
const MARKS: [&str; 5] = [ENCRYPTER, STATE, LAYER, CHUNKS, PREFIXED];

const ENCRYPT: &str = "encrypt";
const RECEIVE: &str = "take_received_plaintext";
/// Functions of the state that may call the encrypter.
const SENDERS: [&str; 3] = ["20send_single_fragment", "20send_appdata_encrypt", "16send_msg_encrypt"];
const LAYERS: &str = "16encrypt_outgoing";

/// Bytes of a function that are looked at; the longest has some KB.
const FUNCTION_BYTES: u64 = 64 * 1024;
/// Functions of one kind: each library of ciphers has up to five.
const FUNCTIONS: usize = 32;

/// The probe points; `None` for files without names of rustls.
pub(super) fn plan(
    source: &dyn Source,
    image: &Image,
    returns: Returns,
) -> Option<Result<Vec<ProbePoint>, Unproven>> {
    let named = image.functions_with(source, &MARKS).ok()?;
    let encrypts: Vec<&Located> =
        named.iter().filter(|function| is_encrypt(&function.name)).take(FUNCTIONS).collect();
    let state = |end: &str| -> Vec<&Located> {
        let is_it = |it: &&Located| it.name.contains(STATE) && it.name.contains(end);
        named.iter().filter(is_it).take(FUNCTIONS).collect()
    };
    if encrypts.is_empty() && state("").is_empty() {
        return None;
    }
    if image.machine() != elf::EM_X86_64 {
        return Some(Err(Unproven::Machine));
    }
    if returns != Returns::Allowed {
        return Some(Err(Unproven::Returns));
    }
    let text = Text { source, image };
    let layer = named.iter().find(|function| function.name.contains(LAYER) && function.name.contains(LAYERS));
    let senders: Vec<&Located> = SENDERS.iter().flat_map(|name| state(name)).collect();
    let receives = state("23take_received_plaintext");
    let is_current = named.iter().any(|it| it.name.contains(CHUNKS) || it.name.contains(PREFIXED));
    Some(if encrypts.is_empty() || !is_current {
        Err(Unproven::Missing(ENCRYPT))
    } else if receives.is_empty() {
        Err(Unproven::Missing(RECEIVE))
    } else {
        text.points(&encrypts, &receives, &text.encrypters(&senders, layer))
    })
}

/// `<… as rustls::crypto::cipher::MessageEncrypter>::encrypt`, and not a closure in it.
fn is_encrypt(name: &str) -> bool {
    let older = |rest: &str| rest.strip_prefix("$GT$7encrypt17h").is_some_and(|hash| hash.len() >= 16);
    let newer = |rest: &str| rest.starts_with("7encrypt") && name.starts_with("_RNvX");
    let makes_none = name.contains("InvalidMessageEncrypter");
    name.rsplit_once(ENCRYPTER).is_some_and(|(_, rest)| !makes_none && (older(rest) || newer(rest)))
}

struct Text<'a> {
    source: &'a dyn Source,
    image: &'a Image,
}

impl Text<'_> {
    /// Where each of these functions has the encrypter.
    fn encrypters(&self, senders: &[&Located], layer: Option<&Located>) -> Vec<Encrypter> {
        let inner = layer.and_then(|layer| {
            let code = self.code(layer)?;
            let encrypter = Function::whole(layer.address, &code).encrypter(Register::RSI, None)?;
            Some(Inner { function: layer.address, encrypter })
        });
        let of = |sender: &&Located| {
            let code = self.code(sender)?;
            Function::whole(sender.address, &code).encrypter(Register::RDI, inner)
        };
        senders.iter().filter_map(of).collect()
    }

    fn points(
        &self,
        encrypts: &[&Located],
        receives: &[&Located],
        encrypters: &[Encrypter],
    ) -> Result<Vec<ProbePoint>, Unproven> {
        let first = encrypters.first().filter(|first| encrypters.iter().all(|it| it == *first));
        let Encrypter { at, sequence } = *first.ok_or(Unproven::Code)?;
        let cookie = 1 << RUSTLS_PRESENT_BIT | sequence << RUSTLS_SEQUENCE_AT | at << RUSTLS_ENCRYPTER_AT;
        let mut points = Vec::new();
        for encrypt in encrypts {
            let enter =
                self.at_entry(encrypt, 4, Program::RustlsEncrypt).ok_or(Unproven::Missing(ENCRYPT))?;
            points.push(ProbePoint { program: Program::RustlsEncrypted, at_return: true, ..enter });
            points.push(enter);
        }
        for receive in receives {
            let enter =
                self.at_entry(receive, 2, Program::RustlsReceive).ok_or(Unproven::Missing(RECEIVE))?;
            points.push(ProbePoint { cookie, ..enter });
        }
        points.sort_unstable();
        points.dedup();
        Ok(points)
    }

    /// Near the function's beginning, where its return address is on top of the stack.
    fn at_entry(&self, function: &Located, n_arguments: usize, program: Program) -> Option<ProbePoint> {
        let code = self.code(function)?;
        let entry =
            Function::new(function.address, &code).entry(n_arguments).filter(|entry| entry.can_return);
        let (address, cost) = match entry {
            Some(entry) => (entry.address, Cost::Emulated),
            None => (function.address, Cost::SingleStepped),
        };
        let offset = self.image.offset(address)?;
        Some(ProbePoint { program, offset, at_return: false, cost, cookie: 0 })
    }

    fn code(&self, function: &Located) -> Option<Vec<u8>> {
        let length = usize::try_from(function.size.min(FUNCTION_BYTES)).ok().filter(|length| *length > 0)?;
        self.image.code(self.source, function.address, length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_known_by_their_names() {
        fn check(name: &str, expected: bool) {
            assert_eq!(is_encrypt(name), expected, "{name}");
        }
        const HASH: &str = "h5d32031868071d85E";
        let older = |rest: &str| {
            format!(
                "_ZN111_$LT$rustls..crypto..ring..tls13..Tls13MessageEncrypter$u20$as$u20$rustls..crypto..cipher..MessageEncrypter{rest}"
            )
        };
        check(&older(&format!("$GT$7encrypt17{HASH}")), true);
        check(&older(&format!("$GT$7encrypt17{HASH}.llvm.7096387828251541782")), true);
        check(&older(&format!("$GT$21encrypted_payload_len17{HASH}")), false);
        check(&older(&format!("$GT$7encrypt28_$u7b$$u7b$closure$u7d$$u7d$17{HASH}")), false);
        let newer = "NtNtNtNtCsabc_6rustls6crypto4ring5tls13NtB4_21Tls13MessageEncrypterNtNtB8_6cipher16MessageEncrypter";
        check(&format!("_RNvXs_{newer}7encrypt"), true);
        check(&format!("_RNvXs_{newer}21encrypted_payload_len"), false);
        check(&format!("_RNCNvXs_{newer}7encrypt0Ba_"), false);
        check("SSL_write", false);
    }
}
