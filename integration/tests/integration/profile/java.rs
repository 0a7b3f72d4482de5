//! Methods of Java programs whose stacks are known, in one stack with native frames: every class, name, file and line.

use std::path::Path;

use integration::agent::{Agent, Config};
use integration::seed::{note, seeded};
use integration::stack::java::{Towers, jdks};
use integration::stack::tower::Verdict;
use serde_json::Value;

use super::towers::{JUDGED, recorded, said};

/// More looks than usual, so that seconds are enough.
const HERTZ: u32 = 199;

/// How each JDK is started: its interpreter alone, its quick compiler, all; without what is inlined, and with it.
const FLAGS: [&[&str]; 6] = [
    &["-Xint"],
    &["-XX:TieredStopAtLevel=1", "-XX:-Inline"],
    &["-XX:-Inline"],
    &["-XX:TieredStopAtLevel=1"],
    &[],
    // Reflection by native methods, which call Java again.
    &["-Dsun.reflect.inflationThreshold=2147483647", "-Djdk.reflect.useNativeAccessorOnly=true"],
];

fn check(agent: &Agent, home: &Path, flags: &[&str], rng: &mut fastrand::Rng) {
    let towers = Towers::start(home, flags, rng).unwrap();
    let pid = towers.program.pid();
    let recorded = recorded(agent, &towers.service, pid, &towers);
    let verdict = towers.judge(&recorded);
    let Verdict { judged, right, lines, marked, impossible, without, apart, .. } = verdict;
    note(&format!(
        "Java {} {flags:?}: {right} of {judged} right, {marked} marked, {impossible} impossible, {without} without, \
         {apart} apart, {lines} with a wrong line",
        home.display()
    ));
    assert_eq!(impossible, 0, "{:#?}", verdict.wrong);
    assert!(judged >= JUDGED * 8 / 10, "{verdict:?}");
    assert!(right * 100 >= judged * 99, "{verdict:?}");
    assert!(apart * 100 <= right && lines * 100 <= right, "{verdict:?}");
    let interpreter = said(agent, pid);
    assert_eq!(
        (&interpreter["runtime"], &interpreter["off"]),
        (&"jvm".into(), &Value::Null),
        "{interpreter}"
    );
}

fn agent() -> Agent {
    let config = Config::default().set("profile", "enabled", true).set("profile", "frequency", HERTZ);
    Agent::start(config).unwrap()
}

#[test]
fn java_methods_as_users_start_it() {
    let home = jdks(None).unwrap().into_iter().next_back().expect("a JDK is installed");
    check(&agent(), &home, &[], &mut seeded("java"));
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// Each JDK in each way. `make test-languages` has all versions of this machine.
    #[test]
    fn java_methods_are_where_they_run() {
        let mut rng = seeded("java");
        let agent = agent();
        let wanted = std::env::var("OBI_TEST_LANGUAGES").ok();
        for home in jdks(wanted.as_deref()).unwrap() {
            for flags in FLAGS {
                check(&agent, &home, flags, &mut rng);
            }
        }
    }
}
