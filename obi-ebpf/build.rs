//! Compiles the kernel programs with clang and generates the Rust side of `event.h`.
//!
//! In: `*.bpf.c` and headers under `src/bpf`, which include each other by their paths below it. Out: one compressed
//! object per program set and `event.rs` in `OUT_DIR`.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flate2::Compression;
use flate2::write::ZlibEncoder;

fn main() {
    println!("cargo::rerun-if-changed={ROOT}");
    println!("cargo::rerun-if-env-changed=OBI_CLANG");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let objects = OBJECTS.iter().try_for_each(|object| compress(&compile(object, &out)?));
    if let Err(message) = objects.and_then(|()| generate_event_types(&out)) {
        println!("cargo::error={message}");
        std::process::exit(1);
    }
}

/// The source of a hook set, or of the profiler beside it, compiled for newer or (`portable`) for all supported
/// kernels.
#[derive(Debug)]
struct Object {
    folder: &'static str,
    set: &'static str,
    portable: bool,
}

const OBJECTS: [Object; 12] = [
    Object { folder: "hook", set: "socket", portable: false },
    Object { folder: "hook", set: "fentry", portable: false },
    Object { folder: "hook", set: "kprobe", portable: false },
    Object { folder: "hook", set: "syscall", portable: false },
    Object { folder: "hook", set: "fentry", portable: true },
    Object { folder: "hook", set: "kprobe", portable: true },
    Object { folder: "hook", set: "syscall", portable: true },
    Object { folder: "profile", set: "profile", portable: false },
    Object { folder: "profile", set: "profile", portable: true },
    Object { folder: "profile", set: "faults", portable: false },
    Object { folder: "profile", set: "faults", portable: true },
    Object { folder: "profile", set: "waits", portable: false },
];

/// What every `#include "…"` is relative to.
const ROOT: &str = "src/bpf";

const INSTALL: &str =
    "install it with `apt-get install clang-19 llvm-19 libclang1-19 libbpf-dev linux-libc-dev`";

/// Kernel programs are C because rustc emits no CO-RE relocations; any clang from 14 on will do.
fn find_clang() -> Result<String, String> {
    let candidates = match std::env::var("OBI_CLANG") {
        Ok(chosen) => vec![chosen],
        Err(_) => {
            let versioned = (14..=22).rev().map(|version| format!("clang-{version}"));
            std::iter::once("clang-19".to_owned()).chain(["clang".to_owned()]).chain(versioned).collect()
        }
    };
    candidates
        .iter()
        .find(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()))
        .cloned()
        .ok_or_else(|| format!("no clang found (tried {}): {INSTALL}", candidates.join(", ")))
}

/// Where this machine has the headers of its own architecture: plain integers are the same on all that are compiled
/// for.
fn multiarch() -> String {
    format!("/usr/include/{}-linux-gnu", std::env::consts::ARCH)
}

/// Where the object is.
fn compile(object: &Object, out: &Path) -> Result<PathBuf, String> {
    let clang = find_clang()?;
    let architecture = match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
        Ok("x86_64") => "x86",
        Ok("aarch64") => "arm64",
        other => return Err(format!("no kernel programs for target architecture {other:?}")),
    };
    let multiarch = multiarch();
    let Object { folder, set, portable } = object;
    let source = format!("{ROOT}/{folder}/{set}.bpf.c");
    let (suffix, flavour) = if *portable { (".portable", Some("-DOBI_PORTABLE")) } else { ("", None) };
    let path = out.join(format!("{set}{suffix}.bpf.o"));
    let output = Command::new(&clang)
        .args(["-target", "bpf", "-g", "-O2", "-Wall", "-Wextra", "-Werror"])
        // The macros for typed programs declare a context that most of them do not use.
        .arg("-Wno-unused-parameter")
        // v3 adds 32-bit and atomic instructions; every kernel from 5.10 on accepts it.
        .arg("-mcpu=v3")
        .arg(format!("-D__TARGET_ARCH_{architecture}"))
        .args(flavour)
        .arg(format!("-I{multiarch}"))
        .arg(format!("-I{ROOT}"))
        .arg("-c")
        .arg(&source)
        .arg("-o")
        .arg(&path)
        .output()
        .map_err(|error| format!("failed to run `{clang}`: {error}"))?;
    if !output.status.success() {
        let log = String::from_utf8_lossy(&output.stderr);
        for line in log.lines() {
            println!("cargo::warning={line}");
        }
        let hint = if log.contains("bpf/bpf_helpers.h") { INSTALL } else { "see the warnings above" };
        return Err(format!("`{clang}` failed on {source}: {hint}"));
    }
    Ok(path)
}

/// Writes `path.zlib`: the objects were a third of the agent's file, and debugging information half of theirs.
fn compress(path: &Path) -> Result<(), String> {
    let compress = || {
        let mut encoder = ZlibEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&fs::read(path)?)?;
        fs::write(path.with_added_extension("zlib"), encoder.finish()?)
    };
    compress().map_err(|error| format!("failed to compress {}: {error}", path.display()))
}

/// Adds the zerocopy derives to every generated structure: they refuse implicit padding.
#[derive(Debug)]
struct PlainBytes;

impl bindgen::callbacks::ParseCallbacks for PlainBytes {
    fn add_derives(&self, info: &bindgen::callbacks::DeriveInfo<'_>) -> Vec<String> {
        match info.kind {
            bindgen::callbacks::TypeKind::Struct => {
                ["FromBytes", "IntoBytes", "Immutable", "KnownLayout"].map(str::to_owned).to_vec()
            }
            _ => Vec::new(),
        }
    }
}

fn generate_event_types(out: &Path) -> Result<(), String> {
    bindgen::Builder::default()
        .header(format!("{ROOT}/event.h"))
        .clang_arg(format!("-I{ROOT}"))
        .clang_arg(format!("-I{}", multiarch()))
        .allowlist_file(format!(
            "{ROOT}/(event|profile/unwind_table|(profile|waiting)/record|runtime/layout|tls/layout)\\.h"
        ))
        .parse_callbacks(Box::new(PlainBytes))
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .derive_default(true)
        .layout_tests(true)
        .generate()
        .map_err(|error| format!("failed to generate Rust types from {ROOT}/event.h: {error}; {INSTALL}"))?
        .write_to_file(out.join("event.rs"))
        .map_err(|error| format!("failed to write event.rs: {error}"))
}
