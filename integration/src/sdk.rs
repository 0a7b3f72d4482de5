//! Services with OpenTelemetry's SDK, one of each language that has its own.
//!
//! In: a language. Out: the command of the service `orders`, which takes a ledger and the address of the service that
//! it calls; the command of that one. Refuses to know what they are tried for.

use std::process::Command;

use crate::program;

/// Languages, each with the SDK of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Language {
    /// Over gRPC or HTTP, as variables say.
    Python,
    /// JSON over HTTP.
    Node,
    /// Over gRPC.
    Go,
    /// Over gRPC or HTTP, as variables say.
    Java,
    /// Protobuf over HTTP.
    Rust,
}

impl Language {
    /// The service `orders`. Takes the path of a ledger and the URL of `stock`; says `ready PORT`. Its SDK reads the
    /// standard variables.
    ///
    /// # Errors
    /// When a compiler or a package cannot be had.
    pub fn orders(self) -> anyhow::Result<Command> {
        Ok(match self {
            Self::Python => {
                let mut command = python()?;
                command.arg("orders");
                command
            }
            Self::Node => {
                let packages = program::node_packages_of("sdk/node", "node-sdk-packages")?;
                let mut command = Command::new("node");
                command.arg(program::source("sdk/node/service.js"));
                command.env("NODE_PATH", packages.join("node_modules"));
                command
            }
            Self::Go => Command::new(program::go_module(&program::source("sdk/go"), "go-sdk")?),
            Self::Java => {
                let classes = program::java_of("sdk/java", "java-sdk-packages", "sdk/java/Service")?;
                let mut command = Command::new("java");
                command.arg("-cp").arg(classes).arg("Service");
                command
            }
            Self::Rust => Command::new(program::rust_package("sdk/rust", "sdk")?),
        })
    }
}

/// The service `stock`, without an SDK. Takes the path of a ledger; says `ready PORT`.
///
/// # Errors
/// When a package cannot be had.
pub fn stock() -> anyhow::Result<Command> {
    let mut command = python()?;
    command.arg("stock");
    Ok(command)
}

fn python() -> anyhow::Result<Command> {
    let mut command = Command::new("python3");
    command.arg(program::source("sdk/service.py")).env("PYTHONPATH", program::python_packages()?);
    Ok(command)
}
