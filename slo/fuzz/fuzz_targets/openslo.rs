//! OpenSLO text: no panic, every finding has a place, and what can be executed is sound.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slo::openslo::{Severity, read};
use slo::{Counts, Engine, Target, Time};

fuzz_target!(|input: &[u8]| {
    let Ok(text) = std::str::from_utf8(input) else { return };
    let reading = read([("fuzz.yaml", text)]);
    for finding in &reading.findings {
        assert!(!finding.what.is_empty());
        assert!(finding.severity < Severity::Error || !finding.instead.is_empty(), "{finding}");
    }
    let objectives: Vec<_> = reading.objectives.into_iter().take(4).collect();
    for objective in &objectives {
        assert!(!objective.parts.is_empty() && objective.target().is_below_one());
    }
    let start = Time::from_seconds(1_800_000_000);
    let mut engine = Engine::new(objectives, start);
    for objective in 0..engine.len() {
        let target = Target { objective, part: 0 };
        engine.record_n(target, start, Counts { good: 1, bad: 1000 });
    }
    engine.evaluate(Time::from_seconds(1_800_000_010));
    for objective in 0..engine.len() {
        assert!(engine.status(objective, start).is_some());
    }
});
