//! OpenSSL 3: each function gives its own name where an error arises.
//!
//! In: machine code. Out: the functions by name. `SSL_read_ex` and `SSL_write_ex` have no errors of their own: they are
//! the others that call what `SSL_read` and `SSL_write` call. `SSL_free` has none and is not found.

use super::reference::{Code, Extent, Referring};
use super::string::Wanted::{self, File, Whole};
use super::{FUNCTIONS, Unfound};
use crate::capture::tls::point::Symbol;

const LIBRARY: &str = "OpenSSL";
const SSL: usize = 0;
const BIO: usize = 1;
const WANTED: [Wanted; 9] = [
    File("ssl_lib.c"),
    File("bio_lib.c"),
    Whole("SSL_read"),
    Whole("ssl_read_internal"),
    Whole("SSL_write"),
    Whole("ssl_write_internal"),
    Whole("SSL_do_handshake"),
    Whole("SSL_sendfile"),
    Whole("bio_write_intern"),
];

/// A function by its name, in a file.
struct Sought {
    name: &'static str,
    string: usize,
    file: usize,
}

const READ: Sought = Sought { name: "SSL_read", string: 2, file: SSL };
const READ_INTERNAL: Sought = Sought { name: "ssl_read_internal", string: 3, file: SSL };
const WRITE: Sought = Sought { name: "SSL_write", string: 4, file: SSL };
const WRITE_INTERNAL: Sought = Sought { name: "ssl_write_internal", string: 5, file: SSL };
const HANDSHAKE: Sought = Sought { name: "SSL_do_handshake", string: 6, file: SSL };
const SENDFILE: Sought = Sought { name: "SSL_sendfile", string: 7, file: SSL };
/// What `BIO_write` hands its arguments to.
const BIO_WRITE: Sought = Sought { name: "bio_write_intern", string: 8, file: BIO };

/// `None` when the file has no OpenSSL.
pub(super) fn symbols(code: &Code<'_>) -> Option<Result<Vec<Symbol>, Unfound>> {
    let Some(referring) = code.referring(&WANTED) else { return Some(Err(Unfound::Boundless(LIBRARY))) };
    if referring.functions(SSL).len() < FUNCTIONS {
        return None;
    }
    Some(Finding { code, referring }.symbols())
}

struct Finding<'a> {
    code: &'a Code<'a>,
    referring: Referring,
}

impl Finding<'_> {
    fn symbols(&self) -> Result<Vec<Symbol>, Unfound> {
        let mut symbols = Vec::new();
        for (plain, internal, extended) in
            [(READ, READ_INTERNAL, "SSL_read_ex"), (WRITE, WRITE_INTERNAL, "SSL_write_ex")]
        {
            let (outer, inner) = (self.find(&plain)?, self.find(&internal)?);
            symbols.push(self.symbol(plain.name, &outer)?);
            if let Some(other) = self.other_caller(&outer, &inner, extended)? {
                symbols.push(self.symbol(extended, &other)?);
            }
        }
        for (sought, name) in [(HANDSHAKE, HANDSHAKE.name), (BIO_WRITE, "BIO_write")] {
            let found = self.find(&sought)?;
            // A part that the compiler has put elsewhere, with the errors, begins in another way.
            let begins = self.code.look(&found, |function| function.entry(1)).flatten();
            begins.filter(|entry| entry.can_return).ok_or(Unfound::Code(LIBRARY, sought.name))?;
            symbols.push(self.symbol(name, &found)?);
        }
        // It is not in every build.
        if let Ok(found) = self.find(&SENDFILE) {
            symbols.push(self.symbol(SENDFILE.name, &found)?);
        }
        Ok(symbols)
    }

    /// The only function with this name and this file.
    fn find(&self, sought: &Sought) -> Result<Extent, Unfound> {
        let in_file = self.referring.functions(sought.file);
        let mut named = self.referring.functions(sought.string);
        named.retain(|function| in_file.contains(function));
        match named.as_slice() {
            [one] => Ok(one.clone()),
            _ => Err(Unfound::Function(LIBRARY, sought.name)),
        }
    }

    /// Another function that hands its arguments to `inner` as they are, as `outer` does with other ones. When some
    /// other one calls it in a way that is not known, what passes there would be missing.
    fn other_caller(
        &self,
        outer: &Extent,
        inner: &Extent,
        name: &'static str,
    ) -> Result<Option<Extent>, Unfound> {
        let calls = self.code.calls_of(inner.start);
        let mut callers: Vec<Extent> = calls.iter().filter_map(|call| self.referring.around(*call)).collect();
        callers.sort_unstable_by_key(|caller| caller.start);
        callers.dedup();
        let unknown = Err(Unfound::Code(LIBRARY, name));
        let Some(place) = callers.iter().position(|caller| caller == outer) else { return unknown };
        callers.remove(place);
        // Bytes that only look like a call are in no function that calls it.
        callers.retain(|caller| self.code.look(caller, |function| function.calls(inner.start)) == Some(true));
        let hands_on = |caller: &Extent| {
            let call = self.code.look(caller, |function| function.inner_call(false)).flatten();
            call.is_some_and(|call| call.target == inner.start)
        };
        if callers.iter().all(hands_on) { Ok(callers.into_iter().next()) } else { unknown }
    }

    fn symbol(&self, name: &'static str, function: &Extent) -> Result<Symbol, Unfound> {
        self.code.symbol(name, function).ok_or(Unfound::Code(LIBRARY, name))
    }
}
