//! Compilers of trees.
//!
//! In: a tree, a variant. Out: files in a folder of their own, gone with [`Built`]. Refuses to know what is in the
//! sources.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use tempfile::TempDir;

use super::tree::{Home, LIBRARIES, Tree};
use super::{Language, Variant, c, go, rust};
use crate::process::run;

const COMPILE: Duration = Duration::from_secs(300);

/// A program that is compiled.
#[derive(Debug)]
pub struct Built {
    /// What it consists of.
    pub tree: Tree,
    /// What it was made as.
    pub variant: Variant,
    /// Its executable.
    pub path: PathBuf,
    /// Its executable and its libraries.
    pub files: Vec<PathBuf>,
    _folder: TempDir,
}

/// Compiles a tree.
///
/// # Errors
/// When a compiler is missing or refuses.
pub fn build(tree: Tree, variant: Variant) -> anyhow::Result<Built> {
    let folder = tempfile::tempdir().context("make a folder for a program")?;
    let mut files = Vec::new();
    if variant.has_libraries {
        let beside = if variant.language == Language::Cpp { Language::Cpp } else { Language::C };
        for number in 0..LIBRARIES {
            let file = folder.path().join(format!("lib{}{number}.so", tree.service));
            let text = c::functions(&tree, beside, Home::Library(number));
            native(
                folder.path(),
                beside,
                &text,
                &file,
                &["-O2", "-fomit-frame-pointer", "-fPIC", "-shared"],
            )?;
            files.push(file);
        }
    }
    let path = folder.path().join(&tree.service);
    match variant.language {
        Language::C | Language::Cpp => {
            let text = c::executable(&tree, &variant);
            let libraries = libraries(&tree, &variant);
            let flags = variant.flags.iter().copied().chain(libraries.iter().map(String::as_str));
            let flags: Vec<&str> = flags.chain(["-rdynamic"]).collect();
            native(folder.path(), variant.language, &text, &path, &flags)?;
        }
        Language::Rust => {
            let source = folder.path().join("main.rs");
            fs::write(&source, rust::executable(&tree, &variant))?;
            let mut command = Command::new("rustc");
            command.args(["--edition=2024", "--crate-name", &tree.service]).args(variant.flags);
            // Behind everything, so that the last word on what is needed is ours.
            command.args(libraries(&tree, &variant).iter().map(|flag| format!("-Clink-arg={flag}")));
            compile(command.arg("-o").arg(&path).arg(&source), folder.path())?;
        }
        Language::Go => {
            let source = folder.path().join("main.go");
            fs::write(&source, go::executable(&tree, &variant))?;
            let mut command = Command::new("go");
            command.env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0").arg("build").args(variant.flags);
            compile(command.arg("-o").arg(&path).arg(&source), folder.path())?;
        }
    }
    files.push(path.clone());
    Ok(Built { tree, variant, path, files, _folder: folder })
}

/// Whatever needs them; libraries call each other, in both directions.
fn libraries(tree: &Tree, variant: &Variant) -> Vec<String> {
    if !variant.has_libraries {
        return Vec::new();
    }
    let mut flags = vec!["-Wl,-rpath,$ORIGIN".to_owned(), "-L.".to_owned(), "-Wl,--no-as-needed".to_owned()];
    flags.extend((0..LIBRARIES).map(|number| format!("-l{}{number}", tree.service)));
    flags
}

/// C or C++; flags that name libraries have to stand behind the source.
pub(super) fn native(
    folder: &Path,
    language: Language,
    text: &str,
    output: &Path,
    flags: &[&str],
) -> anyhow::Result<()> {
    let (compiler, ending) = if language == Language::Cpp { ("c++", "cc") } else { ("cc", "c") };
    let source = output.with_extension(ending);
    fs::write(&source, text)?;
    let mut command = Command::new(compiler);
    command.args(["-Wall", "-Wextra", "-Werror", "-pthread", "-o"]).arg(output).arg(&source).args(flags);
    compile(&mut command, folder)
}

fn compile(command: &mut Command, folder: &Path) -> anyhow::Result<()> {
    command.current_dir(folder);
    let command = std::mem::replace(command, Command::new("true"));
    run("compiler of a program with known stacks", command, COMPILE)?;
    Ok(())
}
