//! Go: the program itself says what its runtime takes its addresses for.

use std::path::Path;

use obi::capture::tls::elf::OpenFile;
use obi::profile::symbol::elf::Elf;
use obi::profile::symbol::go;
use obi::profile::{Fidelity, Runtime};

use super::program::{Names, Workshop, word};

/// Prints where it lies, then for many addresses the functions there, the innermost first, and its own functions.
const ORACLE: &str = r#"
//go:linkname expand runtime/pprof.runtime_expandFinalInlineFrame
func expand(stack []uintptr) []uintptr

func oracle() {
	maps, _ := os.ReadFile("/proc/self/maps")
	var start uint64
	fmt.Sscanf(string(maps), "%x-", &start)
	fmt.Printf("start %x\n", start)
	own := runtime.FuncForPC(reflect.ValueOf(main).Pointer()).Entry()
	seen := 0
	say := func(pc uintptr) {
		// What is behind the last byte of a function is taken for the beginning of the next, not for a caller.
		here, next := runtime.FuncForPC(pc), runtime.FuncForPC(pc + 1)
		if here == nil || next == nil || here.Entry() != next.Entry() { return }
		frames := runtime.CallersFrames(expand([]uintptr{pc + 1}))
		line := fmt.Sprintf("at %x", pc)
		for {
			frame, more := frames.Next()
			if frame.PC == 0 { break }
			line += fmt.Sprintf("\t%s\t%s\t%d", frame.Function, frame.File, frame.Line)
			if !more { break }
		}
		fmt.Println(line)
		seen++
	}
	for pc := own - 3000; pc < own + 3000; pc++ { say(pc) }
	other := reflect.ValueOf(fmt.Println).Pointer()
	for pc := other - 60000; pc < other + 60000; pc += 61 { say(pc) }
}
"#;

fn program() -> (String, [String; 4]) {
    let [kind, method, generic, inlined] = ["Kind", "Method", "Generic", "inlined"].map(word);
    let text = format!(
        "package main\nimport (\"fmt\"; \"os\"; \"reflect\"; \"runtime\"; _ \"runtime/pprof\"; _ \"unsafe\")\nvar sink int\ntype {kind} struct{{ n int }}\n\
         //go:noinline\nfunc (k *{kind}) {method}(x int) int {{ f := func(y int) int {{ sink += y; return sink + k.n }}; return f(x) + deep(x) }}\n\
         //go:noinline\nfunc {generic}[T any](items []T, f func(T) int) int {{\n\tfor _, item := range items {{ sink += f(item) }}\n\treturn {inlined}(sink)\n}}\n\
         func {inlined}(x int) int {{\n\tfor i := range x {{ sink ^= i }}\n\treturn twice(x)\n}}\n\
         func twice(x int) int {{ sink += x; return sink * 2 }}\n\
         //go:noinline\nfunc deep(x int) int {{ defer func() {{ sink-- }}(); if x <= 0 {{ return twice(1) }}; return deep(x - 1) + {inlined}(x) }}\n\
         func main() {{\n\tk := &{kind}{{3}}\n\tfmt.Fprintln(os.Stderr, k.{method}(2), {generic}([]string{{\"a\"}}, func(s string) int {{ return len(s) }}))\n\toracle()\n}}\n{ORACLE}"
    );
    (text, [kind, method, generic, inlined])
}

fn build(workshop: &Workshop, flags: &[&str]) -> [String; 4] {
    let (text, names) = program();
    workshop.write("main.go", &text);
    workshop.write("go.mod", "module example.test/shop\n\ngo 1.22\n");
    // A function without a body is only allowed beside assembly.
    workshop.write("empty.s", "");
    let environment = ["GOFLAGS=-mod=mod", "GOTOOLCHAIN=local", "CGO_ENABLED=0"];
    let arguments = [&environment[..], &["go", "build", "-o", "program"], flags, &["."]].concat();
    workshop.run("env", arguments);
    names
}

#[test]
fn names_lines_and_inlined_calls_are_those_of_the_runtime() {
    for flags in [&["-trimpath"][..], &["-ldflags=-s -w -buildid="], &["-buildmode=pie", "-ldflags=-s -w"]] {
        let workshop = Workshop::new();
        let [kind, method, generic, inlined] = build(&workshop, flags);
        let text = workshop.run("./program", [""; 0]);
        let mut lines = text.lines();
        let start = lines.next().and_then(|line| line.strip_prefix("start ")).unwrap();
        let start = u64::from_str_radix(start, 16).unwrap();
        let bias = if flags.contains(&"-buildmode=pie") { start } else { 0 };
        let mut ours = Names::of(&workshop.path("program"));
        let mut all = String::new();
        let (mut compared, mut nested) = (0, 0);
        for line in lines {
            let mut parts = line.split('\t');
            let address = parts.next().and_then(|at| at.strip_prefix("at ")).unwrap();
            let address = u64::from_str_radix(address, 16).unwrap() - bias;
            // Code that other tools have made has no lines.
            let theirs: Vec<&str> = parts.map(|part| if part == "?" { "" } else { part }).collect();
            let symbol = ours.at(address);
            let told: Vec<String> = { symbol.lines.iter() }
                .flat_map(|line| [line.function.to_string(), line.file.to_string(), line.line.to_string()])
                .collect();
            assert_eq!(told, theirs, "{flags:?} at {address:#x}");
            let has_lines = theirs.iter().skip(2).step_by(3).any(|line| *line != "0");
            let fidelity = if has_lines { Fidelity::Lines } else { Fidelity::Function };
            assert_eq!(
                (symbol.runtime, symbol.fidelity),
                (Runtime::Go, fidelity),
                "{flags:?} at {address:#x}"
            );
            compared += 1;
            nested += usize::from(symbol.lines.len() > 1);
            all += line;
        }
        assert!(
            compared > 3000 && nested > 50,
            "{flags:?}: {compared} addresses, {nested} with inlined calls"
        );
        for wanted in
            [format!("main.(*{kind}).{method}"), format!("main.{generic}[...]"), format!("main.{inlined}")]
        {
            assert!(all.contains(&wanted), "{flags:?}: {wanted}");
        }
    }
}

#[test]
fn the_build_id_is_that_of_the_tool() {
    let workshop = Workshop::new();
    build(&workshop, &["-ldflags=-s -w"]);
    let file = std::fs::File::open(workshop.path("program")).unwrap();
    let length = file.metadata().unwrap().len();
    let file = OpenFile { file, length };
    let elf = Elf::read(&file).unwrap();
    let expected = workshop.run("go", ["tool", "buildid", "program"]);
    assert_eq!(go::build_id(&file, &elf).as_deref(), Some(expected.trim()));
    assert!(Path::new("/proc/self/exe").exists() && !expected.trim().is_empty());
}
