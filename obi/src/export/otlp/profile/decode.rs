//! An export request to a selection.
//!
//! In: bytes of `ExportProfilesServiceRequest` or `ProfilesData`, from anywhere. Out: a [`Selection`] of the profiles
//! in it whose kind of samples is known, or an error; its size is bounded by that of the bytes. Refuses to know
//! connections and compression.

use std::sync::Arc;

use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development as otlp;
use prost::Message as _;
use thiserror::Error;

use super::{
    BUILD_ID_GNU, BUILD_ID_GO, BUILD_ID_HTLHASH, CPU, FIDELITY, FRAME_TYPE, IS_RETURN, LOST_SAMPLES, METHOD,
    ROUTE, THREAD_ID, THREAD_NAME,
};
use crate::export::table::{Mark, fidelity_of};
use crate::profile::sample_type::{ROWS, SampleType};
use crate::profile::{Fidelity, Frame, Line, Link, Mapping, Origin, Runtime, Sample, Selection, Stack};
use crate::span::{Instance, Resource, Service};

/// Why bytes are no profile that we can read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum DecodeError {
    /// No message of protobuf.
    #[error("not a message of OTLP profiles: {0}")]
    Message(#[from] prost::DecodeError),
    /// A reference leads out of its table.
    #[error("index {index} leads out of the {table} of {len} entries")]
    Index {
        /// The table.
        table: &'static str,
        /// What was referred to.
        index: i32,
        /// How many entries it has.
        len: usize,
    },
    /// It would take far more memory than its own size.
    #[error("more frames, or more references to texts, than a profile may have")]
    TooLarge,
    /// No profile of a kind that has a row.
    #[error("no profile of {} samples in it", ROWS.map(|row| row.label).join(" or "))]
    UnknownType,
    /// Profiles of one kind and different rates cannot be one selection.
    #[error("profiles with periods of {0} and {1} ns in one request")]
    Periods(u64, u64),
    /// No clock is as slow.
    #[error("a profile with a period of {0}, which is longer than that of any clock")]
    LongPeriod(i64),
}

/// Decodes a request.
///
/// # Errors
/// When it is none, contradicts itself, or has no profile of a known kind.
pub fn decode(bytes: &[u8]) -> Result<Selection, DecodeError> {
    let otlp::ProfilesData { resource_profiles, dictionary } = otlp::ProfilesData::decode(bytes)?;
    let tables = Tables::read(dictionary.unwrap_or_default())?;
    let mut copied = 0;
    let mut selection = Selection { start: u64::MAX, ..Selection::default() };
    for resource in resource_profiles {
        let attributes = resource.resource.unwrap_or_default().attributes;
        let origin = Arc::new(tables.origin(attributes, &mut copied)?);
        for profile in resource.scope_profiles.into_iter().flat_map(|scope| scope.profiles) {
            let Some(measure) = tables.measure(&profile)? else { continue };
            let SampleType { kind, period } = measure.of;
            match selection.types.iter().find(|known| known.kind == kind) {
                None => selection.types.push(measure.of),
                Some(known) if known.period == period => {}
                Some(known) => return Err(DecodeError::Periods(known.period, period)),
            }
            selection.start = selection.start.min(profile.time_unix_nano);
            let end = profile.time_unix_nano.saturating_add(profile.duration_nano);
            selection.end = selection.end.max(end);
            tables.attributes(&profile.attribute_indices, |key, value| {
                let lost = if key == LOST_SAMPLES { value.number() } else { 0 };
                selection.lost = selection.lost.saturating_add(lost);
            })?;
            let start = profile.time_unix_nano;
            for sample in profile.samples {
                tables.sample(sample, &origin, Times { start, measure }, &mut selection.samples)?;
            }
        }
    }
    if selection.types.is_empty() {
        return Err(DecodeError::UnknownType);
    }
    selection.sort();
    Ok(selection)
}

/// What samples of a profile do not say themselves.
#[derive(Clone, Copy)]
struct Times {
    /// The time of samples that give none.
    start: u64,
    measure: Measure,
}

/// How a profile's values become ours.
#[derive(Clone, Copy)]
struct Measure {
    of: SampleType,
    /// They count samples.
    is_count: bool,
}

impl Measure {
    fn value(self, written: i64) -> u64 {
        let written = u64::try_from(written).unwrap_or(0);
        if self.is_count { self.of.value(written) } else { written }
    }
}

/// A value that we have a use for. Texts are shared: many references to a long one cost nothing.
#[derive(Debug, Clone)]
enum Value {
    Text(Arc<str>),
    Int(i64),
    Bool(bool),
}

impl Value {
    fn text(&self) -> Arc<str> {
        match self {
            Self::Text(text) => Arc::clone(text),
            Self::Int(_) | Self::Bool(_) => Arc::default(),
        }
    }

    /// Not negative; 0 if it is no number.
    fn number(&self) -> u64 {
        match self {
            Self::Int(number) => u64::try_from(*number).unwrap_or(0),
            Self::Text(_) | Self::Bool(_) => 0,
        }
    }

    fn small(&self) -> u32 {
        u32::try_from(self.number()).unwrap_or(0)
    }
}

/// Bytes that resources may take which refer to texts instead of having them.
const COPIED_BYTES: usize = 64 << 20;
/// Frames of all stacks together.
const FRAMES: usize = 8 << 20;

/// The dictionary, with everything made that others refer to.
#[derive(Default)]
struct Tables {
    texts: Vec<Arc<str>>,
    attributes: Vec<(Arc<str>, Option<Value>)>,
    stacks: Vec<Arc<Stack>>,
    links: Vec<([u8; 16], [u8; 8])>,
}

fn at<'a, T>(table: &'a [T], index: i32, name: &'static str) -> Result<&'a T, DecodeError> {
    let place = usize::try_from(index).ok().and_then(|index| table.get(index));
    place.ok_or(DecodeError::Index { table: name, index, len: table.len() })
}

impl Tables {
    fn read(dictionary: otlp::ProfilesDictionary) -> Result<Self, DecodeError> {
        let mut tables =
            Self { texts: dictionary.string_table.into_iter().map(Arc::from).collect(), ..Self::default() };
        for attribute in dictionary.attribute_table {
            let read = (tables.text(attribute.key_strindex)?, tables.value(attribute.value)?);
            tables.attributes.push(read);
        }
        // A link that is none is that of samples without one.
        tables.links = dictionary
            .link_table
            .iter()
            .map(|link| {
                let trace_id = link.trace_id[..].try_into().unwrap_or_default();
                (trace_id, link.span_id[..].try_into().unwrap_or_default())
            })
            .collect();
        let mappings = dictionary.mapping_table.iter().map(|mapping| tables.mapping(mapping).map(Arc::new));
        let mappings: Vec<Arc<Mapping>> = mappings.collect::<Result<_, _>>()?;
        let functions = dictionary.function_table.iter().map(|function| tables.function(function));
        let functions: Vec<Line> = functions.collect::<Result<_, _>>()?;
        let locations = dictionary.location_table.iter();
        let locations = locations.map(|location| tables.frame(location, &mappings, &functions));
        let locations: Vec<Frame> = locations.collect::<Result<_, _>>()?;
        let mut n_frames = 0;
        for stack in &dictionary.stack_table {
            n_frames += stack.location_indices.len();
            if n_frames > FRAMES {
                return Err(DecodeError::TooLarge);
            }
            let frames = stack.location_indices.iter();
            let frames = frames.map(|index| at(&locations, *index, "locations").cloned());
            tables.stacks.push(Arc::new(Stack { frames: frames.collect::<Result<_, _>>()? }));
        }
        if tables.stacks.is_empty() {
            tables.stacks.push(Arc::default());
        }
        Ok(tables)
    }

    fn text(&self, index: i32) -> Result<Arc<str>, DecodeError> {
        // No table at all is one way to have no text.
        if index == 0 {
            return Ok(Arc::default());
        }
        at(&self.texts, index, "texts").cloned()
    }

    fn attributes(&self, indices: &[i32], mut visit: impl FnMut(&str, &Value)) -> Result<(), DecodeError> {
        for index in indices {
            if let (key, Some(value)) = at(&self.attributes, *index, "attributes")? {
                visit(key, value);
            }
        }
        Ok(())
    }

    fn value(&self, value: Option<AnyValue>) -> Result<Option<Value>, DecodeError> {
        Ok(match value.and_then(|value| value.value) {
            Some(Any::StringValue(text)) => Some(Value::Text(text.into())),
            Some(Any::StringValueStrindex(index)) => Some(Value::Text(self.text(index)?)),
            Some(Any::IntValue(number)) => Some(Value::Int(number)),
            Some(Any::BoolValue(yes)) => Some(Value::Bool(yes)),
            _ => None,
        })
    }

    fn mapping(&self, mapping: &otlp::Mapping) -> Result<Mapping, DecodeError> {
        let (start, end) = Mapping::reported_range(mapping.memory_start, mapping.memory_limit);
        let mut read = Mapping {
            start,
            end,
            offset: mapping.file_offset,
            path: self.text(mapping.filename_strindex)?,
            ..Mapping::default()
        };
        self.attributes(&mapping.attribute_indices, |key, value| match key {
            BUILD_ID_GNU => read.gnu_build_id = value.text(),
            BUILD_ID_GO => read.go_build_id = value.text(),
            BUILD_ID_HTLHASH => read.htlhash = value.text(),
            _ => {}
        })?;
        Ok(read)
    }

    fn function(&self, function: &otlp::Function) -> Result<Line, DecodeError> {
        Ok(Line {
            function: self.text(function.name_strindex)?,
            system_name: self.text(function.system_name_strindex)?,
            file: self.text(function.filename_strindex)?,
            start_line: small(function.start_line),
            ..Line::default()
        })
    }

    fn frame(
        &self,
        location: &otlp::Location,
        mappings: &[Arc<Mapping>],
        functions: &[Line],
    ) -> Result<Frame, DecodeError> {
        let mut lines = Vec::with_capacity(location.lines.len());
        for line in &location.lines {
            let function = at(functions, line.function_index, "functions")?.clone();
            lines.push(Line { line: small(line.line), column: small(line.column), ..function });
        }
        let fidelity = fidelity_of(&lines);
        let mut mark = Mark { runtime: Runtime::Native, fidelity, is_return: false };
        self.attributes(&location.attribute_indices, |key, value| match key {
            FRAME_TYPE => mark.runtime = Runtime::of_name(&value.text()).unwrap_or_default(),
            FIDELITY => mark.fidelity = Fidelity::of_name(&value.text()).unwrap_or(fidelity),
            IS_RETURN => mark.is_return = matches!(value, Value::Bool(true)),
            _ => {}
        })?;
        let mapping = match location.mapping_index {
            0 => None,
            index => Some(Arc::clone(at(mappings, index, "mappings")?)),
        };
        Ok(mark.frame(location.address, mapping, lines))
    }

    /// The process of a resource; of texts that it refers to, `copied` bytes have been copied so far.
    fn origin(&self, attributes: Vec<KeyValue>, copied: &mut usize) -> Result<Origin, DecodeError> {
        let (mut service, mut resource) = (Service::default(), Resource::default());
        for KeyValue { key, value, key_strindex } in attributes {
            let key = if key.is_empty() { self.text(key_strindex)? } else { key.into() };
            let Some(value) = self.value(value)? else { continue };
            *copied += key.len() + value.text().len();
            if *copied > COPIED_BYTES {
                return Err(DecodeError::TooLarge);
            }
            match (&*key, value) {
                ("service.name", value) => service.name = value.text().to_string(),
                ("service.namespace", value) => service.namespace = value.text().to_string(),
                (key, Value::Text(text)) => resource.text(key.to_owned(), &text),
                (key, Value::Int(number)) => resource.int(key.to_owned(), number),
                (key, Value::Bool(yes)) => resource.text(key.to_owned(), if yes { "true" } else { "false" }),
            }
        }
        Ok(Origin::of_attributes(service, Instance { attributes: resource }))
    }

    /// What a profile's values are; `None` for those of no known kind.
    fn measure(&self, profile: &otlp::Profile) -> Result<Option<Measure>, DecodeError> {
        let name = |value_type: Option<otlp::ValueType>| {
            let otlp::ValueType { type_strindex, unit_strindex } = value_type.unwrap_or_default();
            Ok::<_, DecodeError>((self.text(type_strindex)?, self.text(unit_strindex)?))
        };
        let (sample, period) = (name(profile.sample_type)?, name(profile.period_type)?);
        let [sample, of_period] = [&sample, &period].map(|(kind, unit)| (&**kind, &**unit));
        let Some(row) = ROWS.iter().find(|row| row.value == of_period) else { return Ok(None) };
        let is_count = row.count == sample;
        if !is_count && row.value != sample {
            return Ok(None);
        }
        // Where a period is missing, each sample stands for one unit: their shares are right.
        let least = u64::from(is_count);
        let period = u64::try_from(profile.period).unwrap_or(0).max(least);
        if period > SampleType::LONGEST_PERIOD {
            return Err(DecodeError::LongPeriod(profile.period));
        }
        Ok(Some(Measure { of: SampleType { kind: row.kind, period }, is_count }))
    }

    fn sample(
        &self,
        sample: otlp::Sample,
        origin: &Arc<Origin>,
        times: Times,
        out: &mut Vec<Sample>,
    ) -> Result<(), DecodeError> {
        let otlp::Sample { stack_index, attribute_indices, link_index, values, timestamps_unix_nano } =
            sample;
        let (mut tid, mut cpu, mut thread, mut route) = (0, 0, Arc::default(), Arc::default());
        self.attributes(&attribute_indices, |key, value| match key {
            THREAD_ID => tid = value.small(),
            THREAD_NAME => thread = value.text(),
            CPU => cpu = value.small(),
            ROUTE | METHOD => route = value.text(),
            _ => {}
        })?;
        let link = match link_index {
            0 => None,
            index => {
                let (trace_id, span_id) = *at(&self.links, index, "links")?;
                Some(Arc::new(Link { trace_id, span_id, route }))
            }
        };
        let Times { start, measure } = times;
        let common = Sample {
            kind: measure.of.kind,
            value: 0,
            time: start,
            origin: Arc::clone(origin),
            stack: Arc::clone(at(&self.stacks, stack_index, "stacks")?),
            tid,
            thread,
            cpu,
            link,
        };
        let one = |time: u64, value: u64| Sample { time, value, ..common.clone() };
        // A value of nothing says nothing.
        if timestamps_unix_nano.is_empty() {
            let value = values.first().map_or(0, |value| measure.value(*value));
            out.extend((value > 0).then(|| one(start, value)));
        } else if values.is_empty() {
            let moments = timestamps_unix_nano.chunk_by(|time, next| time == next);
            out.extend(moments.map(|same| one(same[0], measure.of.value(same.len() as u64))));
        } else {
            let pairs =
                timestamps_unix_nano.into_iter().zip(values.into_iter().map(|value| measure.value(value)));
            out.extend(pairs.filter(|(_, value)| *value > 0).map(|(time, value)| one(time, value)));
        }
        Ok(())
    }
}

/// A line number from elsewhere.
fn small(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(0)
}
