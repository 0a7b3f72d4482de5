//! A tree in Rust: the executable. Its libraries are in C.
//!
//! In: a tree. Out: a source. Refuses to know compilers.

use std::fmt::Write as _;

use super::c::ROUNDS;
use super::tree::{Function, Home, Tree};
use super::{Language, Variant};

const HEAD: &str = r#"
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::Barrier;
use std::io::Write as _;
#[repr(C)] struct Time { seconds: i64, nanoseconds: i64 }
unsafe extern "C" {
    fn clock_gettime(id: i32, time: *mut Time) -> i32;
    fn signal(number: i32, handler: extern "C" fn(i32)) -> usize;
    fn sched_setaffinity(pid: i32, bytes: usize, mask: *const u64) -> i32;
    fn sched_getaffinity(pid: i32, bytes: usize, mask: *mut u64) -> i32;
}
static GO: AtomicBool = AtomicBool::new(false);
static TOTAL: AtomicU64 = AtomicU64::new(0);
extern "C" fn on_go(_: i32) { GO.store(true, SeqCst); }
fn clock_of(id: i32) -> u64 {
    let mut time = Time { seconds: 0, nanoseconds: 0 };
    // SAFETY: writes one `Time`, which has the layout of the C side.
    unsafe { clock_gettime(id, &mut time) };
    time.seconds as u64 * 1_000_000_000 + time.nanoseconds as u64
}
const REAL: i32 = 0;
const PROCESS: i32 = 2;
const THREAD: i32 = 3;
fn random_below(state: &mut u64, n: u64) -> u64 {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) % n
}
fn move_on(allowed: u64, round: u64) {
    let cpus: Vec<u64> = (0..64).filter(|cpu| allowed >> cpu & 1 == 1).collect();
    let one = 1u64 << cpus[round as usize % cpus.len()];
    // SAFETY: reads the eight bytes of `one`.
    unsafe { sched_setaffinity(0, 8, &one) };
}
"#;

fn call(tree: &Tree, callee: usize) -> String {
    let Function { name, scope, home, .. } = &tree.functions[callee];
    match home {
        Home::Executable => format!("crate::{scope}::{name}(n, path)"),
        // SAFETY: (of the text) the library that is made beside it defines this function, of these types.
        Home::Library(_) => format!("unsafe {{ crate::{name}(n, path) }}"),
    }
}

fn dispatch(tree: &Tree, calls: &[(usize, usize)]) -> String {
    let mut text = String::from("match path { ");
    for (paths, callee) in Tree::choices(calls, |path| path.to_string(), " | ") {
        let pattern = paths.as_deref().unwrap_or("_");
        let _ = write!(text, "{pattern} => {}, ", call(tree, callee));
    }
    text + "}"
}

fn definition(tree: &Tree, function: &Function) -> String {
    let Function { name, scope, room, constant, calls, inlined, .. } = function;
    let (helper, work) = if calls.is_empty() {
        let helper = format!(
            "#[inline(always)] fn {inlined}(n: u64) -> u64 {{ let (mut x, mut i) = (n, 0); \
             while i < n {{ x = x.wrapping_mul(6364136223846793005).wrapping_add(i); i += 1; }} x }}"
        );
        (helper, format!("{inlined}(n)"))
    } else {
        (String::new(), dispatch(tree, calls))
    };
    format!(
        "mod {scope} {{ {helper}\n#[inline(never)] pub fn {name}(n: u64, path: u64) -> u64 {{\n\
         let mut room = [0_u64; {room}]; std::hint::black_box(&mut room)[path as usize % {room}] = n;\n\
         let r = {work};\n\
         r ^ {constant} ^ std::hint::black_box(&room)[path as usize % {room}]\n}} }}\n"
    )
}

/// The executable.
pub(super) fn executable(tree: &Tree, variant: &Variant) -> String {
    debug_assert_eq!(variant.language, Language::Rust);
    let mut text = format!("#![allow(warnings)]\n{HEAD}");
    let foreign = tree.functions.iter().filter(|function| function.home != Home::Executable);
    let names: String =
        foreign.map(|function| format!("fn {}(n: u64, path: u64) -> u64;\n", function.name)).collect();
    let _ = writeln!(text, "unsafe extern \"C\" {{ {names} }}");
    for function in tree.of(Home::Executable) {
        text += &definition(tree, function);
    }
    let cumulated = tree.cumulated();
    let _ = writeln!(
        text,
        "const THREADS: usize = {threads};\nconst PATHS: usize = {paths};\n\
         const SUM: u64 = {sum};\nconst BUDGET: u64 = {budget};\nconst SEED: u64 = {seed};\nconst UPTO: &[u64] = &{cumulated:?};\n\
         static TAKEN: [[AtomicU64; PATHS]; THREADS] = [const {{ [const {{ AtomicU64::new(0) }}; PATHS] }}; THREADS];\n\
         #[inline(never)] fn {drive}(thread: usize, allowed: u64, all: &Barrier) -> u64 {{\n\
         let (mut state, mut begun, mut counts) = (SEED + thread as u64, 0, false);\n\
         for round in 1.. {{\n\
         let pick = random_below(&mut state, SUM);\n\
         let path = UPTO.iter().position(|upto| pick < *upto).unwrap() as u64;\n\
         let n = {least} + random_below(&mut state, {spread});\n\
         let before = clock_of(THREAD);\n\
         let r = {dispatch};\n\
         TAKEN[thread][path as usize].fetch_add(clock_of(THREAD) - before, SeqCst);\n\
         black_box(r);\n\
         if THREADS > 1 {{ move_on(allowed, round + thread as u64); }}\n\
         if counts && clock_of(THREAD) - begun > BUDGET {{ return r; }}\n\
         if !counts && GO.load(SeqCst) {{ counts = true; begin(thread, all); begun = clock_of(THREAD); }}\n\
         }}\n0 }}",
        threads = variant.threads,
        paths = tree.paths.len(),
        sum = cumulated[cumulated.len() - 1],
        budget = u64::from(variant.budget) * 1_000_000_000 / variant.threads as u64,
        seed = tree.seed,
        drive = tree.drive,
        least = ROUNDS.0,
        spread = ROUNDS.1,
        dispatch = dispatch(tree, &tree.roots()),
    );
    text + &MAIN.replace("DRIVE", &tree.drive)
}

const MAIN: &str = r#"
fn begin(thread: usize, all: &Barrier) {
    all.wait();
    if thread == 0 {
        TOTAL.store(clock_of(PROCESS), SeqCst);
        TAKEN.iter().flatten().for_each(|taken| taken.store(0, SeqCst));
        println!("begin {}", clock_of(REAL));
        std::io::stdout().flush().unwrap();
    }
    all.wait();
}
fn main() {
    let mut allowed = 0;
    // SAFETY: the handler only stores to an atomic; eight bytes of `allowed` are written.
    unsafe { signal(10, on_go); sched_getaffinity(0, 8, &mut allowed); }
    let all = Barrier::new(THREADS);
    println!("ready");
    if THREADS == 1 {
        black_box(DRIVE(0, allowed, &all));
    } else {
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let all = &all;
                scope.spawn(move || black_box(DRIVE(thread, allowed, all)));
            }
        });
    }
    let (spent, end) = (clock_of(PROCESS) - TOTAL.load(SeqCst), clock_of(REAL));
    for path in 0..PATHS {
        println!("path {}", TAKEN.iter().map(|taken| taken[path].load(SeqCst)).sum::<u64>());
    }
    println!("total {spent}\nend {end}");
}
"#;
