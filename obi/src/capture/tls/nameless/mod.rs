//! OpenSSL and BoringSSL compiled in and stripped: their functions by what they refer to.
//!
//! In: an ELF file without TLS functions by name. Out: [`Symbol`]s as if it had them, or why not. Both libraries say in
//! each error where it arose: OpenSSL 3 gives the function's name and the file's, BoringSSL the file's and a number of
//! the reason. Those strings stay in a stripped file, and so do the beginnings of functions, in the table that
//! exceptions are searched with. A function is taken when it is the only one that fits, and when the others that it
//! calls, or that call it, fit as well. Pure.
#![forbid(unsafe_code)]

mod boringssl;
mod openssl;
mod reference;
mod string;

use object::elf;
use thiserror::Error;

use self::reference::Code;
use self::string::Wanted;
use super::elf::{Image, Source};
use super::point::Symbol;
use crate::capture::executable::elf::Elf;

/// Why TLS that is in a file was not found.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum Unfound {
    /// No function, or several, refer to what this one refers to.
    #[error("{0} is compiled in without names, and its `{1}` is not found by what it refers to")]
    Function(&'static str, &'static str),
    /// It is other than what is known.
    #[error("{0} is compiled in without names, and what `{1}` does is not understood")]
    Code(&'static str, &'static str),
    /// Nothing says where functions begin.
    #[error("{0} is compiled in without names, and no table says where its functions begin")]
    Boundless(&'static str),
}

/// What a file without TLS functions by name has.
#[derive(Debug, Default)]
pub(super) struct Nameless {
    /// The functions of OpenSSL or BoringSSL; `None` when it has neither.
    pub(super) symbols: Option<Result<Vec<Symbol>, Unfound>>,
    /// It speaks of the files that rustls is made of.
    pub(super) has_rustls: bool,
}

/// Looks into the constants.
pub(super) fn look(source: &dyn Source, image: &Image) -> Nameless {
    let Ok(elf) = Elf::read(source) else { return Nameless::default() };
    let [is_ssl, is_published, is_vendored] = string::has(source, &elf, [MARK, RUSTLS, VENDORED]);
    // What only speaks of that file, as this agent does, has no such path; its code need not be searched.
    let is_ssl = is_ssl && string::places(source, &elf, &MARKED).iter().any(|places| !places.is_empty());
    let code = Code { source, image, elf: &elf };
    let is_known = is_ssl && image.machine() == elf::EM_X86_64;
    let symbols = is_known.then(|| openssl::symbols(&code).or_else(|| boringssl::symbols(&code)));
    Nameless { symbols: symbols.flatten(), has_rustls: is_published || is_vendored }
}

/// A part of the name of a file that both are made of.
const MARK: &[u8] = b"ssl_lib.c";
/// That file: OpenSSL's and BoringSSL's.
const MARKED: [Wanted; 2] = [Wanted::File("ssl_lib.c"), Wanted::File("ssl_lib.cc")];
/// The folder of rustls, with its version or without, and the file that panics where something was not to be.
const RUSTLS: &[u8] = b"/rustls-0.";
const VENDORED: &[u8] = b"/rustls/src/";
/// Fewer functions with errors of that file are not the library, but something that speaks of it.
const FUNCTIONS: usize = 8;

#[cfg(test)]
mod tests;
