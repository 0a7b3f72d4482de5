//! Kernels that refuse something, made from the one we run on.
//!
//! In: what is to be missing. Out: a command that runs another without it. Mount namespaces hide directories, dropped
//! capabilities forbid calls, a changed copy of the kernel's type information takes functions, tracepoints and fields
//! away. The machine itself is left as it is. Refuses to know what becomes of the command.

use std::io::Write as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use tempfile::NamedTempFile;

/// Where kernels show their type information.
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// What is missing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Refusal {
    /// Directories that are empty.
    pub hidden: &'static [&'static str],
    /// Capabilities that are not held, as `setpriv` names them.
    pub dropped: &'static [&'static str],
}

/// Covers what there is of the first argument's words with empty file systems, then runs the rest.
const HIDE: &str = r#"
for directory in $1; do
    [ ! -d "$directory" ] || mount -t tmpfs none "$directory" || exit 125
done
shift
exec "$@"
"#;

impl Refusal {
    /// `command` with things missing; in the end it is the same process that executes it.
    #[must_use]
    pub fn wrap(&self, command: &Command) -> Command {
        let mut wrapped = Command::new("unshare");
        wrapped.args(["--mount", "sh", "-c", HIDE, "sh", &self.hidden.join(" ")]);
        if !self.dropped.is_empty() {
            let dropped: Vec<_> = self.dropped.iter().map(|name| format!("-{name}")).collect();
            wrapped.args(["setpriv", "--bounding-set", &dropped.join(",")]);
        }
        wrapped.arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        wrapped
    }
}

/// The kernel's type information in which nothing is called by any of these names.
///
/// # Errors
/// When the kernel shows none, or has no such name.
pub fn types_without(names: &[&str]) -> anyhow::Result<NamedTempFile> {
    let mut types = std::fs::read(Path::new(KERNEL_BTF)).context("read the kernel's type information")?;
    for name in names {
        // Strings end with a zero and begin after one.
        let string = [b"\0", name.as_bytes(), b"\0"].concat();
        let places: Vec<_> =
            types.windows(string.len()).enumerate().filter(|(_, found)| *found == string).collect();
        let [(at, _)] = places.as_slice() else {
            bail!("`{name}` is {} times in the kernel's type information, not once", places.len());
        };
        let last = at + name.len();
        types[last] = b'\'';
    }
    let mut file = NamedTempFile::new()?;
    file.write_all(&types)?;
    Ok(file)
}
