//! The configuration: what the user wrote, typed and checked once.
//!
//! In: one YAML file, the environment and the defaults below. Out: [`Config`], of which each stage gets its own
//! section. Refuses to know what a stage does with its section, and to start with a value it does not understand.
//!
//! Every key can be given as the environment variable `OBI_SECTION_KEY` (`web.listen` is `OBI_WEB_LISTEN`), which
//! wins over the file; the file wins over the default. A list is written in YAML's flow style:
//! `OBI_DISCOVER_EXCLUDE='[{executable: /usr/bin/*}]'`.
#![forbid(unsafe_code)]

mod environment;
mod error;
pub mod export;
mod hook_set;
mod kubernetes;
mod load;
mod otlp_environment;
mod profile;
pub mod pyroscope;
mod receive;
pub mod remote_write;
pub mod route;
mod rule;
mod slo;
pub mod spool;
mod token;
mod value;

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use self::error::ConfigError;
pub use self::export::Export;
pub use self::hook_set::HookSet;
pub use self::kubernetes::Kubernetes;
pub use self::load::{Source, load, read_text};
pub use self::profile::Profile;
pub use self::receive::{OtlpReceiver, Receive};
pub use self::rule::{Pattern, PortRange, Rule};
pub use self::slo::{Endpoint, Slo};
pub use self::token::Token;
pub use self::value::{Hooks, Metadata, Parents, PeerNames};

/// Where the running kernel shows its types.
pub const KERNEL_BTF: &str = "/sys/kernel/btf/vmlinux";

/// The whole configuration; every key has a default, so that an empty file (or none) is valid.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Which processes are watched.
    pub discover: Discover,
    /// How the kernel is asked.
    pub capture: Capture,
    /// How heads become exchanges.
    pub protocol: Protocol,
    /// How exchanges become spans.
    pub trace: Trace,
    /// How spans become metrics.
    pub metrics: Metrics,
    /// What CPUs do: stacks sampled all the time.
    pub profile: Profile,
    /// Service level objectives.
    pub slo: Slo,
    /// What other programs may send us.
    pub receive: Receive,
    /// Where we send to.
    pub export: Export,
    /// What pods are called.
    pub kubernetes: Kubernetes,
    /// The listener: metrics, health, API.
    pub web: Web,
}

impl Config {
    /// The keys, as `section.key`, whose values differ.
    #[must_use]
    pub fn changed_keys(&self, other: &Self) -> Vec<String> {
        let tree = |config: &Self| serde_json::to_value(config).expect("a configuration is plain values");
        let (own, other) = (tree(self), tree(other));
        let sections = own.as_object().into_iter().flatten();
        let changed = sections.flat_map(|(section, keys)| {
            let keys = keys.as_object().into_iter().flatten();
            let other = &other;
            keys.filter(move |(key, value)| other[section][key.as_str()] != **value)
                .map(move |(key, _)| format!("{section}.{key}"))
        });
        changed.collect()
    }
}

/// Section `discover`. A process is watched when `include` is empty or one of its rules matches, and no rule of
/// `exclude` does. The agent itself is never watched.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Discover {
    /// Watch only what one of these rules matches. Default: `[]`, which watches everything that listens or connects.
    /// Example: `[{service: "shop-*"}, {port: 8000-8099}]`.
    pub include: Vec<Rule>,
    /// Never watch what one of these rules matches; wins over `include`. Default: `[]`.
    /// Example: `[{executable: "/usr/bin/prometheus*"}, {cgroup: "*/kube-system.slice/*"}]`.
    pub exclude: Vec<Rule>,
}

impl Discover {
    /// Whether some rule depends on listening ports, which cost more to find than all the rest.
    #[must_use]
    pub fn looks_at_ports(&self) -> bool {
        self.include.iter().chain(&self.exclude).any(|rule| rule.port.is_some())
    }
}

/// Section `capture`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Capture {
    /// Load kernel programs and see requests. Without, the agent needs no privileges, and requests, their exemplars and
    /// the service graph are counted from the spans that others send to `receive.otlp`, of which one address must be
    /// given then. Default: `true`. Example: `false`, for one agent that takes the spans of a whole cluster.
    pub enabled: bool,
    /// Hook set: `auto`, `socket`, `fentry`, `kprobe` or `syscall`; a forced one that this kernel does not take stops
    /// the start. Default: `auto`, the cheapest that sees everything. Example: `kprobe`.
    pub hooks: Hooks,
    /// The kernel's type information (BTF), an absolute path; no hook set works without. Default:
    /// `/sys/kernel/btf/vmlinux`. Example: `/var/lib/obi/vmlinux.btf`, where a container does not show the default.
    #[serde(deserialize_with = "value::types_file")]
    pub btf: PathBuf,
    /// Size of the ring buffer between kernel and agent, bytes: a power of two that is a multiple of the page size.
    /// Default: `8 MiB`. Example: `16 MiB`, when `obi_lost_total{reason="ring_full"}` grows.
    #[serde(deserialize_with = "value::ring_bytes")]
    pub ring_bytes: u32,
    /// Bytes of one request or response head that are copied, 256 to 65536; what a longer head holds beyond is not
    /// seen: the span says `obi.request.head.truncated`, and `obi_truncated_heads_total` counts it. A `traceparent`
    /// behind a longer cookie is not seen either. Default: `8192`. Example: `65536`, for long cookies.
    #[serde(deserialize_with = "value::bytes::<_, 256, 65_536>")]
    pub head_limit: u32,
    /// Let the kernel measure the run time of all its programs (needs `CAP_SYS_ADMIN`, costs 50 to 70 ns for each run
    /// of each program of the machine: a tenth of what ours take). Default: `false`. Example: `true`, for a while, to
    /// see what the programs cost.
    pub statistics: bool,
    /// Read TLS traffic at the programs' TLS libraries (OpenSSL and its relatives, Go's own) before it is encrypted and
    /// after it is decrypted. Without, connections with TLS are counted and not read. Default: `true`. Example:
    /// `false`.
    pub tls: bool,
}

/// Section `protocol`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Protocol {
    /// Exchanges that may be under way at once, 64 to 16777216; more are counted as lost. Default: `65536`.
    /// Example: `262144`, for very many slow requests.
    #[serde(deserialize_with = "value::number::<_, 64, 16_777_216>")]
    pub pending_limit: u32,
    /// What spans of PostgreSQL and Redis calls hold. Default: `{query_text: true, server_spans: false}`. Example:
    /// `{query_text: false}`.
    pub databases: Databases,
}

/// Section `protocol.databases`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Databases {
    /// Whether spans have the statement's text, with every literal replaced by `?`. Spans always have the summary.
    /// Default: `true`.
    pub query_text: bool,
    /// Whether a database's own process has server spans of what it was asked; they are in no `db.*` metric. Default:
    /// `false`.
    pub server_spans: bool,
}

/// Section `trace`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Trace {
    /// Methods that `http.request.method` names as they are; others become `_OTHER`. Case matters.
    /// `OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS` (comma-separated) sets it too. Default:
    /// `[CONNECT, DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT, QUERY, TRACE]`. Example: `[GET, POST, PURGE]`.
    #[serde(deserialize_with = "value::methods")]
    pub known_methods: Vec<String>,
    /// Routes that you name, at most 1000: a segment `{name}` stands for any one segment, a last segment `*` for all
    /// that follow. The most literal one that fits wins, over everything learned. Default: `[]`; routes are learned
    /// from the paths. Example: `["/users/{user}/orders", "/files/*"]`.
    #[serde(deserialize_with = "value::routes")]
    pub routes: Vec<String>,
    /// File that keeps the learned routes from one run to the next: an absolute path, or empty for none. Nothing is
    /// kept when its directory does not exist. Default: `/var/lib/obi/routes.json`. Example: `/data/obi/routes.json`.
    #[serde(deserialize_with = "value::optional_path")]
    pub route_state: PathBuf,
    /// Which parents are looked for where no header names one: `on` takes what the behaviour of a program shows
    /// (strong evidence), `certain` only what cannot be otherwise (both ends of one connection, a trace that the
    /// application has passed on), `off` none. A parent that is not sure is not given. Default: `on`. Example:
    /// `certain`.
    pub parents: Parents,
}

/// Section `metrics`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Metrics {
    /// Series of all metrics together, 100 to 10000000 (a histogram is one; fewer than 450 are 450), shared fairly
    /// between services; more fall into an overflow that keeps service, kind and status class. Default: `10000`.
    /// Example: `50000`.
    #[serde(deserialize_with = "value::number::<_, 100, 10_000_000>")]
    pub series_limit: u32,
    /// A series without a span for so many seconds is dropped, 60 to 31536000. Default: `3600`. Example: `86400`.
    #[serde(deserialize_with = "value::number::<_, 60, 31_536_000>")]
    pub idle_seconds: u32,
    /// Routes per service, 1 to 100000; more share one overflow route. Default: `200`. Example: `500`.
    #[serde(deserialize_with = "value::number::<_, 1, 100_000>")]
    pub route_limit: u32,
}

/// Section `web`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Web {
    /// Address and port of the listener; port 0 takes a free one. Default: `127.0.0.1:9464`.
    /// Example: `0.0.0.0:9464`, to let a Prometheus elsewhere scrape; page and API want `token` or `open` then.
    #[serde(deserialize_with = "value::address")]
    pub listen: SocketAddr,
    /// Where users reach this agent, behind a proxy for instance, or empty; requests for its host name are answered,
    /// and links of the page begin with its path. Default: `""`. Example: `https://obi.example.org/node-7`.
    #[serde(deserialize_with = "value::optional_url")]
    pub external_url: String,
    /// Host names that requests may ask for, beside `localhost`, every IP address and the host of `external_url`;
    /// others get 421, so that no web page can read the agent by pointing a name at it. Default: `[]`. Example:
    /// `[node-7.example.org]`, for a Prometheus that scrapes by name.
    #[serde(deserialize_with = "value::host_names")]
    pub hosts: Vec<String>,
    /// What page and API ask for, 16 to 4096 letters, digits and `-._~+/=`: as `Authorization: Bearer TOKEN`, or in the
    /// page's form. Empty: they are shown to this machine alone. Default: `""`. Example: `k7Qw2mZx9Lr4Vt8Np3Hs`, better
    /// in the variable, from a secret.
    pub token: Token,
    /// Whether everyone who reaches the port may read page and API without a token: they show every path and every
    /// name of a program. Default: `false`. Example: `true`, behind a proxy that asks for a password.
    pub open: bool,
    /// Whether `/metrics` needs the token, too. Default: `false`. Example: `true`, with `authorization` in Prometheus's
    /// configuration.
    pub protect_metrics: bool,
    /// PEM file with our certificate and those above it, an absolute path; with it the listener speaks TLS. Read again
    /// when it changes. Needs `key_file`. Default: `""`. Example: `/etc/obi/web.pem`.
    #[serde(deserialize_with = "value::optional_file")]
    pub cert_file: Option<PathBuf>,
    /// PEM file with the key of `cert_file`. Default: `""`. Example: `/etc/obi/web.key`.
    #[serde(deserialize_with = "value::optional_file")]
    pub key_file: Option<PathBuf>,
    /// PEM file with certificates of authorities; with it only clients that show a certificate of one of them are let
    /// in, and they need no token unless there is one. Needs `cert_file`. Default: `""`. Example: `/etc/obi/ca.pem`.
    #[serde(deserialize_with = "value::optional_file")]
    pub client_ca_file: Option<PathBuf>,
    /// Recent spans kept for the API, 0 to 10000000. Default: `10000`. Example: `1000`.
    #[serde(deserialize_with = "value::number::<_, 0, 10_000_000>")]
    pub spans: u32,
    /// Memory that the recent spans may take, 65536 bytes to 2 GiB; the oldest give way. Default: `16 MiB`.
    /// Example: `64 MiB`.
    #[serde(deserialize_with = "value::bytes::<_, 65_536, 2_147_483_648>")]
    pub span_bytes: u32,
    /// Memory that the last two hours of each service may take, for the page, up to 1 GiB; the oldest gives way. 0
    /// keeps none. Default: `16 MiB`, room for some 400 busy services and an hour, or half as many and two. Example:
    /// `64 MiB`.
    #[serde(deserialize_with = "value::bytes::<_, 0, 1_073_741_824>")]
    pub history_bytes: u32,
}

impl Default for Capture {
    fn default() -> Self {
        Self {
            enabled: true,
            hooks: Hooks::Auto,
            btf: PathBuf::from(KERNEL_BTF),
            ring_bytes: 8 << 20,
            head_limit: 8192,
            statistics: false,
            tls: true,
        }
    }
}

impl Default for Databases {
    fn default() -> Self {
        Self { query_text: true, server_spans: false }
    }
}

impl Default for Protocol {
    fn default() -> Self {
        Self { pending_limit: 65_536, databases: Databases::default() }
    }
}

/// RFC 9110 §9.3, RFC 5789 and the QUERY draft: the default of `trace.known_methods`.
const KNOWN_METHODS: [&str; 10] =
    ["CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "QUERY", "TRACE"];

impl Default for Trace {
    fn default() -> Self {
        Self {
            known_methods: KNOWN_METHODS.map(str::to_owned).to_vec(),
            routes: Vec::new(),
            route_state: PathBuf::from("/var/lib/obi/routes.json"),
            parents: Parents::On,
        }
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self { series_limit: 10_000, idle_seconds: 3_600, route_limit: 200 }
    }
}

impl Web {
    /// `http` or `https`.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        if self.cert_file.is_some() { "https" } else { "http" }
    }

    /// The first contradiction between keys: a key's path and what is wrong with its value.
    fn contradiction(&self) -> Option<(&'static str, &'static str)> {
        match (&self.cert_file, &self.key_file, &self.client_ca_file) {
            (Some(_), None, _) => Some(("web.key_file", "is missing, expected the key of `cert_file`")),
            (None, Some(_), _) => {
                Some(("web.cert_file", "is missing, expected the certificate of `key_file`"))
            }
            (None, None, Some(_)) => {
                Some(("web.client_ca_file", "needs TLS, expected `cert_file` and `key_file` beside it"))
            }
            _ => None,
        }
    }
}

impl Default for Web {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 9464)),
            external_url: String::new(),
            hosts: Vec::new(),
            token: Token::default(),
            open: false,
            protect_metrics: false,
            cert_file: None,
            key_file: None,
            client_ca_file: None,
            spans: 10_000,
            span_bytes: 16 << 20,
            history_bytes: 16 << 20,
        }
    }
}
