//! Objectives end to end: real servers fail, a real Alertmanager is notified, nothing that was counted is forgotten.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use integration::agent::{self, Agent, Config};
use integration::alertmanager::{Alertmanager, Inbox};
use integration::fetch;
use integration::patience::{patience, until};
use integration::plan::Address;
use integration::process::{Ended, Program};
use integration::seed::{note, seeded};
use integration::server::Server;
use integration::server::language;
use integration::span::Page;
use integration::traffic::Traffic;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Between two looks.
/// The page is due so long after the crossing.
const PAGE_WITHIN: Duration = Duration::from_secs(60);
/// It is over so long after the last error.
const RESOLVED_WITHIN: Duration = Duration::from_secs(120);
/// Anything else.
const SOON: Duration = Duration::from_secs(20);

/// An SLO over the errors of a service, with the default alerts.
pub(crate) fn slo(name: &str, service: &str) -> String {
    format!(
        "---\napiVersion: openslo/v1\nkind: SLO\nmetadata: {{name: {name}}}\nspec:\n  service: {service}\n  indicator:\n    \
         metadata: {{name: {name}}}\n    spec:\n      ratioMetric:\n        counter: true\n        good: {{metricSource: \
         {{type: obi, spec: {{outcome: good}}}}}}\n        total: {{metricSource: {{type: obi, spec: {{service: \
         {service}}}}}}}\n  timeWindow: [{{duration: 28d, isRolling: true}}]\n  budgetingMethod: Occurrences\n  \
         objectives: [{{target: 0.99}}]\n"
    )
}

/// Files of the test and the agent's configuration.
pub(crate) struct Setting {
    folder: TempDir,
    config: Config,
}

impl Setting {
    fn new(slos: &[String]) -> Self {
        Self::of(Config::default(), slos)
    }

    pub(crate) fn of(config: Config, slos: &[String]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("slo.yaml");
        fs::write(&file, slos.concat()).unwrap();
        let config = config.set("slo", "files", json!([file])).set(
            "slo",
            "state",
            folder.path().join("state").display().to_string(),
        );
        Self { folder, config }
    }

    fn set(self, key: &str, value: Value) -> Self {
        Self { config: self.config.set("slo", key, value), ..self }
    }

    pub(crate) fn start(&self) -> Agent {
        Agent::start(self.config.clone()).unwrap()
    }
}

fn slos(agent: &Agent) -> Vec<Value> {
    let answer: Value = fetch::json(agent.address(), "/api/v1/slos").unwrap();
    answer["slos"].as_array().unwrap().clone()
}

fn alerts(agent: &Agent) -> Vec<Value> {
    let answer: Value = fetch::json(agent.address(), "/api/v1/alerts").unwrap();
    answer["alerts"].as_array().unwrap().clone()
}

/// Good and bad events of the period.
fn counts(slo: &Value) -> (u64, u64) {
    (slo["good"].as_u64().unwrap(), slo["bad"].as_u64().unwrap())
}

fn find_alert(agent: &Agent, severity: &str, state: &str) -> Result<Value, String> {
    let alerts = alerts(agent);
    let is_it = |alert: &&Value| alert["labels"]["severity"] == severity && alert["state"] == state;
    alerts.iter().find(is_it).cloned().ok_or_else(|| format!("{alerts:?}"))
}

fn tcp(server: &Server) -> std::net::SocketAddr {
    match &server.address {
        Address::Tcp(address) => *address,
        other => panic!("{other:?} is not TCP"),
    }
}

fn python() -> Server {
    language::python_http("threading").unwrap()
}

/// The agent has counted everything that was answered.
#[track_caller]
pub(crate) fn assert_counted(agent: &Agent, expected: (u64, u64)) {
    until("every event is counted once", SOON, || {
        let found = counts(&slos(agent)[0]);
        if found == expected { Ok(()) } else { Err(format!("{found:?} instead of {expected:?}")) }
    });
}

/// One incident from its first error to its end, with everything that may happen meanwhile: a restart, a `kill -9`, and
/// an Alertmanager that is down when it begins. Windows and factors are the defaults.
#[test]
fn an_incident() {
    let server = python();
    let service = server.service.clone();
    let up = Alertmanager::started().unwrap();
    let mut down = Alertmanager::new().unwrap();
    let hook = Inbox::open().unwrap();
    let setting = Setting::new(&[slo("errors", &service)])
        .set("alertmanagers", json!([up.url(), down.url()]))
        .set("webhooks", json!([hook.url()]));
    let agent = setting.start();
    let traffic = Traffic::start(tcp(&server), 40, seeded("incident"));
    until("good events are counted", SOON, || {
        let slo = slos(&agent).remove(0);
        if counts(&slo).0 > 50 { Ok(()) } else { Err(slo.to_string()) }
    });
    assert_eq!(alerts(&agent), Vec::<Value>::new());

    traffic.fail(400);
    let begun = Instant::now();
    let page = until("the page fires", PAGE_WITHIN, || find_alert(&agent, "page", "firing"));
    note(&format!("page after {:?}", begun.elapsed()));
    assert_explains(&agent, &page);
    until("Alertmanager notifies", SOON, || {
        let reported = up.inbox.reported().concat();
        if reported.contains(&"firing errors page".to_owned()) {
            Ok(())
        } else {
            Err(format!("{reported:?}"))
        }
    });
    assert_status_shows_it(&agent);

    // Stopped and started, then killed and started: the same alert for everyone.
    let starts_at = page["starts_at"].clone();
    assert_eq!(agent.stop().unwrap().code, 0);
    let agent = setting.start();
    let again = until("the page still fires", SOON, || find_alert(&agent, "page", "firing"));
    assert_eq!(again["starts_at"], starts_at);
    thread::sleep(patience(Duration::from_secs(3)));
    agent.kill().unwrap();
    let agent = setting.start();
    let again = until("the page still fires", SOON, || find_alert(&agent, "page", "firing"));
    assert_eq!(again["starts_at"], starts_at);

    // Delayed, not lost.
    down.start().unwrap();
    until("the other Alertmanager is notified", Duration::from_secs(40), || {
        let reported = down.inbox.reported().concat();
        if reported.contains(&"firing errors page".to_owned()) {
            Ok(())
        } else {
            Err(format!("{reported:?}"))
        }
    });
    let known = down.alerts().unwrap();
    assert!(known.iter().any(|alert| alert["labels"]["severity"] == "page"), "{known:?}");

    traffic.fail(0);
    let ended = Instant::now();
    until("the page is over", RESOLVED_WITHIN, || find_alert(&agent, "page", "resolved"));
    note(&format!("resolved after {:?}", ended.elapsed()));
    for (name, inbox) in [("first", &up.inbox), ("second", &down.inbox), ("webhook", &hook)] {
        until("the end is reported", SOON, || {
            let reported = inbox.reported().concat();
            if reported.contains(&"resolved errors page".to_owned()) {
                Ok(())
            } else {
                Err(format!("{name}: {reported:?}"))
            }
        });
        assert_no_flap(name, &inbox.reported());
    }
    let lost = agent.metrics().unwrap().sum("obi_slo_notifications_total", &[("outcome", "dropped")]);
    assert_eq!(lost, 0.0);
}

/// An alert says how fast, how many of how many, how long it lasts, where and with which traces, which can be looked
/// up.
fn assert_explains(agent: &Agent, alert: &Value) {
    note(&format!("alert: {alert}"));
    let annotations = &alert["annotations"];
    for name in
        ["burn_rate", "bad_events", "total_events", "worst_route", "trace_ids", "exhausted_in", "summary"]
    {
        assert!(annotations[name].as_str().is_some_and(|text| !text.is_empty()), "no {name}: {alert}");
    }
    let labels = alert["labels"].as_object().unwrap();
    assert!(labels.keys().all(|name| !name.contains("burn") && !name.contains("trace")), "{alert}");
    let traces: Vec<&str> = annotations["trace_ids"].as_str().unwrap().split(" ").collect();
    assert_eq!(traces.len(), 3, "{alert}");
    for trace in traces {
        let path = format!("/api/v1/spans?trace_id={trace}");
        let page: Page = fetch::json(agent.address(), &path).unwrap();
        let is_bad = |span: &integration::span::Span| span.number("http.response.status_code") == Some(503);
        assert!(page.spans.iter().any(is_bad), "{trace} is no stored trace of a failed request");
    }
}

/// `obi slo status` finds the agent and says that it burns.
fn assert_status_shows_it(agent: &Agent) {
    let address = agent.address().to_string();
    let table = obi(&["slo", "status", "--address", &address]);
    assert_eq!(table.code, 0, "{}", table.stderr);
    let line = table.lines.iter().find(|line| line.starts_with("errors ")).unwrap();
    assert!(line.contains("99%") && line.contains("page"), "{line}");
    let json = obi(&["slo", "status", "--json", "--address", &address]);
    let answer: Value = serde_json::from_str(&json.lines.join("\n")).unwrap();
    assert_eq!(answer["slos"][0]["name"], "errors");
    assert_eq!(
        agent.metric_value("slo_alert_firing", &[("slo", "errors"), ("severity", "page")]).unwrap(),
        1.0
    );
    assert!(agent.metric_value("slo_burn_rate", &[("slo", "errors"), ("window", "5m")]).unwrap() > 1.0);
}

/// A severity is reported as firing until it is reported as resolved, and each of the two begins once.
#[track_caller]
fn assert_no_flap(name: &str, reported: &[Vec<String>]) {
    let states: Vec<&str> = reported
        .iter()
        .filter_map(|alerts| alerts.iter().find(|alert| alert.ends_with(" page")))
        .filter_map(|alert| alert.split(' ').next())
        .collect();
    let mut changes = states.clone();
    changes.dedup();
    assert_eq!(changes, ["firing", "resolved"], "{name}: {reported:?}");
}

/// A single failure in a quiet hour, and one among a few requests.
#[test]
fn one_failed_request_pages_nobody() {
    let server = python();
    let hook = Inbox::open().unwrap();
    let setting = Setting::new(&[slo("quiet", &server.service)]).set("webhooks", json!([hook.url()]));
    let agent = setting.start();
    let failure = integration::shape::Shape { status: 503, ..Default::default() }.target("one");
    assert_eq!(fetch::get(tcp(&server), &failure, "*/*").unwrap().status, 503);
    assert_counted(&agent, (0, 1));
    // Several rounds of evaluation have seen it: the burn rate is there, 100 times the budget; no webhook is called.
    thread::sleep(patience(Duration::from_secs(4)));
    let rate = agent.metric_value("slo_burn_rate", &[("slo", "quiet"), ("window", "5m")]).unwrap();
    assert!(rate > 99.0, "{rate}");
    assert_eq!(alerts(&agent), Vec::<Value>::new());
    assert_eq!(hook.messages(), Vec::<Value>::new());
    let events = agent.metrics().unwrap();
    assert_eq!(events.sum("slo_events_total", &[("slo", "quiet"), ("outcome", "bad")]), 1.0);
    assert_eq!(events.matching("slo_events_total", &[("outcome", "good")]).count(), 1, "born with zero");
}

/// Two objectives of one service burn: one notification.
#[test]
fn alerts_of_a_service_are_grouped() {
    let server = python();
    let alertmanager = Alertmanager::started().unwrap();
    let setting = Setting::new(&[slo("one", &server.service), slo("two", &server.service)])
        .set("alertmanagers", json!([alertmanager.url()]));
    let _agent = setting.start();
    let traffic = Traffic::start(tcp(&server), 40, seeded("group"));
    traffic.fail(900);
    let first = until("both are reported", PAGE_WITHIN, || {
        alertmanager.inbox.reported().pop().ok_or("nothing".to_owned())
    });
    for alert in ["firing one page", "firing two page"] {
        assert!(first.contains(&alert.to_owned()), "{first:?}");
    }
}

/// Waits until everything counted so far is on disk: two writes that began after now.
fn await_write(agent: &Agent) {
    let writes = || agent.metric_value("obi_slo_store_writes_total", &[]).unwrap();
    let before = writes();
    until("counts are written", Duration::from_secs(40), || {
        if writes() >= before + 2.0 { Ok(()) } else { Err(format!("{}", writes())) }
    });
}

/// A small file system, unmounted when dropped.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(at: PathBuf) -> Self {
        fs::create_dir(&at).unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", "size=4m", "none"]).arg(&at);
        integration::process::run("mount", command, SOON).unwrap();
        Self(at)
    }

    /// Fills what is left of it.
    fn fill(&self) -> PathBuf {
        let file = self.0.join("filler");
        let mut bytes = vec![0; 8 << 20];
        // Smaller and smaller pieces, until not one byte fits.
        let mut filler = fs::File::create(&file).unwrap();
        while !bytes.is_empty() {
            if std::io::Write::write(&mut filler, &bytes).is_err() {
                bytes.truncate(bytes.len() / 2);
            }
        }
        file
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// On a full disk counting goes on; what cannot be written is said once and counted, and written when there is room.
#[test]
fn a_full_disk_loses_nothing() {
    let server = python();
    let setting = Setting::new(&[slo("full", &server.service)]);
    let disk = SmallDisk::mount(setting.folder.path().join("disk"));
    // More than the disk takes from the start.
    let filler = disk.fill();
    let setting = setting.set("state", json!(disk.0.join("state")));
    let agent = setting.start();
    let traffic = Traffic::start(tcp(&server), 50, seeded("disk"));
    traffic.fail(100);
    until("failures are counted", SOON, || {
        let failures = agent.metric_value("obi_slo_store_failures_total", &[]).unwrap();
        if failures >= 2.0 { Ok(()) } else { Err(failures.to_string()) }
    });
    assert!(agent.metric_value("obi_slo_store_unsaved_time", &[]).unwrap() > 0.0);
    let first = traffic.answered();
    fs::remove_file(filler).unwrap();
    until("it is written when there is room", SOON, || {
        let unsaved = agent.metric_value("obi_slo_store_unsaved_time", &[]).unwrap();
        if unsaved == 0.0 { Ok(()) } else { Err(unsaved.to_string()) }
    });
    let counted = traffic.finish();
    assert!(counted.0 > first.0);
    assert_counted(&agent, counted);
    await_write(&agent);
    let said = agent.stderr().unwrap();
    assert_eq!(said.matches("counts of objectives are not written").count(), 1, "{said}");
    // Full again, with the file open.
    let _filler = disk.fill();
    agent.kill().unwrap();
    let agent = setting.start();
    assert_counted(&agent, counted);
}

fn obi(arguments: &[&str]) -> Ended {
    let mut command: Command = agent::command().unwrap();
    command.args(arguments);
    Program::spawn("obi", command).unwrap().wait(Duration::from_secs(20)).unwrap()
}

fn deployed(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/slo").join(name)
}

#[test]
fn wrong_files_are_refused_with_their_place() {
    let example = deployed("example.yaml").display().to_string();
    let good = obi(&["slo", "lint", &example]);
    assert_eq!(good.code, 0, "{good:?}");
    let setting = Setting::new(&[slo("x", "y").replace("0.99", "99")]);
    let file = setting.folder.path().join("slo.yaml").display().to_string();
    let wrong = obi(&["slo", "lint", &file]);
    assert_eq!(wrong.code, 2, "{wrong:?}");
    assert!(wrong.lines[0].starts_with(&file) && wrong.lines[0].contains("target"), "{wrong:?}");
    let config = setting.folder.path().join("obi.yaml");
    fs::write(&config, setting.config.text()).unwrap();
    let config = config.display().to_string();
    for arguments in [["check", "--config", &config], ["run", "--config", &config]] {
        let ended = obi(&arguments);
        assert_eq!(ended.code, 2, "{ended:?}");
        assert!(ended.stderr.contains(&file) && ended.stderr.contains("target"), "{ended:?}");
    }
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// What was counted is there after `kill -9`, and the time between is a gap.
    #[test]
    fn counts_survive_a_kill() {
        let server = python();
        let setting = Setting::new(&[slo("kept", &server.service)]);
        let agent = setting.start();
        let traffic = Traffic::start(tcp(&server), 50, seeded("kill"));
        traffic.fail(100);
        thread::sleep(patience(Duration::from_secs(4)));
        let counted = traffic.finish();
        assert_counted(&agent, counted);
        await_write(&agent);
        agent.kill().unwrap();
        thread::sleep(patience(Duration::from_secs(2)));
        let agent = setting.start();
        assert_counted(&agent, counted);
        // Nothing has been seen by this process, so its counters begin anew.
        assert_eq!(agent.metric_value("slo_events_total", &[("slo", "kept")]).unwrap(), 0.0);
        let coverage = slos(&agent)[0]["window"]["coverage"].as_f64().unwrap();
        assert!(coverage > 0.0 && coverage < 1.0, "time while it was down is a gap: {coverage}");
        assert_eq!(agent.stop().unwrap().code, 0);
        let agent = setting.start();
        assert_counted(&agent, counted);
    }
}
