//! Names as people wrote them.
//!
//! In: a name of a symbol table. Out: the same in the words of its language, and whether it is Rust's; bounded, however
//! the name unfolds. Refuses to know where it came from.

use std::fmt::{self, Write};

/// Longer names are left as they are: demangling takes time that grows faster than they do.
const LONGEST_IN: usize = 8192;
const LONGEST_OUT: usize = 4096;

/// A name and its language, as far as it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Demangled; `None` if there is nothing to do.
    pub readable: Option<String>,
    /// By Rust's compiler.
    pub is_rust: bool,
}

/// Demangles.
#[must_use]
pub fn demangle(name: &str) -> Name {
    let plain = Name { readable: None, is_rust: false };
    // What compilers add to clones of a function, or symbol versions: `.cold`, `.llvm.123`, `@@GLIBC_2.2.5`.
    if name.len() > LONGEST_IN || !(name.starts_with("_Z") || name.starts_with("_R")) {
        return plain;
    }
    if let Ok(demangled) = rustc_demangle::try_demangle(name) {
        // `{:#}` leaves out the hash.
        return Name { readable: bounded(format_args!("{demangled:#}")), is_rust: true };
    }
    let (mangled, clone) = match name.find('.') {
        Some(dot) => name.split_at(dot),
        None => (name, ""),
    };
    let options = cpp_demangle::ParseOptions::default().recursion_limit(96);
    let Ok(symbol) = cpp_demangle::Symbol::new_with_options(mangled, &options) else { return plain };
    let options = cpp_demangle::DemangleOptions::new().recursion_limit(96);
    let Ok(mut readable) = written(|out| symbol.structured_demangle(out, &options)) else { return plain };
    if !clone.is_empty() {
        let _ = write!(readable, " [clone {clone}]");
    }
    Name { readable: Some(readable), is_rust: false }
}

fn bounded(arguments: fmt::Arguments<'_>) -> Option<String> {
    written(|out| out.write_fmt(arguments)).ok()
}

fn written(write: impl FnOnce(&mut Bounded) -> fmt::Result) -> Result<String, fmt::Error> {
    let mut out = Bounded(String::new());
    match write(&mut out) {
        Err(error) if out.0.len() < LONGEST_OUT => Err(error),
        // What did not fit is left out.
        _ => Ok(out.0),
    }
}

struct Bounded(String);

impl Write for Bounded {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let left = LONGEST_OUT - self.0.len();
        if text.len() <= left {
            self.0.push_str(text);
            return Ok(());
        }
        let end = text.floor_char_boundary(left);
        self.0.push_str(&text[..end]);
        // Full, so that a character which does not fit whole cannot look like a failure.
        self.0.extend(std::iter::repeat_n('…', usize::from(LONGEST_OUT > self.0.len())));
        Err(fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_become_readable() {
        let check = |name: &str, readable: Option<&str>, is_rust: bool| {
            assert_eq!(demangle(name), Name { readable: readable.map(str::to_owned), is_rust }, "{name}");
        };
        check("main", None, false);
        check("_start", None, false);
        check("_Z", None, false);
        check("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", Some("core::fmt::Formatter::pad"), true);
        check("_RNvCs1234_7mycrate3foo", Some("mycrate::foo"), true);
        check("_ZN3foo3barEi", Some("foo::bar(int)"), false);
        check("_ZN3foo3barEi.cold", Some("foo::bar(int) [clone .cold]"), false);
        check(
            "_ZNSt6vectorIiSaIiEE9push_backERKi",
            Some("std::vector<int, std::allocator<int> >::push_back(int const&)"),
            false,
        );
    }

    #[test]
    fn what_unfolds_without_end_is_cut() {
        let nested = demangle(&format!("_Z1f{}i", "P".repeat(20)));
        assert_eq!(nested.readable, Some(format!("f(int{})", "*".repeat(20))));
        assert_eq!(demangle(&format!("_Z1f{}i", "P".repeat(5000))).readable, None);
        // Each substitution doubles what it stands for.
        let doubling: String = (0..30).map(|at| format!("1aIS{at}_S{at}_E")).collect();
        let name = demangle(&format!("_Z1f{doubling}"));
        assert!(name.readable.is_none_or(|readable| readable.len() <= LONGEST_OUT + 3));
    }

    proptest! {
        #[test]
        fn any_name_is_bounded(name in "_(Z|R|ZN)[A-Za-z0-9_.$]{0,300}") {
            let name = demangle(&name);
            prop_assert!(name.readable.is_none_or(|readable| readable.len() <= LONGEST_OUT + 64));
        }
    }
}
