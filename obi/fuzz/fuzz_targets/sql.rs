//! Any text as a statement: nothing panics, the summary is bounded, and no quoted literal that stands in the middle of
//! a plain statement is left.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::protocol::database::sql::Statement;

const SECRET: &str = "zqsecretzq";

fuzz_target!(|text: &str| {
    let read = Statement::read(text);
    assert!(read.summary.len() <= 255 && read.text.len() <= text.len());
    // Behind a literal anything may come, but for what would spell the secret.
    let text = text.replace(['z', 'Z'], "y");
    let read = Statement::read(&format!("SELECT a FROM t WHERE b = '{SECRET}' AND {text}"));
    assert!(!read.text.contains(SECRET) && !read.summary.contains(SECRET));
});
