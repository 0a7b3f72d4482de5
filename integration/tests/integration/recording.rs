//! `obi profile`: what it writes, and what it says when there is nothing to write.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use integration::agent::{self, Agent, Config};
use integration::patience::{patience, slowness, until};
use integration::process::{Ended, Program};

use crate::failure::check;

const LIMIT: Duration = Duration::from_secs(120);

/// Runs `obi profile` with these arguments until it ends.
pub(crate) fn record(arguments: &[&str], output: &Path) -> Ended {
    let mut command: Command = agent::command().unwrap();
    command.arg("profile").args(arguments).arg("--output").arg(output);
    Program::spawn("obi profile", command).unwrap().wait(patience(LIMIT)).unwrap()
}

/// `main` calls `outer_…`, which calls `burn_…`, for ever.
const CALLS: &str = "static volatile unsigned sum;
__attribute__((noinline)) static unsigned burn_NAME(unsigned n) { while (n--) sum += n * n; return sum; }
__attribute__((noinline)) static unsigned outer_NAME(unsigned n) { return burn_NAME(n) + 1; }
int main(void) { for (;;) sum += outer_NAME(100000); }
";

/// One whole way of a profile without an agent: emulated machines are asked for it, too.
#[test]
fn functions_of_a_program_are_written_as_they_call_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let name = format!("{:08x}", fastrand::u32(..));
    fs::write(file("calls.c"), CALLS.replace("NAME", &name)).unwrap();
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-fomit-frame-pointer", "-o"]).args([file("calls"), file("calls.c")]);
    let compiled = Program::spawn("cc", compiler).unwrap().wait(patience(LIMIT)).unwrap();
    assert_eq!(compiled.code, 0, "{}", compiled.stderr);
    let burning = Program::spawn("calls", Command::new(file("calls"))).unwrap();
    let pid = burning.pid().to_string();
    // Until the program's tables are there, its callers are unknown: on an emulated machine that takes seconds.
    let seconds = (3 * slowness()).to_string();
    let of_the_program = format!(";main;outer_{name};burn_{name}");
    let (right, all) = until("nearly all stacks are those of the program", LIMIT, || {
        let recorded = record(&["--pid", &pid, "--seconds", &seconds], &file("calls.folded"));
        if recorded.code != 0 {
            return Err(recorded.stderr);
        }
        let folded = fs::read_to_string(file("calls.folded")).unwrap();
        let (mut all, mut right) = (0, 0);
        for line in folded.lines() {
            let (stack, nanoseconds) = line.rsplit_once(' ').unwrap();
            let nanoseconds: u64 = nanoseconds.parse().unwrap();
            all += nanoseconds;
            right += if stack.contains(&of_the_program) { nanoseconds } else { 0 };
        }
        // What interrupts it on the way between its functions is few.
        if all > 0 && right * 10 >= all * 9 { Ok((right, all)) } else { Err(folded) }
    });
    println!("{right} of {all} ns in{of_the_program}");
}

/// A recording that cannot succeed is refused before it starts.
#[test]
fn wrong_usage_is_reported_before_anything_is_recorded() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    fs::write(file("bad.pb.gz"), b"no profile").unwrap();
    let bad = file("bad.pb.gz");
    let bad = bad.to_str().unwrap();
    for (arguments, output, code, words) in [
        (
            &["--pid", "1", "--seconds", "3600"][..],
            "x.png",
            2,
            &["--output", "x.png", ".svg, .pb.gz, .otlp or .folded"][..],
        ),
        (&["--pid", "1", "--seconds", "3600", "--diff", bad], "x.otlp", 2, &["--diff", "x.otlp"]),
        (&["--pid", "1", "--seconds", "3600", "--diff", bad], "x.svg", 2, &["--diff", bad]),
        (
            &["--pid", "1", "--seconds", "3600", "--diff", "/none.pb.gz"],
            "x.svg",
            2,
            &["/none.pb.gz", "No such file"],
        ),
        (&["--pid", "1", "--seconds", "3600"], "none/x.svg", 1, &["none/x.svg", "there is no such folder"]),
        (&["--pid", "1", "--seconds", "0"], "x.svg", 2, &["--seconds"]),
        (&["--pid", "1"], "x.svg", 2, &["--seconds"]),
        (
            &["--seconds", "1"],
            "x.svg",
            2,
            &["--pid <N>|--service <NAME>|--span <ID>", "`obi profile --help`"],
        ),
        (&["--service", "shop"], "x.svg", 2, &["--seconds"]),
        // Longer than this test may take.
        (
            &["--pid", "4194304", "--seconds", "3600"],
            "x.svg",
            1,
            &["--pid 4194304", "there is no such process"],
        ),
        (
            &["--service", "no-such", "--seconds", "3600", "--address", "127.0.0.1:1"],
            "x.svg",
            1,
            &["--service no-such", "no program of this name runs; there are "],
        ),
        (&["--pid", "1", "--type", "heap", "--seconds", "3600"], "x.svg", 2, &["--seconds", "--type heap"]),
        (&["--service", "x", "--type", "goroutines", "--slow"], "x.svg", 2, &["--slow", "--type goroutines"]),
        (&["--span", "12"], "x.svg", 2, &["--span 12", "16 hexadecimal digits"]),
        (
            &["--span", "00000000000000ff", "--address", "127.0.0.1:1"],
            "x.svg",
            1,
            &["--span needs the agent"],
        ),
    ] {
        check(&record(arguments, &file(output)), code, words);
        assert!(!file(output).exists(), "{arguments:?}");
    }
}

#[test]
fn what_is_recorded_is_written_and_what_is_not_there_is_said() {
    let agent = Agent::start(Config::default().set("profile", "enabled", true)).unwrap();
    let address = agent.address().to_string();
    let mut spin = Command::new("python3");
    spin.args(["-c", "while True: pass"]);
    let spin = Program::spawn("spin", spin).unwrap();
    let pid = spin.pid().to_string();
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let ask =
        |arguments: &[&str], name: &str| record(&[arguments, &["--address", &address]].concat(), &file(name));

    // A process that has not been sampled yet has nothing to show: as long as that takes on this machine.
    let mut base = ask(&["--pid", &pid, "--seconds", "2"], "base.pb.gz");
    while base.code != 0 {
        check(&base, 1, &["no samples of process ", &pid]);
        base = ask(&["--pid", &pid, "--seconds", "2"], "base.pb.gz");
    }
    let base = file("base.pb.gz");
    let base = base.to_str().unwrap();
    for (more, name, begins) in [
        (&[][..], "plain.svg", &b"<svg"[..]),
        (&["--diff", base], "change.svg", b"<svg"),
        (&[], "plain.otlp", b"\x0a"),
    ] {
        let recorded = ask(&[&["--pid", &pid, "--seconds", "2"], more].concat(), name);
        check(&recorded, 0, &["wrote ", name, " samples, "]);
        let written = fs::read(file(name)).unwrap();
        assert!(written.windows(begins.len()).take(200).any(|window| window == begins), "{name}");
    }

    // Few samples are said.
    let short = ask(&["--pid", &pid, "--seconds", "1", "--diff", base], "short.svg");
    if short.code == 0 && fs::read_to_string(file("short.svg")).unwrap().contains("few samples (") {
        assert!(
            short.stderr.contains("warning: ") && short.stderr.contains("few samples"),
            "{}",
            short.stderr
        );
    }

    // Longer than this test may take: a wrong name is said at once.
    let nobody = ask(&["--service", "nobody-here", "--seconds", "3600"], "x.svg");
    check(&nobody, 1, &["--service nobody-here: no service of this name", "; there are "]);
    let route = ask(&["--pid", &pid, "--route", "/none", "--seconds", "1", "--slow"], "x.svg");
    let of = format!("no samples of slow requests of process {pid}, /none");
    check(&route, 1, &[&of, "no CPU time of such requests, or none has ended"]);
    let span = ask(&["--span", "00000000000000ff"], "x.svg");
    check(&span, 1, &["404", "no sample of span 00000000000000ff is held"]);
    assert!(!file("x.svg").exists());
}
