//! Compiles the capture logic of the kernel programs, and a kernel to run it in, for the host.
//!
//! In: `src/kernel.c`, its headers, and the headers under `obi-ebpf/src/bpf`. Out: a static library.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=../src/bpf");
    println!("cargo::rerun-if-env-changed=OBI_CLANG");
    let chosen = std::env::var("OBI_CLANG").into_iter();
    let compiler = chosen.chain(["clang-19", "clang", "cc"].map(str::to_owned)).find(|name| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    });
    let mut build = cc::Build::new();
    if let Some(compiler) = compiler {
        build.compiler(compiler);
    }
    // Undefined behaviour traps. Unaligned loads are meant; loop bodies are called through one type, as by bpf_loop.
    for flag in ["-fsanitize=undefined", "-fno-sanitize=alignment,function", "-fsanitize-trap=undefined"] {
        build.flag_if_supported(flag);
    }
    // Set by cargo-fuzz, which brings the runtime of both.
    if std::env::var_os("CARGO_CFG_FUZZING").is_some() {
        build.flag("-fsanitize=address,fuzzer-no-link");
    }
    if std::env::var_os("CARGO_FEATURE_PORTABLE").is_some() {
        build.define("OBI_PORTABLE", None);
    }
    build
        .file("src/kernel.c")
        .file("src/unwind.c")
        .file("src/waiting.c")
        .file("src/guest.c")
        .file("src/hotspot.c")
        .include("../src/bpf")
        .define("OBI_HOST", None)
        .warnings(true)
        .extra_warnings(true)
        .flag_if_supported("-Wno-unused-parameter")
        .flag_if_supported("-Wno-unused-function")
        .opt_level(2)
        .debug(true)
        .compile("obi_host_kernel");
}
