//! Random selections, and what must be the same of two of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use fastrand::Rng;
use obi::profile::{
    Fidelity, Frame, Line, Link, Mapping, Origin, Runtime, Sample, SampleKind, SampleType, Selection, Stack,
    Symbol,
};
use obi::span::{Instance, Resource, Service};

/// 2023-11-14T22:13:20Z, ns.
pub(crate) const START: u64 = 1_700_000_000_000_000_000;
pub(crate) const SECOND: u64 = 1_000_000_000;
/// Of samples, 99 times a second.
pub(crate) const CPU: SampleType = SampleType { kind: SampleKind::Cpu, period: 10_101_010 };

/// A selection of so many samples, whatever samples may be like.
pub(crate) fn random(seed: u64, n_samples: usize) -> Selection {
    let mut world = World::new(seed);
    let end = START + 10 * SECOND;
    let samples = (0..n_samples).map(|_| world.sample(START..end)).collect();
    let lost = if world.rng.bool() { world.rng.u64(1..1_000) } else { 0 };
    let mut selection = Selection { start: START, end, types: vec![CPU], samples, lost };
    selection.sort();
    selection
}

struct World {
    rng: Rng,
    origins: Vec<Arc<Origin>>,
    stacks: Vec<Arc<Stack>>,
    links: Vec<Arc<Link>>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let origins = (0..rng.usize(1..4)).map(|number| Arc::new(origin(&mut rng, number))).collect();
        let mappings: Vec<_> =
            (0..rng.usize(1..6)).map(|number| Arc::new(mapping(&mut rng, number))).collect();
        let symbols: Vec<_> = (0..rng.usize(1..30)).map(|_| Arc::new(symbol(&mut rng))).collect();
        let stacks = (0..rng.usize(1..20)).map(|_| Arc::new(stack(&mut rng, &mappings, &symbols))).collect();
        let links = (0..rng.usize(1..5)).map(|_| Arc::new(link(&mut rng))).collect();
        Self { rng, origins, stacks, links }
    }

    fn sample(&mut self, time: std::ops::Range<u64>) -> Sample {
        let Self { rng, origins, stacks, links } = self;
        let heavy = rng.u8(..) < 20;
        Sample {
            time: rng.u64(time),
            origin: Arc::clone(rng.choice(&*origins).unwrap()),
            // The same stack may also exist twice.
            stack: {
                let stack = rng.choice(&*stacks).unwrap();
                if rng.bool() { Arc::clone(stack) } else { Arc::new((**stack).clone()) }
            },
            tid: rng.u32(0..5),
            thread: rng.choice(["", "main", "tokio-rt-worker", "Gespräch"]).unwrap().into(),
            cpu: rng.u32(0..3),
            kind: CPU.kind,
            value: CPU.value(if heavy { rng.u32(2..1_000).into() } else { 1 }),
            link: rng.bool().then(|| Arc::clone(rng.choice(&*links).unwrap())),
        }
    }
}

fn origin(rng: &mut Rng, number: usize) -> Origin {
    let pid = rng.u32(1..100_000);
    let mut own = Resource::default();
    if rng.bool() {
        own.int("process.pid", pid.into());
        own.text("service.instance.id", &format!("instance {number} of \"x\\y\""));
    }
    let mut shared = Resource::default();
    shared.text("host.name", "machine");
    shared.text("service.instance.id", "replaced where the instance has one");
    let service =
        Service { name: format!("service-{number}"), namespace: String::new(), id: 7, attributes: shared };
    Origin {
        pid,
        service: Arc::new(service),
        instance: Arc::new(Instance { attributes: own }),
        executable: rng.choice(["", "server"]).unwrap().into(),
    }
}

fn mapping(rng: &mut Rng, number: usize) -> Mapping {
    let start = (number as u64 + 1) << 32 | rng.u64(0..1 << 20) << 12;
    let id = |rng: &mut Rng, length: usize| -> Arc<str> {
        if rng.bool() { hex(rng, length).into() } else { Arc::default() }
    };
    Mapping {
        start,
        end: start + (rng.u64(1..1 << 12) << 12),
        offset: rng.u64(0..1 << 8) << 12,
        path: rng
            .choice(["/usr/lib/libfoo.so.1", "/app/server", "[vdso]", "", "/memfd:x (deleted)"])
            .unwrap()
            .into(),
        gnu_build_id: id(rng, 20),
        go_build_id: id(rng, 30),
        htlhash: hex(rng, 16).into(),
    }
}

fn hex(rng: &mut Rng, length: usize) -> String {
    (0..length).map(|_| format!("{:02x}", rng.u8(..))).collect()
}

fn symbol(rng: &mut Rng) -> Symbol {
    let fidelity = *rng.choice(&Fidelity::ALL).unwrap();
    let runtime = *rng.choice(&Runtime::ALL).unwrap();
    let n_lines = match fidelity {
        Fidelity::Address => 0,
        Fidelity::Function | Fidelity::Marker => 1,
        Fidelity::Lines => rng.usize(1..4),
    };
    let named = |rng: &mut Rng| {
        let is_lines = fidelity == Fidelity::Lines;
        Line {
            function: format!("ns::function<{}>", rng.u8(..20)).into(),
            system_name: rng.choice(["", "_ZN2ns8functionE"]).unwrap().into(),
            file: if is_lines { "/src/äöü.cc".into() } else { Arc::default() },
            line: if is_lines { rng.u32(1..50) } else { 0 },
            column: if is_lines { rng.u32(0..3) } else { 0 },
            start_line: if is_lines { rng.u32(0..9) } else { 0 },
        }
    };
    let mut lines: Vec<Line> = (0..n_lines).map(|_| named(rng)).collect();
    if fidelity == Fidelity::Marker {
        lines[0].function = "[truncated: depth]".into();
    }
    Symbol { lines, fidelity, runtime }
}

fn stack(rng: &mut Rng, mappings: &[Arc<Mapping>], symbols: &[Arc<Symbol>]) -> Stack {
    let frame = |rng: &mut Rng| {
        let symbol = Arc::clone(rng.choice(symbols).unwrap());
        let mapping = Some(rng.choice(mappings).unwrap()).filter(|_| rng.u8(..) < 200);
        let is_return = rng.bool();
        let address = match (mapping, symbol.fidelity) {
            (_, Fidelity::Marker) => 0,
            // Few addresses, so that some come twice.
            (Some(mapping), _) => mapping.start + rng.u64(0..16) + u64::from(is_return),
            (None, _) => u64::MAX - rng.u64(0..100),
        };
        if symbol.fidelity == Fidelity::Marker {
            return Frame { address, is_return: false, mapping: None, symbol };
        }
        Frame { address, is_return, mapping: mapping.map(Arc::clone), symbol }
    };
    Stack { frames: (0..rng.usize(0..60)).map(|_| frame(rng)).collect() }
}

fn link(rng: &mut Rng) -> Link {
    let mut link = Link { trace_id: [0; 16], span_id: [0; 8], route: Arc::default() };
    rng.fill(&mut link.trace_id);
    rng.fill(&mut link.span_id);
    link.route = rng.choice(["", "/item/{id}", "shop.Cart/Add"]).unwrap().into();
    link
}

/// What both formats keep: values by moment, process, thread, CPU, stack and span.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Content {
    time: (u64, u64),
    types: Vec<SampleType>,
    lost: u64,
    values: BTreeMap<String, u64>,
}

/// The content of a selection. The two places of a process's attributes are one.
pub(crate) fn content(selection: &Selection) -> Content {
    let mut values = BTreeMap::new();
    for sample in &selection.samples {
        let Sample { kind, value, time, origin, stack, tid, thread, cpu, link } = sample;
        let mut attributes = Vec::new();
        origin.attributes(|key, value| attributes.push(format!("{key}={value}")));
        let key =
            format!("{kind:?} {time} {} {attributes:?} {tid} {thread} {cpu} {link:?} {stack:?}", origin.pid);
        *values.entry(key).or_insert(0) += value;
    }
    let Selection { start, end, types, lost, .. } = selection;
    Content { time: (*start, *end), types: types.clone(), lost: *lost, values }
}

/// Samples of the clock that all samples come to.
pub(crate) fn counted<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> u64 {
    samples.into_iter().map(|sample| CPU.count(sample.value)).sum()
}

/// Several selections of times in a row as one.
pub(crate) fn joined(parts: Vec<Selection>) -> Selection {
    let mut parts = parts.into_iter();
    let mut whole = parts.next().unwrap();
    for part in parts {
        whole.start = whole.start.min(part.start);
        whole.end = whole.end.max(part.end);
        whole.lost += part.lost;
        whole.samples.extend(part.samples);
    }
    whole
}
