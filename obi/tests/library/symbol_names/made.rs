//! Code that runtimes make while they run: Node's perf map, and a process that is gone.

use std::path::Path;
use std::process::{Command, Stdio};

use obi::profile::Runtime;
use obi::profile::symbol::kernel::{Functions, Kernel};
use obi::profile::symbol::{Bounds, CodeAddress, Process, Symbols};

use super::program::{Workshop, word};

#[test]
fn functions_of_node_are_named_also_after_its_end() {
    let workshop = Workshop::new();
    let hot = word("hot");
    let script = format!(
        "function {hot}(n) {{ let s = 0; for (let i = 0; i < n; i++) s += i * n; return s; }}\n\
         for (let i = 0; i < 20000; i++) {hot}(100);\nconsole.log('ready');\nprocess.stdin.once('data', () => process.exit());\n"
    );
    workshop.write("main.js", &script);
    let mut node = Command::new("node")
        .args(["--perf-basic-prof", "main.js"])
        .current_dir(workshop.path(""))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(node.stdout.take().unwrap()), &mut line)
        .unwrap();
    let map = format!("/tmp/perf-{}.map", node.id());
    let folder = format!("/proc/{}", node.id());
    let process = Process { id: 1, folder: Path::new(&folder) };
    let mut symbols = Symbols::with(Bounds::default(), Kernel::of(Functions::default()));
    symbols.advance(1);
    symbols.observe(&process);
    drop(node.stdin.take());
    node.kill().unwrap();
    node.wait().unwrap();
    let text = std::fs::read_to_string(&map).unwrap();
    std::fs::remove_file(&map).unwrap();
    let last = text.lines().rfind(|line| line.contains(&hot)).expect("a line with the function");
    let mut words = last.splitn(3, ' ');
    let mut number = || u64::from_str_radix(words.next().unwrap(), 16).unwrap();
    let (start, size) = (number(), number());
    symbols.advance(2);
    let symbol = symbols.name(&CodeAddress::Process { process, address: start + size / 2 });
    assert!(symbol.lines[0].function.contains(&hot), "{symbol:?} for {last}");
    assert_eq!(symbol.runtime, Runtime::V8);
    let nowhere = symbols.name(&CodeAddress::Process { process, address: 16 });
    assert!(nowhere.lines.is_empty());
}
