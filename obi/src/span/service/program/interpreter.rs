//! Interpreters and their options: which argument is the program?
//!
//! In: arguments. Out: the [`Target`] and the arguments behind it. The table says for each interpreter which options
//! take a value, so that none is mistaken for a script; an option that is not in it is taken to have none.

/// How an interpreter's arguments name what to run.
#[derive(Debug)]
pub(super) struct Interpreter {
    /// File names without version: `python` is also `python3.11`.
    names: &'static [&'static str],
    /// `telemetry.sdk.language`.
    pub(super) language: Option<&'static str>,
    /// Options whose value is the next argument.
    valued: &'static [&'static str],
    /// Options whose value is a module.
    module: &'static [&'static str],
    /// Options whose value is the file to run.
    file: &'static [&'static str],
    /// Options whose value is the program's text: it has no name.
    code: &'static [&'static str],
    /// Words before the script.
    commands: &'static [&'static str],
    /// What the rest looks like.
    style: Style,
}

#[derive(Debug, PartialEq, Eq)]
enum Style {
    /// One-letter options can be joined, with a value at the end: `-bWignore`.
    Letters,
    /// Options are words.
    Words,
    /// Options are words, and the program is a class.
    Class,
    /// The virtual machine of Erlang, where only the node's name says it.
    Node,
}

/// What an interpreter runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target<'a> {
    /// A file.
    Script(&'a str),
    /// A module, dotted.
    Module(&'a str),
    /// A class, perhaps behind `module/`.
    Class(&'a str),
    /// A node name, perhaps with `@host`.
    Node(&'a str),
}

const PLAIN: Interpreter = Interpreter {
    names: &[],
    language: None,
    valued: &[],
    module: &[],
    file: &[],
    code: &[],
    commands: &[],
    style: Style::Words,
};

static INTERPRETERS: [Interpreter; 14] = [
    Interpreter {
        names: &["python", "pypy", "python-dbg"],
        language: Some("python"),
        valued: &["-W", "-X", "-Q", "--check-hash-based-pycs"],
        module: &["-m"],
        code: &["-c"],
        style: Style::Letters,
        ..PLAIN
    },
    Interpreter {
        names: &["node", "nodejs"],
        language: Some("nodejs"),
        valued: &[
            "-r",
            "--require",
            "--import",
            "--loader",
            "--experimental-loader",
            "-C",
            "--conditions",
            "--env-file",
            "--env-file-if-exists",
            "--input-type",
            "--icu-data-dir",
            "--openssl-config",
            "--redirect-warnings",
            "--title",
            "--trace-event-categories",
            "--inspect-port",
            "--debug-port",
            "--diagnostic-dir",
            "--report-dir",
            "--report-directory",
            "--report-filename",
            "--report-signal",
            "--stack-trace-limit",
            "--unhandled-rejections",
            "--watch-path",
            "--disable-warning",
            "--dns-result-order",
            "--max-http-header-size",
        ],
        code: &["-e", "--eval", "-p", "--print", "-pe"],
        ..PLAIN
    },
    Interpreter {
        names: &["java"],
        language: Some("java"),
        valued: &[
            "-cp",
            "-classpath",
            "--class-path",
            "-p",
            "--module-path",
            "--upgrade-module-path",
            "--add-modules",
            "--add-exports",
            "--add-opens",
            "--add-reads",
            "--patch-module",
            "--limit-modules",
            "--source",
            "--enable-native-access",
            "-d",
            "--describe-module",
        ],
        module: &["-m", "--module"],
        file: &["-jar"],
        style: Style::Class,
        ..PLAIN
    },
    Interpreter {
        names: &["ruby", "jruby", "truffleruby"],
        language: Some("ruby"),
        valued: &["-r", "-I", "-C", "-E", "-K", "-F", "-T", "-W", "-S", "--encoding", "--external-encoding"],
        code: &["-e"],
        style: Style::Letters,
        ..PLAIN
    },
    Interpreter {
        names: &["perl"],
        valued: &["-I", "-M", "-m", "-C", "-D", "-F", "-V", "-x"],
        code: &["-e", "-E"],
        style: Style::Letters,
        ..PLAIN
    },
    Interpreter {
        names: &["php", "php-cgi"],
        language: Some("php"),
        valued: &["-c", "-d", "-S", "-t", "-z", "-F", "--define", "--php-ini", "--server", "--docroot"],
        file: &["-f", "--file"],
        code: &["-r", "-R", "-B", "-E", "--run"],
        style: Style::Letters,
        ..PLAIN
    },
    Interpreter {
        names: &["sh", "bash", "dash", "zsh", "ksh", "mksh", "ash", "fish"],
        valued: &["-o", "-O", "+o", "+O", "--rcfile", "--init-file"],
        code: &["-c"],
        style: Style::Letters,
        ..PLAIN
    },
    Interpreter {
        names: &["deno"],
        language: Some("webjs"),
        valued: &[
            "-c",
            "--config",
            "--import-map",
            "--lock",
            "--cert",
            "--location",
            "--seed",
            "--port",
            "--host",
        ],
        code: &["eval", "repl"],
        commands: &["run", "serve", "test", "bench"],
        ..PLAIN
    },
    Interpreter {
        names: &["bun"],
        language: Some("nodejs"),
        valued: &[
            "-r",
            "--preload",
            "--port",
            "--cwd",
            "-c",
            "--config",
            "-d",
            "--define",
            "-l",
            "--loader",
            "--env-file",
        ],
        code: &["-e", "--eval", "-p", "--print"],
        commands: &["run"],
        ..PLAIN
    },
    Interpreter {
        names: &["dotnet", "mono"],
        language: Some("dotnet"),
        valued: &[
            "--additionalprobingpath",
            "--additional-deps",
            "--depsfile",
            "--fx-version",
            "--roll-forward",
            "--runtimeconfig",
        ],
        commands: &["exec"],
        ..PLAIN
    },
    Interpreter { names: &["beam.smp", "beam"], language: Some("erlang"), style: Style::Node, ..PLAIN },
    Interpreter { names: &["lua", "luajit", "tclsh", "wish"], valued: &["-l"], code: &["-e"], ..PLAIN },
    Interpreter {
        names: &["R", "Rscript", "julia", "groovy"],
        file: &["-f", "--file"],
        code: &["-e", "-E"],
        ..PLAIN
    },
    Interpreter {
        names: &[
            "ld-linux-x86-64.so",
            "ld-linux-aarch64.so",
            "ld-linux.so",
            "ld-musl-x86_64.so",
            "ld-musl-aarch64.so",
        ],
        valued: &["--library-path", "--argv0", "--preload", "--inhibit-rpath", "--audit"],
        ..PLAIN
    },
];

/// The interpreter with this file name.
pub(super) fn find(file: &str) -> Option<&'static Interpreter> {
    let base =
        file.strip_suffix('t').filter(|base| base.ends_with(|c: char| c.is_ascii_digit())).unwrap_or(file);
    let base = base.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    INTERPRETERS
        .iter()
        .find(|interpreter| interpreter.names.iter().any(|name| *name == base || *name == file))
}

/// The program among the arguments (without the interpreter's own name), and what follows it. `None`: it is text, comes
/// from standard input, or there is none.
pub(super) fn target<'a>(
    interpreter: &Interpreter,
    arguments: &'a [String],
) -> Option<(Target<'a>, &'a [String])> {
    if interpreter.style == Style::Node {
        return node(arguments);
    }
    let mut rest = arguments;
    let mut at_command = true;
    loop {
        let (argument, behind) = rest.split_first()?;
        rest = behind;
        match option(interpreter, argument) {
            Meaning::Flag => {}
            Meaning::Value => rest = rest.get(1..)?,
            Meaning::Program(None) => {
                return rest.split_first().map(|(value, rest)| (program(interpreter, value), rest));
            }
            Meaning::Program(Some(value)) => return Some((program(interpreter, value), rest)),
            Meaning::Module(None) => {
                return rest.split_first().map(|(value, rest)| (module(interpreter, value), rest));
            }
            Meaning::Module(Some(value)) => return Some((module(interpreter, value), rest)),
            Meaning::File(None) => {
                return rest.split_first().map(|(value, rest)| (Target::Script(value), rest));
            }
            Meaning::File(Some(value)) => return Some((Target::Script(value), rest)),
            Meaning::Code => return None,
            Meaning::Word if at_command && interpreter.commands.contains(&argument.as_str()) => {
                at_command = false
            }
            Meaning::Word => return Some((program(interpreter, argument), rest)),
        }
    }
}

/// What one argument means; a value that is part of the argument comes with it.
enum Meaning<'a> {
    Flag,
    Value,
    Module(Option<&'a str>),
    File(Option<&'a str>),
    Program(Option<&'a str>),
    Code,
    Word,
}

fn option<'a>(interpreter: &Interpreter, argument: &'a str) -> Meaning<'a> {
    let is = |options: &[&str]| options.contains(&argument);
    if argument == "--" {
        return Meaning::Program(None);
    }
    if argument == "-" || is(interpreter.code) {
        return Meaning::Code;
    }
    if is(interpreter.module) {
        return Meaning::Module(None);
    }
    if is(interpreter.file) {
        return Meaning::File(None);
    }
    if is(interpreter.valued) {
        return Meaning::Value;
    }
    // A file of further options, for java.
    if argument.is_empty() || (interpreter.style == Style::Class && argument.starts_with('@')) {
        return Meaning::Flag;
    }
    if !argument.starts_with(['-', '+']) {
        return Meaning::Word;
    }
    if let Some((name, value)) = argument.split_once('=') {
        return match name {
            _ if interpreter.file.contains(&name) => Meaning::File(Some(value)),
            _ if interpreter.module.contains(&name) => Meaning::Module(Some(value)),
            _ if interpreter.code.contains(&name) => Meaning::Code,
            _ => Meaning::Flag,
        };
    }
    if interpreter.style == Style::Letters && !argument.starts_with("--") {
        letters(interpreter, argument)
    } else {
        Meaning::Flag
    }
}

/// One-letter options in one argument, up to the first that takes a value.
fn letters<'a>(interpreter: &Interpreter, argument: &'a str) -> Meaning<'a> {
    for (at, letter) in argument.char_indices().skip(1) {
        if !letter.is_ascii_alphanumeric() {
            break;
        }
        let mut name = [0; 5];
        name[0] = b'-';
        let length = 1 + letter.encode_utf8(&mut name[1..]).len();
        let name = std::str::from_utf8(&name[..length]).unwrap_or("");
        let attached = Some(&argument[at + 1..]).filter(|value| !value.is_empty());
        if interpreter.code.contains(&name) {
            return Meaning::Code;
        } else if interpreter.module.contains(&name) {
            return Meaning::Module(attached);
        } else if interpreter.file.contains(&name) {
            return Meaning::File(attached);
        } else if interpreter.valued.contains(&name) {
            return if attached.is_some() { Meaning::Flag } else { Meaning::Value };
        }
    }
    Meaning::Flag
}

fn program<'a>(interpreter: &Interpreter, argument: &'a str) -> Target<'a> {
    // `java Shop.java` runs a source file.
    let is_class = interpreter.style == Style::Class && !argument.ends_with(".java");
    if is_class { Target::Class(argument) } else { Target::Script(argument) }
}

fn module<'a>(interpreter: &Interpreter, argument: &'a str) -> Target<'a> {
    if interpreter.style == Style::Class { Target::Class(argument) } else { Target::Module(argument) }
}

/// Options of Erlang's emulator behind which a name stands, best first.
const NODE_NAMES: [&str; 3] = ["-sname", "-name", "-s"];

fn node(arguments: &[String]) -> Option<(Target<'_>, &[String])> {
    NODE_NAMES.iter().find_map(|option| {
        let at = arguments.iter().position(|argument| argument == option)?;
        let name = arguments.get(at + 1).filter(|name| !name.starts_with('-'))?;
        Some((Target::Node(name), &arguments[at + 2..]))
    })
}
