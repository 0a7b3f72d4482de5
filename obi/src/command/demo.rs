//! `obi demo`: a small shop of four services and a shopper, and the agent that watches them.
//!
//! In: [`DemoArgs`]. Out: the children run until the time is up, a signal arrives or one of them ends; what the
//! agent exports meanwhile is summarized on standard output. Refuses to know how the agent works: it starts
//! `obi run` as a user would and reads `/metrics` as Prometheus would. The services know nothing of the agent.
#![forbid(unsafe_code)]

mod caller;
mod cart;
mod catalog;
mod child;
mod children;
mod frontend;
mod inventory;
mod promise;
mod search;
mod service;
mod shopper;
mod similar;
mod stop;
mod summary;
mod temper;

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout};

use self::caller::{Call, Caller};
use self::children::Children;
pub use self::service::{DemoServiceArgs, demo_service};
use self::stop::Stop;

/// How long the agent may take until `/readyz` says yes.
const READY_LIMIT: Duration = Duration::from_secs(30);
/// Children are looked after once per tick.
const TICK: Duration = Duration::from_secs(1);
const TICKS_PER_SUMMARY: u64 = 5;

/// Run a small workload of our own together with the agent, so that everything has something to show.
///
/// Starts a web shop as ordinary processes – frontend, cart, catalog and inventory, with errors and slow tails –
/// and a shopper that keeps it busy. None of them knows the agent. Then starts `obi run`, prints where to look,
/// and every few seconds what the agent has seen. Ends with Ctrl-C; everything it started ends with it.
#[derive(Debug, clap::Args)]
pub struct DemoArgs {
    /// Stop by itself after this many seconds
    #[arg(long, value_name = "SECONDS")]
    pub duration: Option<u64>,
    /// Where the agent serves metrics and API; port 0 picks a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9464")]
    pub listen: SocketAddr,
    /// Requests per second that the shopper sends to the frontend, up to 1000
    #[arg(long, value_name = "N", default_value_t = 20.0, value_parser = rate)]
    pub rate: f64,
}

/// Runs the demo until it is asked to stop.
///
/// # Errors
/// When a child cannot be started, the agent does not become ready, or a service ends by itself. When the agent
/// ends by itself it has said why, and its exit code is handed on.
pub fn demo(args: DemoArgs) -> anyhow::Result<ExitCode> {
    // One thread only: the children are tied to the life of the very thread that starts them.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("failed to start the async runtime")?
        .block_on(run(&args))
}

async fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let mut stop = Stop::new(args.duration)?;
    let agent = reachable(args.listen);
    let mut stage = Stage { agent, caller: Caller::new(), children: Children::default() };
    let outcome = match stage.start(args) {
        Ok(()) => stage.play(&mut stop).await,
        Err(error) => Err(error),
    };
    stage.children.stop().await;
    outcome
}

struct Stage {
    agent: SocketAddr,
    caller: Caller,
    children: Children,
}

impl Stage {
    /// The agent last: a port that is free now is not taken by one of the services.
    fn start(&mut self, args: &DemoArgs) -> anyhow::Result<()> {
        self.children.start_shop(args.rate)?;
        let listen = with_port(args.listen)?;
        self.agent = reachable(listen);
        self.children.start_agent(listen)
    }

    async fn play(&mut self, stop: &mut Stop) -> anyhow::Result<ExitCode> {
        say(&format!("running: {}\nstarting the agent on http://{}\n", self.children, self.agent))?;
        let ready = tokio::select! {
            () = stop.wait() => return Ok(ExitCode::SUCCESS),
            ready = timeout(READY_LIMIT, self.wait_until_ready()) => ready,
        };
        match ready {
            Ok(Ok(None)) => {}
            Ok(Ok(Some(code))) => return Ok(code),
            Ok(Err(error)) => return Err(error),
            Err(_) => anyhow::bail!(
                "the agent on {} did not become ready within {} s",
                self.agent,
                READY_LIMIT.as_secs()
            ),
        }
        say(&intro(self.agent))?;
        self.watch(stop).await
    }

    /// `None`: the agent is ready. `Some(code)`: it gave up with this exit code.
    async fn wait_until_ready(&mut self) -> anyhow::Result<Option<ExitCode>> {
        loop {
            if let Some(code) = self.children.ended()? {
                return Ok(Some(code));
            }
            let reply = self.caller.call(Call::get(self.agent, "/readyz".to_owned())).await;
            if reply.is_ok_and(|reply| reply.status.is_success()) {
                return Ok(None);
            }
            sleep(Duration::from_millis(100)).await;
        }
    }

    async fn watch(&mut self, stop: &mut Stop) -> anyhow::Result<ExitCode> {
        let started = Instant::now();
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        for tick in 1_u64.. {
            tokio::select! {
                () = stop.wait() => break,
                _ = ticks.tick() => {}
            }
            if let Some(code) = self.children.ended()? {
                return Ok(code);
            }
            if tick % TICKS_PER_SUMMARY == 0 {
                let seen = self.summary().await;
                say(&format!("\nafter {} s\n{seen}", started.elapsed().as_secs()))?;
            }
        }
        Ok(ExitCode::SUCCESS)
    }

    async fn summary(&self) -> String {
        match self.caller.call(Call::get(self.agent, "/metrics".to_owned())).await {
            Ok(reply) => summary::summarize(&String::from_utf8_lossy(&reply.body)),
            Err(error) => format!("no metrics from http://{}/metrics: {error}\n", self.agent),
        }
    }
}

/// Unlike `print!` this is an error, not a panic, when the reader has gone.
fn say(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).context("failed to write to standard output")
}

/// Replaces port 0 by one that is free now.
fn with_port(listen: SocketAddr) -> anyhow::Result<SocketAddr> {
    if listen.port() != 0 {
        return Ok(listen);
    }
    TcpListener::bind(listen)
        .and_then(|probe| probe.local_addr())
        .with_context(|| format!("failed to find a free port for {listen}"))
}

/// The address to connect to: a listener on every address is reached over loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        other => other,
    };
    SocketAddr::new(ip, listen.port())
}

fn rate(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|rate| *rate > 0.0 && *rate <= 1000.0)
        .ok_or_else(|| "expected a number above 0 and up to 1000".to_owned())
}

fn intro(agent: SocketAddr) -> String {
    format!(
        "\nthe agent is ready\n  \
         curl -s 'http://{agent}/api/v1/spans?service=frontend&limit=3' | jq .\n  \
         curl -s 'http://{agent}/api/v1/spans?error=true&limit=3' | jq .\n  \
         curl -s 'http://{agent}/api/v1/spans?min_duration_ms=300&limit=3' | jq .\n  \
         curl -s http://{agent}/metrics | grep http_server_request_duration_seconds_count\n  \
         curl -s -H 'Accept: application/openmetrics-text' http://{agent}/metrics | grep trace_id\n\
         stop with Ctrl-C\n\n\
         in some seconds something is wrong in the shop; the page leads to the function that is to blame:\n  \
         http://{agent}/ in a browser\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_positive_and_bounded() {
        let check = |text: &str, expected: Option<f64>| assert_eq!(rate(text).ok(), expected, "{text}");
        check("20", Some(20.0));
        check("0.5", Some(0.5));
        check("1000", Some(1000.0));
        for refused in ["0", "-3", "1001", "", "NaN", "inf", "fast"] {
            check(refused, None);
        }
    }

    #[test]
    fn wildcards_are_reached_over_loopback() {
        let check = |listen: &str, expected: &str| {
            assert_eq!(reachable(listen.parse().unwrap()), expected.parse().unwrap(), "{listen}");
        };
        check("127.0.0.1:9464", "127.0.0.1:9464");
        check("0.0.0.0:9464", "127.0.0.1:9464");
        check("[::]:80", "[::1]:80");
        check("10.1.2.3:80", "10.1.2.3:80");
    }

    #[test]
    fn port_zero_becomes_a_real_one() {
        let check = |listen: &str| with_port(listen.parse().unwrap()).unwrap();
        assert_eq!(check("127.0.0.1:9464"), "127.0.0.1:9464".parse().unwrap());
        assert_ne!(check("127.0.0.1:0").port(), 0);
    }
}
