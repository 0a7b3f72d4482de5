//! The text that keeps what pprof has no fields for.
//!
//! In: marks of locations, build ids, resources. Out: one line, `obi.profile/1 {…}`, and the same read back. Refuses to
//! know samples.

use flate2::Crc;
use serde::{Deserialize, Serialize};

use super::message::{Location, Mapping};
use crate::export::table::Mark;
use crate::profile::{Fidelity, Origin, Runtime};
use crate::span::{AttributeValue, Instance, Resource, Service};

const PREFIX: &str = "obi.profile/1 ";
/// Around the number of samples that are missing, in a comment for people.
const MISSING: [&str; 2] = ["obi: ", " samples are missing"];
/// One character per location: runtime, fidelity and whether it is behind a call are six bits.
const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// What is kept.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(super) struct Note {
    /// Marks of locations, in their order.
    pub(super) frames: String,
    /// Of mappings, in their order: Go's build id, then htlhash.
    pub(super) build_ids: Vec<(String, String)>,
    /// Attributes of each process.
    pub(super) resources: Vec<Vec<(String, Value)>>,
    /// Shows whether locations and mappings are still those that this was written for.
    pub(super) check: u32,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Value {
    Int(i64),
    Text(String),
}

impl Note {
    /// As text.
    pub(super) fn write(&self) -> String {
        format!("{PREFIX}{}", serde_json::to_string(self).expect("text and numbers are always JSON"))
    }

    /// Reads a text; `None` when it is another one.
    pub(super) fn read(text: &str) -> Option<Self> {
        serde_json::from_str(text.strip_prefix(PREFIX)?).ok()
    }

    /// Mark of a location by its place; `None` when there is none.
    pub(super) fn mark(&self, place: usize) -> Option<Mark> {
        let digit = *self.frames.as_bytes().get(place)?;
        let bits = DIGITS.iter().position(|known| *known == digit)?;
        Some(Mark {
            runtime: Runtime::ALL[bits >> 3],
            fidelity: Fidelity::ALL[bits >> 1 & 3],
            is_return: bits & 1 != 0,
        })
    }
}

/// What people read above a report when samples are missing.
pub(super) fn missing(lost: u64) -> String {
    format!("{}{lost}{}", MISSING[0], MISSING[1])
}

/// How many a comment says are missing; 0 when it says something else.
pub(super) fn read_missing(comment: &str) -> u64 {
    let number = comment.strip_prefix(MISSING[0]).and_then(|rest| rest.strip_suffix(MISSING[1]));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// The character of a mark.
pub(super) fn digit(mark: Mark) -> char {
    let place = |found: Option<usize>| found.expect("all of them are listed");
    let runtime = place(Runtime::ALL.iter().position(|runtime| *runtime == mark.runtime));
    let fidelity = place(Fidelity::ALL.iter().position(|fidelity| *fidelity == mark.fidelity));
    DIGITS[runtime << 3 | fidelity << 1 | usize::from(mark.is_return)].into()
}

/// What changes when locations or mappings are renumbered.
pub(super) fn check(locations: &[Location], mappings: &[Mapping]) -> u32 {
    let mut crc = Crc::new();
    let mut add = |number: u64| crc.update(&number.to_le_bytes());
    for Location { id, mapping_id, address, line } in locations {
        [*id, *mapping_id, *address, line.len() as u64].into_iter().for_each(&mut add);
    }
    for Mapping { id, memory_start, file_offset, .. } in mappings {
        [*id, *memory_start, *file_offset].into_iter().for_each(&mut add);
    }
    crc.sum()
}

/// A process's attributes.
pub(super) fn resource(origin: &Origin) -> Vec<(String, Value)> {
    let mut resource = Vec::new();
    origin.attributes(|key, value| {
        let value = match value {
            AttributeValue::Int(number) => Value::Int(number),
            other => Value::Text(other.to_string()),
        };
        resource.push((key.to_owned(), value));
    });
    resource
}

/// The process of such attributes.
pub(super) fn origin(attributes: &[(String, Value)]) -> Origin {
    let (mut service, mut resource) = (Service::default(), Resource::default());
    for (key, value) in attributes {
        match (key.as_str(), value) {
            ("service.name", Value::Text(text)) => service.name.clone_from(text),
            ("service.namespace", Value::Text(text)) => service.namespace.clone_from(text),
            (key, Value::Text(text)) => resource.text(key.to_owned(), text),
            (key, Value::Int(number)) => resource.int(key.to_owned(), *number),
        }
    }
    Origin::of_attributes(service, Instance { attributes: resource })
}
