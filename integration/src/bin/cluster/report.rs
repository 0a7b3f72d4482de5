//! What was expected and what came: a table on stdout.
//!
//! In: values. Out: rows, and whether all are as expected. Refuses to know why.

use std::fmt::{Debug, Display};

/// Rows so far.
#[derive(Debug, Default)]
pub(crate) struct Report {
    n_wrong: usize,
    n_rows: usize,
}

impl Report {
    /// A row that is right when both are equal.
    pub(crate) fn equal<T: PartialEq + Debug>(&mut self, what: &str, expected: &T, found: &T) {
        self.row(what, &format!("{expected:?}"), &format!("{found:?}"), expected == found);
    }

    /// A row that is right when what was found is not more.
    pub(crate) fn at_most<T: PartialOrd + Display>(&mut self, what: &str, most: T, found: T) {
        self.row(what, &format!("≤ {most:.1}"), &format!("{found:.1}"), found <= most);
    }

    /// A row that is right when what was found is not less.
    pub(crate) fn at_least<T: PartialOrd + Display>(&mut self, what: &str, least: T, found: T) {
        self.row(what, &format!("≥ {least:.1}"), &format!("{found:.1}"), found >= least);
    }

    /// True when every row was right.
    pub(crate) fn is_well(&self) -> bool {
        println!("{} rows, {} wrong", self.n_rows, self.n_wrong);
        self.n_wrong == 0
    }

    fn row(&mut self, what: &str, expected: &str, found: &str, is_right: bool) {
        if self.n_rows == 0 {
            println!("| what | expected | found | |\n|---|---|---|---|");
        }
        self.n_rows += 1;
        self.n_wrong += usize::from(!is_right);
        println!("| {what} | {expected} | {found} | {} |", if is_right { "ok" } else { "**WRONG**" });
    }
}
