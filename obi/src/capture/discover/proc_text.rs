//! The texts under `/proc/PID`, parsed: `stat`, `cgroup`, `cmdline`, `environ`, `net/tcp`.
//!
//! In: bytes as the kernel or, for `cmdline` and `environ`, the process itself wrote them. Out: values. Pure; nothing
//! in the bytes makes it fail or panic, and what it returns is bounded.

/// What `/proc/PID/stat` says (proc_pid_stat(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::capture) struct Stat {
    /// Name of the program, at most 15 bytes (field 2).
    pub(super) comm: String,
    /// Process that made this one (field 4).
    pub(super) parent: u32,
    /// Start of the process in clock ticks since boot (field 22): with the pid, its identity.
    pub(super) start: u64,
    /// A thread of the kernel.
    pub(in crate::capture) kernel: bool,
    /// Has ended and waits for its parent to notice.
    pub(super) ended: bool,
}

/// `PF_KTHREAD` of the kernel's `sched.h`, in field 9.
const KERNEL_THREAD: u64 = 0x0020_0000;

/// Parses `/proc/PID/stat`. The name may hold anything, also `)` and spaces: the last `)` ends it.
pub(in crate::capture) fn stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|byte| *byte == b'(')?;
    let close = text.iter().rposition(|byte| *byte == b')')?;
    let comm = lossy(text.get(open + 1..close)?);
    let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let flags: u64 = fields.nth(4)?.parse().ok()?;
    let start = fields.nth(12)?.parse().ok()?;
    let (kernel, ended) = (flags & KERNEL_THREAD != 0, matches!(state, "Z" | "X" | "x"));
    Some(Stat { comm, parent, start, kernel, ended })
}

/// The control group that says most: that of version 2, else systemd's own hierarchy, else the longest path.
pub(super) fn cgroup(text: &[u8]) -> String {
    let mut best = (0, "");
    let text = String::from_utf8_lossy(text);
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if path == "/" {
            continue;
        }
        let rank = match (number, controllers) {
            ("0", "") => 3,
            (_, "name=systemd") => 2,
            _ => 1,
        };
        if (rank, path.len()) > (best.0, best.1.len()) {
            best = (rank, path);
        }
    }
    cut(best.1, 4096).to_owned()
}

/// Longest argument kept, and all of them together, bytes.
const ARGUMENT_BYTES: usize = 512;
const COMMAND_BYTES: usize = 4096;

/// Parses `/proc/PID/cmdline`. Long arguments (class paths) are cut, so that those behind them are kept.
pub(super) fn command(bytes: &[u8]) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    let mut room = COMMAND_BYTES;
    let mut command = Vec::new();
    // A process that writes its own title leaves the rest of the area as zeros.
    let end = bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    if end == 0 {
        return command;
    }
    for argument in bytes[..end].split(|byte| *byte == 0) {
        let argument = lossy(&argument[..argument.len().min(ARGUMENT_BYTES)]);
        let Some(left) = room.checked_sub(argument.len() + 1) else { break };
        room = left;
        command.push(argument);
    }
    command
}

/// The variables that we look at; the others never leave the read buffer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Variables {
    /// `OTEL_SERVICE_NAME`.
    pub(super) service_name: String,
    /// `OTEL_RESOURCE_ATTRIBUTES`.
    pub(super) resource_attributes: String,
    /// `HOSTNAME`, inside Kubernetes only.
    pub(super) host_name: String,
    /// `KUBERNETES_SERVICE_HOST` is set.
    pub(super) kubernetes: bool,
}

/// Parses `/proc/PID/environ`. The first of several equal names counts, as in `getenv`. `whole` is false when the
/// bytes were cut: then the last variable is not looked at.
pub(super) fn environment(bytes: &[u8], whole: bool) -> Variables {
    let mut found = Variables::default();
    let end = if whole { bytes.len() } else { bytes.iter().rposition(|byte| *byte == 0).unwrap_or(0) };
    for variable in bytes[..end].split(|byte| *byte == 0) {
        let Some(equals) = variable.iter().position(|byte| *byte == b'=') else { continue };
        let (name, value) = (&variable[..equals], &variable[equals + 1..]);
        let slot = match name {
            b"OTEL_SERVICE_NAME" => &mut found.service_name,
            b"OTEL_RESOURCE_ATTRIBUTES" => &mut found.resource_attributes,
            b"HOSTNAME" => &mut found.host_name,
            b"KUBERNETES_SERVICE_HOST" => {
                found.kubernetes = true;
                continue;
            }
            _ => continue,
        };
        if slot.is_empty() {
            *slot = cut(&lossy(&value[..value.len().min(COMMAND_BYTES)]), COMMAND_BYTES).to_owned();
        }
    }
    if !found.kubernetes {
        found.host_name.clear();
    }
    found
}

/// A listening TCP socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Listener {
    /// Port, host order.
    pub(super) port: u16,
    /// Inode of the socket, by which file descriptors name it.
    pub(super) inode: u64,
}

/// Parses `/proc/PID/net/tcp` or `tcp6` up to the first socket that does not listen: the kernel lists those that do
/// first, and the others can be very many.
pub(super) fn listeners(text: &[u8]) -> Vec<Listener> {
    let lines = text.split(|byte| *byte == b'\n').skip(1);
    lines.map_while(|line| listener(std::str::from_utf8(line).ok()?)).collect()
}

const LISTEN: &str = "0A";

fn listener(line: &str) -> Option<Listener> {
    let mut fields = line.split_ascii_whitespace();
    let local = fields.nth(1)?;
    let state = fields.nth(1)?;
    let inode = fields.nth(5)?.parse().ok()?;
    let port = u16::from_str_radix(local.rsplit_once(':')?.1, 16).ok()?;
    (state == LISTEN).then_some(Listener { port, inode })
}

/// The inode in a descriptor's target `socket:[123]`.
pub(super) fn socket_inode(target: &[u8]) -> Option<u64> {
    let digits = target.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The path in `/proc/PID/exe`, without the mark of a file that is gone.
pub(super) fn executable(target: &[u8]) -> String {
    let path = lossy(&target[..target.len().min(COMMAND_BYTES)]);
    path.strip_suffix(" (deleted)").map(str::to_owned).unwrap_or(path)
}

/// A name as the kernel keeps it: NUL-padded.
pub(super) fn comm(bytes: &[u8]) -> String {
    lossy(bytes.split(|byte| *byte == 0).next().unwrap_or(&[]))
}

/// Text with control characters replaced, so that it can be logged and exported.
fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace(char::is_control, "\u{fffd}")
}

fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests;
