//! BoringSSL: each error has the name of its file and the number of its reason.
//!
//! In: machine code. Out: the functions by name. A function is known by the set of reasons that it gives, and by what
//! it calls. `SSL_free` gives none and is not found.

use std::collections::BTreeSet;

use super::reference::{Code, Extent, Referring};
use super::string::Wanted::{self, File};
use super::{FUNCTIONS, Unfound};
use crate::capture::tls::point::Symbol;

const LIBRARY: &str = "BoringSSL";
const SSL: usize = 0;
const BUFFER: usize = 1;
const BIO: usize = 2;
const WANTED: [Wanted; 3] = [File("ssl_lib.cc"), File("ssl_buffer.cc"), File("bio.cc")];
/// `ERR_LIB_SSL`, `ERR_LIB_BIO`.
const OF_SSL: u32 = 16;
const OF_BIO: u32 = 17;

/// `SSL_R_*` of `include/openssl/ssl.h`: numbers that stay, since a tool gives new ones.
const WRITE: &[u32] = &[66, 111, 215, 226];
/// Of what reads and peeks; the others arise in functions that may be compiled into it.
const READ_INTERNAL: [&[u32]; 2] = [&[215, 226], &[110, 182, 215, 226]];
const READ: &[u32] = &[66];
/// `SSL_connect` and `SSL_accept` do nothing else, and may have it compiled into them.
const HANDSHAKE: &[u32] = &[134];
const HANDSHAKES: usize = 3;
/// `BIO_R_*` of `include/openssl/bio.h`.
const BIO_WRITE: &[u32] = &[114, 115];
/// Where in a method of a BIO the function is that writes.
const METHOD_WRITE: u64 = 16;

/// `None` when the file has no BoringSSL.
pub(super) fn symbols(code: &Code<'_>) -> Option<Result<Vec<Symbol>, Unfound>> {
    let Some(referring) = code.referring(&WANTED) else { return Some(Err(Unfound::Boundless(LIBRARY))) };
    let functions = referring.functions(SSL);
    (functions.len() >= FUNCTIONS).then(|| Finding { code, referring, functions }.symbols())
}

struct Finding<'a> {
    code: &'a Code<'a>,
    referring: Referring,
    /// Those with errors of `ssl_lib.cc`.
    functions: Vec<Extent>,
}

impl Finding<'_> {
    fn symbols(&self) -> Result<Vec<Symbol>, Unfound> {
        let mut found = vec![
            ("SSL_read", self.read()?),
            ("SSL_write", self.only("SSL_write", WRITE)?),
            ("BIO_write", self.bio_write()?),
        ];
        let handshakes = self.with_reasons(HANDSHAKE);
        if handshakes.is_empty() || handshakes.len() > HANDSHAKES {
            return Err(Unfound::Function(LIBRARY, "SSL_do_handshake"));
        }
        found.extend(handshakes.into_iter().map(|function| ("SSL_do_handshake", function)));
        let symbol = |(name, function): &(&'static str, Extent)| {
            let begins = self.code.look(function, |it| it.entry(1)).flatten();
            begins.filter(|entry| entry.can_return).ok_or(Unfound::Code(LIBRARY, name))?;
            self.code.symbol(name, function).ok_or(Unfound::Code(LIBRARY, name))
        };
        found.iter().map(symbol).collect()
    }

    /// `SSL_read` and `SSL_peek` give the same reason and call the same function; the first calls one more, which lets
    /// go of what was read.
    fn read(&self) -> Result<Extent, Unfound> {
        let alike: Vec<(Extent, BTreeSet<u64>)> = self
            .with_reasons(READ)
            .into_iter()
            .map(|function| (function.clone(), self.targets(&function)))
            .collect();
        let inner = self.functions.iter().filter(|inner| {
            let reasons = self.reasons(inner, SSL, OF_SSL);
            let [least, most] = READ_INTERNAL.map(|reasons| reasons.iter().copied().collect::<BTreeSet<_>>());
            reasons.is_superset(&least) && reasons.is_subset(&most)
        });
        let mut pairs = inner.filter_map(|inner| {
            let mut callers = alike.iter().filter(|(_, targets)| targets.contains(&inner.start));
            let pair = [callers.next()?, callers.next()?];
            callers.next().is_none().then_some(pair)
        });
        let unknown = Err(Unfound::Function(LIBRARY, "SSL_read"));
        let (Some([(one, of_one), (other, of_other)]), None) = (pairs.next(), pairs.next()) else {
            return unknown;
        };
        match (of_one.is_superset(of_other), of_other.is_superset(of_one)) {
            (true, false) => Ok(one.clone()),
            (false, true) => Ok(other.clone()),
            _ => unknown,
        }
    }

    /// The one that the buffers of records are written by: it uses a method's function for that.
    fn bio_write(&self) -> Result<Extent, Unfound> {
        let buffers = self.referring.functions(BUFFER);
        let called: BTreeSet<u64> = buffers.iter().flat_map(|function| self.targets(function)).collect();
        let mut found = self.referring.functions(BIO);
        found.retain(|function| called.contains(&function.start));
        found.retain(|function| self.reasons(function, BIO, OF_BIO).iter().eq(BIO_WRITE));
        found.retain(|function| self.code.look(function, |it| it.loads_at(METHOD_WRITE)) == Some(true));
        match found.as_slice() {
            [one] => Ok(one.clone()),
            _ => Err(Unfound::Function(LIBRARY, "BIO_write")),
        }
    }

    fn only(&self, name: &'static str, reasons: &[u32]) -> Result<Extent, Unfound> {
        match self.with_reasons(reasons).as_slice() {
            [one] => Ok(one.clone()),
            _ => Err(Unfound::Function(LIBRARY, name)),
        }
    }

    fn with_reasons(&self, reasons: &[u32]) -> Vec<Extent> {
        let gives = |function: &&Extent| self.reasons(function, SSL, OF_SSL).iter().eq(reasons);
        self.functions.iter().filter(gives).cloned().collect()
    }

    fn reasons(&self, function: &Extent, file: usize, library: u32) -> BTreeSet<u32> {
        let files = self.referring.strings(file);
        self.code.look(function, |it| it.error_reasons(files, library)).unwrap_or_default()
    }

    fn targets(&self, function: &Extent) -> BTreeSet<u64> {
        self.code.look(function, |it| it.called()).unwrap_or_default()
    }
}
