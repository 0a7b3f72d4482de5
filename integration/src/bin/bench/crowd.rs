//! Many processes of many executables, and no CPU idle.
//!
//! In: nothing; C is compiled here. Out: [`Crowd`], running until it is dropped. Every program is busy for some
//! milliseconds again and again, in stacks of its own through libraries that others share; one hog for each CPU, of the
//! lowest priority, takes what is left.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use integration::process::{Program, READY, run};
use integration::seed::note;
use tempfile::TempDir;

/// Processes, without the hogs.
pub(crate) const PROCESSES: usize = 200;
/// Executables, among them the interpreters that are installed.
pub(crate) const EXECUTABLES: usize = 50;
const LIBRARIES: usize = 4;
/// Functions that a program calls at most, one inside the other, and those that it has beside them.
const LEVELS: usize = 40;
const OTHERS: usize = 200;
/// CPU time at a stretch, and the pause behind it: with 200 processes 1.6 CPUs.
const BURST: &str = "4000";
const PAUSE: &str = "500000";

/// Real interpreters, by a program that is busy as ours are. All print `ready` first.
const INTERPRETERS: [(&str, &[&str]); 5] = [
    (
        "python3",
        &[
            "-c",
            "import time\nprint('ready', flush=True)\nwhile True:\n end = time.process_time() + .004\n \
             while time.process_time() < end: sorted(range(100))\n time.sleep(.5)",
        ],
    ),
    (
        "perl",
        &[
            "-e",
            "$| = 1; print \"ready\\n\"; while (1) { $x += $_ ** 2 for 1..40000; select undef, undef, undef, .5 }",
        ],
    ),
    (
        "node",
        &[
            "-e",
            "console.log('ready'); setInterval(() => { const end = process.cpuUsage().user + 4000; \
             while (process.cpuUsage().user < end) JSON.parse('{\"a\": [1, 2, 3]}') }, 500)",
        ],
    ),
    ("bash", &["-c", "echo ready; while :; do for ((i = 0; i < 2000; i++)); do :; done; sleep .5; done"]),
    (
        "awk",
        &[
            "BEGIN { print \"ready\"; fflush(); for (;;) { for (i = 0; i < 40000; i++) x += i; system(\"sleep .5\") } }",
        ],
    ),
];

/// All of them.
#[derive(Debug)]
pub(crate) struct Crowd {
    commands: Vec<(PathBuf, &'static [&'static str])>,
    processes: Vec<Program>,
    hogs: Vec<Program>,
    // Holds the executables.
    _folder: TempDir,
}

impl Crowd {
    /// Compiles what is not installed; nothing runs yet.
    pub(crate) fn compile() -> anyhow::Result<Self> {
        note(&format!("{EXECUTABLES} executables"));
        let folder = tempfile::tempdir()?;
        for library in 0..LIBRARIES {
            let name = format!("libcrowd{library}.so");
            compile(folder.path(), &name, &shared(library), &["-shared", "-fPIC"])?;
        }
        let mut commands: Vec<(PathBuf, &'static [&'static str])> = Vec::new();
        commands.extend(INTERPRETERS.iter().filter_map(|(name, arguments)| Some((found(name)?, *arguments))));
        for number in commands.len()..EXECUTABLES {
            let name = format!("crowd{number}");
            let library = format!("-lcrowd{}", number % LIBRARIES);
            compile(folder.path(), &name, &program(number), &["-L.", &library, "-Wl,-rpath,$ORIGIN"])?;
            commands.push((folder.path().join(name), &[]));
        }
        Ok(Self { commands, processes: Vec::new(), hogs: Vec::new(), _folder: folder })
    }

    /// One process for each CPU that is always busy, of the lowest priority; returns when they are.
    pub(crate) fn start_hogs(&mut self) -> anyhow::Result<()> {
        for number in 0..std::thread::available_parallelism()?.get() {
            let mut command = Command::new("nice");
            command.args(["-n", "19"]).arg(&self.commands[EXECUTABLES - 1 - number % LIBRARIES].0).arg("hog");
            self.hogs.push(ready("hog", command)?);
        }
        Ok(())
    }

    /// All others; returns when they are busy.
    pub(crate) fn start(&mut self) -> anyhow::Result<()> {
        note(&format!("{PROCESSES} processes"));
        for number in 0..PROCESSES {
            let (path, arguments) = &self.commands[number % EXECUTABLES];
            let mut command = Command::new(path);
            command.args(*arguments);
            self.processes.push(ready("member of the crowd", command)?);
        }
        Ok(())
    }

    /// A process that is busy all the time.
    pub(crate) fn hog(&self) -> anyhow::Result<u32> {
        Ok(self.hogs.first().context("no hog was started")?.pid())
    }

    /// Those that still run.
    pub(crate) fn alive(&mut self) -> anyhow::Result<usize> {
        let mut alive = 0;
        for process in &mut self.processes {
            alive += usize::from(process.is_running()?);
        }
        Ok(alive)
    }
}

fn ready(name: &str, command: Command) -> anyhow::Result<Program> {
    let mut process = Program::spawn(name, command)?;
    process.await_line("ready", READY)?;
    Ok(process)
}

fn found(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file())
}

fn compile(folder: &Path, name: &str, source: &str, flags: &[&str]) -> anyhow::Result<()> {
    let text = format!("{name}.c");
    std::fs::write(folder.join(&text), source)?;
    let mut command = Command::new("gcc");
    command.current_dir(folder).args(["-O2", "-Wl,--build-id", &text, "-o", name]).args(flags);
    run("gcc", command, Duration::from_secs(120)).map(drop)
}

/// A function with a frame of some size, that calls the one below it.
fn level(of: &str, at: usize, size: usize, calls: &str) -> String {
    format!(
        "__attribute__((noinline)) long {of}_{at}(long n) {{ volatile long room[{size}]; room[0] = n; \
         return {calls}(n + {at}) + room[0]; }}\n"
    )
}

fn shared(library: usize) -> String {
    let leaf = format!("shared{library}");
    let mut source = format!(
        "__attribute__((noinline)) long {leaf}_0(long n) {{ volatile long x = n; \
         for (int i = 0; i < 300; i++) x += i; return x; }}\n"
    );
    for at in 1..=OTHERS {
        source.push_str(&level(&leaf, at, 1 + at % 13, &format!("{leaf}_{}", (at - 1) % 5)));
    }
    source
}

fn program(number: usize) -> String {
    let (of, library) = (format!("own{number}"), number % LIBRARIES);
    let levels = 5 + number * 7 % (LEVELS - 5);
    let mut source = format!(
        "#include <stdio.h>\n#include <time.h>\n#include <unistd.h>\nlong shared{library}_4(long n);\n\
         __attribute__((noinline)) long {of}_0(long n) {{ volatile long x = n; \
         for (int i = 0; i < 2000; i++) x += i * n; return x + shared{library}_4(n); }}\n"
    );
    for at in 1..=levels {
        source.push_str(&level(&of, at, 1 + (at + number) * 5 % 17, &format!("{of}_{}", at - 1)));
    }
    for at in levels + 1..=levels + OTHERS {
        source.push_str(&level(&of, at, 1 + (at + number) * 3 % 23, &format!("{of}_{}", at % levels)));
    }
    let _ = write!(
        source,
        "int main(int argc, char **argv) {{ puts(\"ready\"); fflush(stdout);\n\
         for (;;) {{ clock_t end = clock() + {BURST}; while (clock() < end) {of}_{levels}(argc);\n\
         if (argc < 2) usleep({PAUSE}); }} }}\n"
    );
    source
}
