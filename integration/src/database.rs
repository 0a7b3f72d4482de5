//! Real databases, and programs that ask them through the libraries that services use.
//!
//! In: calls to make. Out: what each program says of its calls. Refuses to know what the agent makes of them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tempfile::TempDir;

use crate::otlp::certificate::Certificates;
use crate::patience::patience;
use crate::process::{self, Program, free_port};
use crate::program;

const READY: Duration = Duration::from_secs(30);
const CALLS: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

/// A running database. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    /// Where it listens on 127.0.0.1.
    pub port: u16,
    /// Its files, and its unix socket.
    pub files: TempDir,
    _program: Program,
}

impl Server {
    /// PostgreSQL, whose superuser `postgres` needs no password. It takes TLS, too, if a client asks for it.
    ///
    /// # Errors
    /// When it cannot be made or does not get ready.
    pub fn postgres() -> anyhow::Result<Self> {
        let (files, port) = (tempfile::tempdir()?, free_port()?);
        // It refuses to run as root, and its user has to come to its files.
        fs::set_permissions(files.path(), fs::Permissions::from_mode(0o777))?;
        let data = files.path().join("data");
        let mut make = as_postgres("initdb")?;
        make.args(["--auth=trust", "--username=postgres", "--no-sync", "--locale=C", "--pgdata"]).arg(&data);
        process::run("initdb", make, patience(READY))?;
        certify(&data)?;
        let mut command = as_postgres("postgres")?;
        command.arg("-D").arg(&data).arg("-k").arg(files.path());
        command.args([
            "-p",
            &port.to_string(),
            "-c",
            "fsync=off",
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            "ssl=on",
        ]);
        Self::start("postgres", command, files, port, |port| {
            let mut ask = Command::new("pg_isready");
            ask.args(["-q", "-h", "127.0.0.1", "-p", &port.to_string()]);
            ask
        })
    }

    /// Redis.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn redis() -> anyhow::Result<Self> {
        let (files, port) = (tempfile::tempdir()?, free_port()?);
        let mut command = Command::new("redis-server");
        command
            .args(["--port", &port.to_string(), "--save", "", "--bind", "127.0.0.1", "--dir"])
            .arg(files.path());
        command.arg("--unixsocket").arg(files.path().join("redis.sock"));
        Self::start("redis", command, files, port, |port| {
            let mut ask = Command::new("redis-cli");
            ask.args(["-e", "-p", &port.to_string(), "ping"]);
            ask
        })
    }

    /// In clear.
    #[must_use]
    pub fn at(&self) -> Port {
        Port { port: self.port, is_encrypted: false }
    }

    /// Over TLS.
    #[must_use]
    pub fn encrypted(&self) -> Port {
        Port { port: self.port, is_encrypted: true }
    }

    /// How often each command was run, as Redis itself counts it.
    ///
    /// # Errors
    /// When it does not say.
    pub fn commands(&self) -> anyhow::Result<BTreeMap<String, usize>> {
        let mut ask = Command::new("redis-cli");
        ask.args(["-p", &self.port.to_string(), "info", "commandstats"]);
        let mut commands = BTreeMap::new();
        for line in process::run("redis-cli", ask, patience(READY))? {
            // `cmdstat_client|tracking:calls=1,usec=…`
            let Some((name, counts)) = line.strip_prefix("cmdstat_").and_then(|rest| rest.split_once(':'))
            else {
                continue;
            };
            let calls = counts.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
            let calls: usize = calls.context("a command without a count")?.parse()?;
            let word = name.split('|').next().unwrap_or(name).to_uppercase();
            *commands.entry(word).or_default() += calls;
        }
        Ok(commands)
    }

    fn start(
        name: &str,
        command: Command,
        files: TempDir,
        port: u16,
        ask: impl Fn(u16) -> Command,
    ) -> anyhow::Result<Self> {
        let program = Program::spawn(name, command)?;
        let deadline = Instant::now() + patience(READY);
        while !ask(port).output().with_context(|| format!("ask {name} whether it is ready"))?.status.success()
        {
            if Instant::now() >= deadline {
                bail!("{name} did not get ready: {}", program.stderr()?);
            }
            thread::sleep(LOOK);
        }
        Ok(Self { port, files, _program: program })
    }
}

/// Gives PostgreSQL a certificate. It refuses a key that others can read, and one of another owner than root or itself.
fn certify(data: &Path) -> anyhow::Result<()> {
    let certificates = Certificates::new()?;
    for (from, to) in [("server.pem", "server.crt"), ("server.key", "server.key")] {
        let to = data.join(to);
        let mut copy = Command::new("install");
        copy.args(["-o", "postgres", "-m", "600"]).arg(certificates.path(from)).arg(&to);
        process::run("install", copy, patience(READY))?;
    }
    Ok(())
}

/// A program of PostgreSQL's server, as its own user.
fn as_postgres(name: &str) -> anyhow::Result<Command> {
    let mut versions: Vec<PathBuf> = fs::read_dir("/usr/lib/postgresql")
        .context("look for PostgreSQL in /usr/lib/postgresql")?
        .filter_map(|entry| Some(entry.ok()?.path().join("bin").join(name)))
        .filter(|path| path.is_file())
        .collect();
    versions.sort();
    let path = versions.pop().with_context(|| format!("no {name} in /usr/lib/postgresql/*/bin"))?;
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--init-groups", "--"]).arg(path);
    Ok(command)
}

/// A library that asks a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    /// `psql`, which reports no times.
    Psql,
    /// psycopg 3.
    Psycopg,
    /// psycopg 3 in libpq's pipeline mode.
    PsycopgPipeline,
    /// psycopg 3's COPY.
    PsycopgCopy,
    /// psycopg 3 with calls that are cancelled.
    PsycopgCancel,
    /// psycopg 3 with notifications.
    PsycopgNotify,
    /// libpq's pipeline mode, with errors in it.
    LibpqPipeline,
    /// libpq's COPY by the extended protocol.
    LibpqCopy,
    /// Java's pgjdbc, which prepares by name what comes often.
    Jdbc,
    /// The same by simple queries.
    JdbcSimple,
    /// Its batches.
    JdbcBatch,
    /// asyncpg.
    Asyncpg,
    /// Node's pg.
    NodePg,
    /// The same with statements prepared by name.
    NodePgPrepared,
    /// Go's pgx.
    Pgx,
    /// redis-py.
    RedisPy,
    /// redis-py's pipelines.
    RedisPyPipeline,
    /// redis-py with a subscription beside its commands.
    RedisPySubscribe,
    /// redis-py's transactions.
    RedisPyTransaction,
    /// redis-py by RESP 3, with a subscription beside its commands.
    RedisPyPushes,
    /// Bytes as they are: arrays and lines.
    RedisSocket,
    /// `redis-cli`, which reports no times.
    RedisCli,
    /// `redis-cli -3`.
    RedisCli3,
    /// ioredis, which does not wait for answers.
    Ioredis,
    /// go-redis.
    GoRedis,
}

impl Library {
    /// Those of PostgreSQL that make any call.
    pub const POSTGRES: [Self; 7] = [
        Self::Psql,
        Self::Psycopg,
        Self::PsycopgPipeline,
        Self::Asyncpg,
        Self::NodePg,
        Self::NodePgPrepared,
        Self::Pgx,
    ];
    /// Those of Redis that make any call.
    pub const REDIS: [Self; 7] = [
        Self::RedisPy,
        Self::RedisPyPipeline,
        Self::RedisPySubscribe,
        Self::RedisCli,
        Self::RedisCli3,
        Self::Ioredis,
        Self::GoRedis,
    ];

    /// Whether it says nothing of its calls.
    #[must_use]
    pub fn is_silent(self) -> bool {
        matches!(self, Self::Psql | Self::RedisCli | Self::RedisCli3)
    }

    fn command(self) -> anyhow::Result<Command> {
        let python = |name: &str| {
            let mut command = Command::new("python3");
            command.env("PYTHONPATH", program::python_packages()?);
            command.arg(program::source("database.py")).arg(name);
            anyhow::Ok(command)
        };
        let node = |name: &str| {
            let mut command = Command::new("node");
            command.env("NODE_PATH", program::node_packages()?.join("node_modules"));
            command.arg(program::source("database.js")).arg(name);
            anyhow::Ok(command)
        };
        let go = |name: &str| {
            let mut command = Command::new(program::go_module(&program::source("database"), "database")?);
            command.arg(name);
            anyhow::Ok(command)
        };
        let java = |name: &str| {
            let mut command = Command::new("java");
            command.args(["-Xmx64m", "-cp"]).arg(program::java_with_packages("Database")?);
            command.arg("Database").arg(name);
            anyhow::Ok(command)
        };
        match self {
            Self::Psql => Ok(Command::new("psql")),
            Self::Psycopg => python("psycopg"),
            Self::PsycopgPipeline => python("psycopg-pipeline"),
            Self::PsycopgCopy => python("psycopg-copy"),
            Self::PsycopgCancel => python("psycopg-cancel"),
            Self::PsycopgNotify => python("psycopg-notify"),
            Self::LibpqPipeline => python("libpq-pipeline"),
            Self::LibpqCopy => python("libpq-copy"),
            Self::Asyncpg => python("asyncpg"),
            Self::Jdbc => java("jdbc"),
            Self::JdbcSimple => java("jdbc-simple"),
            Self::JdbcBatch => java("jdbc-batch"),
            Self::NodePg => node("pg"),
            Self::NodePgPrepared => node("pg-prepared"),
            Self::Pgx => go("pgx"),
            Self::RedisPy => python("redis"),
            Self::RedisPyPipeline => python("redis-pipeline"),
            Self::RedisPySubscribe => python("redis-subscribe"),
            Self::RedisPyTransaction => python("redis-transaction"),
            Self::RedisPyPushes => python("redis-pushes"),
            Self::RedisSocket => python("redis-socket"),
            Self::RedisCli | Self::RedisCli3 => {
                let mut command = Command::new("sh");
                command.args(["-c", r#"plan=$1; shift; exec redis-cli "$@" <"$plan""#, "sh"]);
                Ok(command)
            }
            Self::Ioredis => node("ioredis"),
            Self::GoRedis => go("go-redis"),
        }
    }
}

/// Where a database is asked, and how.
#[derive(Debug, Clone, Copy)]
pub struct Port {
    /// On 127.0.0.1.
    pub port: u16,
    /// Over TLS; of PostgreSQL, by libraries that look at `PGSSLMODE`.
    pub is_encrypted: bool,
}

/// A call to make.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Call {
    /// Statement of SQL.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub text: String,
    /// Its parameters.
    pub values: Vec<String>,
    /// Command of Redis.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub words: Vec<String>,
}

/// What a program says of one of its calls.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Done {
    /// Which call.
    pub nth: usize,
    /// Its error: an SQLSTATE, of Redis `error`; empty without one.
    pub code: String,
    /// When it began, Unix time in ns.
    pub started: u64,
    /// When it ended.
    pub ended: u64,
}

/// Makes the calls, and says how each went; `psql` and `redis-cli` say nothing.
///
/// # Errors
/// When the program cannot be had or fails.
pub fn call(library: Library, service: &str, at: Port, calls: &[Call]) -> anyhow::Result<Vec<Done>> {
    let Port { port, is_encrypted } = at;
    let files = tempfile::tempdir()?;
    let mut command = library.command()?;
    command
        .env("OTEL_SERVICE_NAME", service)
        .env("PGSSLMODE", if is_encrypted { "require" } else { "disable" });
    let plan = files.path().join("plan");
    let script = match library {
        Library::Psql => script(calls),
        Library::RedisCli | Library::RedisCli3 => command_lines(calls),
        Library::Jdbc | Library::JdbcSimple | Library::JdbcBatch => lines_with_tabs(calls),
        _ => json!(calls).to_string(),
    };
    fs::write(&plan, script).with_context(|| format!("write {}", plan.display()))?;
    let port = port.to_string();
    match library {
        Library::Psql => {
            command.args(["-X", "-q", "-h", "127.0.0.1", "-p", &port, "-U", "postgres", "-f"]).arg(&plan);
        }
        Library::RedisCli | Library::RedisCli3 => {
            command.arg(&plan).args(["-p", &port]).args((library == Library::RedisCli3).then_some("-3"));
        }
        _ => {
            command.arg(&port).arg(&plan);
        }
    }
    let lines = process::run(&format!("{library:?}"), command, patience(CALLS))?;
    if library.is_silent() {
        return Ok(Vec::new());
    }
    lines.iter().map(|line| serde_json::from_str(line).with_context(|| format!("line {line:?}"))).collect()
}

/// Statements with their values in the text, as people write them.
fn script(calls: &[Call]) -> String {
    calls
        .iter()
        .map(|call| {
            let value = call.values.first().map_or_else(String::new, |value| format!("'{value}'"));
            format!("{};\n", call.text.replace("$1", &value))
        })
        .collect()
}

/// Commands as people type them, each word in quotes.
fn command_lines(calls: &[Call]) -> String {
    let line = |call: &Call| {
        let words: Vec<_> = call.words.iter().map(|word| format!("\"{word}\"")).collect();
        words.join(" ") + "\n"
    };
    calls.iter().map(line).collect()
}

/// A line for each call: its statement and its values apart by tabs, with escapes.
fn lines_with_tabs(calls: &[Call]) -> String {
    let escaped = |text: &String| text.replace('\\', "\\\\").replace('\t', "\\t").replace('\n', "\\n");
    let line = |call: &Call| {
        let fields: Vec<_> = std::iter::once(&call.text).chain(&call.values).map(escaped).collect();
        fields.join("\t") + "\n"
    };
    calls.iter().map(line).collect()
}
