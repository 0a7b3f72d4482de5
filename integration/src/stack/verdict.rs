//! Samples of a program against what is known of it.
//!
//! In: samples from the time in which it counted, its tree, the CPU time of its paths by its own clock. Out: every
//! sample that is no place of the tree, and every share that chance does not explain. Refuses to know how samples are
//! taken.
//!
//! What a stack may be, root first:
//!
//! 1. *The way to the driver*: `_start`, the C library's frames (it is stripped on most machines, so they may have no
//!    names), the runtime's in Rust and Go; `main` among them in a main thread. Never a marker of a walk that broke off.
//! 2. *The driver*, and a path's functions, one by one, from its first.
//! 3. Up to the leaf: then the sample counts for that path. Above a leaf may stand the function that was inlined into it,
//!    where the executable has names of such, and a runtime's frames (Go preempts loops by a signal).
//! 4. Or less far: the program was on its way there or back, which takes it a few nanoseconds a call. Above may be the
//!    stub of a call to a library, or the loader that looks up its target. Few samples are so.
//! 5. Or nothing of a path, but a call of the driver's own: to a clock, or to the scheduler.
//! 6. And above any of these the frame that the kernel makes for a signal, which has the name that the C library gives it
//!    or none, and a handler's path.
//!
//! Shares: of `n` looks at the CPU at random moments, those of a path with the share `p` are binomial. A timer's looks
//! scatter less; so the bound holds for them, too. It is Chernoff's, exact for every `n` and `p`:
//! `P(|k/n − p| beyond q) ≤ 2·exp(−n·KL(q‖p))`.

use super::run::Truth;
use super::sampled::{Frame, Sampled};
use super::tree::{Function, Home, Tree};
use super::{Language, Variant};

/// How improbable what is reported is, by chance alone: some hundred shares are compared in a run of all programs, so
/// that one of 10,000 runs fails without a reason.
const CHANCE: f64 = 1e-6;
/// Of all samples, those on the way to a leaf or back: 250 calls take some microseconds, up to a tenth of a millisecond
/// where their code is in another CPU's cache after the thread has moved; a leaf takes milliseconds.
const MOST_ON_THE_WAY: f64 = 0.02;
/// As above, when there are hardly any samples.
const SOME_ON_THE_WAY: f64 = 5.0;
/// Frames below the driver; the standard library of Rust has some twenty, most of them inlined.
const MOST_BELOW: usize = 40;
const SHOWN: usize = 5;

/// What came out.
#[derive(Debug, Default)]
pub struct Verdict {
    /// Sum of weights.
    pub n: f64,
    /// By path.
    pub by_path: Vec<f64>,
    /// On the way between driver and leaf.
    pub on_the_way: f64,
    /// In no path.
    pub outside: f64,
    /// With the inlined function's name, of those that should have it.
    pub inlined: (f64, f64),
    /// What is wrong, in words.
    pub wrong: Vec<String>,
}

/// Where in the tree a stack is.
enum TreePosition {
    Leaf { path: usize, is_inlined: bool },
    OnTheWay,
    Outside,
}

/// Judges all samples of a time in which the program counted.
#[must_use]
pub fn judge(tree: &Tree, variant: &Variant, truth: &Truth, samples: &[Sampled]) -> Verdict {
    let mut verdict = Verdict { by_path: vec![0.0; tree.paths.len()], ..Verdict::default() };
    let (mut squares, mut wrong) = (0.0, 0);
    for sample in samples {
        let weight = f64::from(sample.weight);
        verdict.n += weight;
        squares += weight * weight;
        match place(tree, variant, sample) {
            Ok(TreePosition::Leaf { path, is_inlined }) => {
                verdict.by_path[path] += weight;
                if inlined_name(leaf(tree, path), variant).is_some() {
                    verdict.inlined.1 += weight;
                    verdict.inlined.0 += if is_inlined { weight } else { 0.0 };
                }
            }
            Ok(TreePosition::OnTheWay) => verdict.on_the_way += weight,
            Ok(TreePosition::Outside) => verdict.outside += weight,
            Err(why) => {
                wrong += 1;
                if wrong <= SHOWN {
                    verdict.wrong.push(format!("{why}\n{}", shown(sample)));
                }
            }
        }
    }
    if wrong > SHOWN {
        verdict.wrong.push(format!("{wrong} of {} stacks are wrong", samples.len()));
    }
    // One look that stands for several is worth less than several.
    let looks = if squares > 0.0 { verdict.n * verdict.n / squares } else { 0.0 };
    shares(tree, truth, looks, &mut verdict);
    verdict
}

fn shares(tree: &Tree, truth: &Truth, looks: f64, verdict: &mut Verdict) {
    let n = verdict.n.max(1.0);
    let mut compare = |what: &str, found: f64, expected: f64| {
        if looks * divergence(found / n, expected) > (2.0 / CHANCE).ln() {
            verdict
                .wrong
                .push(format!("{what}: {:.4} of {n} samples, {expected:.4} of its CPU time", found / n));
        }
    };
    let total = nanoseconds(truth.total).max(1.0);
    let mut in_paths = 0.0;
    for (path, spent) in truth.paths.iter().enumerate() {
        in_paths += nanoseconds(*spent);
        let depth = tree.paths[path].len();
        let what = format!("path {path} to {}, {depth} deep", leaf(tree, path).shown);
        compare(&what, verdict.by_path[path], nanoseconds(*spent) / total);
    }
    compare("outside of all paths", verdict.outside, (1.0 - in_paths / total).max(0.0));
    let most = SOME_ON_THE_WAY + MOST_ON_THE_WAY * verdict.n;
    if verdict.on_the_way > most {
        verdict.wrong.push(format!("{} of {n} samples are on the way to a leaf", verdict.on_the_way));
    }
    if verdict.inlined.0 < verdict.inlined.1 / 2.0 {
        let (with, of) = verdict.inlined;
        verdict.wrong.push(format!("{with} of {of} samples show what was inlined into the leaf"));
    }
}

/// Kullback–Leibler divergence of two Bernoulli distributions; what cannot be that little is given some room, since a
/// program's clock and a sampler's do not begin at the same moment.
fn divergence(found: f64, expected: f64) -> f64 {
    let expected = expected.clamp(0.003, 0.997);
    let part = |q: f64, p: f64| if q > 0.0 { q * (q / p).ln() } else { 0.0 };
    part(found, expected) + part(1.0 - found, 1.0 - expected)
}

#[expect(clippy::cast_precision_loss, reason = "seconds in nanoseconds are well below 2^53")]
fn nanoseconds(time: u64) -> f64 {
    time as f64
}

fn place(tree: &Tree, variant: &Variant, sample: &Sampled) -> Result<TreePosition, String> {
    // Root first.
    let frames: Vec<&Frame> = sample.frames.iter().rev().collect();
    if let Some(marker) = frames.iter().find(|frame| frame.name.starts_with('[') && frame.name.ends_with(']'))
    {
        return Err(format!("the walk broke off: {}", marker.name));
    }
    let drive = driver(tree, variant.language);
    let at = frames.iter().position(|frame| frame.name == drive);
    let Some(at) = at else {
        // The main thread while others work, the runtime's own threads, and what a program does before it counts.
        return match frames.iter().find(|frame| is_of_tree(tree, frame)) {
            Some(frame) => Err(format!("{} without its driver", frame.name)),
            None => Ok(TreePosition::Outside),
        };
    };
    check_root(&frames[..at], variant)?;
    let mut rest = &frames[at + 1..];
    let mut place = descend(tree, variant, &mut rest, None)?;
    if let Some(path) = tree.handler
        && let Some(entry) = rest.iter().position(|frame| frame.name == "on_timer")
    {
        // The frame of the kernel, and what the C library or the program was at when it came.
        check_tail(tree, &rest[..entry])?;
        rest = &rest[entry + 1..];
        place = match descend(tree, variant, &mut rest, Some(path))? {
            TreePosition::Outside => TreePosition::OnTheWay,
            place => place,
        };
    }
    check_tail(tree, rest)?;
    Ok(place)
}

/// From the driver, or the handler, as far as the stack follows a path.
fn descend(
    tree: &Tree,
    variant: &Variant,
    rest: &mut &[&Frame],
    handler: Option<usize>,
) -> Result<TreePosition, String> {
    let mut paths: Vec<usize> = match handler {
        Some(path) => vec![path],
        None => tree.roots().iter().map(|(path, _)| *path).collect(),
    };
    let mut depth = 0;
    while let Some((frame, others)) = rest.split_first() {
        let is_next = |path: &usize| {
            tree.paths[*path].get(depth).is_some_and(|next| tree.functions[*next].shown == frame.name)
        };
        let next: Vec<usize> = paths.iter().copied().filter(is_next).collect();
        if next.is_empty() {
            break;
        }
        let function = &tree.functions[tree.paths[next[0]][depth]];
        check_file(tree, function, frame)?;
        (paths, depth, *rest) = (next, depth + 1, others);
    }
    if depth == 0 {
        return Ok(TreePosition::Outside);
    }
    let Some(path) = paths.iter().find(|path| tree.paths[**path].len() == depth) else {
        return Ok(TreePosition::OnTheWay);
    };
    let inlined = inlined_name(leaf(tree, *path), variant);
    let is_inlined = inlined.is_some() && rest.first().map(|frame| &frame.name) == inlined.as_ref();
    if is_inlined {
        *rest = &rest[1..];
    }
    Ok(TreePosition::Leaf { path: *path, is_inlined })
}

/// A function is in the file that it was compiled into, also when that is deleted.
fn check_file(tree: &Tree, function: &Function, frame: &Frame) -> Result<(), String> {
    let expected = match function.home {
        Home::Executable => format!("/{}", tree.service),
        Home::Library(number) => format!("/lib{}{number}.so", tree.service),
    };
    match frame.file.trim_end_matches(" (deleted)").ends_with(&expected) {
        true => Ok(()),
        false => Err(format!("{} is said to be in {:?}", frame.name, frame.file)),
    }
}

fn check_root(below: &[&Frame], variant: &Variant) -> Result<(), String> {
    let last = below.first().map_or("", |frame| frame.name.as_str());
    let has = |name: &str| below.iter().any(|frame| frame.name == name);
    let is_right = match variant.language {
        Language::C | Language::Cpp if variant.threads == 1 => last == "_start" && has("main"),
        Language::C | Language::Cpp => below.iter().any(|frame| frame.name.starts_with("thread_main")),
        Language::Rust if variant.threads == 1 => last == "_start" && has("main"),
        Language::Rust => !below.is_empty(),
        Language::Go => last.starts_with("runtime.goexit"),
    };
    match is_right && below.len() <= MOST_BELOW {
        true => Ok(()),
        false => Err("the way to the driver is wrong".to_owned()),
    }
}

/// What is not ours may be called by us, but nothing of ours by that.
fn check_tail(tree: &Tree, tail: &[&Frame]) -> Result<(), String> {
    match tail.iter().find(|frame| is_of_tree(tree, frame)) {
        Some(frame) => Err(format!("{} is in the wrong place", frame.name)),
        None => Ok(()),
    }
}

fn is_of_tree(tree: &Tree, frame: &Frame) -> bool {
    // The stub of a call has its target's name.
    !frame.name.ends_with("@plt") && tree.has(&frame.name)
}

fn leaf(tree: &Tree, path: usize) -> &Function {
    let last = tree.paths[path].last().expect("a path has a leaf");
    &tree.functions[*last]
}

/// Of what spins in a leaf, where it has a name.
fn inlined_name(leaf: &Function, variant: &Variant) -> Option<String> {
    let is_named = variant.has_inlined && leaf.home == Home::Executable;
    let name = match variant.language {
        Language::C => leaf.inlined.clone(),
        Language::Cpp => format!("{}(unsigned long)", leaf.inlined),
        Language::Rust => {
            let module = leaf.shown.rsplit_once("::").map_or("", |(module, _)| module);
            format!("{module}::{}", leaf.inlined)
        }
        Language::Go => format!("main.{}", leaf.inlined),
    };
    is_named.then_some(name)
}

fn driver(tree: &Tree, language: Language) -> String {
    match language {
        Language::C => tree.drive.clone(),
        Language::Cpp => format!("{}(unsigned long)", tree.drive),
        Language::Rust => format!("{}::{}", tree.service, tree.drive),
        Language::Go => format!("main.{}", tree.drive),
    }
}

fn shown(sample: &Sampled) -> String {
    let names: Vec<String> =
        sample.frames.iter().map(|frame| format!("{} ({})", frame.name, frame.file)).collect();
    let kept = 12;
    let shown = match names.len() > 2 * kept {
        true => {
            let (first, last) = (names[..kept].join("\n    "), names[names.len() - kept..].join("\n    "));
            format!("{first}\n    … {} more …\n    {last}", names.len() - 2 * kept)
        }
        false => names.join("\n    "),
    };
    format!("    at {}, kernel {:?}\n    {shown}", sample.time, sample.kernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str, file: &str) -> Frame {
        Frame { name: name.to_owned(), file: file.to_owned() }
    }

    /// A stack at the leaf of a path, leaf first.
    fn at_leaf(tree: &Tree, path: usize) -> Sampled {
        let file = format!("/somewhere/{}", tree.service);
        let below = [frame("_start", &file), frame("__libc_start_main", "/libc.so.6"), frame("main", &file)];
        let path = tree.paths[path].iter().map(|function| frame(&tree.functions[*function].shown, &file));
        let mut frames: Vec<Frame> =
            below.into_iter().chain([frame(&tree.drive, &file)]).chain(path).collect();
        frames.reverse();
        Sampled { time: 1, weight: 1, frames, guests: Vec::new(), kernel: Vec::new(), span: None }
    }

    #[test]
    fn every_kind_of_mistake_is_found() {
        let mut rng = fastrand::Rng::with_seed(7);
        let variant = Variant { has_handler: true, ..Variant::default() };
        let tree = Tree::random(&mut rng, &variant);
        // The handler's path last, of which no sample is taken here.
        let truth = Truth { window: 0..9, paths: vec![100, 100, 100, 100, 100, 0], total: 500 };
        let right: Vec<Sampled> = (0..500).map(|n| at_leaf(&tree, n % 5)).collect();
        let check = |what: &str, is_right: bool, change: &dyn Fn(&mut Vec<Sampled>)| {
            let mut samples = right.clone();
            change(&mut samples);
            let verdict = judge(&tree, &variant, &truth, &samples);
            assert_eq!(verdict.wrong.is_empty(), is_right, "{what}: {:?}", verdict.wrong);
        };
        check("as it is", true, &|_| {});
        check("a clock above the driver", true, &|all| {
            let drive = all[0].frames.len() - 4;
            all[0].frames.drain(..drive);
            all[0].frames.insert(0, frame("clock_gettime", "[vdso]"));
        });
        check("on its way", true, &|all| _ = all[0].frames.remove(0));
        check("many are on their way", false, &|all| {
            for sample in &mut all[..100] {
                sample.frames.remove(0);
            }
        });
        check("a name is another", false, &|all| all[3].frames[5].name = "other".to_owned());
        check("a frame is missing", false, &|all| _ = all[3].frames.remove(5));
        check("a frame is there twice", false, &|all| {
            let again = all[3].frames[5].clone();
            all[3].frames.insert(5, again);
        });
        check("a caller is above the leaf", false, &|all| {
            let caller = all[3].frames[2].clone();
            all[3].frames.insert(0, caller);
        });
        check("the root is missing", false, &|all| _ = all[3].frames.pop());
        check("the file is another", false, &|all| all[3].frames[2].file = "/lib/libc.so.6".to_owned());
        check("the walk broke off", false, &|all| {
            all[3].frames.push(frame("[truncated: no table]", ""));
        });
        check("nothing but the leaf", false, &|all| all[3].frames.truncate(1));
        check("a share by chance", true, &|all| {
            for sample in &mut all[..15] {
                *sample = at_leaf(&tree, 0);
            }
        });
        check("a share that is no chance", false, &|all| {
            for sample in &mut all[..150] {
                *sample = at_leaf(&tree, 0);
            }
        });
        check("one look instead of many", true, &|all| {
            all.truncate(6);
            all[0].weight = 3;
        });
        check("a handler that was not there", true, &|all| {
            let path = tree.handler.expect("it has one");
            let mut above = at_leaf(&tree, path).frames;
            above.truncate(tree.paths[path].len());
            above.extend([frame("on_timer", "/x"), frame("libc.so.6+0x3c050", "/libc.so.6")]);
            above.append(&mut all[3].frames);
            all[3].frames = above;
        });
        check("a handler's path without its handler", false, &|all| {
            let path = tree.handler.expect("it has one");
            all[3] = at_leaf(&tree, path);
        });
    }
}
