//! `obi slo`: objectives without the agent, and those of a running one.
//!
//! In: parsed arguments. Out: what the subcommand prints, and its exit code. One file per subcommand.
#![forbid(unsafe_code)]

pub mod agent;
pub mod evaluate;
pub mod lint;
mod pinned;
pub mod rules;
pub mod status;
pub mod suggest;

use std::process::ExitCode;

/// Check OpenSLO files; show budgets and burn rates; make rules for a fleet
#[derive(Debug, clap::Args)]
pub struct SloArgs {
    #[command(subcommand)]
    command: SloCommand,
}

#[derive(Debug, clap::Subcommand)]
enum SloCommand {
    Lint(lint::LintArgs),
    Rules(rules::RulesArgs),
    Status(status::StatusArgs),
    Suggest(suggest::SuggestArgs),
    Evaluate(evaluate::EvaluateArgs),
}

/// Runs the subcommand.
///
/// # Errors
/// As the subcommand says.
pub fn slo(args: &SloArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        SloCommand::Lint(args) => lint::lint(args),
        SloCommand::Rules(args) => rules::rules(args),
        SloCommand::Evaluate(args) => evaluate::evaluate(args),
        SloCommand::Status(args) => status::status(args),
        SloCommand::Suggest(args) => suggest::suggest(args),
    }
}
