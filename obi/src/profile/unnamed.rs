//! What frames without a name, and stacks without callers, are called where people read them, and what would help.
//!
//! In: a frame and the file name of its process's executable. Out: a name for the frame. Formats that machines read
//! keep their own words (`[truncated: no table]`). Refuses to know where frames come from.

use std::sync::Arc;

use super::{Fidelity, Frame, Runtime};

/// Programs that make code at run time: how their executable's name begins, what would name that code, and what would
/// show its callers. The first that fits counts.
const RUNTIMES: [(&str, &str, &str); 5] = [
    (
        "node",
        "JavaScript without names: obi doctor --pid says why; node --perf-basic-prof gives them",
        NO_TABLE,
    ),
    (
        "java",
        "Java without names: obi doctor --pid says why; jcmd PID Compiler.perfmap gives them",
        "callers unknown: start java with -XX:+PreserveFramePointer",
    ),
    ("dotnet", ".NET without names: start it with DOTNET_PerfMapEnabled=1", NO_TABLE),
    (
        "python",
        "Python without names: start python with -X perf",
        "callers unknown: python -X perf needs a build with frame pointers",
    ),
    ("", "code without a file and without names", NO_TABLE),
];

const NO_TABLE: &str = "callers unknown: code without tables to leave it by";

/// Reasons of [`truncation`](super::naming::truncation), and what people read.
const REASONS: [(&str, &str); 17] = [
    ("too deep", "callers left out: the stack is deeper than the walk goes"),
    ("no process", "callers unknown: the process was too new or had ended"),
    ("no mapping", "callers unknown: the address is in no known file"),
    ("no rule", "callers unknown: the file does not say how this function is left"),
    ("unreadable", "callers unknown: the stack's memory could not be read"),
    ("no progress", "callers unknown: the stack leads back to itself"),
    ("python no thread", "Python functions unknown: the thread's state was not found"),
    ("python unreadable", "Python callers unknown: memory could not be read"),
    ("python no code", "Python callers unknown: a frame without code"),
    ("python unlinked", "Python functions unknown: the innermost one was just being called"),
    ("python apart", "what of the interpreter runs these functions is not known"),
    ("java no method", "callers unknown: a frame of Java's interpreter is not as expected"),
    ("java no code", "callers unknown: code that the JVM does not list"),
    ("java no caller", "callers unknown: a frame of Java's compiled code is not as expected"),
    ("node no function", "JavaScript functions unknown: a frame of V8's code is not as expected"),
    ("node not known", "JavaScript functions unknown: the process is too new, or obi doctor --pid says why"),
    ("foreign mode", "callers unknown: 32-bit code"),
];

/// What a frame is called that has no name of its own, or that stands for callers that are not known; `None` for a
/// frame with a name.
#[must_use]
pub fn shown(frame: &Frame, executable: &str) -> Option<Arc<str>> {
    let symbol = &frame.symbol;
    let (_, nameless, truncated) =
        RUNTIMES.into_iter().find(|(begin, ..)| executable.starts_with(begin)).unwrap_or(RUNTIMES[4]);
    match (symbol.fidelity, symbol.lines.first()) {
        (Fidelity::Marker, Some(line)) => {
            let reason = line.function.strip_prefix("[truncated: ").and_then(|rest| rest.strip_suffix(']'));
            let text = match reason {
                Some("no table") => truncated,
                Some(reason) => REASONS.iter().find(|(known, _)| *known == reason).map(|(_, text)| *text)?,
                None => return None,
            };
            Some(format!("[{text}]").into())
        }
        (_, Some(_)) => None,
        (_, None) => Some(match (symbol.runtime, module(frame)) {
            (Runtime::Kernel, _) => "[kernel]".into(),
            (Runtime::Cpython, "") => "[Python function: gone before its name was read]".into(),
            (Runtime::V8, "") => "[JavaScript function: gone before its name was read]".into(),
            (Runtime::Jvm, "") => "[Java function: gone before its name was read]".into(),
            (_, "") => format!("[{nameless}]").into(),
            (_, module) if module.starts_with('[') => module.into(),
            (_, module) => format!("[{module}]").into(),
        }),
    }
}

/// Name of the file that a frame lies in, without its folder; empty if it lies in none.
#[must_use]
pub fn module(frame: &Frame) -> &str {
    let path = frame.mapping.as_ref().map_or("", |mapping| &mapping.path);
    let path = path.strip_suffix(" (deleted)").unwrap_or(path);
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use obi_ebpf::STACK_ENDS;

    use super::*;
    use crate::profile::naming::truncation;
    use crate::profile::{Line, Mapping, Symbol};

    fn frame(path: Option<&str>, runtime: Runtime, name: &str, fidelity: Fidelity) -> Frame {
        let lines =
            Vec::from_iter((!name.is_empty()).then(|| Line { function: name.into(), ..Line::default() }));
        let mapping = path.map(|path| Arc::new(Mapping { path: path.into(), ..Mapping::default() }));
        Frame { address: 1, is_return: false, mapping, symbol: Arc::new(Symbol { lines, fidelity, runtime }) }
    }

    #[test]
    fn nameless_frames_say_what_would_help() {
        let check = |path: Option<&str>, runtime: Runtime, executable: &str, expected: &str| {
            let frame = frame(path, runtime, "", Fidelity::Address);
            assert_eq!(shown(&frame, executable).as_deref(), Some(expected), "{path:?} {executable}");
        };
        check(
            None,
            Runtime::Native,
            "node",
            "[JavaScript without names: obi doctor --pid says why; node --perf-basic-prof gives them]",
        );
        check(
            None,
            Runtime::Native,
            "java",
            "[Java without names: obi doctor --pid says why; jcmd PID Compiler.perfmap gives them]",
        );
        check(None, Runtime::Native, "python3.12", "[Python without names: start python with -X perf]");
        check(None, Runtime::Native, "shop", "[code without a file and without names]");
        check(None, Runtime::Native, "", "[code without a file and without names]");
        check(None, Runtime::Kernel, "node", "[kernel]");
        check(Some("/usr/lib/libshop.so (deleted)"), Runtime::Native, "java", "[libshop.so]");
        check(Some("[vdso]"), Runtime::Native, "java", "[vdso]");
    }

    #[test]
    fn ends_of_walks_say_what_would_help() {
        let check = |reason: &str, executable: &str, expected: &str| {
            let frame = frame(None, Runtime::Native, &format!("[truncated: {reason}]"), Fidelity::Marker);
            assert_eq!(shown(&frame, executable).as_deref(), Some(expected), "{reason} {executable}");
        };
        check("no table", "java", "[callers unknown: start java with -XX:+PreserveFramePointer]");
        check("no table", "python3", "[callers unknown: python -X perf needs a build with frame pointers]");
        check("no table", "shop", "[callers unknown: code without tables to leave it by]");
        check("no process", "java", "[callers unknown: the process was too new or had ended]");
    }

    #[test]
    fn every_end_of_a_walk_has_words() {
        for reason in (0..STACK_ENDS).filter_map(|end| truncation(u8::try_from(end).unwrap())) {
            let name = format!("[truncated: {}]", reason.replace('_', " "));
            let shown = shown(&frame(None, Runtime::Native, &name, Fidelity::Marker), "shop");
            assert!(shown.is_some_and(|text| text.starts_with("[callers ")), "{reason}");
        }
    }

    #[test]
    fn frames_with_a_name_keep_it() {
        assert_eq!(shown(&frame(None, Runtime::Native, "main", Fidelity::Function), "java"), None);
    }
}
