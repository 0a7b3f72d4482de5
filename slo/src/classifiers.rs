//! Which objectives an event is for.
//!
//! In: objectives, then events. Out: verdicts. Refuses to ask objectives of other services.

use std::collections::HashMap;
use std::sync::Arc;

use crate::indicator::{Classifier, Indicator, Outcome, Subject};
use crate::objective::Objective;

/// A part of an objective, as the engine counts them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Target {
    /// Index of the objective.
    pub objective: usize,
    /// Index of its part.
    pub part: usize,
}

/// Classifiers of all objectives, by service. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Classifiers {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    all: Vec<(Target, Classifier)>,
    /// Those that name exactly this service.
    by_service: HashMap<String, Vec<usize>>,
    /// The others.
    any_service: Vec<usize>,
}

impl Classifiers {
    pub(crate) fn new<'a>(objectives: impl Iterator<Item = &'a Objective>) -> Self {
        let mut inner = Inner { all: Vec::new(), by_service: HashMap::new(), any_service: Vec::new() };
        for (objective, definition) in objectives.enumerate() {
            for (part, definition) in definition.parts.iter().enumerate() {
                let Indicator::Events(events) = &definition.indicator else { continue };
                let classifier = Classifier::new(events);
                let at = inner.all.len();
                match classifier.service() {
                    Some(service) => inner.by_service.entry(service.to_owned()).or_default().push(at),
                    None => inner.any_service.push(at),
                }
                inner.all.push((Target { objective, part }, classifier));
            }
        }
        Self { inner: Arc::new(inner) }
    }

    /// Every classifier that may select events of a service.
    pub fn of_service(&self, service: &str) -> impl Iterator<Item = &(Target, Classifier)> {
        let named = self.inner.by_service.get(service).map_or(&[][..], Vec::as_slice);
        named.iter().chain(&self.inner.any_service).map(|at| &self.inner.all[*at])
    }

    /// The verdict of every objective that counts the event.
    pub fn classify(&self, subject: &Subject<'_>, mut verdict: impl FnMut(Target, Outcome)) {
        for (target, classifier) in self.of_service(subject.service) {
            if let Some(outcome) = classifier.classify(subject) {
                verdict(*target, outcome);
            }
        }
    }
}
