//! The eight rows as a table: what everyone makes of the same events.
//!
//! In: nothing; promtool must be installed. Out: one table on stdout.

#[path = "../tests/library/rows/mod.rs"]
mod rows;

use rows::Who;

fn main() {
    line("row", &["Sloth", "Pyrra", "obi: rules", "obi: engine", "truth"]);
    println!("|{}|{}", "-".repeat(81), format!("{}:|", "-".repeat(13)).repeat(5));
    for row in rows::row::rows() {
        let [sloth, pyrra, ours] =
            [Who::Sloth, Who::Pyrra, Who::Rules].map(|who| rows::ask(&row, who).to_string());
        let (engine, truth) = (rows::engine(&row).to_string(), rows::truth(&row));
        line(&format!("{} {}", row.number, row.what), &[&sloth, &pyrra, &ours, &engine, &truth]);
    }
}

fn line(what: &str, cells: &[&str]) {
    let cells: String = cells.iter().map(|cell| format!(" {cell:>12} |")).collect();
    println!("| {what:<79} |{cells}");
}
