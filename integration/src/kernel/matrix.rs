//! All of it for each kernel, as one table: what the verifier says, whether each hook set reports the truth there, what
//! is left after `kill -9`.
//!
//! In: kernels, the test binary, which tests. Out: a table, and whether every cell is as it must be. A set that a
//! kernel cannot have is named in [`ABSENT`] with the reason; every other cell must be filled by a run.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};

use super::architecture::Architecture;
use super::machine::{Job, Machine};
use super::program::{Flavour, PROFILE, SETS, is_optional};
use super::release::Release;
use super::type_information;
use super::verifier::{Fate, Verdict};
use crate::seed::note;

/// For all tests of one set, which take five to ten minutes there, and hundreds of threads some more.
const LIMIT: Duration = Duration::from_secs(2400);
/// How many times slower than its host an emulated processor is, with another one beside it.
const SLOWNESS: &str = "20";
/// The set that the agent must choose by itself: on a kernel that preempts itself the one that is not preempted.
const CHOSEN: [(&str, &str); 6] = [
    ("5.10", "fentry"),
    ("6.1", "fentry"),
    ("6.12", "fentry"),
    ("6.12 preempt=full", "kprobe"),
    ("7", "kprobe"),
    ("6.12-arm64", "fentry"),
];
/// What a kernel says when it finds itself at fault.
const COMPLAINTS: [&str; 4] = ["WARNING: ", "BUG: ", "Oops", "Call Trace:"];
/// Series that take the portable objects where they refuse the modern ones. On all others that would be a loss of what
/// only the modern ones have, so there it is an error.
const PORTABLE: [&str; 1] = ["5.10"];
/// Series whose kernels are built without TLS.
const WITHOUT_TLS: [&str; 1] = ["5.10"];
/// Sets that a series cannot have.
const ABSENT: [(&str, &str, &str); 2] = [
    ("5.10", "socket", "no tracepoint sock_send_length before 6.3"),
    ("6.1", "socket", "no tracepoint sock_send_length before 6.3"),
];

/// A kernel, as it is booted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    /// Which one.
    pub release: Release,
    /// With `preempt=full`: programs are preempted in their middle, wherever the kernel lets them.
    pub preempt: bool,
}

/// What to run on each kernel.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The kernels.
    pub targets: Vec<Target>,
    /// Hook sets, of those that a kernel has.
    pub sets: Vec<&'static str>,
    /// Series and set of what is not run.
    pub left_out: Vec<(&'static str, &'static str)>,
    /// Test binary.
    pub tests: PathBuf,
    /// Names, or beginnings of names, of its tests.
    pub filters: Vec<String>,
    /// The same where the kernel preempts itself.
    pub preempted: Vec<String>,
    /// The same of profiles, with the one set that misses no request on any kernel: a sample may be of any.
    pub profiled: Vec<String>,
    /// The same of waits, where a kernel keeps accounts of threads.
    pub waiting: Vec<String>,
    /// Environment of the tests, beside the set and the slowness.
    pub environment: Vec<(String, String)>,
    /// Ask the agent on each kernel which set it would choose.
    pub choice: bool,
    /// Machines that run at the same time: as many as this one has processors is quickest.
    pub machines: usize,
}

/// Its programs run to their end on every kernel.
const NEVER_PREEMPTED: &str = "kprobe";

/// Where the tests are that say how many spans they expected.
const ACCURACY: &str = "accuracy::";

/// One row of the table.
#[derive(Debug)]
struct Cell {
    kernel: String,
    /// A hook set, or `auto`.
    set: &'static str,
    /// The verifier's word; why the agent chose it.
    verdict: String,
    /// Tests that passed, or what went wrong.
    truth: Result<String, String>,
}

/// A machine to boot: a target whose programs have been verified, and a set to test there.
#[derive(Debug)]
struct Errand<'a> {
    target: Target,
    machine: &'a Machine,
    set: &'static str,
    verdict: String,
}

impl Target {
    fn name(self) -> String {
        format!("{}{}", self.release.series, if self.preempt { " preempt=full" } else { "" })
    }

    fn job(self, command: &[String]) -> Job {
        let mut job = Job::new(command);
        job.limit = LIMIT;
        job.kernel_arguments = if self.preempt { "preempt=full".to_owned() } else { String::new() };
        job
    }
}

impl Plan {
    /// Runs all of it and prints the table.
    ///
    /// # Errors
    /// When a kernel cannot be had or booted, and when a cell is not as it must be.
    pub fn run(&self) -> anyhow::Result<()> {
        let machines: Vec<Machine> =
            self.targets.iter().map(|target| Machine::new(&target.release)).collect::<anyhow::Result<_>>()?;
        // Full preemption makes no difference to a verifier.
        let verified =
            self.each(machines.iter().zip(&self.targets).filter(|(_, target)| !target.preempt), |pair| {
                let (machine, target) = pair;
                (target.release.series, self.verify(*target, machine))
            });
        let mut verdicts = HashMap::new();
        for (series, outcome) in verified {
            verdicts.insert(series, outcome?);
        }
        let asked = machines.iter().zip(&self.targets).filter(|_| self.choice);
        let mut cells = self.each(asked, |(machine, target)| self.choice(*target, machine));
        let mut errands = Vec::new();
        for (machine, target) in machines.iter().zip(&self.targets) {
            for (set, verdict) in &verdicts[target.release.series] {
                match verdict.clone() {
                    Ok(verdict) => errands.push(Errand { target: *target, machine, set, verdict }),
                    Err(reason) => cells.push(absent(*target, set, reason)),
                }
            }
        }
        cells.extend(self.each(errands, |errand| {
            let cell = self.test(errand);
            note(&cell.line());
            cell
        }));
        table(cells)
    }

    /// Does all of `work`, as many at a time as machines may run.
    fn each<W: Send, R: Send>(
        &self,
        work: impl IntoIterator<Item = W>,
        act: impl Fn(W) -> R + Sync,
    ) -> Vec<R> {
        let work = Mutex::new(work.into_iter().collect::<VecDeque<W>>());
        let done = Mutex::new(Vec::new());
        let next = || work.lock().ok()?.pop_front();
        thread::scope(|scope| {
            for _ in 0..self.machines {
                scope.spawn(|| {
                    while let Some(item) = next() {
                        let result = act(item);
                        if let Ok(mut done) = done.lock() {
                            done.push(result);
                        }
                    }
                });
            }
        });
        done.into_inner().unwrap_or_default()
    }

    /// Every program before this kernel's verifier: for each set how it went, or why the kernel cannot have it.
    fn verify(&self, target: Target, machine: &Machine) -> anyhow::Result<Vec<(&'static str, Verification)>> {
        let verify = self.sibling("verify")?;
        let mut command = vec![verify.display().to_string()];
        command.extend(self.sets_of(target).chain([PROFILE]).map(str::to_owned));
        let outcome = machine.run(&target.job(&command), |_| ())?;
        if outcome.status != 0 {
            bail!("{} on {} failed: {}", verify.display(), target.name(), outcome.output);
        }
        let verdicts: Vec<Verdict> = outcome
            .output
            .lines()
            .filter(|line| line.starts_with('{'))
            .map(|line| serde_json::from_str(line).with_context(|| format!("read verdict `{line}`")))
            .collect::<anyhow::Result<_>>()?;
        // Objects of another architecture are in programs of it alone; the verifier has seen them there.
        if target.release.architecture == Architecture::Amd64 {
            type_information::check(machine, &target.name())?;
        }
        // Every kernel can sample stacks: there is no other way that it could be replaced by.
        let release = &target.release;
        if let Err(reason) = verification(PROFILE, release, &verdicts) {
            bail!("{PROFILE} on {}: {reason}", target.name());
        }
        Ok(self.sets_of(target).map(|set| (set, verification(set, release, &verdicts))).collect())
    }

    /// Another binary of the build that the tests are of, which is the guest's.
    fn sibling(&self, name: &str) -> anyhow::Result<PathBuf> {
        let folder = self.tests.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
        let path = folder.join(name);
        if !path.is_file() {
            bail!("no {}: build it with `cargo build --workspace --bins`", path.display());
        }
        Ok(path)
    }

    /// Which set the agent chooses there, and why.
    fn choice(&self, target: Target, machine: &Machine) -> Cell {
        let kernel = target.name();
        let ask = || -> anyhow::Result<(String, String)> {
            let agent = self.sibling("obi")?.display().to_string();
            let outcome =
                machine.run(&target.job(&[agent, "doctor".to_owned(), "--json".to_owned()]), |_| ())?;
            complaint(&outcome.console)?;
            let report: serde_json::Value = serde_json::from_str(&outcome.output)
                .with_context(|| format!("read what `obi doctor` said: {}", outcome.output))?;
            let word = |key: &str| report[key].as_str().unwrap_or("none").to_owned();
            Ok((word("hook_set"), word("why")))
        };
        let expected = CHOSEN.iter().find(|(name, _)| *name == kernel).map_or("none", |(_, set)| set);
        let (verdict, truth) = match ask() {
            Ok((set, why)) if set == expected => (why, Ok(format!("chooses {set}"))),
            Ok((set, why)) => (why, Err(format!("chooses {set}, not {expected}"))),
            Err(error) => ("not asked".to_owned(), Err(format!("{error:#}"))),
        };
        Cell { kernel, set: "auto", verdict, truth }
    }

    fn sets_of(&self, target: Target) -> impl Iterator<Item = &'static str> + '_ {
        let is_wanted = move |set: &&str| !self.left_out.contains(&(target.release.series, *set));
        self.sets.iter().copied().filter(is_wanted)
    }

    fn test(&self, errand: Errand<'_>) -> Cell {
        let truth = self.run_tests(&errand).map_err(|error| format!("{error:#}"));
        Cell { kernel: errand.target.name(), set: errand.set, verdict: errand.verdict, truth }
    }

    fn run_tests(&self, errand: &Errand<'_>) -> anyhow::Result<String> {
        // What the kernel says of its preemption comes first in the output.
        const SCRIPT: &str = "cat /sys/kernel/debug/sched/preempt 2>/dev/null; exec \"$@\"";
        let mut command = ["sh", "-c", SCRIPT, "sh"].map(str::to_owned).to_vec();
        command.extend([self.tests.display().to_string(), "--test-threads=1".to_owned()]);
        command.extend(self.filters.iter().cloned());
        if errand.target.preempt {
            command.extend(self.preempted.iter().cloned());
        } else if errand.set == NEVER_PREEMPTED {
            command.extend(self.profiled.iter().cloned());
            if !PORTABLE.contains(&errand.target.release.series) {
                command.extend(self.waiting.iter().cloned());
            }
        }
        let mut job = errand.target.job(&command);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        job.environment = vec![pair("OBI_HOOKS", errand.set), pair("OBI_TEST_SLOWNESS", SLOWNESS)];
        job.environment.extend(self.environment.iter().cloned());
        if !WITHOUT_TLS.contains(&errand.target.release.series) {
            job.environment.push(pair("OBI_TEST_KERNEL_TLS", "required"));
        }
        let outcome = errand.machine.run(&job, |_| ())?;
        complaint(&outcome.console)?;
        if errand.target.preempt && !outcome.output.contains("(full)") {
            bail!("{} does not run with full preemption: {}", errand.target.name(), outcome.output);
        }
        let passed = passed(&outcome.output);
        if outcome.status != 0 || passed == 0 {
            bail!("status {}, {passed} tests passed:\n{}", outcome.status, outcome.output);
        }
        let findings = findings(&outcome.output);
        if findings.is_empty() && self.filters.iter().any(|filter| filter.starts_with(ACCURACY)) {
            bail!(
                "{passed} tests passed without a single span: is {} the right binary?",
                self.tests.display()
            );
        }
        let cost = cost(&outcome.output).map_or(String::new(), |cost| format!(", {cost} ns/span"));
        let findings: Vec<String> =
            findings.iter().map(|(group, found)| format!("{group}: {found}")).collect();
        Ok(format!("{passed} tests{cost}; {}", findings.join("; ")))
    }
}

/// What the kernel found wrong with itself while a cell was filled.
fn complaint(console: &str) -> anyhow::Result<()> {
    let is_complaint = |line: &&str| COMPLAINTS.iter().any(|complaint| line.contains(complaint));
    match console.lines().position(|line| is_complaint(&line)) {
        None => Ok(()),
        Some(at) => {
            let lines: Vec<&str> = console.lines().skip(at).take(40).collect();
            bail!("the kernel complains:\n{}", lines.join("\n"))
        }
    }
}

/// The objects that may be taken there, best first.
fn flavours(series: &str) -> &'static [Flavour] {
    if PORTABLE.contains(&series) { &[Flavour::Modern, Flavour::Portable] } else { &[Flavour::Modern] }
}

/// How the verifier took a set: which flavour, and how much work its largest program was; or why not.
type Verification = Result<String, String>;

fn verification(set: &str, release: &Release, verdicts: &[Verdict]) -> Verification {
    let mut reasons = Vec::new();
    for &flavour in flavours(release.series) {
        let mut own = verdicts.iter().filter(|v| v.set == set && v.flavour == flavour.name()).peekable();
        if own.peek().is_none() {
            continue;
        }
        let (mut most, mut n) = (0, 0);
        let refused = own.find_map(|verdict| match &verdict.fate {
            Fate::Loaded { instructions } => {
                most = most.max(*instructions);
                n += 1;
                None
            }
            // A place that the kernel has is no excuse: what attaches there must load.
            Fate::Absent if is_optional(set, &verdict.program, release.architecture) => None,
            Fate::Absent => Some(format!("{flavour}: no {}", verdict.program)),
            Fate::Refused { reason } => Some(format!("{flavour}: {} refused: {reason}", verdict.program)),
        });
        match refused {
            None => return Ok(format!("{flavour}, {n} programs, at most {most} instructions")),
            Some(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("; "))
}

/// A cell that no run can fill: right only where it is known why.
fn absent(target: Target, set: &'static str, reason: String) -> Cell {
    let known = ABSENT.iter().find(|(series, of, _)| *series == target.release.series && *of == set);
    let truth = known.map_or_else(|| Err(reason), |(_, _, why)| Ok((*why).to_owned()));
    Cell { kernel: target.name(), set, verdict: "absent".to_owned(), truth }
}

/// Tests that passed, from the test harness's last line.
fn passed(output: &str) -> u32 {
    let line = output.lines().find_map(|line| line.strip_prefix("test result: ok. "));
    line.and_then(|line| line.split(' ').next()?.parse().ok()).unwrap_or(0)
}

/// What tests said of their spans.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Found {
    expected: u64,
    missing: u64,
    lost: u64,
    wrong: u64,
}

impl Found {
    /// A line of a test: `…: 0 missing, 0 lost, 0 wrong, 974 spans expected`.
    fn read(line: &str) -> Option<Self> {
        let words = line.strip_suffix(" spans expected")?.rsplit_once(": ")?.1;
        let mut numbers = words.split(", ").map(|word| word.split(' ').next()?.parse::<u64>().ok());
        let mut next = || numbers.next().flatten();
        Some(Self { missing: next()?, lost: next()?, wrong: next()?, expected: next()? })
    }

    fn add(&mut self, other: Self) {
        self.expected += other.expected;
        self.missing += other.missing;
        self.lost += other.lost;
        self.wrong += other.wrong;
    }
}

impl fmt::Display for Found {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { expected, missing, lost, wrong } = self;
        write!(formatter, "{expected} spans, {missing} missing, {lost} lost, {wrong} wrong")
    }
}

/// What each group of tests found, from what they print behind their names.
fn findings(output: &str) -> BTreeMap<String, Found> {
    let mut groups: BTreeMap<String, Found> = BTreeMap::new();
    let mut group = "";
    for line in output.lines() {
        if let Some((name, _)) = line.strip_prefix("test ").and_then(|test| test.split_once("::")) {
            group = name;
        }
        if let Some(found) = Found::read(line) {
            groups.entry(group.to_owned()).or_default().add(found);
        }
    }
    groups
}

/// What the kernel programs took for a span, the mean of what the tests print; times of an emulator.
fn cost(output: &str) -> Option<u64> {
    let words = output.lines().filter_map(|line| line.strip_suffix(" ns of kernel programs per span"));
    let costs: Vec<u64> = words.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    costs.iter().sum::<u64>().checked_div(costs.len() as u64)
}

impl Cell {
    fn line(&self) -> String {
        let truth = match &self.truth {
            Ok(text) => text.clone(),
            Err(error) => format!("FAILED: {error}"),
        };
        format!("| {} | {} | {} | {truth} |", self.kernel, self.set, self.verdict)
    }
}

fn table(mut cells: Vec<Cell>) -> anyhow::Result<()> {
    cells.sort_by_key(|cell| (cell.kernel.clone(), SETS.iter().position(|set| *set == cell.set)));
    for cell in cells.iter().filter(|cell| cell.truth.is_err()) {
        println!("{}\n", cell.line());
    }
    println!("| kernel | set | verifier; for auto: why | tests |\n|---|---|---|---|");
    for cell in &cells {
        println!("{}", cell.line().lines().next().unwrap_or_default());
    }
    match cells.iter().filter(|cell| cell.truth.is_err()).count() {
        0 => Ok(()),
        n => bail!("{n} of {} cells failed", cells.len()),
    }
}

#[cfg(test)]
mod tests;
