//! The values of keys that are more than a plain type: ranges, sizes, addresses, hook sets, methods.
//!
//! In: what the YAML parser found. Out: the checked value, or what was expected instead.

use std::net::SocketAddr;
use std::path::PathBuf;

use reqwest::Url;
use serde::de::{Deserializer, Error, IgnoredAny, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use super::hook_set::HookSet;
use super::route::Patterns;

/// `capture.hooks`: which hook set captures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hooks {
    /// The cheapest set that sees everything on this kernel.
    Auto,
    /// This one and no other.
    Forced(HookSet),
}

impl Hooks {
    /// The set that the user insists on.
    #[must_use]
    pub fn forced(self) -> Option<HookSet> {
        match self {
            Self::Auto => None,
            Self::Forced(set) => Some(set),
        }
    }
}

impl Serialize for Hooks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.forced().map_or("auto", HookSet::name))
    }
}

impl<'de> Deserialize<'de> for Hooks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        const EXPECTED: &str = "auto, socket, fentry, kprobe or syscall";
        let written = text(deserializer, EXPECTED)?;
        if written == "auto" {
            return Ok(Self::Auto);
        }
        let set = HookSet::ALL.into_iter().find(|set| set.name() == written);
        set.map(Self::Forced)
            .ok_or_else(|| D::Error::custom(format_args!("is not a hook set, expected {EXPECTED}")))
    }
}

/// One of several words: how it is read and written, from a table of the words.
macro_rules! choice {
    ($type:ty, $all:expr) => {
        impl Choice for $type {
            const ALL: &'static [(Self, &'static str)] = &$all;
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.word())
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::read(deserializer)
            }
        }
    };
}

/// One of several words.
trait Choice: Copy + PartialEq + 'static {
    /// The words, in the order in which they are listed to users.
    const ALL: &'static [(Self, &'static str)];

    fn word(self) -> &'static str {
        Self::ALL.iter().find(|(choice, _)| *choice == self).map_or("", |(_, word)| *word)
    }

    fn read<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = match scalar(deserializer)? {
            // YAML takes these words for truth values.
            Some(Scalar::Truth(truth)) => String::from(if truth { "on" } else { "off" }),
            Some(Scalar::Text(text)) => text,
            _ => String::new(),
        };
        let found = Self::ALL.iter().find(|(_, word)| *word == written).map(|(choice, _)| *choice);
        found.ok_or_else(|| {
            let words: Vec<&str> = Self::ALL.iter().map(|(_, word)| *word).collect();
            let (last, others) = words.split_last().expect("a choice has words");
            D::Error::custom(format_args!("is not valid, expected {} or {last}", others.join(", ")))
        })
    }
}

/// `trace.parents`: which parents of calls are looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Parents {
    /// All that can be shown.
    #[default]
    On,
    /// Those that cannot be otherwise.
    Certain,
    /// None: a parent is what a header says.
    Off,
}

choice!(Parents, [(Self::On, "on"), (Self::Certain, "certain"), (Self::Off, "off")]);

/// `kubernetes.metadata`: who is asked for the names of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Metadata {
    /// The kubelet, else the API server, else names of log folders.
    #[default]
    Auto,
    /// The kubelet's stream on its socket.
    Kubelet,
    /// The API server.
    Api,
    /// Names of log folders only.
    Logs,
    /// No one.
    Off,
}

choice!(
    Metadata,
    [
        (Self::Auto, "auto"),
        (Self::Kubelet, "kubelet"),
        (Self::Api, "api"),
        (Self::Logs, "logs"),
        (Self::Off, "off"),
    ]
);

/// `kubernetes.peers`: which other ends of calls have names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PeerNames {
    /// Pods of this node.
    #[default]
    Pods,
    /// And what answers at the addresses of the cluster's services and their endpoints.
    Services,
}

choice!(PeerNames, [(Self::Pods, "pods"), (Self::Services, "services")]);

/// A whole number from `MIN` to `MAX`.
pub(super) fn number<'de, D: Deserializer<'de>, const MIN: u64, const MAX: u64>(
    deserializer: D,
) -> Result<u32, D::Error> {
    let refuse =
        || D::Error::custom(format_args!("is not valid, expected a whole number from {MIN} to {MAX}"));
    match scalar(deserializer)? {
        Some(Scalar::Number(number)) if (MIN..=MAX).contains(&number) => {
            u32::try_from(number).map_err(|_| refuse())
        }
        _ => Err(refuse()),
    }
}

/// A size in bytes, if it is one.
pub(super) fn size<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    Ok(match scalar(deserializer)? {
        Some(Scalar::Number(number)) => Some(number),
        Some(Scalar::Text(text)) => parse_bytes(&text),
        Some(Scalar::Truth(_)) | None => None,
    })
}

/// A size from `MIN` to `MAX` bytes: a whole number, or one with a unit (`8 MiB`).
pub(super) fn bytes<'de, D: Deserializer<'de>, const MIN: u64, const MAX: u64>(
    deserializer: D,
) -> Result<u32, D::Error> {
    size(deserializer)?
        .filter(|size| (MIN..=MAX).contains(size))
        .and_then(|size| u32::try_from(size).ok())
        .ok_or_else(|| {
            D::Error::custom(format_args!(
                "is not valid, expected a size from {MIN} to {MAX} bytes, such as 65536 or 64KiB"
            ))
        })
}

/// Smallest and largest ring buffer, bytes; the kernel's own upper limit is higher than anyone needs.
const RING_MIN: u64 = 4096;
const RING_MAX: u64 = 1 << 30;

/// A size that the kernel accepts for a ring buffer.
pub(super) fn ring_bytes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let page = u32::try_from(rustix::param::page_size()).unwrap_or(4096);
    match bytes::<D, RING_MIN, RING_MAX>(deserializer) {
        Ok(size) if size.is_power_of_two() && size >= page => Ok(size),
        _ => Err(D::Error::custom(format_args!(
            "is not valid, expected a power of two from {} to {RING_MAX} bytes, such as 8MiB",
            RING_MIN.max(u64::from(page))
        ))),
    }
}

/// An address with a port.
pub(super) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    const EXPECTED: &str = "an address with a port, such as 127.0.0.1:9464 or [::1]:9464";
    let written = text(deserializer, EXPECTED)?;
    written.parse().map_err(|_| D::Error::custom(format_args!("is not valid, expected {EXPECTED}")))
}

/// A file with the kernel's types; the path does not depend on where we were started.
pub(super) fn types_file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    absolute_path(deserializer, "an absolute path, such as /sys/kernel/btf/vmlinux")
}

/// A file or folder of the node; the path does not depend on where we were started.
pub(super) fn node_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    absolute_path(deserializer, "an absolute path, such as /var/log/pods")
}

/// A name that stands in a label or a selector: of a node, of a cluster; or an empty text.
pub(super) fn optional_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    const EXPECTED: &str = "a name of letters, digits, `-`, `.` and `_`, at most 253";
    let written = match scalar(deserializer)? {
        Some(Scalar::Text(text)) => Some(text),
        Some(Scalar::Number(number)) => Some(number.to_string()),
        _ => None,
    };
    let is_valid = |text: &String| text.is_empty() || is_host_name(text);
    written
        .filter(is_valid)
        .ok_or_else(|| D::Error::custom(format_args!("is not valid, expected {EXPECTED}")))
}

/// A folder for what is kept; the path does not depend on where we were started.
pub(super) fn state_folder<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    absolute_path(deserializer, "an absolute path, such as /var/lib/obi/slo")
}

fn absolute_path<'de, D: Deserializer<'de>>(deserializer: D, expected: &str) -> Result<PathBuf, D::Error> {
    let written = PathBuf::from(text(deserializer, expected)?);
    let refuse = || D::Error::custom(format_args!("is not valid, expected {expected}"));
    written.is_absolute().then_some(written).ok_or_else(refuse)
}

/// A path that does not depend on where we were started, or the empty one.
pub(super) fn optional_path<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
    path_or_nothing(deserializer, "an absolute path, such as /var/lib/obi/routes.json, or an empty text")
}

/// The same of a file that is read; none for an empty text.
pub(super) fn optional_file<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<PathBuf>, D::Error> {
    let path = path_or_nothing(deserializer, "an absolute path, such as /etc/obi/web.pem, or an empty text")?;
    Ok(Some(path).filter(|path| !path.as_os_str().is_empty()))
}

fn path_or_nothing<'de, D: Deserializer<'de>>(deserializer: D, expected: &str) -> Result<PathBuf, D::Error> {
    let written = PathBuf::from(text(deserializer, expected)?);
    let refuse = || D::Error::custom(format_args!("is not valid, expected {expected}"));
    (written.is_absolute() || written.as_os_str().is_empty()).then_some(written).ok_or_else(refuse)
}

/// The address of a page, or an empty text.
pub(super) fn optional_url<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    const EXPECTED: &str = "an address such as https://obi.example.org, or an empty text";
    let written = text(deserializer, EXPECTED)?;
    let is_valid = written.is_empty()
        || Url::parse(&written).is_ok_and(|url| {
            matches!(url.scheme(), "http" | "https") && url.has_host() && url.fragment().is_none()
        });
    if is_valid {
        Ok(written)
    } else {
        Err(D::Error::custom(format_args!("is not valid, expected {EXPECTED}")))
    }
}

/// Most host names that can be given.
const HOSTS_MAX: usize = 100;

/// A list of host names without ports.
pub(super) fn host_names<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let refuse = || {
        D::Error::custom(format_args!(
            "is not valid, expected a list of at most {HOSTS_MAX} host names without ports, such as [obi.example.org]"
        ))
    };
    let hosts = Vec::<String>::deserialize(deserializer).map_err(|_| refuse())?;
    let valid = hosts.len() <= HOSTS_MAX && hosts.iter().all(|host| is_host_name(host));
    if valid { Ok(hosts) } else { Err(refuse()) }
}

fn is_host_name(text: &str) -> bool {
    (1..=253).contains(&text.len())
        && !text.starts_with('.')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte))
}

/// Most routes that can be named.
const ROUTES_MAX: usize = 1000;

/// A list of patterns of routes.
pub(super) fn routes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    const EXPECTED: &str = "a list of at most 1000 routes, such as [\"/users/{id}\", \"/files/*\"]";
    let refuse = || D::Error::custom(format_args!("is not valid, expected {EXPECTED}"));
    let routes = Vec::<String>::deserialize(deserializer).map_err(|_| refuse())?;
    if routes.len() > ROUTES_MAX {
        return Err(refuse());
    }
    Patterns::new(&routes)
        .map(|_| routes)
        .map_err(|error| D::Error::custom(format_args!("is not valid: {error}, expected {EXPECTED}")))
}

/// Most methods that can be known.
const METHODS_MAX: usize = 64;

/// A list of HTTP methods: tokens of RFC 9110 §5.6.2.
pub(super) fn methods<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    let refuse = || {
        D::Error::custom(format_args!(
            "is not valid, expected a list of 1 to {METHODS_MAX} method names, such as [GET, POST]"
        ))
    };
    let methods = Vec::<String>::deserialize(deserializer).map_err(|_| refuse())?;
    let valid = (1..=METHODS_MAX).contains(&methods.len()) && methods.iter().all(|method| is_token(method));
    if valid { Ok(methods) } else { Err(refuse()) }
}

fn is_token(text: &str) -> bool {
    (1..=32).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn parse_bytes(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let scale: u64 = match unit.trim() {
        "" | "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(scale)
}

/// A text; anything else is an error that says what was expected.
pub(super) fn text<'de, D: Deserializer<'de>>(deserializer: D, expected: &str) -> Result<String, D::Error> {
    match scalar(deserializer)? {
        Some(Scalar::Text(text)) => Ok(text),
        _ => Err(D::Error::custom(format_args!("is not valid, expected {expected}"))),
    }
}

/// A number, a text or a truth, as the YAML parser found it.
#[derive(Debug)]
pub(super) enum Scalar {
    Number(u64),
    Text(String),
    /// `true`; `on` and `yes` are the same to YAML's older versions.
    Truth(bool),
}

/// The scalar there, or `None` for anything else; a number is a whole one.
pub(super) fn scalar<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Scalar>, D::Error> {
    deserializer.deserialize_any(ScalarVisitor)
}

struct ScalarVisitor;

impl<'de> Visitor<'de> for ScalarVisitor {
    type Value = Option<Scalar>;

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("a number or a text")
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Some(Scalar::Number(number)))
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Self::Value, E> {
        Ok(Some(Scalar::Truth(truth)))
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Some(Scalar::Text(text.to_owned())))
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(None)
    }
}
