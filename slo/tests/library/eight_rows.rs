//! The eight rows: our rules and our engine say the truth. `make bench` shows what others say.

use super::rows::{self, Who};

#[test]
fn rules_say_the_truth() {
    // A day in half minutes takes promtool a while; all rows at once take as long as the longest.
    std::thread::scope(|scope| {
        for row in rows::row::rows() {
            scope.spawn(move || {
                let answer = rows::ask(&row, Who::Rules);
                assert!(
                    answer.is_true(&row),
                    "row {}, {}: {answer} instead of {}",
                    row.number,
                    row.what,
                    row.truth
                );
            });
        }
    });
}

#[test]
fn the_engine_says_the_truth() {
    for row in rows::row::rows() {
        let answer = rows::engine(&row);
        assert!(answer.is_true(&row), "row {}, {}: {answer} instead of {}", row.number, row.what, row.truth);
    }
}

/// What others say is no straw man: the first rows of the table, as they are published.
#[test]
fn others_do_not() {
    for row in rows::row::rows().into_iter().filter(|row| (3..=7).contains(&row.number)) {
        for who in [Who::Sloth, Who::Pyrra] {
            let answer = rows::ask(&row, who);
            assert!(!answer.is_true(&row), "row {}, {}: {who:?} says {answer}", row.number, row.what);
        }
    }
}
