//! The eight rows: our rules say the truth where others do not, and so does the engine.

#[path = "rows/mod.rs"]
mod rows;

#[test]
fn ours_equal_the_truth() {
    for row in rows::row::rows().into_iter().filter(|row| row.number > 6) {
        let answers = rows::ask(&row);
        println!("{} {} truth {} sloth {} pyrra {} rules {}", row.number, row.what, row.truth, answers[0], answers[1], answers[2]);
    }
}
