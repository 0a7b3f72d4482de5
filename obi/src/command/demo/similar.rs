//! Which products are like another: work for a CPU, so that the demo's profiles have something to show.
//!
//! In: a product. Out: those whose descriptions differ least from its own, the nearest first. Compared anew for every
//! request, as a shop without a search engine does, and for a bounded time: a slow machine, or a build without
//! optimization, compares fewer and is not overloaded.

use std::time::{Duration, Instant};

use super::inventory::PRODUCTS;

/// Products that are shown.
const SHOWN: usize = 3;
/// No further product is compared from then on. At the shopper's rate this keeps a CPU busy for a tenth of its time.
const COMPARING: Duration = Duration::from_millis(15);
const MATERIALS: [&str; 7] =
    ["porcelain", "cast iron", "stoneware", "borosilicate glass", "copper", "enamel", "silver"];
const SHAPES: [&str; 5] =
    ["round and low", "tall and slender", "with a long spout", "with two handles", "six-sided"];
const ORIGINS: [&str; 6] = ["Dresden", "Jingdezhen", "Tokoname", "Stoke-on-Trent", "Delft", "Limoges"];

/// Numbers of the products that are most like `id`, of those that were compared: first the next ones.
pub(super) fn similar(id: u32) -> Vec<u32> {
    let begun = Instant::now();
    let wanted = description(id);
    let mut ranked = Vec::new();
    for other in (1..PRODUCTS).map(|step| (id + step - 1) % PRODUCTS + 1) {
        ranked.push((edit_distance(wanted.as_bytes(), description(other).as_bytes()), other));
        if ranked.len() >= SHOWN && begun.elapsed() >= COMPARING {
            break;
        }
    }
    ranked.sort_unstable();
    ranked.into_iter().take(SHOWN).map(|(_, other)| other).collect()
}

/// What a product is said to be.
pub(super) fn description(id: u32) -> String {
    let pick = |words: &[&'static str], step: u32| words[(id * step) as usize % words.len()];
    format!(
        "a teapot of {}, {}, made in {} for {} cups of tea, number {id} of the spring collection",
        pick(&MATERIALS, 3),
        pick(&SHAPES, 2),
        pick(&ORIGINS, 5),
        2 + id % 9
    )
}

/// Letters to add, drop or change to make one text of the other (Levenshtein), row by row. A function of its own in
/// flame graphs.
#[inline(never)]
pub(super) fn edit_distance(from: &[u8], to: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (i, a) in from.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in to.iter().enumerate() {
            let changed = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = changed.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_letters() {
        let check = |from: &str, to: &str, expected: usize| {
            assert_eq!(edit_distance(from.as_bytes(), to.as_bytes()), expected, "{from} {to}");
            assert_eq!(edit_distance(to.as_bytes(), from.as_bytes()), expected, "{to} {from}");
        };
        check("", "", 0);
        check("", "tea", 3);
        check("tea", "tea", 0);
        check("kitten", "sitting", 3);
        check("teapot", "teacup", 3);
    }

    #[test]
    fn a_product_is_not_like_itself() {
        for id in [1, 17, PRODUCTS] {
            let similar = similar(id);
            assert_eq!(similar.len(), SHOWN);
            assert!(!similar.contains(&id));
        }
    }
}
