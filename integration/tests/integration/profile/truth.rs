//! Profiles of programs whose call paths and CPU times are known: every name at every depth, every share.

use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use std::{fs, thread};

use integration::agent::{Agent, Config};
use integration::fetch;
use integration::patience::patience;
use integration::seed::{note, seeded};
use integration::stack::sampled::{self, Sampled};
use integration::stack::{Built, Language, Running, Tree, Truth, Variant, build, judge};

/// More looks than usual, so that seconds are enough.
const HERTZ: u32 = 199;
/// Until its files have been looked at: an agent that is not optimised takes seconds for those of the whole machine.
const WARM: Duration = Duration::from_secs(120);
/// Until all samples can be asked for.
const ARRIVED: Duration = Duration::from_secs(60);
/// Between two looks at something that can only be asked for.
const LOOK: Duration = Duration::from_millis(300);
/// Whole stacks in a row after which a program's tables are taken to be there.
const WHOLE: usize = 30;
/// Programs that run at the same time: the agent needs some of the CPUs, too.
const AT_ONCE: usize = 4;
/// Of the samples that its CPU time would give: a hypervisor takes some of both.
const LEAST: f64 = 0.7;

/// What happens to a program while it is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Event {
    Nothing,
    /// All of its files are deleted as soon as there is a sample of it.
    Deleted,
    /// It executes another program of its kind in its place, when it has counted.
    Executes,
}

const OMITTED: &str = "-fomit-frame-pointer";

/// In C and C++, with and without libraries, fixed and movable; Rust and Go with what they do by themselves.
const CASES: &[(Event, Variant)] = &[
    (Event::Nothing, Variant { has_libraries: true, flags: &["-O2", OMITTED], ..plain() }),
    (Event::Executes, Variant { has_libraries: true, flags: &["-O1", OMITTED, "-no-pie"], ..plain() }),
    (Event::Nothing, Variant { flags: &["-O1", OMITTED], ..plain() }),
    (Event::Deleted, Variant { has_libraries: true, flags: &["-O2", OMITTED], ..plain() }),
    (Event::Nothing, Variant { flags: &["-O2", OMITTED, "-static"], has_handler: true, ..plain() }),
    (
        Event::Nothing,
        Variant {
            has_libraries: true,
            flags: &["-O1", OMITTED, "-g"],
            has_inlined: true,
            has_handler: true,
            ..plain()
        },
    ),
    (Event::Nothing, Variant { flags: &["-O2", OMITTED, "-static-pie"], threads: 3, ..plain() }),
    (Event::Nothing, Variant { language: Language::Cpp, has_libraries: true, threads: 3, ..plain() }),
    (
        Event::Nothing,
        Variant {
            language: Language::Cpp,
            flags: &["-O1", OMITTED, "-g", "-no-pie"],
            has_inlined: true,
            ..plain()
        },
    ),
    (
        Event::Nothing,
        Variant { language: Language::Rust, flags: &["-Copt-level=2"], has_libraries: true, ..plain() },
    ),
    (
        Event::Nothing,
        Variant {
            language: Language::Rust,
            flags: &["-Copt-level=1", "-Cdebuginfo=1", "-Crelocation-model=static"],
            has_inlined: true,
            threads: 3,
            ..plain()
        },
    ),
    (
        Event::Nothing,
        Variant { language: Language::Go, flags: &[], has_inlined: true, threads: 3, ..plain() },
    ),
    (
        Event::Nothing,
        Variant { language: Language::Go, flags: &["-ldflags=-s -w"], has_inlined: true, ..plain() },
    ),
    (
        Event::Deleted,
        Variant {
            language: Language::Go,
            flags: &["-buildmode=pie", "-ldflags=-s -w"],
            has_inlined: true,
            ..plain()
        },
    ),
];

/// `Variant::default()`, for a table.
const fn plain() -> Variant {
    Variant {
        language: Language::C,
        flags: &["-O2", OMITTED],
        has_libraries: false,
        has_inlined: false,
        has_handler: false,
        threads: 1,
        budget: 3,
    }
}

/// Trees of a program and of what it executes in its place, if it does.
struct Planned {
    event: Event,
    variant: Variant,
    trees: Vec<Tree>,
}

fn plan(rng: &mut fastrand::Rng, (event, variant): &(Event, Variant)) -> Planned {
    let programs = if *event == Event::Executes { 2 } else { 1 };
    let trees = (0..programs).map(|_| Tree::random(rng, variant)).collect();
    Planned { event: *event, variant: *variant, trees }
}

pub(super) fn unix_ns() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()).unwrap()
}

/// Samples of a service from a moment on, when `is_enough` holds of them.
fn await_samples(
    agent: SocketAddr,
    service: &str,
    window: impl Fn() -> std::ops::Range<u64>,
    limit: Duration,
    is_enough: impl Fn(&[Sampled]) -> bool,
) -> Vec<Sampled> {
    let deadline = Instant::now() + patience(limit);
    loop {
        // Refused while functions of other programs are still being looked up.
        let samples = sampled::fetch(agent, service, &window());
        if samples.as_ref().is_ok_and(|samples| is_enough(samples)) || Instant::now() > deadline {
            return samples.unwrap();
        }
        thread::sleep(LOOK);
    }
}

/// What the agent says of samples that never came.
fn lost(agent: SocketAddr) -> String {
    let text = fetch::bytes(agent, "/metrics").map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    let text = text.unwrap_or_else(|error| error.to_string());
    text.lines()
        .filter(|line| line.starts_with("obi_profile_lost_samples_total"))
        .collect::<Vec<_>>()
        .join(", ")
}

fn is_whole(sample: &Sampled) -> bool {
    !sample.frames.iter().any(|frame| frame.name.starts_with("[truncated"))
}

/// Lets a program count when its files are known, and returns what it did and what the agent saw; or that this is too
/// little.
fn record(agent: SocketAddr, built: &Built, running: &mut Running) -> Result<(Truth, Vec<Sampled>), String> {
    let service = &built.tree.service;
    let begun = unix_ns();
    let last_are_whole =
        |samples: &[Sampled]| samples.len() >= WHOLE && samples.iter().rev().take(WHOLE).all(is_whole);
    let warm = await_samples(agent, service, || begun..unix_ns(), WARM, last_are_whole);
    assert!(last_are_whole(&warm), "{service} does not become whole: {:?}", warm.last());
    let truth = running.count(&built.tree).unwrap();
    let period = 1e9 / f64::from(HERTZ);
    let weight = |samples: &[Sampled]| samples.iter().map(|sample| f64::from(sample.weight)).sum::<f64>();
    let least = LEAST * truth.total as f64 / period;
    let window = || truth.window.clone();
    let samples = await_samples(agent, service, window, ARRIVED, |samples| weight(samples) >= least);
    if weight(&samples) < least {
        let (n, seconds) = (weight(&samples), truth.total as f64 / 1e9);
        return Err(format!("{service}: {n} samples of {seconds} s; of all: {}", lost(agent)));
    }
    Ok((truth, samples))
}

/// Names of one program do not turn up in the other, which was the same process before or after.
fn check_apart(agent: SocketAddr, one: &Built, other: &Built, begun: u64) {
    for (service, stranger) in [(one, other), (other, one)] {
        let samples = sampled::fetch(agent, &service.tree.service, &(begun..unix_ns())).unwrap();
        for sample in &samples {
            let wrong = sample.frames.iter().find(|frame| stranger.tree.has(&frame.name));
            assert!(
                wrong.is_none(),
                "{wrong:?} of {} in {}: {sample:?}",
                stranger.tree.service,
                service.tree.service
            );
        }
    }
}

/// How often a program is run of which samples were lost, as the agent says itself: what is missing is not known.
const RUNS: usize = 3;

/// Compiles and runs a program, judges what the agent reports of it; says what is wrong.
fn check(agent: SocketAddr, planned: &Planned) -> Vec<String> {
    for _ in 1..RUNS {
        let before = lost(agent);
        let wrong = run(agent, planned);
        if wrong.is_empty() || lost(agent) == before {
            return wrong;
        }
        note(&format!("once more, since samples were lost: {}; {}", wrong.join("; "), lost(agent)));
    }
    run(agent, planned)
}

fn run(agent: SocketAddr, planned: &Planned) -> Vec<String> {
    let event = planned.event;
    let compiled = planned.trees.iter().map(|tree| build(tree.clone(), planned.variant).unwrap());
    let compiled: Vec<Built> = compiled.collect();
    let (built, next) = (&compiled[0], compiled.get(1));
    let begun = unix_ns();
    let mut running = Running::start(built, next.map(|next| next.path.as_path())).unwrap();
    if event == Event::Deleted {
        let is_seen = |samples: &[Sampled]| !samples.is_empty();
        await_samples(agent, &built.tree.service, || begun..unix_ns(), WARM, is_seen);
        built.files.iter().for_each(|file| fs::remove_file(file).unwrap());
    }
    let mut wrong = Vec::new();
    let (truth, samples) = match record(agent, built, &mut running) {
        Ok(recorded) => recorded,
        Err(too_little) => return vec![too_little],
    };
    let Variant { language, flags, .. } = built.variant;
    let mut reported = |built: &Built, truth: &Truth, samples: &[Sampled]| {
        let verdict = judge(&built.tree, &built.variant, truth, samples);
        note(&format!(
            "{:?} {:?} {:?}: {} samples, by path {:?}, {} on the way, {} outside, {:?} inlined, {} wrong",
            language,
            flags,
            event,
            verdict.n,
            verdict.by_path,
            verdict.on_the_way,
            verdict.outside,
            verdict.inlined,
            verdict.wrong.len()
        ));
        verdict.wrong.iter().for_each(|why| note(why));
        wrong.extend(verdict.wrong.iter().map(|why| format!("{language:?} {flags:?} {event:?}: {why}")));
    };
    reported(built, &truth, &samples);
    if let Some(next) = next {
        running.await_next().unwrap();
        match record(agent, next, &mut running) {
            Ok((truth, samples)) => reported(next, &truth, &samples),
            Err(too_little) => return vec![too_little],
        }
        check_apart(agent, built, next, begun);
    }
    wrong
}

#[test]
fn every_stack_and_every_share_is_that_of_the_program() {
    let mut rng = seeded("truth");
    let all: Vec<Planned> = CASES.iter().map(|case| plan(&mut rng, case)).collect();
    // One program of a run that is repeated: its place in the table.
    let chosen = std::env::var("OBI_TEST_CASE").ok().map(|text| text.parse::<usize>().unwrap());
    let wanted = |case: &usize| chosen.is_none_or(|chosen| chosen == *case);
    let programs: Vec<Planned> =
        all.into_iter().enumerate().filter(|(case, _)| wanted(case)).map(|(_, planned)| planned).collect();
    let config = Config::default().alone().set("profile", "enabled", true).set("profile", "frequency", HERTZ);
    let agent = Agent::start(config).unwrap();
    let begun = Instant::now();
    let left = Mutex::new(programs.iter());
    let wrong: Vec<String> = thread::scope(|scope| {
        let (agent, left) = (agent.address(), &left);
        let work = move || -> Vec<String> {
            let mut wrong = Vec::new();
            loop {
                let next = left.lock().unwrap().next();
                let Some(planned) = next else { return wrong };
                wrong.extend(check(agent, planned));
            }
        };
        let workers: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    note(&format!("truth: {} programs in {:.1} s", programs.len(), begun.elapsed().as_secs_f64()));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
