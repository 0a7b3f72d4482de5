//! Rust: generics, closures, methods, in both manglings.

use obi::profile::{Fidelity, Runtime};

use super::program::{Names, Workshop, mangled, word};

#[test]
fn names_of_rust_are_readable() {
    for (mangling, is_debug) in [("v0", false), ("v0", true), ("legacy", false), ("legacy", true)] {
        let workshop = Workshop::new();
        let (module, kind, method, generic, outer) =
            (word("module"), word("Kind"), word("method"), word("generic"), word("outer"));
        let text = format!(
            "use std::hint::black_box;\nmod {module} {{\n use std::hint::black_box;\n\
             pub struct {kind}(pub u64);\n impl {kind} {{ #[inline(never)] pub fn {method}(&self) -> u64 {{ black_box(self.0) * 3 }} }}\n\
             #[inline(never)] pub fn {generic}<T: Copy + Into<u64>>(value: T) -> u64 {{ black_box(value.into()) + 1 }}\n\
             #[inline(never)] pub fn {outer}(n: u64) -> u64 {{ let closure = |x| black_box(x) * n; let inner: &dyn Fn(u64) -> u64 = black_box(&closure); inner(4) }} }}\n\
             fn main() {{ println!(\"{{}}\", {module}::{kind}(black_box(1)).{method}() + {module}::{generic}(black_box(7_u32)) + {module}::{outer}(black_box(2))); }}\n"
        );
        workshop.write("main.rs", &text);
        let mangled_by = format!("-Csymbol-mangling-version={mangling}");
        let stable = if mangling == "legacy" { "-Zunstable-options" } else { "-Copt-level=1" };
        let debug = if is_debug { "-Cdebuginfo=2" } else { "-Cdebuginfo=0" };
        let arguments =
            [&mangled_by, stable, "-Copt-level=1", debug, "--crate-name", "shop", "main.rs", "-o", "program"];
        let compile = [&["RUSTC_BOOTSTRAP=1", "rustc"], arguments.as_slice()].concat();
        workshop.run("env", compile);
        let functions = workshop.functions("program");
        let mut ours = Names::of(&workshop.path("program"));
        let mut check = |part: &str, is_closure: bool, expected: &[&str]| {
            let (name, address) = functions
                .iter()
                .find(|(name, _)| name.contains(part) && name.contains("closure") == is_closure)
                .unwrap_or_else(|| panic!("{part} in {functions:?}"));
            let symbol = ours.at(*address);
            let line = symbol.lines.last().unwrap();
            assert!(expected.contains(&&*line.function), "{}: {expected:?} {mangling}", line.function);
            assert_eq!(mangled(line), name);
            assert_eq!(symbol.runtime, Runtime::Rust);
            assert_eq!(symbol.fidelity, if is_debug { Fidelity::Lines } else { Fidelity::Function });
        };
        check(
            &method,
            false,
            &[&format!("shop::{module}::{kind}::{method}"), &format!("<shop::{module}::{kind}>::{method}")],
        );
        check(
            &generic,
            false,
            &[&format!("shop::{module}::{generic}"), &format!("shop::{module}::{generic}::<u32>")],
        );
        // Closures have no letters of their own in the new mangling.
        if mangling == "legacy" {
            check(&outer, true, &[&format!("shop::{module}::{outer}::{{{{closure}}}}")]);
        }
    }
}
