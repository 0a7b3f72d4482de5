//! Manual pages and completions for shells, made of the arguments that `obi` takes.
//!
//! In: a folder. Out: `obi.1`, `obi-run.1`, … and `obi.bash`, `_obi`, `obi.fish` in it. `make packages` calls it.

use std::path::PathBuf;

use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;
use obi::command::arguments::Arguments;

fn main() -> anyhow::Result<()> {
    let folder = std::env::args_os().nth(1).map(PathBuf::from).context("usage: manual FOLDER")?;
    std::fs::create_dir_all(&folder).with_context(|| format!("failed to make {}", folder.display()))?;
    let mut command = Arguments::command();
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "obi", &folder)
            .with_context(|| format!("failed to write completions for {shell}"))?;
    }
    clap_mangen::generate_to(command, &folder).context("failed to write manual pages")?;
    Ok(())
}
