//! The `obi` command: arguments in, exit code out.

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use obi::command::arguments::{Arguments, Command};
use obi::command::{self, check, demo, doctor, profile, run, slo};

fn main() -> ExitCode {
    obi::agent::heap::limit();
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return command::refuse(&error, &Arguments::command()),
    };
    if let Err(error) = command::start_logging() {
        return command::fail(&error.into());
    }
    let result = match arguments.command {
        Command::Run(args) => run::run(&args, obi::agent::run),
        Command::Demo(args) => demo::demo(args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Check(args) => check::check(&args),
        Command::Profile(args) => profile::profile(&args),
        Command::Slo(args) => slo::slo(&args),
        Command::DemoService(args) => demo::demo_service(args),
    };
    result.unwrap_or_else(|error| command::fail(&error))
}
