//! pprof to a selection.
//!
//! In: a file from anywhere, compressed or not. Out: a [`Selection`] of its samples of known kinds, or an error. What
//! it unpacks to, and what that is made into, is bounded. Refuses to know who wrote it.

use std::collections::HashMap;
use std::io::Read as _;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use prost::Message as _;
use thiserror::Error;

use super::message::{Label, Location, Profile, ValueType};
use super::note::{self, Note};
use super::{CPU, PROCESS_ID, RESOURCE, ROUTE, SERVICE, SPAN_ID, THREAD, THREAD_ID, TIMESTAMP, TRACE_ID};
use crate::cause::context::parse_id;
use crate::export::table::{Mark, fidelity_of};
use crate::profile::sample_type::{ROWS, Row, SampleKind, SampleType};
use crate::profile::{Frame, Line, Link, Mapping, Origin, Runtime, Sample, Selection, Stack};
use crate::span::Service;

/// Largest profile, unpacked.
const PLAIN_BYTES: u64 = 64 << 20;
/// Frames of all distinct stacks together.
const FRAMES: usize = 8 << 20;

/// Why bytes are no profile that we can read.
#[derive(Debug, Error)]
pub enum DecodeError {
    /// Not compressed as it says.
    #[error("failed to unpack the profile: {0}")]
    Gzip(#[from] std::io::Error),
    /// Unpacked or in memory it would be too large.
    #[error("the profile has more than {PLAIN_BYTES} bytes, unpacked, or more than {FRAMES} frames")]
    TooLarge,
    /// No message of protobuf.
    #[error("not a pprof profile: {0}")]
    Message(#[from] prost::DecodeError),
    /// A reference leads nowhere.
    #[error("{table} {id} does not exist")]
    Reference {
        /// What was referred to.
        table: &'static str,
        /// Its id, or index.
        id: u64,
    },
    /// It counts something else.
    #[error("no {} profile: expected values of {}", ROWS.map(|row| row.label).join(" or "), expected())]
    UnknownType,
    /// No clock is as slow.
    #[error("a profile with a period of {0}, which is longer than that of any clock")]
    LongPeriod(i64),
}

/// Decodes a profile.
///
/// # Errors
/// When it is none, contradicts itself, is too large, or has no values of a known kind.
pub fn decode(bytes: &[u8]) -> Result<Selection, DecodeError> {
    let unpacked;
    let plain = if bytes.starts_with(&[0x1f, 0x8b]) {
        unpacked = unpack(bytes)?;
        &unpacked[..]
    } else {
        bytes
    };
    if plain.len() as u64 > PLAIN_BYTES {
        return Err(DecodeError::TooLarge);
    }
    let mut profile = Profile::decode(plain)?;
    let texts = std::mem::take(&mut profile.string_table).into_iter().map(Arc::from).collect();
    let mut reader = Reader { texts, ..Reader::default() };
    reader.read_note(&profile)?;
    reader.read_tables(&profile)?;
    let columns = reader.columns(&profile)?;
    let start = u64::try_from(profile.time_nanos).unwrap_or(0);
    let mut selection = Selection {
        start,
        end: start.saturating_add(u64::try_from(profile.duration_nanos).unwrap_or(0)),
        types: columns.iter().map(|column| column.of).collect(),
        samples: Vec::with_capacity(profile.sample.len()),
        lost: reader.lost,
    };
    for sample in profile.sample {
        let measured = columns.iter().map(|column| (column.of.kind, column.value(&sample.value)));
        // A value of nothing says nothing.
        let measured: Vec<_> = measured.filter(|(_, value)| *value > 0).collect();
        let Some((kind, value)) = measured.first().copied() else { continue };
        let stack = reader.stack(sample.location_id)?;
        let read = reader.sample(Common { kind, value, time: start, stack }, &sample.label)?;
        let others =
            measured[1..].iter().map(|(kind, value)| Sample { kind: *kind, value: *value, ..read.clone() });
        selection.samples.extend(others);
        selection.samples.push(read);
    }
    selection.sort();
    Ok(selection)
}

fn unpack(bytes: &[u8]) -> Result<Vec<u8>, DecodeError> {
    let mut plain = Vec::new();
    let n = MultiGzDecoder::new(bytes).take(PLAIN_BYTES + 1).read_to_end(&mut plain)?;
    if n as u64 > PLAIN_BYTES { Err(DecodeError::TooLarge) } else { Ok(plain) }
}

/// Names of values that are read, for people.
fn expected() -> String {
    let names = ROWS.iter().flat_map(|row| [row.count, row.value]);
    names.map(|(kind, unit)| format!("{kind}/{unit}")).collect::<Vec<_>>().join(" or ")
}

/// Which of a sample's values is one of a kind.
#[derive(Clone, Copy)]
struct Column {
    place: usize,
    of: SampleType,
    /// It counts samples.
    is_count: bool,
}

impl Column {
    fn value(self, values: &[i64]) -> u64 {
        let written = values.get(self.place).copied().unwrap_or(0);
        let written = u64::try_from(written).unwrap_or(0);
        if self.is_count { self.of.value(written) } else { written }
    }
}

/// What a sample has beside its labels.
struct Common {
    kind: SampleKind,
    value: u64,
    time: u64,
    stack: Arc<Stack>,
}

/// The profile's tables, with everything made that samples refer to.
#[derive(Default)]
struct Reader {
    texts: Vec<Arc<str>>,
    lost: u64,
    /// The note, while its tables fit.
    note: Note,
    origins: Vec<Arc<Origin>>,
    /// Processes that only labels name.
    others: HashMap<(u32, Arc<str>), Arc<Origin>>,
    frames: HashMap<u64, Frame>,
    stacks: HashMap<Vec<u64>, Arc<Stack>>,
    n_frames: usize,
}

impl Reader {
    fn text(&self, index: i64) -> Result<Arc<str>, DecodeError> {
        let place = usize::try_from(index).ok();
        let found = place.and_then(|place| self.texts.get(place)).cloned();
        match found {
            // No table at all is one way to have no text.
            None if index == 0 => Ok(Arc::default()),
            None => Err(DecodeError::Reference { table: "text", id: index.cast_unsigned() }),
            Some(text) => Ok(text),
        }
    }

    /// It is the last text, if it is there at all. Merging leaves no note, but several comments.
    fn read_note(&mut self, profile: &Profile) -> Result<(), DecodeError> {
        for comment in &profile.comment {
            self.lost = self.lost.saturating_add(note::read_missing(&self.text(*comment)?));
        }
        let Some(note) = self.texts.last().and_then(|text| Note::read(text)) else { return Ok(()) };
        if note.check == note::check(&profile.location, &profile.mapping) {
            self.origins = note.resources.iter().map(|resource| Arc::new(note::origin(resource))).collect();
            self.note = note;
        }
        Ok(())
    }

    fn read_tables(&mut self, profile: &Profile) -> Result<(), DecodeError> {
        let mut mappings = HashMap::new();
        for (place, mapping) in profile.mapping.iter().enumerate() {
            let ids = self.note.build_ids.get(place);
            let id = |id: Option<&String>| id.map_or_else(Arc::default, |id| Arc::from(id.as_str()));
            let (start, end) = Mapping::reported_range(mapping.memory_start, mapping.memory_limit);
            let read = Mapping {
                start,
                end,
                offset: mapping.file_offset,
                path: self.text(mapping.filename)?,
                gnu_build_id: self.text(mapping.build_id)?,
                go_build_id: id(ids.map(|(go, _)| go)),
                htlhash: id(ids.map(|(_, htlhash)| htlhash)),
            };
            mappings.insert(mapping.id, Arc::new(read));
        }
        let mut functions = HashMap::new();
        for function in &profile.function {
            let line = Line {
                function: self.text(function.name)?,
                system_name: self.text(function.system_name)?,
                file: self.text(function.filename)?,
                start_line: small(function.start_line),
                ..Line::default()
            };
            functions.insert(function.id, line);
        }
        for (place, location) in profile.location.iter().enumerate() {
            let frame = self.frame(place, location, &mappings, &functions)?;
            self.frames.insert(location.id, frame);
        }
        Ok(())
    }

    fn frame(
        &self,
        place: usize,
        location: &Location,
        mappings: &HashMap<u64, Arc<Mapping>>,
        functions: &HashMap<u64, Line>,
    ) -> Result<Frame, DecodeError> {
        let mut lines = Vec::with_capacity(location.line.len());
        for line in &location.line {
            let id = line.function_id;
            let function = match id {
                0 => Line::default(),
                id => functions.get(&id).ok_or(DecodeError::Reference { table: "function", id })?.clone(),
            };
            lines.push(Line { line: small(line.line), column: small(line.column), ..function });
        }
        let mapping = match location.mapping_id {
            0 => None,
            id => Some(mappings.get(&id).ok_or(DecodeError::Reference { table: "mapping", id })?),
        };
        let guessed = Mark { runtime: Runtime::Native, fidelity: fidelity_of(&lines), is_return: false };
        let mark = self.note.mark(place).unwrap_or(guessed);
        Ok(mark.frame(location.address, mapping.map(Arc::clone), lines))
    }

    /// Of each kind the values themselves, else the number of samples.
    fn columns(&self, profile: &Profile) -> Result<Vec<Column>, DecodeError> {
        let mut names = Vec::with_capacity(profile.sample_type.len());
        for ValueType { kind, unit } in &profile.sample_type {
            names.push((self.text(*kind)?, self.text(*unit)?));
        }
        let period = u64::try_from(profile.period).unwrap_or(0);
        if period > SampleType::LONGEST_PERIOD {
            return Err(DecodeError::LongPeriod(profile.period));
        }
        let of_period = profile.period_type.unwrap_or_default();
        let of_period = (self.text(of_period.kind)?, self.text(of_period.unit)?);
        // One that names nothing we know is that of the only clock there used to be.
        let clock = ROWS.iter().find(|row| row.value == (&*of_period.0, &*of_period.1)).unwrap_or(&ROWS[0]);
        let place = |name| names.iter().position(|(kind, unit)| (&**kind, &**unit) == name);
        let column = |row: &Row| {
            let value = place(row.value).map(|place| (place, false));
            let (place, is_count) = value.or_else(|| place(row.count).map(|place| (place, true)))?;
            let period = if row.kind == clock.kind { period } else { 0 };
            // Where a period is missing, each sample stands for one unit: their shares are right.
            let period = period.max(is_count.into());
            Some(Column { place, of: SampleType { kind: row.kind, period }, is_count })
        };
        let columns: Vec<Column> = ROWS.iter().filter_map(column).collect();
        if columns.is_empty() { Err(DecodeError::UnknownType) } else { Ok(columns) }
    }

    fn stack(&mut self, locations: Vec<u64>) -> Result<Arc<Stack>, DecodeError> {
        if let Some(stack) = self.stacks.get(&locations) {
            return Ok(Arc::clone(stack));
        }
        self.n_frames += locations.len();
        if self.n_frames > FRAMES {
            return Err(DecodeError::TooLarge);
        }
        let frame = |id: &u64| {
            self.frames.get(id).cloned().ok_or(DecodeError::Reference { table: "location", id: *id })
        };
        let frames = locations.iter().map(frame).collect::<Result<_, _>>()?;
        let stack = Arc::new(Stack { frames });
        self.stacks.insert(locations, Arc::clone(&stack));
        Ok(stack)
    }

    fn sample(&mut self, common: Common, labels: &[Label]) -> Result<Sample, DecodeError> {
        let Common { kind, value, time, stack } = common;
        let mut sample = Sample {
            kind,
            value,
            time,
            origin: Arc::default(),
            stack,
            tid: 0,
            thread: Arc::default(),
            cpu: 0,
            link: None,
        };
        let (mut pid, mut resource, mut service) = (0, 1, Arc::default());
        let mut link = Link { trace_id: [0; 16], span_id: [0; 8], route: Arc::default() };
        let mut is_linked = false;
        for label in labels {
            let text = self.text(label.text)?;
            match &*self.text(label.key)? {
                TIMESTAMP => sample.time = u64::try_from(label.number).unwrap_or(time),
                THREAD_ID => sample.tid = small(label.number),
                THREAD => sample.thread = text,
                CPU => sample.cpu = small(label.number),
                PROCESS_ID => pid = small(label.number),
                SERVICE => service = text,
                RESOURCE => resource = usize::try_from(label.number).unwrap_or(0),
                ROUTE => link.route = text,
                TRACE_ID => link.trace_id = parse_id(&text).unwrap_or(link.trace_id),
                SPAN_ID => {
                    if let Some(id) = parse_id(&text) {
                        (link.span_id, is_linked) = (id, true);
                    }
                }
                _ => {}
            }
        }
        sample.link = is_linked.then(|| Arc::new(link));
        let known = resource.checked_sub(1).and_then(|place| self.origins.get(place));
        sample.origin = match known {
            Some(origin) => Arc::clone(origin),
            None => Arc::clone(self.others.entry((pid, service)).or_insert_with_key(|(pid, name)| {
                let service = Service { name: name.to_string(), ..Service::default() };
                Arc::new(Origin { pid: *pid, service: Arc::new(service), ..Origin::default() })
            })),
        };
        Ok(sample)
    }
}

/// A number from elsewhere.
fn small(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(0)
}
