//! What Go programs are at a moment, held against what their own runtime says.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use integration::agent::{self, Agent, Config};
use integration::fetch;
use integration::otlp::receiver::Receiver;
use integration::patience::patience;
use integration::process::{Program, READY};
use integration::program::{self, Build};
use integration::seed::note;
use integration::server::service;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use opentelemetry_proto::tonic::profiles::v1development::ResourceProfiles;
use serde_json::{Value, json};

use crate::recording;

const LIMIT: Duration = Duration::from_secs(60);
/// Goroutines that wait; the program has as many.
const WAITING: f64 = 300.0;

/// What the program says of itself.
struct Truth {
    large: f64,
    small: f64,
    total: f64,
    allocated: f64,
    goroutines: f64,
}

impl Truth {
    fn parse(text: &str) -> Self {
        let numbers: Vec<f64> = text.split(' ').map(|word| word.parse().unwrap()).collect();
        let [large, small, total, allocated, goroutines] = numbers[..] else { panic!("{text}") };
        Self { large, small, total, allocated, goroutines }
    }
}

/// The answer to a question, once the agent knows the process.
fn ask(agent: &Agent, service: &str, kind: &str) -> Result<Value, String> {
    let path = format!("/api/v1/profiles?type={kind}&format=json&service={}", fetch::encode(service));
    let limit = Instant::now() + patience(LIMIT);
    loop {
        let answer = fetch::get(agent.address(), &path, "application/json").unwrap();
        let body: Value = serde_json::from_str(&answer.body).unwrap();
        if answer.status == 200 {
            return Ok(body);
        }
        let error = body["error"].as_str().unwrap().to_owned();
        if !error.contains("runs a program made by Go") || Instant::now() > limit {
            return Err(error);
        }
        thread::sleep(Duration::from_millis(100));
    }
}

/// What a function and all that it calls come to.
fn whole(profile: &Value, function: &str, field: &str) -> f64 {
    let functions = profile["functions"].as_array().unwrap();
    let found = functions.iter().find(|it| it["function"] == function);
    found.unwrap_or_else(|| panic!("no {function} in {profile}"))[field].as_f64().unwrap()
}

#[track_caller]
fn is_near(what: &str, ours: f64, theirs: f64, share: f64) {
    assert!((ours - theirs).abs() <= theirs * share, "{what}: {ours}, by the program itself {theirs}");
}

/// What the agent says of a program is what the program says of itself.
#[track_caller]
fn check(agent: &Agent, name: &str, program: &Path) {
    let service = service("moment");
    let (program, said) = started(Command::new(program), &service);
    let truth = Truth::parse(&said);
    let heap = ask(agent, &service, "heap").unwrap();
    note(&format!("{name}: {} bytes in use, by the program itself {}", heap["heap_bytes"], truth.total));
    is_near("large", whole(&heap, "main.keepLarge", "total_bytes"), truth.large, 0.001);
    is_near("small", whole(&heap, "main.keepSmall", "total_bytes"), truth.small, 0.001);
    is_near("total", heap["heap_bytes"].as_f64().unwrap(), truth.total, 0.001);
    let alloc = ask(agent, &service, "alloc").unwrap();
    is_near("allocated", alloc["alloc_bytes"].as_f64().unwrap(), truth.allocated, 0.001);
    assert!(whole(&alloc, "main.drop", "total_bytes") > 0.0 && truth.allocated > truth.total, "{alloc}");
    let goroutines = ask(agent, &service, "goroutines").unwrap();
    assert_eq!(goroutines["goroutines"].as_f64(), Some(truth.goroutines), "{goroutines}");
    for function in ["main.waitOnChannel", "main.spawn", "runtime.chanrecv1"] {
        assert_eq!(whole(&goroutines, function, "total_count"), WAITING, "{function}");
    }
    // It sleeps.
    assert_eq!(whole(&goroutines, "time.Sleep", "total_count"), 1.0);
    assert!(program.is_running().unwrap());
}

#[test]
fn memory_and_goroutines_are_those_that_go_knows() {
    let agent = Agent::start(Config::default().set("profile", "enabled", true)).unwrap();
    for build in Build::READ {
        check(&agent, &format!("{build:?}"), &program::go_built("moment", build).unwrap());
    }
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// One of each layout of goroutines, and of those between.
    const VERSIONS: [&str; 7] =
        ["go1.18.10", "go1.20.14", "go1.21.13", "go1.22.12", "go1.23.12", "go1.24.11", "go1.25.5"];

    #[test]
    fn programs_of_older_versions_are_read_as_well() {
        let agent = Agent::start(Config::default().set("profile", "enabled", true)).unwrap();
        for version in VERSIONS {
            check(&agent, version, &program::go_of_version("moment", version).unwrap());
        }
    }
}

#[test]
fn a_program_that_keeps_no_profile_says_so() {
    let agent = Agent::start(Config::default().set("profile", "enabled", true)).unwrap();
    let service = service("no-memory");
    let (program, _) = started(plain("hot_loop"), &service);
    let reason = ask(&agent, &service, "heap").unwrap_err();
    assert!(reason.contains("keeps no profile of its memory"), "{reason}");
    let goroutines = ask(&agent, &service, "goroutines").unwrap();
    assert!(goroutines["goroutines"].as_f64().unwrap() >= 1.0, "{goroutines}");
    let path = "/api/v1/profiles?type=heap&service=no-such&format=json";
    let answer = fetch::get(agent.address(), path, "application/json").unwrap();
    let text = answer.body;
    assert!(
        answer.status == 503 && text.contains("no process of no-such runs a program made by Go"),
        "{text}"
    );
    assert!(program.is_running().unwrap());
}

fn plain(source: &str) -> Command {
    Command::new(program::go_built(source, Build::Plain).unwrap())
}

/// Starts a program with such a service name, and waits until it is ready.
fn started(mut command: Command, service: &str) -> (Program, String) {
    command.env("OTEL_SERVICE_NAME", service);
    let mut program = Program::spawn(service, command).unwrap();
    let said = program.await_line("ready ", READY).unwrap();
    (program, said)
}

#[test]
fn nothing_is_read_of_excluded_processes() {
    let excluded = json!([{"executable": "*/go-moment-*"}]);
    let config = Config::default().set("profile", "enabled", true).set("discover", "exclude", excluded);
    let agent = Agent::start(config).unwrap();
    let (excluded, watched) = (service("excluded"), service("watched"));
    let _others = (started(plain("moment"), &excluded), started(plain("hot_loop"), &watched));
    ask(&agent, &watched, "goroutines").unwrap();
    let path = "/api/v1/profiles?type=goroutines&format=json";
    let all: Value = fetch::json(agent.address(), path).unwrap();
    let services = all["services"].as_array().unwrap();
    let has = |name: &str| services.iter().any(|it| it["service"] == name);
    assert!(has(&watched) && !has(&excluded), "{all}");
}

/// Once a minute, without a question.
#[test]
fn memory_in_use_goes_to_destinations() {
    let receiver = Receiver::start([]).unwrap();
    let destination = json!([{
        "endpoint": format!("http://{}", receiver.http), "protocol": "http/protobuf", "signals": ["profiles"]
    }]);
    let config = Config::default()
        .set("profile", "enabled", true)
        .set("profile", "heap", "on")
        .set("profile", "interval", "1s")
        .set("export", "otlp", destination);
    let service = service("exported");
    let (_program, said) = started(plain("moment"), &service);
    let truth = Truth::parse(&said);
    let _agent = Agent::start(config).unwrap();
    let limit = Instant::now() + patience(2 * LIMIT);
    let sum = loop {
        let profiles = receiver.profiles();
        let sum: f64 = profiles.iter().map(|request| in_use(request, &service)).sum();
        if sum > 0.0 {
            break sum;
        }
        assert!(Instant::now() < limit, "no memory in use in {} requests", profiles.len());
        thread::sleep(Duration::from_millis(200));
    };
    is_near("exported", sum, truth.total, 0.001);
}

/// Bytes in use of a service.
fn in_use(request: &ExportProfilesServiceRequest, service: &str) -> f64 {
    let text = |index: i32| {
        let table = &request.dictionary.as_ref().unwrap().string_table;
        table[usize::try_from(index).unwrap()].as_str()
    };
    let is_it = |resource: &ResourceProfiles| {
        let attributes = &resource.resource.as_ref().unwrap().attributes;
        attributes.iter().any(|it| it.key == "service.name" && format!("{:?}", it.value).contains(service))
    };
    let of_service = request.resource_profiles.iter().filter(|resource| is_it(resource));
    let profiles = of_service.flat_map(|resource| &resource.scope_profiles).flat_map(|scope| &scope.profiles);
    let of_heap = profiles.filter(|profile| {
        let of = profile.sample_type.as_ref().unwrap();
        (text(of.type_strindex), text(of.unit_strindex)) == ("inuse_space", "bytes")
    });
    of_heap
        .flat_map(|profile| &profile.samples)
        .flat_map(|sample| &sample.values)
        .map(|value| *value as f64)
        .sum()
}

fn record(arguments: &[&str], output: &Path) {
    let ended = recording::record(arguments, output);
    assert_eq!(ended.code, 0, "{arguments:?}: {}", ended.stderr);
}

/// With an agent and without; what is written is read by Go's own tool.
#[test]
fn memory_in_use_is_recorded_into_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| folder.path().join(name);
    let service = service("recorded");
    let stripped = || Command::new(program::go_built("moment", Build::Stripped).unwrap());
    let (program, _) = started(stripped(), &service);
    let pid = program.pid().to_string();
    let mut command = agent::command().unwrap();
    command.args(["doctor", "--pid", &pid]);
    let said = Program::spawn("obi doctor", command).unwrap().wait(patience(LIMIT)).unwrap().lines;
    assert!(said.iter().any(|line| line == "goroutines  301 (--type goroutines)"), "{said:?}");
    assert!(said.iter().any(|line| line.contains(" MB in use, by the profile that Go keeps")), "{said:?}");
    record(&["--pid", &pid, "--type", "heap", "--address", "127.0.0.1:1"], &file("alone.pb.gz"));
    let agent = Agent::start(Config::default().set("profile", "enabled", true)).unwrap();
    ask(&agent, &service, "heap").unwrap();
    let address = agent.address().to_string();
    let of_service = ["--service", &service, "--address", &address];
    record(&[&of_service[..], &["--type", "heap"]].concat(), &file("heap.pb.gz"));
    record(&[&of_service[..], &["--type", "goroutines"]].concat(), &file("goroutines.svg"));
    for name in ["alone.pb.gz", "heap.pb.gz"] {
        let mut command = Command::new("go");
        command.args(["tool", "pprof", "-top", "-cum", "-sample_index=inuse_space"]).arg(file(name));
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let keeps = |line: &&str| line.ends_with("main.keepLarge");
        let line = text.lines().find(keeps).unwrap_or_else(|| panic!("{name}: {text}"));
        // flat, flat%, sum%, cum, cum%: 48 MiB, by some 42 of 48 allocations; 3 MiB is its standard error.
        let whole = line.split_whitespace().nth(3).unwrap();
        let number: f64 = whole.trim_end_matches("MB").parse().unwrap();
        assert!((36.0..62.0).contains(&number), "{name}: {line}");
    }
    let mut command = stripped();
    command.arg("churn");
    let _churning = started(command, "churns");
    ask(&agent, "churns", "alloc").unwrap();
    let meanwhile = ["--service", "churns", "--type", "alloc", "--seconds", "3", "--address", &address];
    record(&meanwhile, &file("alloc.folded"));
    let folded = std::fs::read_to_string(file("alloc.folded")).unwrap();
    // Nothing of what was allocated before.
    assert!(folded.contains("main.churn") && !folded.contains("main.keepLarge"), "{folded}");
    let picture = std::fs::read_to_string(file("goroutines.svg")).unwrap();
    assert!(picture.contains("main.waitOnChannel") && picture.contains("301 goroutines"), "{picture}");
}
