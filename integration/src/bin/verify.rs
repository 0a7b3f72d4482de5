//! Gives every embedded kernel program to the running kernel's verifier: one JSON line for each on stdout.
//!
//! In: names of objects (`socket`, `profile` …); none: all. Out: verdicts, see `integration::kernel::verifier`. Needs
//! root. Exit status 0 also when programs are refused: which refusals are expected is for the reader to know.

use anyhow::Context as _;
use aya_obj::btf::Btf;
use integration::kernel::program::embedded;
use integration::kernel::verifier::verify;

fn main() -> anyhow::Result<()> {
    let kernel = Btf::from_sys_fs().context("read /sys/kernel/btf/vmlinux")?;
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for embedded in embedded()
        .into_iter()
        .filter(|embedded| wanted.is_empty() || wanted.iter().any(|name| *name == embedded.set))
    {
        for verdict in verify(&embedded, &kernel)? {
            println!("{}", serde_json::to_string(&verdict)?);
        }
    }
    Ok(())
}
