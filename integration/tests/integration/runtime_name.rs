//! Names of functions that runtimes compile while they run: real runtimes, with the switch that `docs/profiles.md`
//! names.
//!
//! Each program calls a function whose name is made up in this run, and nothing else.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use integration::agent::{Agent, Config};
use integration::fetch;
use integration::patience::patience;
use integration::process::{self, Program, READY};
use integration::seed::seeded;
use serde_json::Value;
use tempfile::TempDir;

/// A map of names is looked for ever less often, once a minute in the end.
const LIMIT: Duration = Duration::from_secs(180);
const TOOL: Duration = Duration::from_secs(60);

/// A program that is hot in a function of its own, with what becomes of it.
struct Hot {
    program: Program,
    _folder: TempDir,
}

/// Writes `source` and starts it; it says `ready` once the function has been compiled for sure.
fn start(name: &str, source: &str, command: impl FnOnce(&Path) -> Command) -> Hot {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join(name), source).unwrap();
    let mut program = Program::spawn(name, command(folder.path())).unwrap();
    program.await_line("ready", patience(READY)).unwrap();
    Hot { program, _folder: folder }
}

/// Maps of names stay behind in `/tmp`.
impl Drop for Hot {
    fn drop(&mut self) {
        for pid in self.program.family() {
            let _ = fs::remove_file(format!("/tmp/perf-{pid}.map"));
        }
    }
}

/// Until the profile of the process shows the function, and says whose it is.
fn check(hot: &Hot, function: &str, runtime: &str) {
    let agent = Agent::start(Config::default().set("profile", "enabled", true)).unwrap();
    let path = format!("/api/v1/profiles?format=json&pid={}", hot.program.pid());
    let begun = Instant::now();
    let found = loop {
        let profile: Value = fetch::json(agent.address(), &path).unwrap();
        let functions = profile["functions"].as_array().unwrap();
        let named = functions.iter().find(|found| found["function"].as_str().unwrap().contains(function));
        if let Some(named) = named {
            break named.clone();
        }
        assert!(begun.elapsed() < patience(LIMIT), "no {function}: {profile}");
        std::thread::sleep(Duration::from_millis(500));
    };
    assert_eq!(found["runtime"], runtime, "{found}");
    assert!(found["total_seconds"].as_f64().unwrap() > 0.0, "{found}");
}

fn made_up(test: &str) -> String {
    format!("hot{:08x}", seeded(test).u32(..))
}

#[test]
fn cpython_with_perf() {
    let Some(python) = python_with_perf() else {
        eprintln!(
            "NOT RUN: there is no CPython of 3.12 or newer here, older ones cannot tell their functions"
        );
        return;
    };
    let function = made_up("cpython");
    let source = format!(
        "def {function}(n):\n    s = 0\n    for i in range(n):\n        s = (s * 31 + i) & 65535\n    return s\n\
         {function}(1000)\nprint('ready', flush=True)\nwhile True:\n    {function}(10000)\n"
    );
    let hot = start("spin.py", &source, |folder| {
        let mut command = Command::new(&python);
        command.args(["-X", "perf"]).arg(folder.join("spin.py"));
        command
    });
    check(&hot, &function, "cpython");
}

/// On the path, or where pyenv keeps several.
fn python_with_perf() -> Option<PathBuf> {
    let on_path = ["python3", "python3.12", "python3.13", "python3.14"].map(PathBuf::from);
    let home = std::env::var_os("HOME").map(PathBuf::from).unwrap_or_default();
    let kept = fs::read_dir(home.join(".pyenv/versions")).into_iter().flatten().flatten();
    let kept = kept.map(|version| version.path().join("bin/python3"));
    on_path.into_iter().chain(kept).find(|python| {
        let mut command = Command::new(python);
        // Older ones lack the function, and it fails where CPython was built without.
        command.args(["-c", "import sys; sys.activate_stack_trampoline('perf')"]);
        command.output().is_ok_and(|output| output.status.success())
    })
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// No agent library: `jcmd` makes any JVM from 17 on write down what it has compiled. The flags only see to it that
    /// the function is compiled once, before that, and stays a function.
    #[test]
    fn java_asked_by_jcmd() {
        let function = made_up("java");
        let source = format!(
            "public class Spin {{\n\
         static long {function}(long n) {{ long s = 0; for (long i = 0; i < n; i++) s = s * 31 + i; return s; }}\n\
         public static void main(String[] arguments) {{\n\
         long t = 0; for (int i = 0; i < 2000; i++) t += {function}(10000);\n\
         System.out.println(\"ready\"); for (;;) {{ t += {function}(10000); if (t == 42) System.out.println(t); }}\n\
         }} }}\n"
        );
        let hot = start("Spin.java", &source, |folder| {
            let mut compile = Command::new("javac");
            compile.arg("-d").arg(folder).arg(folder.join("Spin.java"));
            process::run("javac", compile, patience(TOOL)).unwrap();
            let mut command = Command::new("java");
            command.args(["-Xmx64m", "-Xbatch", "-XX:TieredStopAtLevel=1"]);
            command
                .args(["-XX:CompileCommand=quiet", "-XX:CompileCommand=dontinline,Spin::*", "-cp"])
                .arg(folder)
                .arg("Spin");
            command
        });
        let mut ask = Command::new("jcmd");
        ask.arg(hot.program.pid().to_string()).arg("Compiler.perfmap");
        process::run("jcmd", ask, patience(TOOL)).unwrap();
        check(&hot, &function, "jvm");
    }

    #[test]
    fn node_with_basic_prof() {
        let function = made_up("node");
        let source = format!(
            // One call that never ends: nothing inlines it.
            "function {function}(n) {{ let s = 0; for (let i = 0; i < n; i++) s = (s * 31 + i) | 0; return s; }}\n\
         {function}(1e7); console.log('ready'); {function}(Infinity);\n"
        );
        let hot = start("spin.js", &source, |folder| {
            let mut command = Command::new("node");
            // It leaves a log where it runs.
            command.arg("--perf-basic-prof").arg(folder.join("spin.js")).current_dir(folder);
            command
        });
        check(&hot, &function, "v8js");
    }
}
