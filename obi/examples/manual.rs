//! Manual pages and completions for shells, made of the arguments that `obi` takes.
//!
//! In: a folder. Out: `obi.1`, `obi-run.1`, … and `obi.bash`, `_obi`, `obi.fish` in it. `make packages` calls it.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use obi::command::arguments::Arguments;

fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).context("usage: manual FOLDER")?;
    std::fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let mut command = without_help(Arguments::command());
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "obi", &folder)
            .with_context(|| format!("failed to write completions for {shell}"))?;
    }
    clap_mangen::generate_to(command, &folder).context("failed to write manual pages")?;
    Ok(())
}

/// `obi help run` says what `obi run --help` does: it needs no page of its own.
fn without_help(command: Command) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|inner| inner.get_name().to_owned()).collect();
    let command = command.disable_help_subcommand(true);
    names.into_iter().fold(command, |command, name| command.mut_subcommand(name, without_help))
}
