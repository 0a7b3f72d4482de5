//! An executable and its arguments to the name of the program that really runs: the script, module, jar or class that
//! an interpreter was given, else the executable's file name.
//!
//! In: facts of a process. Out: [`Program`]. Refuses to call a service `python3` or `java`: an interpreter without a
//! program that can be named has none.

mod interpreter;

use self::interpreter::{Interpreter, Target};
use super::launcher;
use crate::capture::discover::Facts;

/// What a process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    /// Name of the program; `None` when an interpreter does not show it.
    pub(super) name: Option<String>,
    /// `telemetry.sdk.language` in OpenTelemetry's words, where the interpreter shows it.
    pub(super) language: Option<&'static str>,
    /// What runs it.
    pub(super) runtime: Runtime,
    /// File name of the executable.
    pub(super) executable: String,
}

/// `process.runtime.*`, empty where nothing is known.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Runtime {
    /// `process.runtime.name`.
    pub(super) name: &'static str,
    /// `process.runtime.version`, as precise as the executable's file name is.
    pub(super) version: String,
}

pub(super) fn program(facts: &Facts) -> Program {
    let executable = executable_name(&facts.executable);
    let (file, arguments) = busybox(executable, &facts.command);
    let named = |name: Option<String>, language, runtime| Program {
        name,
        language,
        runtime,
        executable: executable.to_owned(),
    };
    let Some(interpreter) = interpreter::find(file) else {
        let name = launcher::application(file, arguments).unwrap_or_else(|| file.to_owned());
        return named(Some(name), None, Runtime::default());
    };
    let runtime = runtime(file);
    let name = match title(arguments, file) {
        Some(Title::Name(name)) => Some(name),
        Some(Title::Words(words)) => application(interpreter, &words, &facts.directory),
        None => application(interpreter, arguments.get(1..).unwrap_or(&[]), &facts.directory),
    };
    named(name.filter(|name| !name.is_empty()), interpreter.language, runtime)
}

/// Runtimes in the conventions' words, by the beginning of the executable's name.
const RUNTIMES: [(&str, &str); 11] = [
    ("python", "cpython"),
    ("pypy", "pypy"),
    ("node", "nodejs"),
    ("bun", "bun"),
    ("deno", "deno"),
    ("ruby", "ruby"),
    ("jruby", "jruby"),
    ("truffleruby", "truffleruby"),
    ("dotnet", ".NET"),
    ("beam", "BEAM"),
    ("php", "php"),
];

/// What runs, by the interpreter's file name: `python3.11` is CPython 3.11.
fn runtime(file: &str) -> Runtime {
    let name = RUNTIMES.iter().find(|(begin, _)| file.starts_with(begin)).map_or("", |(_, name)| *name);
    let version = file.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = version.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(version.len());
    let version = if name.is_empty() { "" } else { version[..end].trim_end_matches('.') };
    Runtime { name, version: version.to_owned() }
}

/// What the interpreter is to run, by its arguments.
fn application(interpreter: &Interpreter, arguments: &[String], directory: &str) -> Option<String> {
    let (target, rest) = interpreter::target(interpreter, arguments)?;
    match target {
        Target::Script(path) => {
            let stem = stem(path);
            launcher::application(stem, rest).or_else(|| Some(script(path, stem, directory)))
        }
        Target::Module(module) => {
            let module = module.strip_suffix(".__main__").unwrap_or(module);
            launcher::application(module, rest).or_else(|| Some(module.to_owned()))
        }
        Target::Class(class) => Some(class.rsplit('/').next().unwrap_or(class).to_owned()),
        Target::Node(name) => Some(name.split('@').next().unwrap_or(name).to_owned()),
    }
}

/// Names that a language gives to the entry of a directory; then the directory is the program.
const ENTRIES: [&str; 4] = ["index", "__main__", ".", ".."];
/// Directories that say no more than the entry.
const LAYOUT: [&str; 8] = ["", ".", "bin", "build", "dist", "lib", "out", "src"];

fn script(path: &str, stem: &str, directory: &str) -> String {
    if !ENTRIES.contains(&stem) && !stem.is_empty() {
        return stem.to_owned();
    }
    let above = if stem == "." || stem.is_empty() {
        path
    } else {
        path.rsplit_once('/').map_or("", |(above, _)| above)
    };
    let mut parts = above.rsplit('/').chain(if path.starts_with('/') { "" } else { directory }.rsplit('/'));
    parts.find(|part| !LAYOUT.contains(part) && *part != "..").unwrap_or(stem).to_owned()
}

/// Extensions of programs that an interpreter runs.
const EXTENSIONS: [&str; 33] = [
    "bash", "cjs", "class", "cts", "dll", "exe", "groovy", "jar", "java", "jl", "js", "jsx", "kts", "lua",
    "mjs", "mts", "phar", "php", "pl", "psgi", "py", "pyc", "pyw", "pyz", "r", "R", "rb", "ru", "sh", "tcl",
    "ts", "tsx", "war",
];

/// File name without its extension, a jar's also without its version.
pub(super) fn stem(path: &str) -> &str {
    let file = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    match file.rsplit_once('.') {
        Some((stem, "jar" | "war")) if !stem.is_empty() => unversioned(stem),
        Some((stem, extension)) if !stem.is_empty() && EXTENSIONS.contains(&extension) => stem,
        _ => file,
    }
}

/// `shop-1.2.3-SNAPSHOT` is `shop`: cut where a dotted number follows a dash, or a plain number ends the name.
fn unversioned(name: &str) -> &str {
    let is_version = |text: &str| {
        let text = text.strip_prefix('v').unwrap_or(text);
        let digits = text.bytes().take_while(u8::is_ascii_digit).count();
        digits > 0
            && (digits == text.len()
                || text.as_bytes()[digits] == b'.'
                || text[digits..].starts_with("-SNAPSHOT"))
    };
    let cut = name.match_indices('-').map(|(at, _)| at).find(|at| *at > 0 && is_version(&name[at + 1..]));
    let name = cut.map_or(name, |at| &name[..at]);
    name.strip_suffix("-SNAPSHOT").unwrap_or(name)
}

/// File name of the executable, without what packaging adds.
fn executable_name(path: &str) -> &str {
    let file = path.rsplit('/').next().unwrap_or(path);
    let file = file.strip_prefix("memfd:").unwrap_or(file);
    // A wrapper of NixOS hides the program that it starts.
    file.strip_prefix('.').and_then(|file| file.strip_suffix("-wrapped")).unwrap_or(file)
}

/// One executable that is many programs, distinguished by its first argument.
fn busybox<'a>(executable: &'a str, command: &'a [String]) -> (&'a str, &'a [String]) {
    if executable != "busybox" {
        return (executable, command);
    }
    let skipped = usize::from(command.first().is_some_and(|name| executable_name(name) == "busybox"));
    let applet =
        command.get(skipped).map_or(executable, |name| executable_name(name).trim_start_matches('-'));
    (applet, &command[skipped.min(command.len())..])
}

/// What a process wrote over its arguments.
enum Title {
    /// It names the program.
    Name(String),
    /// It is a command line again.
    Words(Vec<String>),
}

/// Programs that set a title leave one argument with spaces: `gunicorn: worker [shop]`, `puma 6.4.0 (…) [shop]`.
fn title(command: &[String], executable: &str) -> Option<Title> {
    let [title] = command else { return None };
    let (first, rest) = title.trim().split_once(' ')?;
    let bracketed = || title.split_once('[')?.1.split_once(']').map(|(inside, _)| inside);
    if let Some(inside) = bracketed().filter(|inside| !inside.bytes().all(|byte| byte.is_ascii_digit())) {
        return Some(Title::Name(launcher::module(inside).to_owned()));
    }
    if executable_name(first) == executable || interpreter::find(executable_name(first)).is_some() {
        return Some(Title::Words(rest.split(' ').map(str::to_owned).collect()));
    }
    Some(Title::Name(stem(first.trim_end_matches(':')).to_owned()))
}
