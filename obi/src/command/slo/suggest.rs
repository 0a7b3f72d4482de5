//! `obi slo suggest`: objectives to begin with, from what the running agent has seen of a service.
//!
//! In: a service's name. Out: OpenSLO text. Refuses to compute anything itself.

use std::process::ExitCode;

use super::agent::{self, AgentAddress};
use crate::command::print;

/// Suggest objectives for a service, from what the running agent has seen of it
///
/// Prints an OpenSLO file with an objective for success and one for speed; the targets are what the service has kept,
/// with a margin. Let the agent watch for a day or more first. Exit codes: 0 printed; 1 no agent answers, or it has not
/// seen such a service answer requests.
#[derive(Debug, clap::Args)]
#[command(
    after_long_help = "Examples:\n  obi slo suggest checkout > checkout.yaml && obi slo lint checkout.yaml"
)]
pub struct SuggestArgs {
    /// `service.name`, as in the metrics
    pub service: String,

    /// Which agent is asked.
    #[command(flatten)]
    pub place: AgentAddress,
}

/// Asks and prints.
///
/// # Errors
/// When the configuration is not valid, no agent answers, or it does not know the service.
pub fn suggest(args: &SuggestArgs) -> anyhow::Result<ExitCode> {
    print(&agent::ask(&args.place, "/api/v1/slos/suggested", &[("service", &args.service)])?)?;
    Ok(ExitCode::SUCCESS)
}
