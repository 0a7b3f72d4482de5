//! The `obi` command: arguments in, exit code out.
fn main() {}
