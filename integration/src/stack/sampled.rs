//! Samples of one service, as a receiver of OTLP profiles reads them: on purpose not by the agent's own decoder.
//!
//! In: an address, a service, a time. Out: samples with names, leaf first, the kernel's frames left out. Refuses to
//! know what the names should be.

use std::net::SocketAddr;
use std::ops::Range;

use anyhow::{Context as _, bail};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{
    Profile, ProfilesData, ProfilesDictionary, Sample,
};
use prost::Message as _;

use crate::fetch;

/// One stack at one moment.
#[derive(Debug, Clone)]
pub struct Sampled {
    /// Unix time, ns.
    pub time: u64,
    /// Periods that it stands for.
    pub weight: u32,
    /// The user's frames, leaf first, inlined functions as frames of their own.
    pub frames: Vec<Frame>,
    /// Of those, functions of an interpreter, leaf first.
    pub guests: Vec<Guest>,
    /// Whether the interrupted thread was inside the kernel, and where: leaf first.
    pub kernel: Vec<String>,
    /// Trace and span, in hexadecimal digits, if it was taken in one.
    pub span: Option<(String, String)>,
}

/// A function on a stack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its name, or what stands for it.
    pub name: String,
    /// File that it lies in; empty for what is none of the program's.
    pub file: String,
}

/// A function of an interpreter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// Its source.
    pub file: String,
    /// Line that runs.
    pub line: i64,
    /// Where it begins.
    pub start_line: i64,
}

/// All samples of `service` in a time.
///
/// # Errors
/// When the agent does not answer, or not with OTLP.
pub fn fetch(agent: SocketAddr, service: &str, window: &Range<u64>) -> anyhow::Result<Vec<Sampled>> {
    // Parameters are seconds, of which a number of 64 bits keeps some hundred nanoseconds: cut exactly afterwards.
    #[expect(clippy::cast_precision_loss, reason = "cut exactly afterwards")]
    let (from, to) = ((window.start / 1_000) as f64 / 1e6 - 0.01, (window.end / 1_000) as f64 / 1e6 + 0.01);
    let path =
        format!("/api/v1/profiles?service={}&from={from:.6}&to={to:.6}&format=otlp", fetch::encode(service));
    let bytes = fetch::bytes(agent, &path)?;
    let data = ProfilesData::decode(&*bytes).context("decode an OTLP profile")?;
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let dictionary = data.dictionary.as_ref().context("a profile has a dictionary")?;
    let mut samples = Vec::new();
    for profile in data.resource_profiles.iter().flat_map(|of| &of.scope_profiles).flat_map(|of| &of.profiles)
    {
        read(profile, dictionary, &mut samples)?;
    }
    samples.retain(|sample| window.contains(&sample.time));
    samples.sort_by_key(|sample| sample.time);
    Ok(samples)
}

fn read(profile: &Profile, all: &ProfilesDictionary, samples: &mut Vec<Sampled>) -> anyhow::Result<()> {
    // Values, where samples have some, are periods.
    let unit = profile.sample_type.context("a profile has a type")?.unit_strindex;
    let unit = text(all, unit)?;
    if unit != "count" {
        bail!("samples in {unit}, not counted");
    }
    for sample in &profile.samples {
        let stack = all.stack_table.get(index(sample.stack_index)).context("a stack")?;
        let (mut frames, mut guests, mut kernel) = (Vec::new(), Vec::new(), Vec::new());
        for location in &stack.location_indices {
            let location = all.location_table.get(index(*location)).context("a location")?;
            let mapping = all.mapping_table.get(index(location.mapping_index)).context("a mapping")?;
            let file = text(all, mapping.filename_strindex)?;
            let is_of =
                |kind: &str| location.attribute_indices.iter().any(|at| is_frame_type(all, *at, kind));
            let is_kernel = is_of("kernel");
            let is_guest = ["cpython", "jvm", "v8js"].into_iter().any(is_of);
            for line in &location.lines {
                let function = all.function_table.get(index(line.function_index)).context("a function")?;
                let name = text(all, function.name_strindex)?;
                if is_guest {
                    let (line, start_line) = (line.line, function.start_line);
                    let file = text(all, function.filename_strindex)?;
                    guests.push(Guest { name: name.clone(), file, line, start_line });
                }
                match is_kernel {
                    true => kernel.push(name),
                    false => frames.push(Frame { name, file: file.clone() }),
                }
            }
        }
        let link = all.link_table.get(index(sample.link_index)).filter(|_| sample.link_index > 0);
        let span = link.map(|link| (digits(&link.trace_id), digits(&link.span_id)));
        for (time, weight) in weights(sample)? {
            let (frames, kernel, span) = (frames.clone(), kernel.clone(), span.clone());
            samples.push(Sampled { time, weight, frames, guests: guests.clone(), kernel, span });
        }
    }
    Ok(())
}

/// When a stack was sampled and for how many periods each time: a time stands for one of them, or has a value of its
/// own.
fn weights(sample: &Sample) -> anyhow::Result<Vec<(u64, u32)>> {
    let mut times = sample.timestamps_unix_nano.clone();
    if times.is_empty() || !matches!(sample.values.len(), n if n == 0 || n == times.len()) {
        bail!("a sample without times, or with values for some of them: {sample:?}");
    }
    if !sample.values.is_empty() {
        let weights = sample.values.iter().map(|value| u32::try_from(*value).context("a weight"));
        return times.into_iter().zip(weights).map(|(time, weight)| Ok((time, weight?))).collect();
    }
    times.sort_unstable();
    let weight = |same: &[u64]| Ok((same[0], u32::try_from(same.len()).context("a weight")?));
    times.chunk_by(|a, b| a == b).map(weight).collect()
}

fn is_frame_type(all: &ProfilesDictionary, attribute: i32, kind: &str) -> bool {
    let Some(attribute) = all.attribute_table.get(index(attribute)) else { return false };
    let is_type = text(all, attribute.key_strindex).is_ok_and(|key| key == "profile.frame.type");
    let value = attribute.value.as_ref().and_then(|value| value.value.as_ref());
    is_type
        && match value {
            Some(Value::StringValue(text)) => text == kind,
            Some(Value::StringValueStrindex(at)) => text(all, *at).is_ok_and(|text| text == kind),
            _ => false,
        }
}

/// Nothing lies at what is no index.
fn index(number: i32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

fn text(all: &ProfilesDictionary, at: i32) -> anyhow::Result<String> {
    all.string_table.get(index(at)).cloned().with_context(|| format!("text {at}"))
}

fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
