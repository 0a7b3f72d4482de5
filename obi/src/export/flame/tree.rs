//! Samples to a tree of frames.
//!
//! In: one or two selections. Out: a [`Tree`], root first, children in the order of their names: the same samples in
//! any order make the same tree. Where callers are looked for, stacks stand upside down. Refuses to know pixels.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::look::{Look, View};
use super::runtime;
use crate::profile::unnamed::{module, shown};
use crate::profile::waits::{Said, said};
use crate::profile::{Fidelity, Frame, Origin, Runtime, Sample, SampleType, Selection, Stack};

/// Frames of a tree at most; the narrowest are left out.
const NODES: usize = 20_000;
/// Frames of a tree that grows: then what takes least adds no more.
const GROWING: usize = 8 * NODES;
/// More names of threads than this say nothing any more.
const THREADS: usize = 12;

/// What stands below the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Levels {
    service: bool,
    process: bool,
    thread: bool,
}

impl Levels {
    /// Those that distinguish samples, without a level that only repeats another.
    pub(super) fn fitting(selection: &Selection) -> Self {
        let names = |name: fn(&Sample) -> &str| selection.shown().map(name).collect::<BTreeSet<_>>();
        let services = names(service_of);
        let processes = names(|sample| &sample.origin.executable);
        let threads = names(|sample| &sample.thread);
        Self {
            service: !services.is_empty(),
            process: processes != services && !(processes.len() == 1 && processes.contains("")),
            thread: threads.len() <= THREADS && threads.len() > processes.len(),
        }
    }

    /// Those that two selections have in common. A name that only one of them has would hide what both do.
    pub(super) fn common(before: &Selection, now: &Selection) -> Self {
        let services = |selection: &Selection| -> BTreeSet<String> {
            selection.shown().map(|sample| service_of(sample).to_owned()).collect()
        };
        let (before, now) = (services(before), services(now));
        Self { service: before.len() > 1 && before == now, process: false, thread: false }
    }
}

fn service_of(sample: &Sample) -> &str {
    match sample.origin.service.name.as_str() {
        "" => "(unknown service)",
        name => name,
    }
}

/// What kind of bar it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// Everything, a service, a process, a thread.
    Level(&'static str),
    /// A function.
    Code(Runtime, Fidelity),
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) name: Arc<str>,
    pub(super) kind: Kind,
    /// File it lies in; empty if in none.
    pub(super) module: Arc<str>,
    /// Inlined into its caller.
    pub(super) is_inlined: bool,
    /// What is waited for in it; `None`: it runs.
    pub(super) wait: Option<Arc<str>>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) key: Key,
    /// Sum of the samples below it, by selection.
    pub(super) values: [u64; 2],
    /// Of those: with nothing above it.
    pub(super) own: [u64; 2],
    /// In the order of their keys.
    pub(super) children: Vec<usize>,
}

#[derive(Debug)]
pub(super) struct Tree {
    /// The first is the root.
    pub(super) nodes: Vec<Node>,
    /// What values are, by selection.
    pub(super) types: [SampleType; 2],
    /// What an independent sample stands for, by selection: a period, unless samples stand for several ones.
    pub(super) independent: [f64; 2],
    /// Frames that were too narrow.
    pub(super) left_out: usize,
}

impl Tree {
    pub(super) fn new(selections: &[&Selection], levels: Levels, look: Look) -> Self {
        let mut growing = Growing::new(look);
        let (mut types, mut independent) = ([SampleType::default(); 2], [1.0; 2]);
        for (index, selection) in selections.iter().enumerate().take(2) {
            types[index] = selection.shown_type();
            independent[index] = self::independent(selection);
            // Both sides have room.
            growing.limit = GROWING * (index + 1) / selections.len().min(2);
            for (sample, value) in group(selection, levels) {
                growing.add(index, path(sample, levels), sample, value);
            }
        }
        Tree { independent, ..growing.prune(types) }
    }

    /// Samples of a node and of everything in a selection, as independent ones.
    pub(super) fn counts(&self, node: &Node, selection: usize) -> [f64; 2] {
        [node, &self.nodes[0]].map(|node| node.values[selection] as f64 / self.independent[selection])
    }

    /// Share of a node in a selection, 0 to 1.
    pub(super) fn share(&self, node: &Node, selection: usize) -> f64 {
        let total = self.nodes[0].values[selection];
        if total == 0 { 0.0 } else { node.values[selection] as f64 / total as f64 }
    }
}

/// What an independent sample stands for: a sample of three periods is no three samples (Kish's effective sample size).
fn independent(selection: &Selection) -> f64 {
    let values = || selection.shown().map(|sample| sample.value as f64);
    let squares: f64 = values().map(|value| value * value).sum();
    if squares > 0.0 { squares / values().sum::<f64>() } else { 1.0 }
}

/// One of the samples that look the same, with the sum of all of them: the largest first.
fn group(selection: &Selection, levels: Levels) -> Vec<(&Sample, u64)> {
    // Stacks and origins are shared: they are distinguished by address, before anything is made of them.
    let mut places = HashMap::<(*const Origin, *const Stack, &str), usize, RandomState>::default();
    let mut grouped: Vec<(&Sample, u64)> = Vec::new();
    for sample in selection.shown() {
        let thread = if levels.thread { &*sample.thread } else { "" };
        let key = (Arc::as_ptr(&sample.origin), Arc::as_ptr(&sample.stack), thread);
        let place = *places.entry(key).or_insert_with(|| {
            grouped.push((sample, 0));
            grouped.len() - 1
        });
        grouped[place].1 = grouped[place].1.saturating_add(sample.value);
    }
    grouped.sort_by_key(|(_, value)| Reverse(*value));
    grouped
}

fn path(sample: &Sample, levels: Levels) -> Vec<Key> {
    let level = |what, name: &str| Key {
        name: name.into(),
        kind: Kind::Level(what),
        module: "".into(),
        is_inlined: false,
        wait: None,
    };
    let mut path = Vec::new();
    if levels.service {
        path.push(level("service", service_of(sample)));
    }
    if levels.process {
        path.push(level("process", &sample.origin.executable));
    }
    if levels.thread {
        path.push(level("thread", &sample.thread));
    }
    path
}

struct Growing {
    nodes: Vec<Node>,
    /// By parent.
    children: Vec<BTreeMap<Key, usize>>,
    limit: usize,
    look: Look,
    /// Stacks of which frames found no room.
    left_out: usize,
}

impl Growing {
    fn new(look: Look) -> Self {
        let (name, kind, module) = ("all".into(), Kind::Level("all"), "".into());
        let key = Key { name, kind, module, is_inlined: false, wait: None };
        let root = Node { key, values: [0; 2], own: [0; 2], children: Vec::new() };
        Self { nodes: vec![root], children: vec![BTreeMap::new()], limit: GROWING, look, left_out: 0 }
    }

    fn add(&mut self, selection: usize, path: Vec<Key>, sample: &Sample, value: u64) {
        let add = |sum: &mut [u64; 2]| sum[selection] = sum[selection].saturating_add(value);
        add(&mut self.nodes[0].values);
        let mut at = 0;
        for key in self.stacked(path, sample) {
            let Some(child) = self.child(at, key) else {
                self.left_out += 1;
                return;
            };
            at = child;
            add(&mut self.nodes[at].values);
        }
        add(&mut self.nodes[at].own);
    }

    /// What stands on each other, from the root on: `path` and the frames of a sample, or all of that upside down.
    fn stacked(&self, path: Vec<Key>, sample: &Sample) -> Vec<Key> {
        let frames = runtime::shown(&sample.stack, self.look).rev();
        let wait: Option<Arc<str>> = match sample.stack.frames.last().and_then(said) {
            Some(Said::Waiting(reason)) => Some(reason.into()),
            _ => None,
        };
        let keys = frames.flat_map(|frame| keys(frame, &sample.origin.executable));
        let keys = keys.map(|key| Key { wait: wait.clone(), ..key });
        let mut stacked: Vec<Key> = path.into_iter().chain(keys).collect();
        if self.look.view == View::Callers {
            stacked.reverse();
        }
        stacked
    }

    fn child(&mut self, parent: usize, key: Key) -> Option<usize> {
        if let Some(child) = self.children[parent].get(&key) {
            return Some(*child);
        }
        if self.nodes.len() >= self.limit {
            return None;
        }
        let child = self.nodes.len();
        self.nodes.push(Node { key: key.clone(), values: [0; 2], own: [0; 2], children: Vec::new() });
        self.children.push(BTreeMap::new());
        self.children[parent].insert(key, child);
        Some(child)
    }

    /// Leaves out what is too narrow, so that few enough are left.
    fn prune(mut self, types: [SampleType; 2]) -> Tree {
        for (node, children) in self.nodes.iter_mut().zip(&self.children) {
            node.children = children.values().copied().collect();
        }
        let mut tree = Tree { nodes: self.nodes, types, independent: [1.0; 2], left_out: self.left_out };
        if tree.nodes.len() <= NODES {
            return tree;
        }
        let width = |node: &Node| tree.share(node, 0).max(tree.share(node, 1));
        let mut widths: Vec<f64> = tree.nodes.iter().map(width).collect();
        let sorted = {
            let mut sorted = widths.clone();
            sorted.sort_by(|a, b| b.total_cmp(a));
            sorted
        };
        // Those of the same width stay or go together. A child is never wider than its parent.
        let least = sorted[NODES];
        widths[0] = f64::INFINITY;
        for node in &mut tree.nodes {
            node.children.retain(|child| widths[*child] > least);
        }
        tree.left_out += widths.iter().filter(|width| **width <= least).count();
        tree
    }
}

/// The function of a frame, then those inlined into it.
fn keys<'f>(frame: &'f Frame, executable: &str) -> impl Iterator<Item = Key> + use<'f> {
    let module: Arc<str> = module(frame).into();
    let symbol = &frame.symbol;
    let kind = match said(frame) {
        Some(Said::Waiting(_)) => Kind::Level("what is waited for"),
        Some(Said::Running) => Kind::Level("on a CPU"),
        Some(Said::Other) => Kind::Level("another thread"),
        None => Kind::Code(symbol.runtime, symbol.fidelity),
    };
    let shown = shown(frame, executable);
    let lines = if shown.is_some() { &[] } else { symbol.lines.as_slice() };
    let unnamed =
        shown.map(|name| Key { name, kind, module: Arc::clone(&module), is_inlined: false, wait: None });
    let outermost = lines.len().saturating_sub(1);
    let lines = lines.iter().enumerate().rev().map(move |(index, line)| Key {
        name: Arc::clone(&line.function),
        kind,
        module: Arc::clone(&module),
        is_inlined: index < outermost,
        wait: None,
    });
    unnamed.into_iter().chain(lines)
}
