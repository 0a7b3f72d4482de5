//! Generated rules, judged by promtool.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use slo::alert::{Arm, Condition, Gate, Source};
use slo::openslo::Place;
use slo::{BudgetingMethod, Objective, Part, Ratio, Window};

fn minutes(n: u64) -> Duration {
    Duration::from_secs(60 * n)
}

fn arm(severity: &str, short: u64, long: u64, threshold: f64) -> Arm {
    let condition = |window: u64| Condition { window: minutes(window), threshold, inclusive: false };
    Arm {
        severity: severity.into(),
        policy: "default".into(),
        source: Source::Table,
        conditions: vec![condition(long), condition(short)],
        after: Duration::ZERO,
        gate: Gate::default(),
        when_breaching: true,
        when_resolved: true,
        when_no_data: false,
        targets: vec![],
        description: String::new(),
    }
}

fn objective() -> Objective {
    Objective {
        name: "checkout".into(),
        slo: "checkout".into(),
        display_name: String::new(),
        service: "shop".into(),
        description: String::new(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        parts: vec![Part {
            name: "checkout".into(),
            indicator: slo::Indicator::Events(slo::indicator::EventIndicator {
                total: Default::default(),
                counted: Default::default(),
                counted_is: slo::Outcome::Bad,
                errors: Default::default(),
                queue_wait: Default::default(),
            }),
            target: Ratio::parse("0.999").unwrap(),
            slice_target: Ratio::parse("1").unwrap(),
            weight: 1.0,
        }],
        budgeting: BudgetingMethod::Occurrences,
        window: Window::Rolling(Duration::from_secs(28 * 86_400)),
        arms: vec![
            arm("page", 5, 60, 13.44),
            arm("page", 30, 360, 5.6),
            arm("ticket", 120, 1440, 2.8),
            arm("ticket", 360, 4320, 0.9333),
        ],
        place: Place { file: Arc::from("x.yaml"), line: 1, key: String::new() },
    }
}

#[test]
fn promtool() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let objectives = [objective()];
    let rules = slo::rules::generate(&objectives);
    fs::write(folder.join("rules.yaml"), rules.file.to_yaml()).unwrap();
    fs::write(folder.join("tests.yaml"), slo::rules::tests(&objectives, "rules.yaml")).unwrap();
    for arguments in [["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"]] {
        let out = Command::new("promtool").args(arguments).current_dir(folder).output().unwrap();
        println!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success());
    }
}
