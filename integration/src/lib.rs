//! End-to-end tests, sample workloads, kernel-matrix runner and benchmarks of `obi`.
//!
//! In reading order:
//!
//! - [`shape`], [`plan`]: what one exchange looks like; what a client has to do and what it reports.
//! - [`wire`]: sockets, one system call at a time; [`script`]: how the raw client and server follow a shape.
//! - [`process`], [`program`]: running and compiling the workloads; [`patience`]: on slow machines.
//! - [`server`], [`client`]: one builder per workload program.
//! - [`hook`]: what each hook set can see; [`patience`]: how long things may take here.
//! - [`agent`]: the real agent; [`span`], [`exposition`]: what it says.
//! - [`load`]: random shapes that a server and a client both know.
//! - [`otlp`]: who receives what the agent exports: a fake, faults in front of it, the real collector.
//! - [`alertmanager`]: a real one, and who it notifies; [`traffic`]: requests of which a share fails.
//! - [`rpc`]: calls over gRPC, servers, clients, and what happened. [`websocket`]: the same for WebSockets.
//! - [`accuracy`]: what happened against what the agent says.
//! - [`stack`]: programs whose stacks are known, and what a profile of them must show.
//! - [`sdk`]: services with OpenTelemetry's SDKs. [`seed`]: repeatable randomness.
//! - [`kernel`]: other kernels than this machine's.

pub mod accuracy;
pub mod agent;
pub mod alertmanager;
pub mod causality;
pub mod client;
pub mod database;
pub mod exposition;
pub mod fetch;
pub mod hook;
pub mod kernel;
pub mod load;
pub mod namespace;
pub mod otlp;
pub mod patience;
pub mod plan;
pub mod process;
pub mod program;
pub mod refusal;
pub mod rpc;
pub mod script;
pub mod sdk;
pub mod seat;
pub mod seed;
pub mod server;
pub mod shape;
pub mod span;
pub mod stack;
pub mod traffic;
pub mod websocket;
pub mod wire;
