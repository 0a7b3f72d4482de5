//! A selection to pprof.
//!
//! In: a [`Selection`]. Out: compressed bytes; the same selection always makes the same ones. Refuses to know files.

use std::io::Write as _;

use flate2::{Compression, GzBuilder};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use prost::Message as _;

use super::message::{Function, Label, Line, Location, Mapping, Profile, Sample, ValueType};
use super::note::{self, Note};
use super::{CPU, PROCESS_ID, RESOURCE, ROUTE, SERVICE, SPAN_ID, THREAD, THREAD_ID, TIMESTAMP, TRACE_ID};
use crate::export::table::{self, Interned, Tables};
use crate::profile::sample_type::ValueName;
use crate::profile::{self, Link, Origin, SampleType, Selection};

/// Everything, compressed with gzip as pprof's files are.
#[must_use]
pub fn encode(selection: &Selection) -> Vec<u8> {
    Builder::new(Detail::Everything).build(selection)
}

/// Samples of one stack and span as one, without times and threads, compressed.
#[must_use]
pub fn merged(selection: &Selection) -> Vec<u8> {
    Builder::new(Detail::Stacks).build(selection)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Detail {
    Everything,
    Stacks,
}

struct Builder<'a> {
    detail: Detail,
    tables: Tables<'a>,
    texts: Interned<String>,
    resources: Vec<Vec<(String, note::Value)>>,
    /// Numbers of resources by where their origin lies.
    origins: HashMap<*const Origin, usize, RandomState>,
    /// Samples of one kind, where these become one.
    places: HashMap<(u32, Vec<Label>), usize, RandomState>,
    samples: Vec<Sample>,
}

impl<'a> Builder<'a> {
    fn new(detail: Detail) -> Self {
        Self {
            detail,
            tables: Tables::default(),
            texts: Interned::default(),
            resources: Vec::new(),
            origins: HashMap::default(),
            places: HashMap::default(),
            samples: Vec::new(),
        }
    }

    fn build(mut self, selection: &'a Selection) -> Vec<u8> {
        selection.samples.iter().for_each(|sample| {
            self.origin(sample);
        });
        let types = match &*selection.types {
            [] => &[selection.shown_type()][..],
            types => types,
        };
        for sample in &selection.samples {
            self.push(sample, types);
        }
        compressed(&self.finish(selection, types).encode_to_vec())
    }

    fn text(&mut self, text: &str) -> i64 {
        self.texts.borrowed(text).into()
    }

    fn value_type(&mut self, (kind, unit): ValueName) -> ValueType {
        ValueType { kind: self.text(kind), unit: self.text(unit) }
    }

    /// The resource's number.
    fn origin(&mut self, sample: &'a profile::Sample) -> usize {
        let origin = &*sample.origin;
        if let Some(number) = self.origins.get(&std::ptr::from_ref(origin)) {
            return *number;
        }
        let resource = note::resource(origin);
        let number = self.resources.iter().position(|known| *known == resource).unwrap_or_else(|| {
            self.resources.push(resource);
            self.resources.len() - 1
        });
        self.origins.insert(origin, number);
        number
    }

    fn push(&mut self, sample: &'a profile::Sample, types: &[SampleType]) {
        let stack = self.tables.stack(&sample.stack);
        let label = self.labels(sample);
        let value: Vec<i64> = types.iter().flat_map(|of| values(*of, sample)).collect();
        let location_id =
            || self.tables.stacks.entries()[stack as usize].iter().copied().map(u64::from).collect();
        match self.detail {
            Detail::Everything => self.samples.push(Sample { location_id: location_id(), value, label }),
            Detail::Stacks => {
                let samples = &mut self.samples;
                let place = *self.places.entry((stack, label)).or_insert_with_key(|(_, label)| {
                    let (location_id, label) = (location_id(), label.clone());
                    samples.push(Sample { location_id, value: vec![0; value.len()], label });
                    samples.len() - 1
                });
                let sums = samples[place].value.iter_mut();
                sums.zip(value).for_each(|(sum, value)| *sum = sum.saturating_add(value));
            }
        }
    }

    fn labels(&mut self, sample: &'a profile::Sample) -> Vec<Label> {
        let profile::Sample { time, origin, tid, thread, cpu, link, .. } = sample;
        let mut labels = Vec::with_capacity(10);
        if self.detail == Detail::Everything {
            let unit = self.text("nanoseconds");
            let time = i64::try_from(*time).unwrap_or(i64::MAX);
            labels.push(Label { unit, ..self.number(TIMESTAMP, time) });
            // What belongs to a process belongs to no thread.
            if !sample.kind.is_of_moment() {
                labels.push(self.number(THREAD_ID, (*tid).into()));
                labels.push(self.words(THREAD, thread));
                labels.push(self.number(CPU, (*cpu).into()));
            }
            labels.push(self.number(PROCESS_ID, origin.pid.into()));
            labels.push(self.words(SERVICE, &origin.service.name));
            if self.resources.len() > 1 {
                let number = i64::try_from(self.origin(sample) + 1).unwrap_or(i64::MAX);
                labels.push(self.number(RESOURCE, number));
            }
        }
        if let Some(Link { trace_id, span_id, route }) = link.as_deref() {
            labels.push(self.words(TRACE_ID, &hexadecimal(trace_id)));
            labels.push(self.words(SPAN_ID, &hexadecimal(span_id)));
            labels.push(self.words(ROUTE, route));
        }
        // Readers take no number and no text for a label that is not there.
        labels.retain(|label| label.text != 0 || label.number != 0);
        labels
    }

    fn number(&mut self, key: &str, number: i64) -> Label {
        Label { key: self.text(key), number, ..Label::default() }
    }

    fn words(&mut self, key: &str, text: &str) -> Label {
        Label { key: self.text(key), text: self.text(text), ..Label::default() }
    }

    fn finish(mut self, selection: &Selection, types: &[SampleType]) -> Profile {
        let Selection { start, end, lost, .. } = selection;
        let shown = selection.shown_type();
        let tables = std::mem::take(&mut self.tables);
        let location: Vec<Location> = entries(tables.locations.entries()).map(message).collect();
        let (mapping, build_ids) = self.mappings(selection, &tables);
        let function = entries(tables.functions.entries()).map(|(id, function)| Function {
            id,
            name: self.texts.borrowed(&*function.name).into(),
            system_name: self.texts.borrowed(function.system_name).into(),
            filename: self.texts.borrowed(function.file).into(),
            start_line: function.start_line.into(),
        });
        let function = function.collect();
        let note = Note {
            frames: entries(tables.locations.entries())
                .map(|(_, location)| note::digit(location.mark))
                .collect(),
            build_ids,
            resources: std::mem::take(&mut self.resources),
            check: note::check(&location, &mapping),
        };
        let names = types.iter().flat_map(|of| [of.row().count, of.row().value]);
        let sample_type = names.map(|name| self.value_type(name)).collect();
        let time_nanos = i64::try_from(*start).unwrap_or(i64::MAX);
        let (default_sample_type, period_type) =
            (self.text(shown.row().value.0), self.value_type(shown.row().value));
        let comment = (*lost > 0).then(|| self.text(&note::missing(*lost))).into_iter().collect();
        let mut string_table = self.texts.into_entries();
        // Comments are printed above every report: what no reader should see is a text that nothing refers to.
        if self.detail == Detail::Everything {
            string_table.push(note.write());
        }
        Profile {
            default_sample_type,
            period_type: Some(period_type),
            sample_type,
            sample: self.samples,
            mapping,
            location,
            function,
            string_table,
            time_nanos,
            duration_nanos: i64::try_from(end.saturating_sub(*start)).unwrap_or(i64::MAX),
            period: i64::try_from(shown.period).unwrap_or(i64::MAX),
            comment,
        }
    }

    /// All mappings with Go's build id and htlhash of each. Readers take the first for the program's: it is that of the
    /// program with most samples, also if none of these is in its own file.
    fn mappings(&mut self, selection: &Selection, tables: &Tables<'_>) -> (Vec<Mapping>, Vec<BuildIds>) {
        let (mut mappings, mut build_ids) = (Vec::new(), Vec::new());
        for ((id, held), flags) in entries(tables.mappings.entries()).zip(flags(tables)) {
            let held = held.expect("only the first entry is none");
            mappings.push(self.mapping(id, held, flags));
            build_ids.push((held.go_build_id.to_string(), held.htlhash.to_string()));
        }
        let program = main_program(selection);
        let file =
            |held: &Option<&profile::Mapping>| held.is_some_and(|held| file_name(&held.path) == program);
        let known = tables.mappings.entries().iter().skip(1).position(file);
        let place = known.unwrap_or(mappings.len());
        if known.is_none() && !program.is_empty() {
            let filename = self.text(program);
            mappings.push(Mapping { id: mappings.len() as u64 + 1, filename, ..Mapping::default() });
            build_ids.push(BuildIds::default());
        }
        if place < mappings.len() {
            mappings[..=place].rotate_right(1);
            build_ids[..=place].rotate_right(1);
        }
        (mappings, build_ids)
    }

    fn mapping(&mut self, id: u64, mapping: &profile::Mapping, flags: Flags) -> Mapping {
        Mapping {
            id,
            memory_start: mapping.start,
            memory_limit: mapping.end,
            file_offset: mapping.offset,
            filename: self.text(&mapping.path),
            build_id: self.text(&mapping.gnu_build_id),
            has_functions: flags.functions,
            has_filenames: flags.filenames,
            has_line_numbers: flags.lines,
            has_inline_frames: flags.lines,
        }
    }
}

/// Go's build id and htlhash.
type BuildIds = (String, String);

/// The name of the executable that most samples are of; empty when none is known.
fn main_program(selection: &Selection) -> &str {
    let mut values: HashMap<&str, u64, RandomState> = HashMap::default();
    for sample in selection.shown() {
        let sum = values.entry(&sample.origin.executable).or_default();
        *sum = sum.saturating_add(sample.value);
    }
    let largest = values.into_iter().max_by_key(|(name, value)| (*value, *name));
    largest.map_or("", |(name, _)| name)
}

/// A sample's two values in the columns of a type: 0 in those of another kind.
fn values(of: SampleType, sample: &profile::Sample) -> [i64; 2] {
    let value = if sample.kind == of.kind { sample.value } else { 0 };
    [of.count(value), value].map(|number| i64::try_from(number).unwrap_or(i64::MAX))
}

fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// All but the empty entry; ids are indices.
fn entries<T>(entries: &[T]) -> impl Iterator<Item = (u64, &T)> {
    (0..).zip(entries).skip(1)
}

/// What all locations of a mapping are named with.
#[derive(Debug, Clone, Copy)]
struct Flags {
    functions: bool,
    filenames: bool,
    lines: bool,
}

/// Of all mappings. Each location has a line, at least one with its place in the file.
fn flags(tables: &Tables<'_>) -> Vec<Flags> {
    let mut flags =
        vec![Flags { functions: true, filenames: true, lines: true }; tables.mappings.entries().len()];
    for location in &tables.locations.entries()[1..] {
        let of_mapping = &mut flags[location.mapping as usize];
        for line in &location.lines {
            of_mapping.filenames &= !tables.functions.entries()[line.function as usize].file.is_empty();
            of_mapping.lines &= line.line > 0;
        }
    }
    // The first is that of locations without mapping.
    flags.split_off(1)
}

fn message((id, location): (u64, &table::Location)) -> Location {
    let lines = location.lines.iter().map(|line| Line {
        function_id: line.function.into(),
        line: line.line.into(),
        column: line.column.into(),
    });
    Location { id, mapping_id: location.mapping.into(), address: location.address, line: lines.collect() }
}

/// As ids are written.
fn hexadecimal(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// gzip without a time in its header: the same bytes every time.
fn compressed(plain: &[u8]) -> Vec<u8> {
    let mut encoder = GzBuilder::new().mtime(0).write(Vec::new(), Compression::default());
    encoder.write_all(plain).expect("writing to memory cannot fail");
    encoder.finish().expect("writing to memory cannot fail")
}
