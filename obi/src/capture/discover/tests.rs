//! Real children and invented ones.

use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use super::*;

/// Names a process by the last part of its executable; an empty one takes its parent's.
#[derive(Debug)]
struct LastPart;

impl Naming for LastPart {
    type Service = String;
    type Instance = (u32, Option<u64>);

    fn service(&mut self, facts: &Facts, parent: Option<&String>) -> String {
        if facts.command.get(1).is_some_and(|argument| argument == "-c")
            && let Some(parent) = parent
        {
            return parent.clone();
        }
        facts.executable.rsplit('/').next().unwrap_or("").to_owned()
    }

    fn instance(&mut self, tgid: u32, start: Option<u64>, _: &Particulars) -> (u32, Option<u64>) {
        (tgid, start)
    }

    fn name(service: &String) -> &str {
        service
    }
}

const GONE: u32 = u32::MAX - 7;
const SECOND: u64 = 1_000_000_000;

fn processes(rules: &str) -> Processes<LastPart> {
    let rules = serde_saphyr::from_str(rules).unwrap();
    Processes::new(rules, std::process::id(), LastPart, Limits { processes: 100_000, grace: 10 * SECOND })
}

/// A child that ends with the test.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Self {
        Self(Command::new("/bin/sleep").arg("60").spawn().unwrap())
    }

    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_scan_finds_processes_but_not_kernel_threads() {
    let sleeper = Sleeper::start();
    let mut table = processes("{}");
    let found = table.scan().unwrap();
    assert!(found >= 2, "{found}");
    assert!(
        table
            .changes()
            .any(|change| change == Change { tgid: sleeper.0.id(), verdict: Some(Verdict::Watch) })
    );
    assert_eq!(table.lookup(sleeper.0.id()).unwrap().service, "sleep");
    assert_eq!(table.lookup(std::process::id()).unwrap().verdict, Verdict::Ourselves);
    assert_eq!(table.scan().unwrap(), 0, "known processes are not read again");
    for tgid in table.table.all() {
        let entry = table.lookup(tgid).unwrap();
        assert!(!entry.service.starts_with("kworker"), "{entry:?}");
    }
}

#[test]
fn an_unknown_process_is_read_when_asked_for() {
    let sleeper = Sleeper::start();
    let mut table = processes("exclude: [{service: sleep}]");
    assert_eq!(table.lookup(sleeper.0.id()).unwrap().verdict, Verdict::Excluded);
    assert!(table.lookup(GONE).is_none());
}

#[test]
fn an_ended_process_answers_for_the_grace_time() {
    let mut sleeper = Sleeper::start();
    let tgid = sleeper.0.id();
    let mut table = processes("{}");
    table.lookup(tgid).unwrap();
    sleeper.end();
    table.exit(tgid, 100 * SECOND);
    table.exit(tgid, 105 * SECOND);
    assert_eq!(table.table().watched(), 0);
    table.sweep(109 * SECOND);
    assert_eq!(table.lookup(tgid).unwrap().service, "sleep");
    table.sweep(110 * SECOND);
    assert!(table.lookup(tgid).is_none());
    assert_eq!(table.changes().next_back(), Some(Change { tgid, verdict: None }));
}

#[test]
fn a_child_that_vanished_is_its_parent() {
    let sleeper = Sleeper::start();
    let mut table = processes("{}");
    assert_eq!(table.fork(GONE, sleeper.0.id()), Some(Verdict::Watch));
    assert_eq!(table.lookup(GONE).unwrap().service, "sleep");
    let nothing = ExecArguments::default();
    assert_eq!(table.exec(GONE, b"curl\0\0\0\0\0\0\0\0\0\0\0\0", &nothing), Some(Verdict::Watch));
    assert_eq!(table.lookup(GONE).unwrap().service, "curl");
    assert_eq!(table.fork(GONE - 1, GONE - 2), None);
    assert_eq!(table.exec(GONE - 1, b"wget\0", &nothing), Some(Verdict::Watch));
}

/// Naming that keeps what it is asked about.
#[derive(Debug)]
struct Asked;

impl Naming for Asked {
    type Service = Facts;
    type Instance = Particulars;

    fn service(&mut self, facts: &Facts, _: Option<&Facts>) -> Facts {
        facts.clone()
    }

    fn instance(&mut self, _: u32, _: Option<u64>, particulars: &Particulars) -> Particulars {
        particulars.clone()
    }

    fn name(facts: &Facts) -> &str {
        &facts.otel_service_name
    }
}

#[test]
fn who_has_ended_is_known_by_what_it_was_given_and_where_its_parent_ran() {
    let rules = serde_saphyr::from_str("{}").unwrap();
    let mut table = Processes::new(rules, std::process::id(), Asked, Limits::default());
    let container = Container { id: "c0ffee".to_owned(), runtime: "docker", pod: None };
    let pod = Facts {
        executable: "/bin/sh".to_owned(),
        cgroup: "/kubepods/pod1/c0ffee".to_owned(),
        container: container.clone(),
        pod_namespace: "shop".to_owned(),
        ..Facts::default()
    };
    table.name(GONE - 1, pod);
    table.fork(GONE, GONE - 1);
    let given =
        b"curl\0cart\0KUBERNETES_SERVICE_HOST=1\0HOSTNAME=cart-1\0OTEL_SERVICE_NAME=probe\0/bin/curl\0";
    table.exec(GONE, b"curl\0", &ExecArguments::new(given, (10, 10), true));
    let expected = Facts {
        executable: "/bin/curl".to_owned(),
        command: ["curl", "cart"].map(str::to_owned).to_vec(),
        otel_service_name: "probe".to_owned(),
        kubernetes: true,
        host_name: "cart-1".to_owned(),
        pod_namespace: "shop".to_owned(),
        cgroup: "/kubepods/pod1/c0ffee".to_owned(),
        container,
        ..Facts::default()
    };
    assert_eq!(table.lookup(GONE).unwrap().service, expected);
}

#[test]
fn our_own_children_are_watched() {
    let mut table = processes("{}");
    assert_eq!(table.fork(GONE, std::process::id()), Some(Verdict::Watch));
}

#[test]
fn lost_events_and_a_reused_pid_are_noticed() {
    let mut sleeper = Sleeper::start();
    let tgid = sleeper.0.id();
    let mut table = processes("{}");
    let executable = Arc::clone(&table.lookup(tgid).unwrap().executable);
    let start = table.lookup(tgid).unwrap().start;
    let entry = |executable: &str, start| Process {
        particulars: Arc::default(),
        instance: None,
        executable: executable.into(),
        cgroup: "".into(),
        service: "before".to_owned(),
        verdict: Verdict::Watch,
        start,
        ended: None,
        confirmed: false,
    };
    let mut check = |before, expected: &str| {
        table.insert(tgid, before);
        table.sweep(0);
        let after = table.lookup(tgid).unwrap();
        assert_eq!((after.service.as_str(), after.start), (expected, start));
    };
    check(entry(&executable, Some(1)), "sleep");
    check(entry("/bin/other", start), "sleep");
    check(entry(&executable, start), "before");
    check(entry(&executable, None), "before");
    sleeper.end();
    table.sweep(SECOND);
    assert_eq!(table.table().watched(), 0);
    table.sweep(20 * SECOND);
    assert!(table.lookup(tgid).is_none());
}

#[test]
fn a_program_whose_event_is_lost_has_its_own_name() {
    let sleeper = Sleeper::start();
    let tgid = sleeper.0.id();
    let mut table = processes("{}");
    table.fork(tgid, std::process::id());
    let parent = table.lookup(tgid).unwrap().service.clone();
    assert_ne!(parent, "sleep");
    assert_eq!(table.confirmed(tgid).unwrap().service, "sleep");

    // One that was read, and has gone over to another program since.
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "read line; exec /bin/sleep 60"]).stdin(Stdio::piped());
    let mut shell = Sleeper(command.spawn().unwrap());
    let tgid = shell.0.id();
    assert_ne!(table.lookup(tgid).unwrap().service, "sleep");
    shell.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    let began = Instant::now();
    while std::fs::read_to_string(format!("/proc/{tgid}/comm")).unwrap() != "sleep\n" {
        assert!(began.elapsed() < Duration::from_secs(60));
        thread::yield_now();
    }
    assert_ne!(table.lookup(tgid).unwrap().service, "sleep");
    assert_eq!(table.confirmed(tgid).unwrap().service, "sleep");

    // Once is enough: it is not read at every exchange.
    table.fork(tgid, std::process::id());
    table.confirmed(tgid);
    table.table.update(tgid, |process| process.executable = "/somewhere/else".into()).unwrap();
    assert_eq!(&*table.confirmed(tgid).unwrap().executable, "/somewhere/else");
    // Who has ended stays what it was.
    table.fork(GONE, std::process::id());
    assert_eq!(table.confirmed(GONE).unwrap().service, parent);
}

#[test]
fn a_pid_taken_over_within_the_grace_time_is_not_forgotten() {
    let sleeper = Sleeper::start();
    let mut table = processes("{}");
    table.fork(GONE, sleeper.0.id());
    table.exit(GONE, SECOND);
    table.fork(GONE, sleeper.0.id());
    table.sweep(10 * SECOND);
    assert!(table.lookup(GONE).is_some());
}

#[test]
fn listening_makes_a_process_match() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut table = Processes::new(
        serde_saphyr::from_str(&format!("include: [{{port: {port}}}]")).unwrap(),
        GONE,
        LastPart,
        Limits::default(),
    );
    assert_eq!(table.lookup(std::process::id()).unwrap().verdict, Verdict::Watch);
    drop(listener);
    // The descriptor may live on for a moment in a child that another test is just starting.
    while table.ports_changed(std::process::id()) != Some(Verdict::NotIncluded) {
        std::thread::yield_now();
    }
    let changes = table.changes().map(|change| change.verdict).collect::<Vec<_>>();
    assert_eq!(changes, [Some(Verdict::Watch), Some(Verdict::NotIncluded)]);
}

#[test]
fn the_table_is_bounded() {
    let sleeper = Sleeper::start();
    let mut table = processes("{}");
    table.limits.processes = 50;
    for child in 0..10_000 {
        table.fork(GONE - child, sleeper.0.id());
        if child % 2 == 0 {
            table.exit(GONE - child, u64::from(child));
        }
        assert!(table.table.len() <= 50 && table.ended.len() <= 50);
    }
}

#[test]
fn an_instance_is_a_process_of_its_own() {
    let sleeper = Sleeper::start();
    let other = Sleeper::start();
    let mut table = processes("{}");
    assert_eq!(table.instance(sleeper.0.id()), None, "nobody has looked at it");
    table.lookup(sleeper.0.id());
    // A fork: the same program, known by the kernel's event alone.
    table.fork(other.0.id(), sleeper.0.id());
    let start = |tgid| Reader::new().identity(tgid).map(|(start, _)| start);
    for tgid in [sleeper.0.id(), other.0.id()] {
        assert_eq!(table.instance(tgid), Some((tgid, start(tgid))));
    }
    table.fork(GONE, sleeper.0.id());
    assert_eq!(table.instance(GONE), Some((GONE, None)));
}

#[test]
fn new_rules_decide_on_everybody_again() {
    let sleeper = Sleeper::start();
    let tgid = sleeper.0.id();
    let mut table = processes("{}");
    table.lookup(tgid);
    drop(table.changes());
    let mut check = |rules: &str, expected: &[Verdict]| {
        table.set_rules(serde_saphyr::from_str(rules).unwrap());
        let changes = table.changes().filter(|change| change.tgid == tgid);
        assert_eq!(changes.filter_map(|change| change.verdict).collect::<Vec<_>>(), expected, "{rules}");
    };
    check("{exclude: [{service: sleep}]}", &[Verdict::Excluded]);
    check("{exclude: [{service: sleep}]}", &[]);
    check("{include: [{port: 1}]}", &[Verdict::NotIncluded]);
    check("{}", &[Verdict::Watch]);
}
