//! The files of `deploy/examples`, each put to the program that it is for.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::agent;
use integration::patience::patience;
use integration::{process, program};

const LIMIT: Duration = Duration::from_secs(60);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn examples() -> PathBuf {
    root().join("deploy/examples")
}

/// Names of the files in a folder of examples.
fn files(folder: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(examples().join(folder)).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{folder} is empty");
    files
}

#[track_caller]
fn run(mut command: Command, arguments: &[&str], file: &Path) -> String {
    command.args(arguments).arg(file);
    let what = format!("{} of {}", arguments.join(" "), file.display());
    process::run(&what, command, patience(LIMIT)).unwrap().join("\n")
}

#[test]
fn the_agent_takes_its_configurations() {
    let shipped = root().join("deploy/obi.yaml");
    for file in files("obi").into_iter().chain([shipped]) {
        run(agent::command().unwrap(), &["check", "--config"], &file);
    }
}

#[test]
fn prometheus_takes_its_files() {
    // It looks at the files of rules as well.
    run(Command::new("promtool"), &["check", "config"], &examples().join("prometheus/prometheus.yml"));
    for file in ["prometheus/agent-alerts.yaml", "rules/slo.yaml"] {
        run(Command::new("promtool"), &["check", "rules"], &examples().join(file));
    }
}

/// They are made by our own command, and as it makes them now.
#[test]
fn rules_are_up_to_date() {
    let made = run(agent::command().unwrap(), &["slo", "rules"], &root().join("deploy/slo/example.yaml"));
    let kept = fs::read_to_string(examples().join("rules/slo.yaml")).unwrap();
    assert!(
        kept.trim_end() == made.trim_end(),
        "make deploy/examples/rules/slo.yaml anew by `obi slo rules`"
    );
}

#[test]
fn alertmanager_takes_its_file() {
    run(Command::new("amtool"), &["check-config"], &examples().join("alertmanager/alertmanager.yml"));
}

#[test]
fn the_collector_takes_its_files() {
    let collector = program::go_module(&root().join("integration/collector"), "collector").unwrap();
    let gate = "--feature-gates=service.profilesSupport";
    for file in files("collector") {
        let has_profiles = file.ends_with("profiles.yaml");
        let validate = |gates: &[&str]| {
            let mut command = Command::new(&collector);
            command.arg("validate").args(gates).arg("--config").arg(&file);
            process::run("collector validate", command, patience(LIMIT))
        };
        validate(&[gate][..usize::from(has_profiles)]).unwrap();
        // Without its gate it says so, and does not run without the signal in silence.
        assert_eq!(validate(&[]).is_err(), has_profiles, "{}", file.display());
    }
}

/// Grafana cannot be had here: its files name sources that exist and dashboards that are shipped.
#[test]
fn sources_of_grafana_know_each_other() {
    let text = fs::read_to_string(examples().join("grafana/datasources.yaml")).unwrap();
    let named = |key: &str| -> Vec<&str> {
        text.lines().filter_map(|line| line.trim().strip_prefix(key)).map(str::trim).collect()
    };
    let uids = named("uid:");
    assert_eq!(uids, ["prometheus", "tempo", "pyroscope"]);
    let wanted = named("datasourceUid:");
    assert_eq!(wanted.len(), 4, "{wanted:?}");
    assert!(wanted.iter().all(|uid| uids.contains(uid)), "{wanted:?}");
    // Where the packages put the dashboards.
    let loads = fs::read_to_string(examples().join("grafana/dashboards.yaml")).unwrap();
    let manifest = fs::read_to_string(root().join("obi/Cargo.toml")).unwrap();
    assert!(loads.contains("path: /usr/share/doc/obi/dashboards"), "{loads}");
    assert!(manifest.contains("\"usr/share/doc/obi/dashboards/\""), "{manifest}");
}
