//! `dashboards/*.json`: made of plain values and of the table of metrics that the exporters walk along.
//!
//! In: `obi::red::FAMILIES` and the files beside this one. Out: the files, with `UPDATE_REFERENCE=1` (`make
//! reference`); else a failure where one is out of date, or breaks a rule (`rule.rs`). What the expressions return is
//! tested by `integration`'s `dashboards`, with a real agent and a real Prometheus.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod agent;
mod fleet;
mod graph;
mod json;
mod link;
mod model;
mod name;
mod objective;
mod profile;
mod query;
mod rule;
mod service;

use std::path::{Path, PathBuf};

use model::Dashboard;

fn all() -> [Dashboard; 6] {
    [
        fleet::dashboard(),
        service::dashboard(),
        objective::dashboard(),
        graph::dashboard(),
        profile::dashboard(),
        agent::dashboard(),
    ]
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards")
}

/// `obi-fleet` is in `fleet.json`.
fn file(dashboard: &Dashboard) -> PathBuf {
    let name = dashboard.uid.strip_prefix("obi-").expect("uids begin with the product's name");
    folder().join(name).with_extension("json")
}

#[test]
fn the_files_are_up_to_date() {
    let updates = std::env::var_os("UPDATE_REFERENCE").is_some();
    if updates {
        std::fs::create_dir_all(folder()).unwrap();
    }
    for dashboard in all() {
        let text = format!("{:#}\n", json::dashboard(&dashboard));
        let file = file(&dashboard);
        if updates {
            std::fs::write(&file, &text).unwrap();
        }
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(written == text, "{} is out of date: run `make reference`", file.display());
    }
    let files = std::fs::read_dir(folder()).unwrap().flatten();
    let json = files.filter(|file| file.path().extension().is_some_and(|it| it == "json"));
    assert_eq!(json.count(), all().len(), "a file of no dashboard is in {}", folder().display());
}
