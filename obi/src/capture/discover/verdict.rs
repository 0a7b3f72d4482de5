//! Rules and facts to a verdict: is this process watched?
//!
//! In: section `discover` and what is known of a process. Out: [`Verdict`]. Pure.

use crate::config::{Discover, Rule};

/// Whether a process is watched, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Its exchanges are captured.
    Watch,
    /// It is the agent itself.
    Ourselves,
    /// A rule of `discover.exclude` matches.
    Excluded,
    /// No rule of `discover.include` matches (yet).
    NotIncluded,
}

impl Verdict {
    /// Whether the process is watched.
    #[must_use]
    pub fn is_watched(self) -> bool {
        self == Self::Watch
    }
}

/// What a rule can look at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) executable: &'a str,
    pub(super) service: &'a str,
    pub(super) cgroup: &'a str,
    pub(super) ports: &'a [u16],
}

pub(super) fn decide(rules: &Discover, candidate: Candidate<'_>) -> Verdict {
    let any = |rules: &[Rule]| rules.iter().any(|rule| matches(rule, candidate));
    if any(&rules.exclude) {
        Verdict::Excluded
    } else if rules.include.is_empty() || any(&rules.include) {
        Verdict::Watch
    } else {
        Verdict::NotIncluded
    }
}

fn matches(rule: &Rule, candidate: Candidate<'_>) -> bool {
    let text = |pattern: &Option<crate::config::Pattern>, text| {
        pattern.as_ref().is_none_or(|pattern| pattern.matches(text))
    };
    text(&rule.executable, candidate.executable)
        && text(&rule.service, candidate.service)
        && text(&rule.cgroup, candidate.cgroup)
        && rule.port.is_none_or(|range| candidate.ports.iter().any(|port| range.contains(*port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exclusion_wins_and_all_conditions_of_a_rule_must_hold() {
        fn check(rules: &str, expected: Verdict) {
            let rules: Discover = serde_saphyr::from_str(rules).unwrap();
            let candidate = Candidate {
                executable: "/usr/sbin/nginx",
                service: "edge",
                cgroup: "/system.slice/nginx.service",
                ports: &[80, 443],
            };
            assert_eq!(decide(&rules, candidate), expected, "{rules:?}");
        }
        check("{}", Verdict::Watch);
        check("include: [{service: edge}]", Verdict::Watch);
        check("include: [{service: other}]", Verdict::NotIncluded);
        check("include: [{service: other}, {port: 443}]", Verdict::Watch);
        check("include: [{service: edge, port: 8080}]", Verdict::NotIncluded);
        check(
            "include: [{service: edge, port: 1-100, executable: '*/nginx', cgroup: '/system*'}]",
            Verdict::Watch,
        );
        check("include: [{service: edge}]\nexclude: [{executable: '/usr/*'}]", Verdict::Excluded);
        check("exclude: [{port: 22}]", Verdict::Watch);
        check("exclude: [{port: 80}]", Verdict::Excluded);
        check("exclude: [{cgroup: '*nginx*'}]", Verdict::Excluded);
    }
}
