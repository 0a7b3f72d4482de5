//! C and C++: with and without debug information, stripped, with their symbols elsewhere.

use std::fs;

use obi::capture::executable::elf::Elf;
use obi::capture::tls::elf::OpenFile;
use obi::profile::symbol::kernel::{Functions, Kernel};
use obi::profile::symbol::{Bounds, CodeAddress, File, Symbols};
use obi::profile::{Fidelity, Runtime};

use super::program::{Names, Reported, Workshop, addr2line, mangled, reported, word};

/// A chain of functions, the innermost inlined twice; their names.
fn source(depth: usize) -> (String, Vec<String>, String) {
    let names: Vec<String> = (0..depth).map(|_| word("f")).collect();
    let inlined = word("inlined");
    let mut text = String::from("#include <stdio.h>\nvolatile unsigned long sink;\n");
    text += &format!(
        "static inline __attribute__((always_inline)) unsigned long {inlined}(unsigned long n) {{\n  \
         for (unsigned long i = 0; i < n; i++)\n    sink += i * n;\n  return sink;\n}}\n"
    );
    for (at, name) in names.iter().enumerate() {
        let inner = match at {
            0 => format!("{inlined}(n)"),
            _ => format!("{}(n + 1)", names[at - 1]),
        };
        text += &format!(
            "__attribute__((noinline, noclone)) unsigned long {name}(unsigned long n) {{\n  \
             unsigned long r = {inner};\n  sink += r;\n  return sink + {at};\n}}\n"
        );
    }
    let last = names.last().expect("a function");
    text += &format!("int main(int argc, char **argv) {{ printf(\"%lu\\n\", {last}(argc)); return 0; }}\n");
    (text, names, inlined)
}

#[test]
fn functions_of_c_have_their_names() {
    let check = |flags: &[&str], fidelity: Fidelity| {
        let workshop = Workshop::new();
        let (text, names, _) = source(12);
        workshop.write("main.c", &text);
        workshop.run("gcc", flags.iter().chain(&["main.c", "-o", "program"]));
        let is_stripped = flags.contains(&"-s");
        let addresses =
            if is_stripped { workshop.exported("program") } else { workshop.functions("program") };
        let mut ours = Names::of(&workshop.path("program"));
        for name in &names {
            let symbol = ours.at(addresses[name] + 1);
            assert_eq!(symbol.lines.last().map(|line| &*line.function), Some(name.as_str()), "{flags:?}");
            assert_eq!((symbol.fidelity, symbol.runtime), (fidelity, Runtime::Native), "{flags:?} {name}");
        }
        let nowhere = ours.at(1);
        assert_eq!((nowhere.fidelity, nowhere.lines.len()), (Fidelity::Address, 0));
    };
    check(&["-O2", "-fomit-frame-pointer"], Fidelity::Function);
    check(&["-O2", "-no-pie"], Fidelity::Function);
    check(&["-O2", "-static-pie"], Fidelity::Function);
    check(&["-O2", "-rdynamic", "-s", "-Wl,--build-id"], Fidelity::Function);
    check(&["-O2", "-g"], Fidelity::Lines);
    check(&["-O2", "-g1"], Fidelity::Lines);
    check(&["-O2", "-gdwarf-4"], Fidelity::Lines);
    check(&["-O2", "-g", "-gz"], Fidelity::Lines);
    check(&["-O0", "-g", "-static"], Fidelity::Lines);
}

/// Without any name, each function is a box of its own: its file and where it begins.
#[test]
fn stripped_functions_are_kept_apart_by_where_they_begin() {
    let workshop = Workshop::new();
    let (text, names, _) = source(4);
    workshop.write("main.c", &text);
    workshop.run("gcc", ["-O2", "main.c", "-o", "program"]);
    let addresses = workshop.functions("program");
    workshop.run("strip", ["program"]);
    let mut ours = Names::of(&workshop.path("program"));
    for name in &names {
        let start = addresses[name];
        let symbol = ours.at(start + 1);
        let shown = symbol.lines.first().map(|line| &*line.function);
        assert_eq!(shown, Some(&*format!("program+{start:#x}")), "{name}");
        assert_eq!(symbol.fidelity, Fidelity::Address, "{name}");
    }
}

/// The first bytes of each function.
fn every_address(workshop: &Workshop, program: &str, names: &[String]) -> Vec<u64> {
    let functions = workshop.functions(program);
    let starts = names.iter().filter_map(|name| functions.get(name));
    starts.flat_map(|start| (0..24).map(move |offset| start + offset)).collect()
}

fn compare(workshop: &Workshop, program: &str, addresses: &[u64]) -> Vec<Reported> {
    let theirs = addr2line(workshop, program, addresses);
    let mut ours = Names::of(&workshop.path(program));
    let mut inlined = Vec::new();
    for (address, theirs) in addresses.iter().zip(theirs) {
        assert_eq!(reported(&ours.at(*address)), theirs, "{program} at {address:#x}");
        if theirs.len() > 1 {
            inlined.push(theirs);
        }
    }
    inlined
}

#[test]
fn lines_and_inlined_calls_are_those_of_binutils() {
    for flags in [["-O2", "-g"], ["-O1", "-gdwarf-4"]] {
        let workshop = Workshop::new();
        let (text, names, inlined) = source(8);
        workshop.write("main.c", &text);
        workshop.run("gcc", flags.iter().chain(&["main.c", "-o", "program"]));
        let addresses = every_address(&workshop, "program", &names);
        let found = compare(&workshop, "program", &addresses);
        assert!(found.iter().any(|calls| calls[0].0 == inlined && calls[1].0 == names[0]), "{flags:?}");
    }
}

#[test]
fn names_of_cpp_are_readable() {
    let workshop = Workshop::new();
    let (space, class, method, template) = (word("ns"), word("Class"), word("method"), word("tmpl"));
    let text = format!(
        "#include <vector>\n#include <cstdio>\nvolatile long sink;\n\
         #define KEEP __attribute__((noinline, noclone))\n\
         namespace {space} {{ namespace {{ struct {class} {{ KEEP long {method}(const std::vector<int> &v) const {{ \
         return sink += v.size(); }} }}; }}\n\
         template <class T, int N> KEEP T {template}(T value) {{ sink += N; return value + N; }}\n\
         KEEP long with_lambda(long n) {{ auto f = [&](int x) KEEP -> long {{ return sink += x + n; }}; return f(3); }} }}\n\
         int main() {{ std::vector<int> v{{1}}; {space}::{class} c; \
         printf(\"%ld\", c.{method}(v) + {space}::{template}<long, 7>(3) + {space}::with_lambda(2)); }}\n"
    );
    workshop.write("main.cc", &text);
    for debug in ["-g0", "-g1", "-g"] {
        workshop.run("g++", ["-O1", debug, "main.cc", "-o", "program"]);
        check_cpp(&workshop, &space, &class, &method, &template);
    }
}

fn check_cpp(workshop: &Workshop, space: &str, class: &str, method: &str, template: &str) {
    let functions = workshop.functions("program");
    let mut ours = Names::of(&workshop.path("program"));
    let mut check = |part: &str, expected: &str| {
        let (name, address) = functions.iter().find(|(name, _)| name.contains(part)).expect(part);
        let symbol = ours.at(*address);
        let line = symbol.lines.last().expect("a name");
        assert_eq!((&*line.function, mangled(line)), (expected, name.as_str()));
    };
    check(
        method,
        &format!(
            "{space}::(anonymous namespace)::{class}::{method}(std::vector<int, std::allocator<int> > const&) const"
        ),
    );
    check(template, &format!("long {space}::{template}<long, 7>(long)"));
    check(
        "with_lambdaElENKUl",
        &format!("{space}::with_lambda(long)::{{lambda(int)#1}}::operator()(int) const"),
    );
}

#[test]
fn symbols_may_lie_elsewhere() {
    /// Makes of `program` a stripped one, with its symbols where only a link, a build id or nothing outside leads to.
    const STEPS: [(&str, &str, Fidelity); 4] = [
        (
            "beside it",
            "objcopy --only-keep-debug program program.debug && strip program && \
             objcopy --add-gnu-debuglink=program.debug program",
            Fidelity::Lines,
        ),
        (
            "in the root's folder",
            "objcopy --only-keep-debug program elsewhere.debug && strip program && \
             objcopy --add-gnu-debuglink=elsewhere.debug program && mkdir -p usr/lib/debug/opt/bin && \
             mv elsewhere.debug usr/lib/debug/opt/bin/",
            Fidelity::Lines,
        ),
        (
            "by build id, packed",
            "id=$(readelf -n program | sed -n 's/.*Build ID: //p') && \
             mkdir -p usr/lib/debug/.build-id/${id%${id#??}} && objcopy --only-keep-debug --compress-debug-sections program \
             usr/lib/debug/.build-id/${id%${id#??}}/${id#??}.debug && strip program",
            Fidelity::Lines,
        ),
        (
            "inside, packed",
            "objcopy --only-keep-debug program all && objcopy -S --remove-section .gdb_index --remove-section .comment \
             --strip-debug all mini 2>/dev/null; cp all mini; strip --strip-debug mini; xz -k mini && strip program && \
             objcopy --add-section .gnu_debugdata=mini.xz program",
            Fidelity::Function,
        ),
    ];
    for (case, steps, fidelity) in STEPS {
        let workshop = Workshop::new();
        let (text, names, _) = source(6);
        workshop.write("main.c", &text);
        workshop.run("gcc", ["-O2", "-g", "-Wl,--build-id=sha1", "main.c", "-o", "program"]);
        let addresses = workshop.functions("program");
        workshop.run("sh", ["-ec", steps]);
        assert!(workshop.functions("program").is_empty(), "{case}: it is stripped");
        let root = workshop.path("");
        let path = if case == "beside it" { "/program" } else { "/opt/bin/program" };
        let mut ours = Names::of(&workshop.path("program")).below(&root, path);
        for name in &names {
            let symbol = ours.at(addresses[name]);
            assert_eq!(symbol.lines.last().map(mangled), Some(name.as_str()), "{case}");
            assert_eq!(symbol.fidelity, fidelity, "{case}");
        }
    }
}

#[test]
fn a_link_to_another_build_is_not_believed() {
    let workshop = Workshop::new();
    workshop.write("main.c", &source(3).0);
    let (text, names, _) = source(3);
    workshop.write("other.c", &text);
    workshop.run("gcc", ["-O2", "main.c", "-o", "program.debug"]);
    workshop.run("gcc", ["-O2", "other.c", "-o", "program"]);
    let addresses = workshop.functions("program");
    workshop.run("sh", ["-ec", "strip program && objcopy --add-gnu-debuglink=program.debug program"]);
    workshop.run("gcc", ["-O2", "-g", "main.c", "-o", "program.debug"]);
    let mut ours = Names::of(&workshop.path("program")).below(&workshop.path(""), "/program");
    assert_eq!(ours.at(addresses[&names[0]]).fidelity, Fidelity::Address);
}

#[test]
fn stubs_are_named_by_what_they_call() {
    for flags in [["-O2", "-fcf-protection=full"], ["-O2", "-fcf-protection=none"]] {
        let workshop = Workshop::new();
        workshop.write("main.c", &source(1).0);
        workshop.run("gcc", flags.iter().chain(&["-Wl,-z,lazy", "main.c", "-o", "program"]));
        // objdump says where: `0000000000001030 <printf@plt>:`
        let text = workshop.run("objdump", ["-d", "program"]);
        let stub = text.lines().find(|line| line.contains("printf@plt>:")).expect("a stub");
        let address = u64::from_str_radix(stub.split(' ').next().unwrap(), 16).unwrap();
        let mut ours = Names::of(&workshop.path("program"));
        assert_eq!(ours.at(address + 2).lines[0].function, "printf@plt".into(), "{flags:?}");
    }
}

#[test]
fn a_deleted_program_keeps_its_names() {
    let workshop = Workshop::new();
    let (text, names, _) = source(3);
    workshop.write("main.c", &text);
    workshop.run("gcc", ["-O2", "-g", "main.c", "-o", "program"]);
    let addresses = workshop.functions("program");
    let mut ours = Names::of(&workshop.path("program"));
    fs::remove_file(workshop.path("program")).unwrap();
    assert_eq!(ours.at(addresses[&names[0]]).lines.last().map(mangled), Some(names[0].as_str()));
}

#[test]
fn a_file_cut_while_it_is_read_harms_nobody() {
    let workshop = Workshop::new();
    let (text, names, _) = source(3);
    workshop.write("main.c", &text);
    workshop.run("gcc", ["-O2", "-g", "main.c", "-o", "program"]);
    let addresses = workshop.functions("program");
    let whole = fs::metadata(workshop.path("program")).unwrap().len();
    // Cut after it was named: the private copy goes on.
    let mut ours = Names::of(&workshop.path("program"));
    assert_eq!(ours.at(addresses[&names[0]]).fidelity, Fidelity::Lines);
    let file = fs::OpenOptions::new().write(true).open(workshop.path("program")).unwrap();
    file.set_len(whole / 2).unwrap();
    assert_eq!(ours.at(addresses[&names[1]]).lines.last().map(mangled), Some(names[1].as_str()));
    // Cut before: no names, and counted.
    let mut ours = Names::of(&workshop.path("program"));
    assert_eq!(ours.at(addresses[&names[0]]).fidelity, Fidelity::Address);
    assert_eq!(ours.statistics().files.unreadable, 1);
}

#[test]
fn what_does_not_fit_is_left_out_and_counted() {
    let workshop = Workshop::new();
    let (text, names, _) = source(3);
    workshop.write("main.c", &text);
    workshop.run("gcc", ["-O2", "-g3", "-static", "main.c", "-o", "program"]);
    let addresses = workshop.functions("program");
    let sections =
        workshop.run("sh", ["-ec", "size -A program | awk '/debug_|symtab|strtab/ {s += $2} END {print s}'"]);
    assert!(!sections.is_empty());
    let mut bounds = Bounds::default();
    bounds.files.file_bytes = 200 * 1024;
    let mut ours = Names::with(&workshop.path("program"), bounds);
    let symbol = ours.at(addresses[&names[0]]);
    let limited = ours.statistics().files.partial;
    assert!(limited == 1 || symbol.fidelity == Fidelity::Lines, "{symbol:?}");
    bounds.files.file_bytes = 100;
    let mut ours = Names::with(&workshop.path("program"), bounds);
    assert_eq!(ours.at(addresses[&names[0]]).fidelity, Fidelity::Address);
    assert_eq!(ours.statistics().file_bytes, 0);
}

#[test]
fn damaged_debug_information_harms_nobody() {
    let workshop = Workshop::new();
    let (text, names, _) = source(6);
    workshop.write("main.c", &text);
    workshop.run("gcc", ["-O2", "-g", "main.c", "-o", "program"]);
    let addresses = workshop.functions("program");
    let whole = fs::read(workshop.path("program")).unwrap();
    let length = whole.len() as u64;
    let file = fs::File::open(workshop.path("program")).unwrap();
    let elf = Elf::read(&OpenFile { file, length }).unwrap();
    let debug: Vec<(usize, usize)> = { elf.sections.iter() }
        .filter(|section| section.name.starts_with(".debug_") && section.length > 0)
        .map(|section| (usize::try_from(section.offset).unwrap(), usize::try_from(section.length).unwrap()))
        .collect();
    assert!(debug.len() > 3, "{debug:?}");
    let mut symbols = Symbols::with(Bounds::default(), Kernel::of(Functions::default()));
    let mut damaged_names = 0;
    for id in 1..100 {
        let mut bytes = whole.clone();
        for _ in 0..fastrand::usize(1..60) {
            let (offset, length) = debug[fastrand::usize(..debug.len())];
            bytes[offset + fastrand::usize(..length)] = fastrand::u8(..);
        }
        let path = workshop.path("damaged");
        fs::write(&path, &bytes).unwrap();
        let handle = fs::File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let file = File { id, handle: Some(&handle), path: "/damaged", root: &workshop.path("") };
        for name in &names {
            for offset in [0, 9] {
                let symbol = symbols.name(&CodeAddress::File { file, address: addresses[name] + offset });
                damaged_names += usize::from(symbol.fidelity != Fidelity::Address);
            }
        }
        symbols.forget_file(id);
    }
    // Tables of symbols were not touched: most names are still there.
    assert!(damaged_names > 600, "{damaged_names} of 1188");
    let statistics = symbols.statistics();
    assert_eq!((statistics.files.too_slow, statistics.file_bytes), (0, 0), "{statistics:?}");
    let handle = fs::File::open(workshop.path("program")).unwrap();
    let file = File { id: 1000, handle: Some(&handle), path: "/program", root: &workshop.path("") };
    let symbol = symbols.name(&CodeAddress::File { file, address: addresses[&names[0]] });
    assert_eq!(symbol.fidelity, Fidelity::Lines, "the others go on");
}
