//! The subcommands of `obi`: parsed arguments in, exit code out.

pub mod demo;
