//! A tree in Go.
//!
//! In: a tree. Out: a source. Refuses to know compilers.

use std::fmt::Write as _;

use super::Variant;
use super::c::ROUNDS;
use super::tree::{Function, Home, Tree};

const HEAD: &str = r#"package main

import (
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

var sink uint64
var started atomic.Bool
var total uint64
var arrived, left sync.WaitGroup
var allowed uint64

func clockOf(id uintptr) uint64 {
	var t syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, id, uintptr(unsafe.Pointer(&t)), 0)
	return uint64(t.Nano())
}

const (
	realClock = 0
	processClock = 2
	threadClock = 3
)

func randomBelow(state *uint64, n uint64) uint64 {
	*state = *state*6364136223846793005 + 1442695040888963407
	return (*state >> 33) % n
}

func moveOn(round uint64) {
	var cpus []uint64
	for cpu := uint64(0); cpu < 64; cpu++ {
		if allowed>>cpu&1 == 1 {
			cpus = append(cpus, cpu)
		}
	}
	one := uint64(1) << cpus[round%uint64(len(cpus))]
	syscall.RawSyscall(syscall.SYS_SCHED_SETAFFINITY, 0, 8, uintptr(unsafe.Pointer(&one)))
}

func begin(thread uint64) {
	arrived.Done()
	if thread == 0 {
		arrived.Wait()
		total = clockOf(processClock)
		for i := range taken {
			taken[i] = [paths]uint64{}
		}
		fmt.Printf("begin %d\n", clockOf(realClock))
		left.Done()
	}
	left.Wait()
}
"#;

fn call(tree: &Tree, callee: usize) -> String {
    let Function { name, scope, .. } = &tree.functions[callee];
    if scope.is_empty() { format!("{name}(n, path)") } else { format!("(&{scope}{{}}).{name}(n, path)") }
}

fn dispatch(tree: &Tree, calls: &[(usize, usize)]) -> String {
    let mut text = String::from("switch path {\n");
    for (paths, callee) in Tree::choices(calls, |path| path.to_string(), ", ") {
        let label = paths.map_or("default".to_owned(), |paths| format!("case {paths}"));
        let _ = writeln!(text, "\t{label}:\n\t\tr = {}", call(tree, callee));
    }
    text + "\t}"
}

fn definition(tree: &Tree, function: &Function) -> String {
    let Function { name, scope, room, constant, calls, inlined, .. } = function;
    let (helper, work) = if calls.is_empty() {
        let helper = format!(
            "func {inlined}(n uint64) uint64 {{\n\tx := n\n\tfor i := uint64(0); i < n; i++ {{\n\
             \t\tx = x*6364136223846793005 + i\n\t}}\n\treturn x\n}}\n"
        );
        (helper, format!("r = {inlined}(n)"))
    } else {
        (String::new(), dispatch(tree, calls))
    };
    let (kind, receiver) = match scope.is_empty() {
        true => (String::new(), String::new()),
        false => (format!("type {scope} struct{{}}\n"), format!("(k *{scope}) ")),
    };
    format!(
        "{kind}{helper}\n//go:noinline\nfunc {receiver}{name}(n, path uint64) uint64 {{\n\tvar room [{room}]uint64\n\
         \troom[path%{room}] = n\n\tvar r uint64\n\t{work}\n\treturn r ^ {constant} ^ room[path%{room}]\n}}\n\n"
    )
}

/// The program.
pub(super) fn executable(tree: &Tree, variant: &Variant) -> String {
    let mut text = String::from(HEAD);
    for function in tree.of(Home::Executable) {
        text += &definition(tree, function);
    }
    let cumulated = tree.cumulated();
    let list: Vec<String> = cumulated.iter().map(u32::to_string).collect();
    let _ = writeln!(
        text,
        "const threads, paths, sum, budget, seed = {threads}, {paths}, {sum}, {budget}, {seed}\n\
         var upto = [...]uint64{{ {list} }}\nvar taken [threads][paths]uint64\n\n\
         //go:noinline\nfunc {drive}(thread uint64) (r uint64) {{\n\
         \truntime.LockOSThread()\n\tstate, begun, counts := seed+thread, uint64(0), false\n\
         \tfor round := thread; ; round++ {{\n\
         \t\tpick, path := randomBelow(&state, sum), uint64(0)\n\
         \t\tfor pick >= upto[path] {{\n\t\t\tpath++\n\t\t}}\n\
         \t\tn := {least} + randomBelow(&state, {spread})\n\
         \t\tbefore := clockOf(threadClock)\n\
         \t\t{dispatch}\n\
         \t\ttaken[thread][path] += clockOf(threadClock) - before\n\
         \t\tif threads > 1 {{\n\t\t\tmoveOn(round)\n\t\t}}\n\
         \t\tif counts && clockOf(threadClock)-begun > budget {{\n\t\t\treturn r\n\t\t}}\n\
         \t\tif !counts && started.Load() {{\n\t\t\tcounts = true\n\t\t\tbegin(thread)\n\t\t\tbegun = clockOf(threadClock)\n\t\t}}\n\
         \t}}\n}}",
        threads = variant.threads,
        paths = tree.paths.len(),
        sum = cumulated[cumulated.len() - 1],
        budget = u64::from(variant.budget) * 1_000_000_000 / variant.threads as u64,
        seed = tree.seed,
        list = list.join(", "),
        drive = tree.drive,
        least = ROUNDS.0,
        spread = ROUNDS.1,
        dispatch = dispatch(tree, &tree.roots()),
    );
    text + &MAIN.replace("DRIVE", &tree.drive)
}

const MAIN: &str = r#"
func main() {
	syscall.RawSyscall(syscall.SYS_SCHED_GETAFFINITY, 0, 8, uintptr(unsafe.Pointer(&allowed)))
	wanted := make(chan os.Signal, 1)
	signal.Notify(wanted, syscall.SIGUSR1)
	go func() { <-wanted; started.Store(true) }()
	arrived.Add(threads)
	left.Add(1)
	fmt.Println("ready")
	var done sync.WaitGroup
	done.Add(threads - 1)
	for thread := uint64(1); thread < threads; thread++ {
		go func() { atomic.AddUint64(&sink, DRIVE(thread)); done.Done() }()
	}
	sink += DRIVE(0)
	done.Wait()
	spent, end := clockOf(processClock) - total, clockOf(realClock)
	for path := 0; path < paths; path++ {
		sum := uint64(0)
		for thread := range taken {
			sum += taken[thread][path]
		}
		fmt.Printf("path %d\n", sum)
	}
	fmt.Printf("total %d\nend %d\n", spent, end)
}
"#;
