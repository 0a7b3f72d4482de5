//! Every object against a kernel's type information, without loading it there: does every field that the programs look
//! into exist?
//!
//! In: a kernel's BTF, taken from the booted kernel. Out: nothing, or the programs with fields that are gone. What the
//! loader cannot find it poisons; that is right only where the program asks first whether the field exists.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use aya_obj::Object;
use aya_obj::btf::Btf;

use super::machine::{Job, Machine};
use super::program::{Embedded, embedded};
use crate::process::run;

/// What the loader writes in place of a field that does not exist.
const POISON: i32 = 0x0bad_2310;
/// Functions that ask first, and the most reads of theirs that a kernel may be without: iterators (`iter_type` since
/// 5.14, `__iov` since 6.4) are read at the beginning of a send or receive, references of files (`f_ref` since 6.13) at
/// the close of a unix socket, `is_mptcp` (where Multipath TCP is built in) at the end of a connection, a thread's
/// state (`__state` since 5.14) when it leaves its CPU; the epolls of a file (`f_ep` since 5.12).
const ASKS: [(&str, usize); 10] = [
    ("transfer_begins", 10),
    ("tcp_sendmsg_locked", 5),
    ("sys_enter_close", 1),
    ("sys_enter", 1),
    ("sys_enter_event", 1),
    ("sched_process_exit", 1),
    ("one_closes", 1),
    ("inet_sock_set_state", 1),
    ("sched_switch", 1),
    ("note_in_nginx", 1),
];

/// Checks all objects against the kernel of `machine`.
///
/// # Errors
/// When a field is gone that some program takes for granted, with the programs' names.
pub fn check(machine: &Machine, kernel: &str) -> anyhow::Result<()> {
    let path = of(machine)?;
    let types =
        Btf::parse_file(&path, Default::default()).with_context(|| format!("parse {}", path.display()))?;
    for object in embedded() {
        let gone: Vec<String> = poisoned(&object, &types)?
            .into_iter()
            .filter(|(function, n)| !ASKS.iter().any(|(asking, most)| asking == function && n <= most))
            .map(|(function, n)| format!("{function} ({n})"))
            .collect();
        if !gone.is_empty() {
            bail!("{} on {kernel}: fields are gone in {}", object.name(), gone.join(", "));
        }
    }
    Ok(())
}

/// Instructions in place of fields that do not exist, by function.
fn poisoned(embedded: &Embedded, types: &Btf) -> anyhow::Result<BTreeMap<String, usize>> {
    let mut object = Object::parse(&embedded.bytes).with_context(|| format!("parse {}", embedded.name()))?;
    object.relocate_btf(types).with_context(|| format!("relocate {}", embedded.name()))?;
    let count = |function: &aya_obj::Function| {
        function.instructions.iter().filter(|instruction| instruction.imm == POISON).count()
    };
    let counts = object.functions.values().map(|function| (function.name.clone(), count(function)));
    Ok(counts.filter(|(_, n)| *n > 0).collect())
}

/// The kernel's BTF: asked for once, then kept beside it.
fn of(machine: &Machine) -> anyhow::Result<PathBuf> {
    let path = machine.image().root.join("btf");
    if path.is_file() {
        return Ok(path);
    }
    let outcome = machine.run(&Job::new(["base64", "/sys/kernel/btf/vmlinux"]), |_| ())?;
    if outcome.status != 0 {
        bail!("{} has no type information", machine.image().release);
    }
    let text = tempfile::NamedTempFile::new()?;
    fs::write(text.path(), &outcome.output)?;
    let new = path.with_extension("new");
    let mut decode = Command::new("sh");
    decode.args(["-c", "base64 --decode < \"$1\" > \"$2\"", "sh"]).arg(text.path()).arg(&new);
    run("base64", decode, Duration::from_secs(30))?;
    fs::rename(&new, &path)?;
    Ok(path)
}
