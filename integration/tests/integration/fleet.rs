//! Two agents and a real Prometheus with generated rules: what the fleet says is the sum of what the agents count.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use integration::agent::{self, Agent, Config};
use integration::fetch;
use integration::patience::patience;
use integration::plan::Address;
use integration::process;
use integration::seed::{note, seeded};
use integration::server::language;
use integration::traffic::Traffic;
use serde_json::{Value, json};

use crate::prometheus::{Prometheus, first_value};

const BUDGET: f64 = 0.01;

/// `obi slo …` that must succeed; its stdout.
fn obi(arguments: &[&str]) -> String {
    let mut command = agent::command().unwrap();
    command.arg("slo").args(arguments);
    process::run("obi slo", command, patience(Duration::from_secs(60))).unwrap().join("\n")
}

/// Good and bad events that an agent has counted.
fn counted(agent: &Agent) -> (f64, f64) {
    let metrics = agent.metrics().unwrap();
    let of = |outcome: &str| metrics.sum("slo_events_total", &[("slo", "fleet"), ("outcome", outcome)]);
    (of("good"), of("bad"))
}

/// Waits until all agents have counted the same as was answered.
#[track_caller]
fn await_counted(agent: &Agent, expected: (f64, f64)) {
    let mut found = counted(agent);
    for _ in 0..200 {
        if found == expected {
            return;
        }
        thread::sleep(patience(Duration::from_millis(50)));
        found = counted(agent);
    }
    assert_eq!(found, expected, "good and bad events of an agent");
}

#[track_caller]
fn await_value(prometheus: &Prometheus, query: &str, expected: f64) {
    let path = format!("/api/v1/query?query={}", fetch::encode(query));
    let is_it = |data: &Value| first_value(data).is_some_and(|value| (value - expected).abs() < 1e-9);
    let data = prometheus.ask_until(&path, is_it);
    assert!(is_it(&data), "{query}: {data} instead of {expected}");
}

fn write_targets(file: &Path, agents: &[&Agent]) {
    let targets: Vec<String> = agents.iter().map(|agent| agent.address().to_string()).collect();
    // Prometheus must never read half a file.
    let new = file.with_extension("new");
    fs::write(&new, json!([{ "targets": targets }]).to_string()).unwrap();
    fs::rename(new, file).unwrap();
}

fn sum(all: &[(f64, f64)]) -> (f64, f64) {
    all.iter().fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// Under load, with an agent that is replaced by another one in the middle.
    #[test]
    fn rules_say_the_sum_of_exact_counts() {
        let server = language::python_http("threading").unwrap();
        let Address::Tcp(address) = server.address else { panic!("{:?} is not TCP", server.address) };
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let slo = format!(
            "apiVersion: openslo/v1\nkind: SLO\nmetadata: {{name: fleet}}\nspec:\n  service: shop\n  indicator:\n    \
             metadata: {{name: fleet}}\n    spec:\n      ratioMetric:\n        counter: true\n        bad: {{metricSource: \
             {{type: obi, spec: {{outcome: bad}}}}}}\n        total: {{metricSource: {{type: obi, spec: {{service: {}}}}}}}\n  \
             timeWindow: [{{duration: 28d, isRolling: true}}]\n  budgetingMethod: Occurrences\n  objectives: [{{target: 0.99}}]\n",
            server.service
        );
        fs::write(path("slo.yaml"), slo).unwrap();
        obi(&["rules", "--interval", "2s", "--settle", "1s", "--output", &path("rules"), &path("slo.yaml")]);
        let mut promtool = Command::new("promtool");
        promtool.args(["test", "rules", "rules_test.yaml"]).current_dir(path("rules"));
        process::run("promtool", promtool, patience(Duration::from_secs(120))).unwrap();

        let config = |name: &str| {
            let config = Config::default().set("slo", "files", json!([path("slo.yaml")]));
            config.set("slo", "state", path(name))
        };
        let one = Agent::start(config("one")).unwrap();
        let two = one.start_beside(config("two")).unwrap();
        let targets = folder.path().join("targets.json");
        write_targets(&targets, &[&one, &two]);
        let prometheus = Prometheus::with(&format!(
            "global: {{evaluation_interval: 2s}}\nrule_files: ['{}']\nscrape_configs:\n- job_name: obi\n  \
             scrape_interval: 1s\n  scrape_timeout: 1s\n  file_sd_configs:\n  - files: ['{}']\n    refresh_interval: 1s\n",
            path("rules/rules.yaml"),
            targets.display()
        ));
        await_value(&prometheus, "count(up == 1)", 2.0);

        let traffic = Traffic::start(address, 60, seeded("fleet"));
        traffic.fail(200);
        let page = "count(ALERTS{alertname=\"SLOErrorBudgetBurn\",slo=\"fleet\",severity=\"page\",alertstate=\"firing\"})";
        await_value(&prometheus, page, 1.0);
        let before = traffic.finish();
        #[expect(clippy::cast_precision_loss, reason = "a few thousand requests")]
        let number = |(good, bad): (u64, u64)| (good as f64, bad as f64);
        let before = number(before);
        note(&format!("first part: {before:?}"));
        await_counted(&one, before);
        await_counted(&two, before);
        // All of the second agent's counts have been scraped when it goes.
        await_value(&prometheus, "sum(slo_events_total)", 2.0 * (before.0 + before.1));
        two.stop().unwrap();
        let three = one.start_beside(config("three")).unwrap();
        write_targets(&targets, &[&one, &three]);
        // The third one has counted before it is scraped for the first time.
        let traffic = Traffic::start(address, 60, seeded("fleet again"));
        thread::sleep(patience(Duration::from_secs(4)));
        let after = number(traffic.finish());
        await_counted(&three, after);
        await_counted(&one, sum(&[before, after]));

        let (good, bad) = sum(&[before, before, after, after]);
        note(&format!("fleet: {good} good, {bad} bad"));
        for (outcome, expected) in [("good", good), ("bad", bad)] {
            let query = format!("slo:events:increase{{slo=\"fleet\",window=\"1h\",outcome=\"{outcome}\"}}");
            await_value(&prometheus, &query, expected);
        }
        await_value(
            &prometheus,
            "slo:burn_rate:ratio{slo=\"fleet\",window=\"1h\"}",
            bad / (good + bad) / BUDGET,
        );

        let url = format!("http://{}", prometheus.address);
        let answer: Value =
            serde_json::from_str(&obi(&["evaluate", "--prometheus", &url, "--json", &path("slo.yaml")]))
                .unwrap();
        let fleet = &answer["slos"][0];
        assert_eq!((fleet["good"].as_f64(), fleet["bad"].as_f64()), (Some(good), Some(bad)), "{answer}");
        assert_eq!(fleet["machines"], 3, "{answer}");
        let coverage = fleet["coverage"].as_f64().unwrap();
        assert!(coverage < 0.01, "a new Prometheus knows nothing of the last weeks: {answer}");
        let table = obi(&["evaluate", "--prometheus", &url, &path("slo.yaml")]);
        assert!(table.contains("coverage: part of the period in which any machine was seen"), "{table}");
        note(&table);
    }
}
