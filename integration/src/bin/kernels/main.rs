//! Other kernels than this machine's: `kernels list`, `kernels run 6.12 -- COMMAND…`.
//!
//! In: a command line. Out: what ran on which kernel and how it ended. Exit status: the command's, or 1.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};
use integration::kernel::archive;
use integration::kernel::machine::{Job, Machine};
use integration::kernel::matrix::{Plan, Target};
use integration::kernel::program::SETS;
use integration::kernel::release::{ARM64, RELEASES, Release};
use integration::program as workload;

#[derive(Debug, Parser)]
#[command(about = "Boots Debian's kernels under QEMU and runs commands there")]
struct Cli {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// The kernels, fetched when they are not there
    List,
    /// Every kernel program and the accuracy of every hook set on every kernel
    Matrix(Matrix),
    /// As much of it as fits into a few minutes: the oldest kernel, with the portable objects, and the strictest
    /// with the modern ones
    Smoke(Smoke),
    /// The same on an emulated machine of arm64, with what was built for it
    Arm64(Arm64),
    /// Runs a command as root on this machine's files, which it cannot change
    Run(Run),
}

#[derive(Debug, Args)]
struct Run {
    /// Kernel series, as `list` prints it
    series: String,
    /// Time for the whole machine in seconds
    #[arg(long, default_value_t = 300)]
    limit: u64,
    /// More of the kernel's command line
    #[arg(long, default_value = "")]
    append: String,
    /// Environment of the command, `NAME=VALUE`
    #[arg(long = "env")]
    environment: Vec<String>,
    /// One processor whose clock counts instructions, one a nanosecond
    #[arg(long)]
    instructions: bool,
    /// Run it as a service of the systemd of this Debian tree instead
    #[arg(long)]
    system: Option<PathBuf>,
    /// Print what the kernel said, too
    #[arg(long)]
    console: bool,
    /// The command
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

#[derive(Debug, Args)]
struct Matrix {
    /// The integration tests' binary
    #[arg(long)]
    tests: PathBuf,
    /// Only these series
    #[arg(long, value_parser = PossibleValuesParser::new(RELEASES.map(|release| release.series)))]
    kernel: Vec<String>,
    /// Only these tests (beginnings of names); without it those that every kernel must pass
    #[arg(long)]
    test: Vec<String>,
    /// Only these sets
    #[arg(long, value_parser = SETS)]
    set: Vec<String>,
    /// Machines at the same time
    #[arg(long, default_value_t = MACHINES)]
    machines: usize,
}

#[derive(Debug, Args)]
struct Smoke {
    /// The integration tests' binary
    #[arg(long)]
    tests: PathBuf,
}

#[derive(Debug, Args)]
struct Arm64 {
    /// The integration tests' binary, built for arm64 as the programs beside it
    #[arg(long)]
    tests: PathBuf,
    /// Machines at the same time
    #[arg(long, default_value_t = MACHINES)]
    machines: usize,
    /// Only these tests (beginnings of names)
    #[arg(long)]
    test: Vec<String>,
    /// Only these sets
    #[arg(long, value_parser = SETS)]
    set: Vec<String>,
}

/// What the matrix runs: the accuracy gate in the clear and encrypted, and what is left behind by an agent that is
/// killed.
const TESTS: [&str; 3] = ["accuracy::", "encrypted::", "failure::sudden_death_leaves_nothing"];
/// Whether samples of stacks come with the requests that they were taken in. The rest of `profile::` takes half an
/// hour in an emulated machine.
const PROFILE_TESTS: [&str; 2] = ["profile::a_request_leads_to_its_profile", "profile::purity"];
/// Samples of waits: they come behind a switch, by a tracepoint or by a kprobe.
const WAITING_TESTS: [&str; 1] = ["waiting::sampled::waits_are_those_of_functions"];
/// On arm64: what needs nothing there but a C compiler, and programs of Go that were built before. Names of samples
/// take longer there than `profile::purity` waits for them.
const ARM64_TESTS: [&str; 4] = [
    "accuracy::raw_ends",
    "failure::sudden_death_leaves_nothing",
    "go_tls::both_ends_in_go",
    "recording::functions_of_a_program_are_written_as_they_call_each_other",
];
/// Only where the kernel preempts itself.
const PREEMPTED_TESTS: &str = "stress::";
/// Rows of the accuracy gate that pass through most of a hook set.
const SMOKE_ROWS: &str = "keep-alive,chunked both ways,pipelined,unix,writev";
/// One for each processor of the machine that this was made for.
const MACHINES: usize = 2;
/// It counts the stack of all calls together, and knows the modern objects.
const STRICT: &str = "6.1";
/// On this one, and preemptibly.
const PREEMPTED: &str = "6.12";

fn main() -> anyhow::Result<ExitCode> {
    match Cli::parse().command {
        Action::Matrix(matrix) => matrix.run(),
        Action::Smoke(smoke) => smoke.run(),
        Action::Arm64(arm64) => arm64.run(),
        Action::List => list(),
        Action::Run(run) => run.run(),
    }
}

fn list() -> anyhow::Result<ExitCode> {
    for release in RELEASES {
        let image = archive::fetch(&release)?;
        println!("{}\t{}\t{}", release.series, image.release, image.root.display());
    }
    Ok(ExitCode::SUCCESS)
}

impl Matrix {
    fn run(self) -> anyhow::Result<ExitCode> {
        workload::prepare()?;
        let named = |release: &Release| {
            self.kernel.is_empty() || self.kernel.iter().any(|name| name == release.series)
        };
        let mut targets: Vec<Target> =
            RELEASES.into_iter().filter(named).map(|release| Target { release, preempt: false }).collect();
        let preempted = targets.iter().find(|target| target.release.series == PREEMPTED);
        targets.extend(preempted.map(|target| Target { preempt: true, ..*target }));
        let is_wanted = |set: &&str| self.set.is_empty() || self.set.iter().any(|name| name == set);
        let plan = Plan {
            targets,
            sets: SETS.into_iter().filter(is_wanted).collect(),
            left_out: Vec::new(),
            tests: self.tests,
            preempted: if self.test.is_empty() { vec![PREEMPTED_TESTS.to_owned()] } else { Vec::new() },
            profiled: if self.test.is_empty() { PROFILE_TESTS.map(str::to_owned).into() } else { Vec::new() },
            waiting: if self.test.is_empty() { WAITING_TESTS.map(str::to_owned).into() } else { Vec::new() },
            filters: if self.test.is_empty() { TESTS.map(str::to_owned).into() } else { self.test },
            // As for tests on this machine.
            environment: std::env::vars().filter(|(name, _)| name == "OBI_TEST_ROWS").collect(),
            choice: true,
            machines: self.machines.max(1),
        };
        plan.run().map(|()| ExitCode::SUCCESS)
    }
}

impl Smoke {
    /// The oldest kernel, where only the portable objects load; and the one whose verifier is the strictest of those
    /// that take the modern ones, with the set that it chooses.
    fn run(self) -> anyhow::Result<ExitCode> {
        let strict = Release::of_series(STRICT).with_context(|| format!("no kernel {STRICT}"))?;
        let plan = Plan {
            targets: [RELEASES[0], strict].map(|release| Target { release, preempt: false }).into(),
            sets: vec!["fentry", "kprobe"],
            left_out: vec![(STRICT, "kprobe")],
            tests: self.tests,
            filters: vec!["accuracy::raw_ends".to_owned()],
            preempted: Vec::new(),
            profiled: Vec::new(),
            waiting: Vec::new(),
            environment: vec![("OBI_TEST_ROWS".to_owned(), SMOKE_ROWS.to_owned())],
            choice: false,
            machines: MACHINES,
        };
        plan.run().map(|()| ExitCode::SUCCESS)
    }
}

impl Arm64 {
    /// The agent's own choice, every program before the verifier, and one test of each kind with every set.
    fn run(self) -> anyhow::Result<ExitCode> {
        let is_wanted = |set: &&str| self.set.is_empty() || self.set.iter().any(|name| name == set);
        let plan = Plan {
            targets: vec![Target { release: ARM64, preempt: false }],
            sets: SETS.into_iter().filter(is_wanted).collect(),
            left_out: Vec::new(),
            tests: self.tests,
            preempted: Vec::new(),
            profiled: Vec::new(),
            waiting: Vec::new(),
            filters: if self.test.is_empty() { ARM64_TESTS.map(str::to_owned).into() } else { self.test },
            environment: std::env::vars().filter(|(name, _)| name == "OBI_TEST_ROWS").collect(),
            choice: true,
            machines: self.machines.max(1),
        };
        plan.run().map(|()| ExitCode::SUCCESS)
    }
}

impl Run {
    fn run(self) -> anyhow::Result<ExitCode> {
        let release = Release::of_series(&self.series).with_context(|| {
            let known = RELEASES.map(|release| release.series).join(", ");
            format!("no kernel {}, only {known}", self.series)
        })?;
        let mut job = Job::new(self.command);
        job.limit = Duration::from_secs(self.limit);
        job.kernel_arguments = self.append;
        job.counts_instructions = self.instructions;
        // The guest knows no other working directory.
        job.system = self.system.map(std::path::absolute).transpose()?;
        for pair in &self.environment {
            let (name, value) = pair.split_once('=').with_context(|| format!("{pair} is not NAME=VALUE"))?;
            job.environment.push((name.to_owned(), value.to_owned()));
        }
        let outcome = Machine::new(&release)?.run(&job, |text| {
            // A closed stdout is noticed by the program that closed it.
            let _ = std::io::stdout().write_all(text.as_bytes());
        })?;
        if self.console {
            eprint!("{}", outcome.console);
        }
        Ok(u8::try_from(outcome.status).map_or(ExitCode::FAILURE, ExitCode::from))
    }
}
