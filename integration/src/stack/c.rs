//! A tree in C or C++: an executable, and libraries.
//!
//! In: a tree. Out: sources. Functions are compiled one by one (`noipa`) and do something with what they get back, so
//! that none of their calls becomes a jump. Refuses to know compilers.

use std::fmt::Write as _;

use super::tree::{Function, Home, Tree};
use super::{Language, Variant};

/// Iterations of a leaf's loop per visit: a millisecond to some, at random, so that no rhythm of the
/// program can be that of the sampler.
pub(super) const ROUNDS: (u32, u32) = (800_000, 11_200_000);

const HEAD: &str = "\
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#define KEEP __attribute__((noinline, noipa, used))
typedef unsigned long word;
static volatile word sink __attribute__((unused));
";

/// Declarations of everything that can be called from here; each file has all of them.
fn declarations(tree: &Tree, language: Language) -> String {
    let mut text = String::from(HEAD);
    // Functions of a program in Rust are called by none in C.
    let is_callable = |function: &&Function| language == Language::Cpp || function.scope.is_empty();
    for function in tree.functions.iter().filter(is_callable) {
        let Function { name, scope, .. } = function;
        let _ = match scope.is_empty() {
            true => writeln!(text, "word {name}(word n, word path);"),
            false => writeln!(text, "namespace {scope} {{ word {name}(word n, word path); }}"),
        };
    }
    text
}

fn call(tree: &Tree, callee: usize) -> String {
    let Function { name, scope, .. } = &tree.functions[callee];
    if scope.is_empty() { format!("{name}(n, path)") } else { format!("{scope}::{name}(n, path)") }
}

/// `r = ` whatever this path calls.
fn dispatch(tree: &Tree, calls: &[(usize, usize)]) -> String {
    let mut text = String::new();
    for (is_one, callee) in Tree::choices(calls, |path| format!("path == {path}"), " || ") {
        if let Some(is_one) = is_one {
            let _ = write!(text, "if ({is_one}) r = {}; else ", call(tree, callee));
        } else {
            let _ = write!(text, "r = {};", call(tree, callee));
        }
    }
    text
}

fn definition(tree: &Tree, function: &Function, language: Language) -> String {
    let Function { name, scope, room, constant, calls, inlined, .. } = function;
    let mut text = String::new();
    let work = if calls.is_empty() {
        // Debug information of C++ knows the whole name of functions that other files may have, too.
        let linkage = if language == Language::Cpp { "" } else { "static " };
        let _ = writeln!(
            text,
            "{linkage}inline __attribute__((always_inline)) word {inlined}(word n) {{\n\
             \tword x = n;\n\tfor (word i = 0; i < n; i++)\n\t\tx = x * 6364136223846793005ul + i;\n\treturn x;\n}}"
        );
        format!("r = {inlined}(n); sink += r;")
    } else {
        dispatch(tree, calls)
    };
    // Some frames are of no fixed size: the compiler needs a frame pointer for them with any option.
    let own = match constant % 5 {
        0 => {
            "volatile char *own = (char *)__builtin_alloca(16 + (n & 63)); own[0] = (char)n; sink += (word)own[0];"
        }
        _ => "",
    };
    let is_scoped = language == Language::Cpp && !scope.is_empty();
    let (open, close) =
        if is_scoped { (format!("namespace {scope} {{ "), " }") } else { (String::new(), "") };
    let _ = writeln!(
        text,
        "{open}KEEP word {name}(word n, word path) {{\n\tvolatile word room[{room}];\n\tword r, a = n * 3 + path, b = n ^ {constant}ul;\n\
         \troom[path % {room}] = n;\n\t{own}\n\t{work}\n\treturn r + a + b + room[path % {room}];\n}}{close}"
    );
    text
}

/// What lies in `home`, but for how the program begins.
pub(super) fn functions(tree: &Tree, language: Language, home: Home) -> String {
    let mut text = declarations(tree, language);
    for function in tree.of(home) {
        text += &definition(tree, function, language);
    }
    text
}

/// The executable: its functions, a driver, `main`.
pub(super) fn executable(tree: &Tree, variant: &Variant) -> String {
    let mut text = functions(tree, variant.language, Home::Executable);
    let (threads, paths) = (variant.threads, tree.paths.len());
    let cumulated: Vec<String> = tree.cumulated().iter().map(u32::to_string).collect();
    let budget = u64::from(variant.budget) * 1_000_000_000 / variant.threads as u64;
    let _ = writeln!(
        text,
        "enum {{ THREADS = {threads}, PATHS = {paths}, SUM = {sum}, LEAST = {least}, SPREAD = {spread} }};\n\
         #define BUDGET {budget}ul\n#define SEED {seed}ul\nstatic const word upto[] = {{ {cumulated} }};",
        sum = tree.cumulated().last().expect("a share"),
        least = ROUNDS.0,
        spread = ROUNDS.1,
        seed = tree.seed,
        cumulated = cumulated.join(", "),
    );
    text += SUPPORT;
    text += &match tree.handler {
        Some(path) => handler(tree, path),
        None => "static void arm(word after) { (void)after; }\n\
                 static void interrupted(void) { (void)arm; }\n"
            .to_owned(),
    };
    let _ = writeln!(
        text,
        "KEEP static word {drive}(word thread) {{\n\
         \tword state = SEED + thread, begun = 0, counts = 0;\n\
         \tfor (word round = 1;; round++) {{\n\
         \t\tword path = 0, pick = random_below(&state, SUM), n = LEAST + random_below(&state, SPREAD), r;\n\
         \t\twhile (pick >= upto[path]) path++;\n\
         \t\tword inside = in_handler, before = thread_time();\n\
         \t\t{dispatch}\n\
         \t\ttaken[thread][path] += thread_time() - before - (in_handler - inside);\n\
         \t\tsink += r;\n\
         \t\tif (THREADS > 1) move_on(round + thread);\n\
         \t\tif (counts && thread_time() - begun > BUDGET) return r;\n\
         \t\tif (!counts && go) {{ counts = 1; begin(thread); begun = thread_time(); }}\n\
         \t}}\n}}",
        drive = tree.drive,
        dispatch = dispatch(tree, &tree.roots()),
    );
    text + &MAIN.replace("DRIVE", &tree.drive)
}

/// Clocks, chance, and the way from one CPU to the next.
const SUPPORT: &str = r#"
static word taken[THREADS][PATHS];
static volatile word in_handler, go;
static word total;
static pthread_barrier_t all;
static word clock_of(clockid_t id) { struct timespec t; clock_gettime(id, &t); return (word)t.tv_sec * 1000000000ul + (word)t.tv_nsec; }
static word thread_time(void) { return clock_of(CLOCK_THREAD_CPUTIME_ID); }
static word random_below(word *state, word n) { *state = *state * 6364136223846793005ul + 1442695040888963407ul; return (*state >> 33) % n; }
static cpu_set_t allowed;
static void move_on(word round) {
	int count = CPU_COUNT(&allowed), wanted = (int)(round % (word)count);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &allowed) && !wanted--) {
			cpu_set_t one; CPU_ZERO(&one); CPU_SET(cpu, &one);
			sched_setaffinity(0, sizeof(one), &one);
			return;
		}
}
static void on_go(int n) { (void)n; go = 1; }
/* Everybody stops for a moment, one of them sets all counts to nothing and says so. */
static void begin(word thread) {
	pthread_barrier_wait(&all);
	if (!thread) {
		total = clock_of(CLOCK_PROCESS_CPUTIME_ID);
		for (word i = 0; i < THREADS; i++)
			for (word path = 0; path < PATHS; path++) taken[i][path] = 0;
		printf("begin %lu\n", clock_of(CLOCK_REALTIME)); fflush(stdout);
	}
	pthread_barrier_wait(&all);
}
"#;

const MAIN: &str = r#"
/* Not by a jump, which would leave nothing of it on the stack. */
static void *thread_main(void *thread) { word r = DRIVE((word)thread); __asm__ volatile("" : "+r"(r)); return (void *)r; }
int main(int argc, char **argv) {
	struct sigaction action = { };
	pthread_t threads[THREADS];
	action.sa_handler = on_go;
	sigaction(SIGUSR1, &action, 0);
	sched_getaffinity(0, sizeof(allowed), &allowed);
	pthread_barrier_init(&all, 0, THREADS);
	interrupted();
	puts("ready"); fflush(stdout);
	if (THREADS == 1) sink += DRIVE(0);
	for (word i = 0; THREADS > 1 && i < THREADS; i++) pthread_create(&threads[i], 0, thread_main, (void *)i);
	for (word i = 0; THREADS > 1 && i < THREADS; i++) pthread_join(threads[i], 0);
	arm(0);
	word spent = clock_of(CLOCK_PROCESS_CPUTIME_ID) - total, end = clock_of(CLOCK_REALTIME);
	for (word path = 0; path < PATHS; path++) {
		word sum = 0;
		for (word i = 0; i < THREADS; i++) sum += taken[i][path];
		printf("path %lu\n", sum);
	}
	printf("total %lu\nend %lu\n", spent, end); fflush(stdout);
	if (argc > 1) execv(argv[1], argv + 1);
	return 0;
}
"#;

/// A timer by CPU time whose signal interrupts whatever the program is doing, and the handler's own calls; and what
/// happens when it begins to count.
fn handler(tree: &Tree, path: usize) -> String {
    let first = &tree.functions[tree.paths[path][0]];
    let name =
        if first.scope.is_empty() { first.name.clone() } else { format!("{}::{}", first.scope, first.name) };
    format!(
        "static void arm(word after) {{ struct itimerval t = {{ }}; t.it_value.tv_usec = (long)after; setitimer(ITIMER_PROF, &t, 0); }}\n\
         static void on_timer(int n) {{\n\
         \tstatic word state = SEED + 99; (void)n;\n\
         \tword before = thread_time();\n\
         \tsink += {name}(LEAST + random_below(&state, SPREAD), {path});\n\
         \tword spent = thread_time() - before;\n\
         \tin_handler += spent; taken[0][{path}] += spent;\n\
         \tarm(1000 + random_below(&state, 9000));\n}}\n\
         static void interrupted(void) {{ struct sigaction a = {{ }}; a.sa_handler = on_timer; sigaction(SIGPROF, &a, 0); arm(5000); }}\n"
    )
}
