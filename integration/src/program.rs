//! Where workload programs are, compiled at need.
//!
//! In: names. Out: paths. Compiled programs are kept beside the test binaries and made anew when their source is
//! newer. Refuses to know what they do.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};

use crate::process::run;

const COMPILE: Duration = Duration::from_secs(300);
const COMPILE_MODULE: Duration = Duration::from_secs(1_800);

/// A binary of this workspace, built beforehand by cargo.
///
/// # Errors
/// When it has not been built.
pub fn binary(name: &str) -> anyhow::Result<PathBuf> {
    let path = build_directory()?.join(name);
    if !path.is_file() {
        bail!("{} is missing: build it with `cargo build --workspace`", path.display());
    }
    Ok(path)
}

/// The agent: `OBI_BINARY`, or the one built in this workspace.
///
/// # Errors
/// When there is none.
pub fn agent() -> anyhow::Result<PathBuf> {
    match std::env::var_os("OBI_BINARY") {
        Some(path) => Ok(path.into()),
        None => binary("obi"),
    }
}

/// A file of the `workload` folder.
#[must_use]
pub fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("workload").join(name)
}

/// How a Go program is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Build {
    /// As `go build` does.
    Plain,
    /// Without symbols and debug information.
    Stripped,
    /// It can lie anywhere.
    Pie,
    /// The functions of its TLS have other names in its tables, as obfuscators make them.
    Nameless,
}

impl Build {
    /// Those whose TLS can be read.
    pub const READ: [Self; 3] = [Self::Plain, Self::Stripped, Self::Pie];
}

/// `NAME.go`, compiled.
///
/// # Errors
/// When the compiler is missing or refuses.
pub fn go(name: &str) -> anyhow::Result<PathBuf> {
    go_built(name, Build::Plain)
}

/// `NAME.go`, compiled in this way.
///
/// # Errors
/// As [`go`].
pub fn go_built(name: &str, build: Build) -> anyhow::Result<PathBuf> {
    const NAMELESS: &str = "go build -o \"$1.named\" \"$2\" && \
        LC_ALL=C sed s/writeRecordLocked/writeRecordHidden/g \"$1.named\" > \"$1\" && chmod +x \"$1\"";
    let file = source(&format!("{name}.go"));
    let (suffix, flag) = match build {
        Build::Plain => ("plain", None),
        Build::Stripped => ("stripped", Some("-ldflags=-s -w")),
        Build::Pie => ("pie", Some("-buildmode=pie")),
        Build::Nameless => ("nameless", None),
    };
    compiled(&file, &format!("go-{name}-{suffix}"), |output| {
        if build == Build::Nameless {
            let mut command = Command::new("sh");
            command.args(["-c", NAMELESS, "sh"]).arg(output).arg(&file);
            return command;
        }
        let mut command = Command::new("go");
        command.arg("build").args(flag).arg("-o").arg(output).arg(&file);
        command
    })
}

/// `NAME.go`, compiled by another version of Go, such as `go1.21.13`, which is fetched.
///
/// # Errors
/// As [`go`], and when that version cannot be had.
pub fn go_of_version(name: &str, version: &str) -> anyhow::Result<PathBuf> {
    let file = source(&format!("{name}.go"));
    compiled_from(std::slice::from_ref(&file), &format!("go-{name}-{version}"), COMPILE_MODULE, |output| {
        let mut command = Command::new("go");
        command.env("GOTOOLCHAIN", version).args(["build", "-ldflags=-s -w", "-o"]).arg(output).arg(&file);
        command
    })
}

/// The Go module in `folder`, compiled as `name`. Its first build, with an empty build cache, takes minutes.
///
/// # Errors
/// When the compiler is missing, too old or refuses.
pub fn go_module(folder: &Path, name: &str) -> anyhow::Result<PathBuf> {
    // `go.sum` changes with every version of every module.
    let mut sources = vec![folder.join("go.sum")];
    for entry in fs::read_dir(folder).with_context(|| format!("read {}", folder.display()))? {
        let path = entry?.path();
        sources.extend(Some(path).filter(|path| path.extension().is_some_and(|extension| extension == "go")));
    }
    compiled_from(&sources, name, COMPILE_MODULE, |output| {
        let mut command = Command::new("go");
        command.args(["build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o"]).arg(output).arg(".");
        command.current_dir(folder);
        command
    })
}

/// A program of a Go module that is published, such as `example.org/module/cmd/name@version`, compiled as `name`.
///
/// # Errors
/// When the module cannot be had, or the compiler is missing, too old or refuses.
pub fn go_published(package: &str, name: &str) -> anyhow::Result<PathBuf> {
    compiled_from(&[], name, COMPILE_MODULE, |output| {
        let mut command = Command::new("go");
        command.args(["install", "-trimpath", "-ldflags=-s -w", package]);
        command.env("GOBIN", output.parent().expect("a file in a folder"));
        command
    })
}

/// The Go programs over HTTP/2, gRPC included.
///
/// # Errors
/// As [`go_module`].
pub fn multiplex() -> anyhow::Result<PathBuf> {
    go_module(&source("multiplex"), "multiplex")
}

/// A folder with the Python packages of `requirements.txt`, from the package index.
///
/// # Errors
/// When pip is missing or fails.
pub fn python_packages() -> anyhow::Result<PathBuf> {
    let file = source("requirements.txt");
    compiled(&file, "python-packages", |output| {
        let mut command = Command::new("python3");
        command.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target"]);
        command.arg(output).arg("--requirement").arg(&file);
        command
    })
}

/// A folder whose `node_modules` has the packages of `node/package-lock.json`, from the package registry.
///
/// # Errors
/// When npm is missing or fails.
pub fn node_packages() -> anyhow::Result<PathBuf> {
    node_packages_of("node", "node-packages")
}

/// The same of another folder, kept as `name`.
///
/// # Errors
/// As [`node_packages`].
pub fn node_packages_of(folder: &str, name: &str) -> anyhow::Result<PathBuf> {
    let folder = source(folder);
    let sources = [folder.join("package.json"), folder.join("package-lock.json")];
    compiled_from(&sources, name, COMPILE, |output| {
        let script = "mkdir \"$1\" && cp \"$2\"/*.json \"$1\" && cd \"$1\" && npm ci --ignore-scripts --no-audit --no-fund";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]).arg(output).arg(&folder);
        command
    })
}

/// `NAME.c`, compiled with these libraries.
///
/// # Errors
/// When the compiler or a library is missing or it refuses.
pub fn c(name: &str, libraries: &[&str]) -> anyhow::Result<PathBuf> {
    let file = source(&format!("{name}.c"));
    compiled(&file, name, |output| {
        let mut command = Command::new("cc");
        command.args(["-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"]);
        command.arg(output).arg(&file);
        command.args(libraries.iter().map(|library| format!("-l{library}")));
        command
    })
}

/// What the server and client of many threads have TLS from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// OpenSSL's library.
    Shared,
    /// OpenSSL compiled in, and all names taken away.
    Nameless,
    /// GnuTLS's library.
    GnuTls,
}

/// Server and client of many threads over TLS.
///
/// # Errors
/// As [`c`].
pub fn threads(library: Threads) -> anyhow::Result<PathBuf> {
    const NAMELESS: &str = "cc -D_GNU_SOURCE -O2 -pthread -o \"$1\" \"$2\" \
        -Wl,-Bstatic -lssl -lcrypto -Wl,-Bdynamic && strip -s \"$1\"";
    match library {
        Threads::Shared => c("threads", &["ssl", "crypto"]),
        Threads::GnuTls => c("threads_gnutls", &["gnutls"]),
        Threads::Nameless => compiled(&source("threads.c"), "threads-nameless", |output| {
            let mut command = Command::new("sh");
            command.args(["-c", NAMELESS, "sh"]).arg(output).arg(source("threads.c"));
            command
        }),
    }
}

/// Server and clients over rustls: `OBI_TEST_RUSTLS_PEER`, or those built in this workspace.
///
/// # Errors
/// When they have not been built.
pub fn rustls_peer() -> anyhow::Result<PathBuf> {
    match std::env::var_os("OBI_TEST_RUSTLS_PEER") {
        Some(path) => Ok(path.into()),
        None => binary("rustls_peer"),
    }
}

/// The same without its symbols.
///
/// # Errors
/// As [`rustls_peer`], and when `strip` is missing or fails.
pub fn rustls_peer_stripped() -> anyhow::Result<PathBuf> {
    let named = rustls_peer()?;
    let name = format!("stripped{}", named.display()).replace('/', "-");
    compiled(&named, &name, |output| {
        let mut command = Command::new("strip");
        command.arg("-o").arg(output).arg(&named);
        command
    })
}

/// Makes all that the tests inside other kernels need: there is no network, and compilers take long there.
///
/// # Errors
/// As the functions that make them.
pub fn prepare() -> anyhow::Result<()> {
    for make in [python_packages, node_packages, multiplex, || c("io_uring_server", &["uring"])] {
        make()?;
    }
    for library in [Threads::Shared, Threads::Nameless, Threads::GnuTls] {
        threads(library)?;
    }
    Ok(())
}

/// `NAME.java`, compiled: a class path.
///
/// # Errors
/// When the compiler is missing or refuses.
pub fn java(name: &str) -> anyhow::Result<PathBuf> {
    let file = source(&format!("{name}.java"));
    compiled(&file, &format!("java-{name}"), |output| {
        let mut command = Command::new("javac");
        command.arg("-d").arg(output).arg(&file);
        command
    })
}

/// `NAME.java`, compiled against the packages of `java/pom.xml`: a class path with both, from the package registry.
///
/// # Errors
/// When Maven or the compiler is missing or fails.
pub fn java_with_packages(name: &str) -> anyhow::Result<OsString> {
    java_of("java", "java-packages", name)
}

/// The same of the packages of `FOLDER/pom.xml`, which are kept as `kept_as`.
///
/// # Errors
/// As [`java_with_packages`].
pub fn java_of(folder: &str, kept_as: &str, name: &str) -> anyhow::Result<OsString> {
    const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.11.0:copy-dependencies";
    let manifest = source(folder).join("pom.xml");
    let packages = compiled(&manifest, kept_as, |output| {
        let mut command = Command::new("mvn");
        command.args(["--quiet", "--batch-mode", COPY, "--file"]).arg(&manifest);
        command.arg(format!("-DoutputDirectory={}", output.display()));
        command
    })?;
    let (file, packages) = (source(&format!("{name}.java")), packages.join("*"));
    let classes = compiled(&file, &format!("java-{}", name.replace('/', "-")), |output| {
        let mut command = Command::new("javac");
        command.arg("-cp").arg(&packages).arg("-d").arg(output).arg(&file);
        command
    })?;
    Ok(std::env::join_paths([classes, packages])?)
}

/// The Rust package in `folder`, which is none of this workspace, compiled as `name`.
///
/// # Errors
/// When a crate cannot be had, or the compiler refuses.
pub fn rust_package(folder: &str, name: &str) -> anyhow::Result<PathBuf> {
    const BUILD: &str = "cargo build --quiet --locked --manifest-path \"$2/Cargo.toml\" --target-dir \"$3\" && \
        cp \"$3/debug/$(basename \"$1\")\" \"$1\"";
    let folder = source(folder);
    let sources = ["Cargo.toml", "Cargo.lock", "src/main.rs"].map(|file| folder.join(file));
    let target = build_directory()?.join("workload").join(format!("{name}-target"));
    compiled_from(&sources, name, COMPILE_MODULE, |output| {
        let mut command = Command::new("sh");
        command.args(["-c", BUILD, "sh"]).arg(output).arg(&folder).arg(&target);
        command
    })
}

/// The folder that cargo puts binaries in: that of this executable, or the one above `deps`.
fn build_directory() -> anyhow::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let folder = own.parent().context("an executable is in a folder")?;
    Ok(if folder.ends_with("deps") {
        folder.parent().context("deps has a parent")?.into()
    } else {
        folder.into()
    })
}

fn compiled(file: &Path, name: &str, compiler: impl Fn(&Path) -> Command) -> anyhow::Result<PathBuf> {
    compiled_from(&[file.to_owned()], name, COMPILE, compiler)
}

fn compiled_from(
    sources: &[PathBuf],
    name: &str,
    limit: Duration,
    compiler: impl Fn(&Path) -> Command,
) -> anyhow::Result<PathBuf> {
    static COMPILER: Mutex<()> = Mutex::new(());
    let _one_at_a_time = COMPILER.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = build_directory()?.join("workload");
    let output = folder.join(name);
    let modified = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified());
    if let Ok(made) = modified(&output)
        && sources.iter().all(|source| modified(source).is_ok_and(|source| source < made))
    {
        return Ok(output);
    }
    fs::create_dir_all(&folder)?;
    let fresh = tempfile::tempdir_in(&folder)?;
    let unfinished = fresh.path().join(name);
    run(&format!("compiler of {name}"), compiler(&unfinished), limit)?;
    if output.is_dir() {
        fs::remove_dir_all(&output)?;
    }
    fs::rename(&unfinished, &output).with_context(|| format!("move {} into place", output.display()))?;
    Ok(output)
}
