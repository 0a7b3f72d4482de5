//! OpenTelemetry's standard variables to a destination, a sampler and an interval.
//!
//! In: the variables. Out: one destination per signal, named `environment`, when a variable names an endpoint or an
//! exporter; keys of section `export` for sampling and interval. An empty variable counts as absent, as the
//! specification wants; one that cannot be used stops the start, like every other setting.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::environment::Setting;
use super::error::ConfigError;
use super::export::{Compression, Headers, Histograms, OtlpDestination, Protocol, Signal, is_url};

/// What we make ourselves. Logs are of others: where they go, the file says.
const SIGNALS: [Signal; 3] = [Signal::Traces, Signal::Metrics, Signal::Profiles];

/// What destinations from the environment are called.
const NAME: &str = "environment";
const PREFIX: &str = "OTEL_EXPORTER_OTLP_";

/// The destinations that the standard variables name.
pub(super) fn destinations(variables: &[(String, String)]) -> Result<Vec<OtlpDestination>, ConfigError> {
    let destinations = SIGNALS.into_iter().map(|signal| destination(Variables { variables, signal }));
    destinations.filter_map(Result::transpose).collect()
}

/// The keys that the standard variables set.
pub(super) fn settings(variables: &[(String, String)]) -> Result<Vec<Setting>, ConfigError> {
    let variables = Variables { variables, signal: Signal::Traces };
    let mut settings = Vec::new();
    let mut set = |key: &str, value: Value, variable: &str| {
        let path = ["export", key].map(str::to_owned);
        settings.push(Setting { path, value, variable: variable.to_owned() });
    };
    if let Some(sampler) = variables.get("OTEL_TRACES_SAMPLER") {
        set("sampling", sampling(variables, sampler)?, "OTEL_TRACES_SAMPLER");
    }
    if let Some(interval) = variables.get("OTEL_METRIC_EXPORT_INTERVAL") {
        set("metric_interval", json!(format!("{interval}ms")), "OTEL_METRIC_EXPORT_INTERVAL");
    }
    Ok(settings)
}

fn sampling(variables: Variables<'_>, sampler: &str) -> Result<Value, ConfigError> {
    const ARGUMENT: &str = "OTEL_TRACES_SAMPLER_ARG";
    let ratio = || match variables.get(ARGUMENT).map(str::parse::<f64>) {
        None => Ok(1.0),
        Some(Ok(ratio)) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        Some(_) => Err(variables.refuse(ARGUMENT, "a number from 0 to 1, such as 0.1")),
    };
    let (ratio, parent_based) = match sampler {
        "always_on" => (1.0, false),
        "always_off" => (0.0, false),
        "traceidratio" => (ratio()?, false),
        "parentbased_always_on" => (1.0, true),
        "parentbased_always_off" => (0.0, true),
        "parentbased_traceidratio" => (ratio()?, true),
        _ => {
            let expected =
                "always_on, always_off, traceidratio, or one of these with parentbased_ in front of it";
            return Err(variables.refuse("OTEL_TRACES_SAMPLER", expected));
        }
    };
    Ok(json!({"ratio": ratio, "parent_based": parent_based}))
}

/// The variables as one signal sees them.
#[derive(Clone, Copy)]
struct Variables<'a> {
    variables: &'a [(String, String)],
    signal: Signal,
}

impl<'a> Variables<'a> {
    /// A variable's text, `None` when absent or empty.
    fn get(self, name: &str) -> Option<&'a str> {
        let found = self.variables.iter().find(|(present, _)| present == name);
        found.map(|(_, text)| text.trim()).filter(|text| !text.is_empty())
    }

    /// The signal's own variable, else the one for all signals: its name and text.
    fn setting(self, name: &str) -> Option<(String, &'a str)> {
        let own = format!("{PREFIX}{}_{name}", self.signal.name().to_uppercase());
        [own, format!("{PREFIX}{name}")].into_iter().find_map(|name| Some((name.clone(), self.get(&name)?)))
    }

    fn read<T>(
        self,
        name: &str,
        default: T,
        expected: &str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ConfigError> {
        let Some((variable, text)) = self.setting(name) else { return Ok(default) };
        parse(text).ok_or_else(|| self.refuse(&variable, expected))
    }

    fn refuse(self, variable: &str, expected: &str) -> ConfigError {
        // The text of headers is a secret.
        let secret = variable.ends_with("_HEADERS");
        let value = if secret { "…" } else { self.get(variable).unwrap_or_default() };
        ConfigError::Value {
            origin: format!("environment {variable}"),
            key: "export".to_owned(),
            value: value.to_owned(),
            problem: format!("is not valid, expected {expected}"),
        }
    }
}

fn destination(variables: Variables<'_>) -> Result<Option<OtlpDestination>, ConfigError> {
    let signal = variables.signal;
    let upper = signal.name().to_uppercase();
    let wanted = match variables.get(&format!("OTEL_{upper}_EXPORTER")) {
        Some(exporters) => exporters.split(',').any(|exporter| exporter.trim() == "otlp"),
        None => variables.setting("ENDPOINT").is_some(),
    };
    if !wanted {
        return Ok(None);
    }
    let protocol =
        variables.read("PROTOCOL", Protocol::Http, "grpc or http/protobuf", |text| match text {
            "grpc" => Some(Protocol::Grpc),
            "http/protobuf" => Some(Protocol::Http),
            _ => None,
        })?;
    let (endpoint, own) = endpoints(variables, protocol)?;
    let path = |text: &str| Some(PathBuf::from(text)).filter(|path| path.is_absolute()).map(Some);
    let absolute = "an absolute path";
    let whole = "a whole number above 0";
    let defaults = OtlpDestination::default();
    let mut destination = OtlpDestination {
        name: NAME.to_owned(),
        endpoint,
        signals: vec![signal],
        protocol,
        headers: variables.read("HEADERS", Headers::default(), "key=value,key=value", headers)?,
        compression: variables.read("COMPRESSION", Compression::None, "gzip or none", |text| match text {
            "gzip" => Some(Compression::Gzip),
            "none" => Some(Compression::None),
            _ => None,
        })?,
        timeout: variables.read("TIMEOUT", defaults.timeout, "milliseconds from 1 to 3600000", |text| {
            let milliseconds = text.parse().ok().filter(|time| (1..=3_600_000).contains(time))?;
            Some(Duration::from_millis(milliseconds))
        })?,
        ca_file: variables.read("CERTIFICATE", None, absolute, path)?,
        cert_file: variables.read("CLIENT_CERTIFICATE", None, absolute, path)?,
        key_file: variables.read("CLIENT_KEY", None, absolute, path)?,
        ..defaults
    };
    match signal {
        Signal::Traces => destination.traces_endpoint = own,
        Signal::Metrics => destination.metrics_endpoint = own,
        Signal::Profiles => destination.profiles_endpoint = own,
        Signal::Logs => destination.logs_endpoint = own,
    }
    if signal == Signal::Traces {
        let number = |name: &str, default: u32| match variables.get(name).map(str::parse) {
            None => Ok(default),
            Some(Ok(number)) if number > 0 => Ok(number),
            Some(_) => Err(variables.refuse(name, whole)),
        };
        destination.queue_items = number("OTEL_BSP_MAX_QUEUE_SIZE", destination.queue_items)?;
        destination.batch_items = number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", destination.batch_items)?;
        let delay = u32::try_from(destination.batch_delay.as_millis()).unwrap_or(u32::MAX);
        destination.batch_delay =
            Duration::from_millis(number("OTEL_BSP_SCHEDULE_DELAY", delay)?.min(60_000).into());
    }
    if signal == Signal::Metrics {
        variables.read("TEMPORALITY_PREFERENCE", (), "cumulative", |text| {
            text.eq_ignore_ascii_case("cumulative").then_some(())
        })?;
        let expected = "explicit_bucket_histogram or base2_exponential_bucket_histogram";
        let kind = |text: &str| match text.to_ascii_lowercase().as_str() {
            "explicit_bucket_histogram" => Some(Histograms::Explicit),
            "base2_exponential_bucket_histogram" => Some(Histograms::Exponential),
            _ => None,
        };
        destination.histograms =
            variables.read("DEFAULT_HISTOGRAM_AGGREGATION", Histograms::Explicit, expected, kind)?;
    }
    Ok(Some(destination))
}

/// The base URL and the signal's own; one of them is set.
fn endpoints(
    variables: Variables<'_>,
    protocol: Protocol,
) -> Result<(Option<String>, Option<String>), ConfigError> {
    let own_name = format!("{PREFIX}{}_ENDPOINT", variables.signal.name().to_uppercase());
    let insecure = variables.read("INSECURE", false, "true or false", |text| {
        Some(text.eq_ignore_ascii_case("true"))
            .filter(|_| ["true", "false"].iter().any(|known| text.eq_ignore_ascii_case(known)))
    })?;
    let parse = |name: &str, text: &str| {
        // gRPC takes an address without a scheme, of which `…_INSECURE` says what it means.
        let text = match (protocol, text.contains("://"), insecure) {
            (Protocol::Grpc, false, true) => format!("http://{text}"),
            (Protocol::Grpc, false, false) => format!("https://{text}"),
            _ => text.to_owned(),
        };
        let expected = "an http or https URL without user and query, such as http://localhost:4318";
        if is_url(&text) { Ok(text) } else { Err(variables.refuse(name, expected)) }
    };
    if let Some(text) = variables.get(&own_name) {
        return Ok((None, Some(parse(&own_name, text)?)));
    }
    let name = format!("{PREFIX}ENDPOINT");
    let default = match protocol {
        Protocol::Grpc => "http://localhost:4317",
        Protocol::Http => "http://localhost:4318",
    };
    Ok((Some(parse(&name, variables.get(&name).unwrap_or(default))?), None))
}

/// `key=value,key=value`, values percent-encoded.
fn headers(text: &str) -> Option<Headers> {
    let pairs = text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=')?;
        Some((name.trim().to_lowercase(), percent_decoded(value.trim())?))
    });
    Headers::checked(pairs.collect::<Option<BTreeMap<_, _>>>()?).ok()
}

fn percent_decoded(text: &str) -> Option<String> {
    percent_decode_str(text).decode_utf8().ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(variables: &[(&str, &str)]) -> Vec<(String, String)> {
        variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    /// `signal url protocol` of every destination, or the error's text.
    fn check(variables: &[(&str, &str)], expected: &[&str]) {
        let found = match destinations(&owned(variables)) {
            Ok(destinations) => destinations
                .iter()
                .map(|destination| {
                    let signal = destination.signals[0];
                    let url = destination.url(signal).expect("a destination has a URL for its signal");
                    format!("{} {url} {:?}", signal.name(), destination.protocol)
                })
                .collect(),
            Err(error) => vec![error.to_string()],
        };
        assert_eq!(found, expected, "{variables:?}");
    }

    #[test]
    fn endpoints_follow_the_specification() {
        const ALL: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
        const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";
        const PROTOCOL: &str = "OTEL_EXPORTER_OTLP_PROTOCOL";
        check(&[], &[]);
        check(&[(ALL, "")], &[]);
        check(&[("OTEL_EXPORTER_OTLP_HEADERS", "a=b")], &[]);
        check(
            &[(ALL, "http://c:4318")],
            &[
                "traces http://c:4318/v1/traces Http",
                "metrics http://c:4318/v1/metrics Http",
                "profiles http://c:4318/v1development/profiles Http",
            ],
        );
        check(
            &[(ALL, "http://c:4318/base/")],
            &[
                "traces http://c:4318/base/v1/traces Http",
                "metrics http://c:4318/base/v1/metrics Http",
                "profiles http://c:4318/base/v1development/profiles Http",
            ],
        );
        check(&[(TRACES, "https://c/mine")], &["traces https://c/mine Http"]);
        check(&[(TRACES, "https://c")], &["traces https://c Http"]);
        check(
            &[(ALL, "http://c"), (TRACES, "http://t/x")],
            &[
                "traces http://t/x Http",
                "metrics http://c/v1/metrics Http",
                "profiles http://c/v1development/profiles Http",
            ],
        );
        check(&[("OTEL_EXPORTER_OTLP_PROFILES_ENDPOINT", "http://p/x")], &["profiles http://p/x Http"]);
        check(
            &[(ALL, "http://c:4317"), (PROTOCOL, "grpc")],
            &["traces http://c:4317 Grpc", "metrics http://c:4317 Grpc", "profiles http://c:4317 Grpc"],
        );
        check(
            &[(ALL, "c:4317"), (PROTOCOL, "grpc"), ("OTEL_METRICS_EXPORTER", "none")],
            &["traces https://c:4317 Grpc", "profiles https://c:4317 Grpc"],
        );
        check(
            &[
                (ALL, "c:4317"),
                ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc"),
                ("OTEL_EXPORTER_OTLP_INSECURE", "True"),
                ("OTEL_METRICS_EXPORTER", "prometheus"),
                ("OTEL_PROFILES_EXPORTER", "none"),
            ],
            &["traces http://c:4317 Grpc"],
        );
        check(&[("OTEL_TRACES_EXPORTER", "console,otlp")], &["traces http://localhost:4318/v1/traces Http"]);
    }

    #[test]
    fn what_cannot_be_used_is_refused() {
        let check = |name: &str, text: &str, expected: &str| {
            let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318");
            let expected = format!("environment {name}: export: `{text}` is not valid, expected {expected}");
            check(&[(name, text), endpoint], &[&expected]);
        };
        check("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "grpc or http/protobuf");
        check("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "zstd", "gzip or none");
        check("OTEL_EXPORTER_OTLP_TIMEOUT", "10s", "milliseconds from 1 to 3600000");
        check("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem", "an absolute path");
        check("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "delta", "cumulative");
        check(
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "ftp://c",
            "an http or https URL without user and query, such as http://localhost:4318",
        );
        check("OTEL_BSP_MAX_QUEUE_SIZE", "0", "a whole number above 0");
        let hidden = destinations(&owned(&[
            ("OTEL_TRACES_EXPORTER", "otlp"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "k v=tok"),
        ]));
        assert!(!hidden.unwrap_err().to_string().contains("tok"));
    }

    #[test]
    fn everything_else_is_read() {
        let found = destinations(&owned(&[
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://c"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20x, b = 2 "),
            ("OTEL_EXPORTER_OTLP_TRACES_COMPRESSION", "gzip"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
            ("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE", "/c.pem"),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/k.pem"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "2048"),
            ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "512"),
            ("OTEL_BSP_SCHEDULE_DELAY", "5000"),
        ]));
        let [found] = &found.unwrap()[..] else { panic!("one destination") };
        assert_eq!(found.headers.iter().collect::<Vec<_>>(), [("authorization", "Bearer x"), ("b", "2")]);
        assert_eq!((found.compression, found.timeout), (Compression::Gzip, Duration::from_millis(2500)));
        let files = [&found.ca_file, &found.cert_file, &found.key_file].map(|file| file.clone().unwrap());
        assert_eq!(files, ["/ca.pem", "/c.pem", "/k.pem"].map(PathBuf::from));
        assert_eq!((found.queue_items, found.batch_items, found.batch_delay.as_secs()), (2048, 512, 5));
    }

    #[test]
    fn samplers() {
        let check = |sampler: &str, argument: &str, expected: Result<Value, &str>| {
            let variables = owned(&[("OTEL_TRACES_SAMPLER", sampler), ("OTEL_TRACES_SAMPLER_ARG", argument)]);
            match (settings(&variables), expected) {
                (Ok(settings), Ok(expected)) => assert_eq!(settings[0].value, expected, "{sampler}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (found, expected) => panic!("{sampler}: {found:?}, expected {expected:?}"),
            }
        };
        check("always_on", "", Ok(json!({"ratio": 1.0, "parent_based": false})));
        check("traceidratio", "0.25", Ok(json!({"ratio": 0.25, "parent_based": false})));
        check("parentbased_traceidratio", "", Ok(json!({"ratio": 1.0, "parent_based": true})));
        check("parentbased_always_off", "", Ok(json!({"ratio": 0.0, "parent_based": true})));
        check("traceidratio", "2", Err("OTEL_TRACES_SAMPLER_ARG"));
        check("jaeger_remote", "", Err("always_on, always_off"));
    }
}
