//! The sampler of stacks in this kernel: programs whose stacks are known are sampled, frame by frame.
//!
//! In: C compiled here, without frame pointers. Out: a failure that shows the stack. Needs root.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; helpers beside `#[test]` functions are not exempt"
)]

use std::time::{Duration, Instant};

use obi::capture::stack::StackSample;
use obi_ebpf::{SAMPLE_CPU, STACK_COMPLETE};

use super::sampled::{Busy, PATIENCE, Stack, deep, flavours, install, load, stacks};

#[test]
fn every_frame_is_found_without_frame_pointers() {
    for flavour in flavours() {
        let (profiler, mut maps) = load(flavour, 199);
        let mut tables = 1;
        for depth in [10, 100, 250, 400] {
            for flags in [&["-O2", "-fomit-frame-pointer"][..], &["-O2", "-fomit-frame-pointer", "-no-pie"]] {
                let busy = Busy::compile(&deep(depth), flags);
                install(&mut maps, busy.pid(), tables);
                tables += 100;
                for stack in stacks(&mut maps, &busy, 20) {
                    let expected: Vec<String> =
                        (0..depth).map(|level| format!("level_{level}")).chain(["main".to_owned()]).collect();
                    assert_eq!(stack.names[..=depth], expected, "{flavour:?} {stack:?}");
                    assert_eq!((stack.end, stack.by_pointer), (STACK_COMPLETE, 0), "{flavour:?} {stack:?}");
                    assert_eq!(stack.exchange, 0);
                }
                println!("{flavour:?}: {depth} frames with {flags:?}: {:?}", profiler.counts().unwrap());
            }
        }
        for program in profiler.measure() {
            println!("{program:?}");
        }
    }
}

/// A sample without room in the ring is lost with its time and counted; the process that runs next does not pay for it.
#[test]
fn every_sample_is_worth_its_own_period_and_lost_ones_are_counted() {
    const HERTZ: u32 = 997;
    let period = u64::from(1_000_000_000 / HERTZ);
    for flavour in flavours() {
        let (profiler, mut maps) = load(flavour, HERTZ);
        let busy = Busy::compile(&deep(400), &["-O2", "-fomit-frame-pointer"]);
        install(&mut maps, busy.pid(), 1);
        let started = Instant::now();
        let counts = || profiler.counts().unwrap().cpu;
        while counts().lost < 100 {
            assert!(started.elapsed() < PATIENCE, "{:?}", counts());
            std::thread::sleep(Duration::from_millis(10));
        }
        // Some of what is read below was sampled behind a loss.
        let (mut seen, enough) = (0, counts().reported + 100);
        loop {
            let before = counts().reported;
            while let Some(record) = maps.stacks.next() {
                let event = StackSample::decode(&record).unwrap().event;
                assert_eq!((u32::from(event.kind), event.value), (SAMPLE_CPU, period), "{event:?}");
                seen += 1;
            }
            assert!(seen <= counts().reported, "{flavour:?}: {seen} of {:?}", counts());
            if seen >= before.max(enough) {
                break;
            }
            assert!(started.elapsed() < PATIENCE, "{flavour:?}: {seen} of {before}, {enough} wanted");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// All stacks are whole, and hold these functions in this order, leaf first, others between them.
fn check_stacks(stacks: &[Stack], expected: &[&str]) {
    for stack in stacks {
        assert_eq!((stack.end, stack.by_pointer), (STACK_COMPLETE, 0), "{stack:?}");
        let mut names = stack.names.iter();
        for name in expected {
            assert!(names.any(|found| found == name), "{name} of {expected:?} in {stack:?}");
        }
    }
}

/// A program in C whose `work` is busy with this, three calls deep.
fn working(head: &str, work: &str) -> String {
    format!(
        "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <signal.h>\n#include <stdio.h>\n#include <stdlib.h>\n\
         #include <sys/time.h>\n#include <time.h>\n#include <unistd.h>\n\
         volatile long x;\n{head}\n\
         __attribute__((noinline)) long work(long n) {{ {work} return x; }}\n\
         __attribute__((noinline)) long middle(long n) {{ volatile long room[17]; room[3] = n; return work(n) + room[3]; }}\n\
         int main(void) {{ puts(\"ready\"); fflush(stdout); return (int)middle(3) + (int)x; }}"
    )
}

const WITHOUT: [&str; 2] = ["-O2", "-fomit-frame-pointer"];

#[test]
fn the_stack_under_a_signal_is_found() {
    // On the stack of the thread, and on one of its own.
    let alternative = "stack_t own = { .ss_sp = malloc(1 << 16), .ss_size = 1 << 16 }; sigaltstack(&own, 0);";
    for (stack, flag) in [("", "0"), (alternative, "SA_ONSTACK")] {
        let handler = "__attribute__((noinline)) void handler(int n) { for (;;) x += n; }";
        let work = format!(
            "{stack} struct sigaction a = {{ .sa_handler = handler, .sa_flags = {flag} }}; sigaction(SIGALRM, &a, 0);\
             struct itimerval t = {{ .it_value = {{ .tv_usec = 200000 }} }}; setitimer(ITIMER_REAL, &t, 0);\
             for (;;) x += n;"
        );
        let (_profiler, mut maps) = load(flavours()[0], 199);
        let busy = Busy::compile(&working(handler, &work), &WITHOUT);
        install(&mut maps, busy.pid(), 1);
        // Until the timer has fired.
        let started = Instant::now();
        let found = loop {
            assert!(started.elapsed() < PATIENCE);
            let found = stacks(&mut maps, &busy, 20);
            if found.iter().all(|stack| stack.names[0] == "handler") {
                break found;
            }
        };
        check_stacks(&found, &["handler", "work", "middle", "main"]);
        for stack in found {
            let work = stack.names.iter().position(|name| name == "work").unwrap();
            assert_eq!(work, 2, "handler, trampoline, work: {stack:?}");
        }
    }
}

#[test]
fn stacks_are_whole_inside_the_kernel_and_what_it_maps() {
    let check = |work: &str, in_kernel: bool| {
        let (_profiler, mut maps) = load(flavours()[0], 199);
        let busy = Busy::compile(&working("static char room[1 << 20];", work), &WITHOUT);
        install(&mut maps, busy.pid(), 1);
        let found = stacks(&mut maps, &busy, 60);
        check_stacks(&found, &["work", "middle", "main"]);
        assert!(!in_kernel || found.iter().any(|stack| stack.in_kernel), "{found:?}");
    };
    check("int f = open(\"/dev/zero\", O_RDONLY); for (;;) x += read(f, room, sizeof room);", true);
    check(
        "struct timespec t; for (;;) { clock_gettime(CLOCK_MONOTONIC, &t); x += t.tv_nsec + room[n]; }",
        false,
    );
}

#[test]
fn a_system_call_may_end_its_function() {
    // As it does in what returns from a signal: the address behind it is another's, here of one without a rule.
    let last = "static char room[1 << 20]; long last(int file, void *to, unsigned long bytes);\
        __asm__(\".text\\n.globl last\\n.type last, @function\\nlast:\\n.cfi_startproc\\nxor %eax, %eax\\nsyscall\\n\"\
                \".cfi_endproc\\n.size last, . - last\\nret\\n\");";
    let work = "int f = open(\"/dev/zero\", O_RDONLY); for (;;) x += last(f, room, sizeof room);";
    for flavour in flavours() {
        let (_profiler, mut maps) = load(flavour, 199);
        let busy = Busy::compile(&working(last, work), &WITHOUT);
        install(&mut maps, busy.pid(), 1);
        let mut found = stacks(&mut maps, &busy, 60);
        found.retain(|stack| stack.in_kernel);
        assert!(found.len() > 20, "{found:?}");
        check_stacks(&found, &["last", "work", "middle", "main"]);
        assert!(found.iter().all(|stack| stack.names[0] == "last"), "{found:?}");
    }
}

#[test]
fn stacks_of_goroutines_are_whole() {
    let source = "package main\nimport (\"fmt\")\nvar x int\n\
        //go:noinline\nfunc leaf(n int) int { for { x += n } }\n\
        //go:noinline\nfunc mid(n int) int { var b [40]int; b[n%40] = n; return leaf(n+1) + b[3] }\n\
        //go:noinline\nfunc top(n int) int { if n > 0 { return top(n-1) + 1 }; return mid(n) }\n\
        func main() { done := make(chan int); go func() { fmt.Println(\"ready\"); done <- top(30) }(); <-done }\n";
    let (_profiler, mut maps) = load(flavours()[0], 199);
    let busy = Busy::build_go(source);
    install(&mut maps, busy.pid(), 1);
    let found = stacks(&mut maps, &busy, 60);
    // The runtime's own threads run as well.
    let own: Vec<Stack> = found.into_iter().filter(|stack| stack.names[0] == "main.leaf").collect();
    assert!(own.len() > 20, "{own:?}");
    for stack in own {
        let top = vec!["main.top"; 31];
        let expected =
            [&["main.leaf", "main.mid"][..], &top, &["main.main.func1", "runtime.goexit.abi0"]].concat();
        assert_eq!(stack.names, expected, "{stack:?}");
        assert_eq!((stack.end, stack.by_pointer), (STACK_COMPLETE, 0), "{stack:?}");
    }
}
