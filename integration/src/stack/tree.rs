//! Functions that call each other, at random.
//!
//! In: a seeded generator. Out: call paths, each with a leaf of its own; paths may begin with the same functions.
//! Refuses to know languages, but for how a name is written in each.

use fastrand::Rng;

use super::{Language, Variant};

/// File that a function lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Home {
    Executable,
    /// Number of the library.
    Library(usize),
}

/// Number of shared libraries, where there are any.
pub(super) const LIBRARIES: usize = 2;
/// Call paths, each with its leaf.
const PATHS: usize = 5;
/// A handler's own calls.
const HANDLER_DEPTHS: std::ops::RangeInclusive<usize> = 2..=20;

/// A function.
#[derive(Debug, Clone)]
pub(super) struct Function {
    /// Identifier.
    pub(super) name: String,
    /// Class, module or type it lies in, empty: none.
    pub(super) scope: String,
    /// As a profile has to show it.
    pub(super) shown: String,
    pub(super) home: Home,
    /// Words of eight bytes of its frame.
    pub(super) room: usize,
    /// No two functions are the same, so that no linker makes one of them.
    pub(super) constant: u32,
    /// What it calls by path; without any it is a leaf.
    pub(super) calls: Vec<(usize, usize)>,
    /// What spins in it, if it is a leaf.
    pub(super) inlined: String,
}

/// A program's functions, and the paths along which it calls them.
#[derive(Debug, Clone)]
pub struct Tree {
    /// Name of the executable, of its service, and of its crate.
    pub service: String,
    pub(super) functions: Vec<Function>,
    /// Numbers of functions, root first, leaf last.
    pub(super) paths: Vec<Vec<usize>>,
    /// How often each is taken, in relation to the others.
    pub(super) shares: Vec<u32>,
    /// The path below a signal's handler; it is a path of [`Self::paths`] that nothing else takes.
    pub(super) handler: Option<usize>,
    /// The function that chooses paths.
    pub(super) drive: String,
    pub(super) seed: u32,
}

impl Tree {
    /// A tree at random: one path of few calls, one of very many, others between.
    pub fn random(rng: &mut Rng, variant: &Variant) -> Self {
        let service = format!("s{:010x}", rng.u64(..1 << 40));
        let mut tree = Self {
            service,
            functions: Vec::new(),
            paths: Vec::new(),
            shares: (0..PATHS).map(|_| rng.u32(1..=6)).collect(),
            handler: None,
            drive: word(rng),
            seed: rng.u32(..),
        };
        let mut depths: Vec<usize> = (2..PATHS).map(|_| rng.usize(10..=250)).collect();
        depths.extend([rng.usize(10..=20), rng.usize(230..=250)]);
        rng.shuffle(&mut depths);
        for depth in depths {
            let shared = match tree.paths.is_empty() {
                true => Vec::new(),
                false => {
                    let other = rng.choice(&tree.paths).expect("there are some");
                    let most = other.len().min(depth) - 1;
                    other[..rng.usize(0..=most / 2)].to_vec()
                }
            };
            tree.add_path(rng, variant, shared, depth);
        }
        if variant.has_handler {
            tree.handler = Some(tree.paths.len());
            let depth = rng.usize(HANDLER_DEPTHS);
            tree.add_path(rng, variant, Vec::new(), depth);
        }
        tree
    }

    fn add_path(&mut self, rng: &mut Rng, variant: &Variant, mut path: Vec<usize>, depth: usize) {
        let number = self.paths.len();
        while path.len() < depth {
            let previous = path.last().map_or(Home::Executable, |last| self.functions[*last].home);
            let home =
                if variant.has_libraries { next_home(rng, previous, variant.language) } else { previous };
            path.push(self.functions.len());
            self.functions.push(function(rng, variant.language, home, &self.service));
        }
        for pair in path.windows(2) {
            let calls = &mut self.functions[pair[0]].calls;
            calls.push((number, pair[1]));
        }
        self.paths.push(path);
    }

    /// Whether one of its functions' names is in this one, in whatever form: all of them are unlike any other.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        let is_in = |part: &str| name.contains(part);
        self.functions.iter().any(|function| is_in(&function.name) || is_in(&function.inlined))
            || is_in(&self.drive)
    }

    /// The functions that lie in a file.
    pub(super) fn of(&self, home: Home) -> impl Iterator<Item = &Function> {
        self.functions.iter().filter(move |function| function.home == home)
    }

    /// What the driver calls by path.
    pub(super) fn roots(&self) -> Vec<(usize, usize)> {
        let paths = self.paths.iter().enumerate().filter(|(number, _)| Some(*number) != self.handler);
        paths.map(|(number, path)| (number, path[0])).collect()
    }

    /// Numbers up to which a random one of `sum` (the last of them) means each path but the handler's.
    pub(super) fn cumulated(&self) -> Vec<u32> {
        let mut sum = 0;
        self.shares
            .iter()
            .map(|share| {
                sum += share;
                sum
            })
            .collect()
    }

    /// What a function that chooses between calls by path has to choose from: each callee once, with its paths as the
    /// language writes them; the last has none, it is for all paths that are left.
    pub(super) fn choices(
        calls: &[(usize, usize)],
        write: impl Fn(usize) -> String,
        separator: &str,
    ) -> Vec<(Option<String>, usize)> {
        let mut choices: Vec<(usize, Vec<usize>)> = Vec::new();
        for (path, callee) in calls {
            match choices.iter_mut().find(|(known, _)| known == callee) {
                Some((_, paths)) => paths.push(*path),
                None => choices.push((*callee, vec![*path])),
            }
        }
        let n = choices.len();
        let written = |paths: Vec<usize>| paths.into_iter().map(&write).collect::<Vec<_>>().join(separator);
        let choices = choices.into_iter().enumerate();
        choices.map(|(nth, (callee, paths))| ((nth + 1 < n).then(|| written(paths)), callee)).collect()
    }
}

/// Libraries call each other, and functions of a program in C or C++; those of Rust and Go are called by none.
fn next_home(rng: &mut Rng, previous: Home, language: Language) -> Home {
    let is_native = matches!(language, Language::C | Language::Cpp);
    if rng.u8(..10) > 1 {
        return previous;
    }
    match previous {
        Home::Executable => Home::Library(rng.usize(..LIBRARIES)),
        Home::Library(_) if is_native && rng.bool() => Home::Executable,
        Home::Library(_) => Home::Library(rng.usize(..LIBRARIES)),
    }
}

fn function(rng: &mut Rng, language: Language, home: Home, service: &str) -> Function {
    let name = word(rng);
    // Functions of libraries have the names that C gives them, except beside C++.
    let is_plain = match language {
        Language::C => true,
        Language::Cpp => rng.u8(..3) == 0,
        Language::Rust => home != Home::Executable,
        Language::Go => rng.bool(),
    };
    let scope = if is_plain { String::new() } else { word(rng) };
    let shown = match (language, is_plain) {
        (Language::C | Language::Rust, true) => name.clone(),
        (Language::C, false) => unreachable!("C has no scopes"),
        (Language::Cpp, true) => format!("{name}(unsigned long, unsigned long)"),
        (Language::Cpp, false) => format!("{scope}::{name}(unsigned long, unsigned long)"),
        (Language::Rust, false) => format!("{service}::{scope}::{name}"),
        (Language::Go, true) => format!("main.{name}"),
        (Language::Go, false) => format!("main.(*{scope}).{name}"),
    };
    Function {
        name,
        scope,
        shown,
        home,
        room: rng.usize(1..=40),
        constant: rng.u32(..),
        calls: Vec::new(),
        inlined: word(rng),
    }
}

/// An identifier of all four languages that nothing else has.
pub(super) fn word(rng: &mut Rng) -> String {
    let mut name = String::from(rng.lowercase());
    for _ in 0..rng.usize(3..=30) {
        name.push(if rng.u8(..8) == 0 { '_' } else { rng.lowercase() });
    }
    format!("{name}_{:08x}", rng.u32(..))
}
