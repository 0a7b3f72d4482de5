//! One virtual machine at a time: boots a kernel, runs a command on this machine's files, ends.
//!
//! In: an image, a command with its limits. Out: what it wrote, its exit status, the console. Emulated without
//! hardware help, by one thread: with one per virtual processor a processor can run a stale instruction of a code
//! patch that another has just made. Everything is killed on drop. Refuses to know what the command does.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tempfile::TempDir;

use super::architecture::Architecture;
use super::archive;
use super::image::Image;
use super::initramfs;
use super::release::Release;
use super::share::Share;
use super::tree;
use crate::process::Program;
use crate::seed::note;

/// An oops is the end, so that it cannot be overlooked. A watchdog would bark at emulation.
const KERNEL_ARGUMENTS: &str = "loglevel=5 panic=-1 oops=panic tsc=reliable nowatchdog";
/// From the command's exit status to the machine's end.
const POWER_OFF: Duration = Duration::from_secs(20);
const LOOK: Duration = Duration::from_millis(50);
/// A boot that dies before the command starts is tried once more.
const BOOTS: usize = 2;

/// What to run.
#[derive(Debug, Clone)]
pub struct Job {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Its environment beside `PATH` and `HOME`.
    pub environment: Vec<(String, String)>,
    /// Time for the whole machine.
    pub limit: Duration,
    /// More of the kernel's command line.
    pub kernel_arguments: String,
    /// A Debian tree whose systemd runs the command as a service; otherwise the command runs on this machine's files.
    pub system: Option<PathBuf>,
    /// Memory in MiB.
    pub memory: u32,
    /// One processor whose clock counts instructions, one a nanosecond: times are costs, whatever the host does.
    pub counts_instructions: bool,
}

impl Job {
    /// Runs `command` for five minutes at most.
    pub fn new(command: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self {
            command: command.into_iter().map(Into::into).collect(),
            environment: Vec::new(),
            limit: Duration::from_secs(300),
            kernel_arguments: String::new(),
            system: None,
            memory: 2048,
            counts_instructions: false,
        }
    }
}

/// How it went.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// The command's exit status.
    pub status: i32,
    /// What it wrote to stdout and stderr, in order.
    pub output: String,
    /// What the kernel said.
    pub console: String,
}

/// A kernel, ready to boot.
#[derive(Debug)]
pub struct Machine {
    image: Image,
    architecture: Architecture,
    needs_cx16: bool,
    initramfs: Vec<u8>,
    /// What guests see instead of this machine's files.
    tree: Option<PathBuf>,
}

impl Machine {
    /// Fetches the kernel where it is not there, and prepares what all its boots share.
    ///
    /// # Errors
    /// When this is no x86-64 machine, the kernel cannot be had, or a tool is missing.
    pub fn new(release: &Release) -> anyhow::Result<Self> {
        let image = archive::fetch(release)?;
        if !cfg!(target_arch = "x86_64") {
            bail!("kernels are booted on x86-64 only, this is {}", std::env::consts::ARCH);
        }
        let Release { architecture, needs_cx16, .. } = *release;
        let tree = (architecture != Architecture::Amd64).then(|| tree::fetch(release)).transpose()?;
        let initramfs = initramfs::base(&image, tree.as_deref())?;
        Ok(Self { initramfs, architecture, needs_cx16, tree, image })
    }

    /// The kernel.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Folders of this machine that must be visible: where the command begins, the programs that were built, the
    /// kernel's modules.
    fn visible(&self, job: &Job, folder: PathBuf) -> anyhow::Result<Vec<PathBuf>> {
        let own = std::env::current_exe()?;
        let built =
            own.parent().and_then(Path::parent).context("a program lies in the folder of its profile")?;
        let mut visible = vec![folder, built.to_owned(), self.image.root.clone()];
        visible.extend(job.system.clone());
        Ok(visible)
    }

    /// Boots, runs `job` in this process's working directory and hands each piece of its output to `sink` as it
    /// comes.
    ///
    /// # Errors
    /// When the machine dies or runs out of time, with the end of its console.
    pub fn run(&self, job: &Job, mut sink: impl FnMut(&str)) -> anyhow::Result<Outcome> {
        for boot in 1.. {
            let mut running = Running::start(self, job)?;
            match running.follow(&mut sink)? {
                Progress::Exited(status) => {
                    let console = running.console()?;
                    return Ok(Outcome { status, output: running.output, console });
                }
                Progress::Booting if boot < BOOTS => {
                    note(&format!("{} died while booting: once more", self.image.release));
                }
                progress => bail!(
                    "{} ended {} after {:.0?} of {:?}: {}{}",
                    self.image.release,
                    if progress == Progress::Booting { "while booting" } else { "during the command" },
                    running.begun.elapsed(),
                    job.limit,
                    last_lines(&running.console()?),
                    running.program.stderr()?
                ),
            }
        }
        unreachable!("the last boot returns")
    }
}

/// How far a guest has come, by what it wrote to its status port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Booting,
    Running,
    Exited(i32),
}

impl Progress {
    fn read(status: &str) -> Self {
        // A line counts when its end is there.
        let lines = status.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
        lines.fold(Self::Booting, |progress, line| match line.trim().split_once(' ') {
            Some(("exit", status)) => status.parse().map_or(progress, Self::Exited),
            None if line.trim() == "start" => Self::Running,
            _ => progress,
        })
    }
}

/// A machine that has been started.
#[derive(Debug)]
struct Running {
    program: Program,
    begun: Instant,
    output: String,
    output_file: File,
    /// Bytes of output that do not end a character yet.
    rest: Vec<u8>,
    files: TempDir,
    _share: Share,
}

impl Running {
    fn start(machine: &Machine, job: &Job) -> anyhow::Result<Self> {
        let files = tempfile::Builder::new().prefix("obi-kernel").tempdir()?;
        let path = |name: &str| files.path().join(name);
        let folder = std::env::current_dir()?;
        let script = modules(&machine.image) + &script(job, &folder)?;
        let initramfs =
            [machine.initramfs.clone(), initramfs::command(&script, job.system.as_deref(), &folder)?]
                .concat();
        fs::write(path("initramfs"), initramfs)?;
        for name in ["status", "output", "console"] {
            fs::write(path(name), "")?;
        }
        let visible = machine.visible(job, folder)?;
        let share = Share::start(files.path(), machine.tree.as_deref(), &visible)?;
        let mut command = Command::new("setpriv");
        // QEMU ends with `timeout`, and that with us.
        command.args(["--pdeathsig", "TERM", "timeout", "--kill-after=5", &job.limit.as_secs().to_string()]);
        let emulator = machine.architecture.emulator();
        command.args(["setpriv", "--pdeathsig", "KILL", emulator]);
        command.args(arguments(machine, job, files.path(), &share.socket));
        Ok(Self {
            program: Program::spawn(emulator, command)?,
            begun: Instant::now(),
            output: String::new(),
            output_file: File::open(path("output"))?,
            rest: Vec::new(),
            files,
            _share: share,
        })
    }

    /// Waits for the end of the command or the machine.
    fn follow(&mut self, sink: &mut impl FnMut(&str)) -> anyhow::Result<Progress> {
        let mut exited: Option<Instant> = None;
        loop {
            let is_running = self.program.is_running()?;
            let progress = Progress::read(&fs::read_to_string(self.files.path().join("status"))?);
            self.read_output(sink)?;
            if let Progress::Exited(_) = progress {
                exited = exited.or(Some(Instant::now()));
            }
            if !is_running || exited.is_some_and(|at| at.elapsed() > POWER_OFF) {
                return Ok(progress);
            }
            thread::sleep(LOOK);
        }
    }

    fn read_output(&mut self, sink: &mut impl FnMut(&str)) -> anyhow::Result<()> {
        self.output_file.read_to_end(&mut self.rest)?;
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let text = String::from_utf8_lossy(&self.rest[..whole]).into_owned();
        self.rest.drain(..whole);
        if !text.is_empty() {
            sink(&text);
        }
        self.output += &text;
        Ok(())
    }

    fn console(&self) -> anyhow::Result<String> {
        let bytes = fs::read(self.files.path().join("console"))?;
        Ok(String::from_utf8_lossy(&bytes).replace('\r', ""))
    }
}

/// QEMU's arguments.
fn arguments(machine: &Machine, job: &Job, files: &Path, share: &Path) -> Vec<String> {
    let file = |name: &str| files.join(name).display().to_string();
    let port = |name: &str| {
        [
            "-chardev".to_owned(),
            format!("file,id={name},path={}", file(name)),
            "-device".to_owned(),
            format!("virtserialport,chardev={name},name=obi.{name}"),
        ]
    };
    let memory = job.memory;
    let architecture = machine.architecture;
    let processor = architecture.processor(machine.needs_cx16);
    let append = format!("console={} {KERNEL_ARGUMENTS} {}", architecture.console(), job.kernel_arguments);
    let fixed = [
        ["-accel", "tcg,thread=single"],
        ["-cpu", &processor],
        ["-machine", architecture.machine()],
        ["-smp", if job.counts_instructions { "1" } else { "2" }],
        ["-display", "none"],
        ["-device", "virtio-serial-pci"],
        ["-device", "virtio-rng-pci"],
    ];
    let made = [
        ["-m", &memory.to_string()],
        ["-object", &format!("memory-backend-memfd,id=mem,size={memory}M,share=on")],
        ["-kernel", &machine.image.vmlinuz.display().to_string()],
        ["-initrd", &file("initramfs")],
        ["-append", &append],
        ["-serial", &format!("file:{}", file("console"))],
        ["-chardev", &format!("socket,id=root,path={}", share.display())],
        ["-device", "vhost-user-fs-pci,chardev=root,tag=host"],
    ];
    let flags: &[&str] = match job.counts_instructions {
        // Idle time passes at once instead of being slept through.
        true => &["-nodefaults", "-no-user-config", "-no-reboot", "-icount", "shift=0,sleep=off"],
        false => &["-nodefaults", "-no-user-config", "-no-reboot"],
    };
    let words =
        flags.iter().copied().chain(fixed.iter().flatten().copied()).chain(made.iter().flatten().copied());
    words.map(str::to_owned).chain(port("status")).chain(port("output")).collect()
}

/// Puts the kernel's modules where it looks for those that it loads by itself.
fn modules(image: &Image) -> String {
    let folder = format!("/lib/modules/{}", image.release);
    let from = format!("{}{folder}", image.root.display());
    format!("mkdir -p /lib/modules && ln -sfn {} {} || exit 125\n", quoted(&from), quoted(&folder))
}

/// The shell script that becomes the command.
fn script(job: &Job, folder: &Path) -> anyhow::Result<String> {
    let mut script = String::new();
    let inherited = ["PATH", "HOME"].map(|name| (name.to_owned(), std::env::var(name).unwrap_or_default()));
    for (name, value) in inherited.iter().chain(&job.environment) {
        writeln!(script, "export {name}={}", quoted(value))?;
    }
    writeln!(script, "cd {} || exit 125", quoted(&folder.display().to_string()))?;
    let words: Vec<String> = job.command.iter().map(|word| quoted(word)).collect();
    if words.is_empty() {
        bail!("no command to run");
    }
    writeln!(script, "exec {}", words.join(" "))?;
    Ok(script)
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// The end of a console, where a kernel says why it died.
fn last_lines(console: &str) -> String {
    let lines: Vec<&str> = console.lines().collect();
    let begin = lines.len().saturating_sub(40);
    lines[begin..].iter().map(|line| format!("\n  {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_what_the_last_whole_line_says() {
        let check =
            |status: &str, expected: Progress| assert_eq!(Progress::read(status), expected, "{status:?}");
        check("", Progress::Booting);
        check("sta", Progress::Booting);
        check("start", Progress::Booting);
        check("start\n", Progress::Running);
        check("start\nexit 1", Progress::Running);
        check("start\nexit 101\n", Progress::Exited(101));
        check("start\nexit 0\n", Progress::Exited(0));
        check("start\nexit \n", Progress::Running);
        check("noise\nstart\nmore noise\n", Progress::Running);
    }

    #[test]
    fn words_reach_the_guest_as_they_are() {
        let check = |words: &[&str], value: &str| {
            let mut job = Job::new(["printf", "%s\\n"].iter().chain(words).copied());
            job.command.push(value.to_owned());
            job.environment.push(("OBI_WORD".to_owned(), value.to_owned()));
            let script = script(&job, Path::new("/")).unwrap() + "\n";
            let output = Command::new("sh").arg("-c").arg(script).output().unwrap();
            let expected: String = words.iter().chain([&value]).map(|word| format!("{word}\n")).collect();
            assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        };
        check(&["a", "b c", ""], "it's");
        check(&["$HOME", "`id`", "\\", "\"x\""], "*");
    }

    #[test]
    fn the_end_of_a_console_is_kept() {
        let lines: String = (0..100).map(|line| format!("{line}\n")).collect();
        let kept = last_lines(&lines);
        assert!(kept.starts_with("\n  60\n") && kept.ends_with("\n  99"), "{kept}");
        assert_eq!(last_lines(""), "");
    }
}
