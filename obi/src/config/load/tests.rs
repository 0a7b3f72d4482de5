//! Configurations as text and what becomes of them.

use super::super::{Config, Hooks};
use super::{Source, merge};
use crate::config::HookSet;

fn load(text: &str, environment: &[(&str, &str)]) -> Result<Config, String> {
    let variables = environment.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    merge("obi.yaml", text, variables).map_err(|error| error.to_string())
}

#[test]
fn what_is_not_written_has_its_default() {
    for text in ["", "# only a comment\n", "web:\n", "{}", "capture: {}\nslo:\n"] {
        assert_eq!(load(text, &[]), Ok(Config::default()), "{text:?}");
    }
    let config = Config::default();
    assert_eq!(config.web.listen.to_string(), "127.0.0.1:9464");
    assert_eq!((config.capture.ring_bytes, config.capture.head_limit), (8 << 20, 8192));
    assert_eq!((config.metrics.series_limit, config.metrics.route_limit), (10_000, 200));
    assert_eq!(config.trace.known_methods.len(), 10);
}

#[test]
fn every_key_can_be_written() {
    let text = "
discover:
  include: [{service: 'shop-*'}, {port: 8000-8099}]
  exclude: [{executable: /usr/bin/*, port: 80}, {cgroup: '*/x'}]
capture: {hooks: socket, ring_bytes: 64KiB, head_limit: 65536, statistics: true}
protocol: {pending_limit: 128}
trace: {known_methods: [GET, PURGE], routes: ['/a/{b}', '/c/*'], route_state: ''}
metrics: {series_limit: 100, route_limit: 1}
slo: {files: [/etc/slo/*.yaml], alertmanagers: ['http://alerts:9093'], webhooks: ['http://[::1]/x'], state: /s}
web: {listen: '[::1]:0', spans: 0, span_bytes: 1 MiB}
";
    let config = load(text, &[]).unwrap();
    assert_eq!((config.discover.include.len(), config.discover.exclude.len()), (2, 2));
    assert!(config.discover.include[1].port.unwrap().contains(8099));
    assert!(config.discover.exclude[0].executable.as_ref().unwrap().matches("/usr/bin/curl"));
    assert_eq!(config.capture.hooks, Hooks::Forced(HookSet::Socket));
    assert_eq!((config.capture.ring_bytes, config.capture.statistics), (65_536, true));
    assert_eq!(config.trace.known_methods, ["GET", "PURGE"]);
    assert_eq!(config.trace.routes, ["/a/{b}", "/c/*"]);
    assert!(config.trace.route_state.as_os_str().is_empty());
    assert_eq!((config.slo.files.len(), config.slo.state.to_str()), (1, Some("/s")));
    let endpoints = config.slo.alertmanagers.iter().chain(&config.slo.webhooks);
    let endpoints: Vec<_> = endpoints.map(|endpoint| endpoint.url().as_str()).collect();
    assert_eq!(endpoints, ["http://alerts:9093/", "http://[::1]/x"]);
    assert_eq!((config.web.listen.to_string(), config.web.span_bytes), ("[::1]:0".to_owned(), 1 << 20));
}

#[test]
fn environment_over_file_over_default() {
    let file = "web: {listen: 127.0.0.1:1, spans: 5}\ntrace: {known_methods: [GET]}\n";
    let environment = [
        ("OBI_WEB_LISTEN", "127.0.0.1:2"),
        ("OBI_CAPTURE_RING_BYTES", "4096"),
        ("OBI_CAPTURE_STATISTICS", "true"),
        ("OBI_DISCOVER_EXCLUDE", "[{port: 22}]"),
        ("OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS", "GET, PURGE"),
        ("OBI_WEB_SPAN_BYTES", "1MiB"),
    ];
    let config = load(file, &environment).unwrap();
    assert_eq!((config.web.listen.port(), config.web.spans, config.web.span_bytes), (2, 5, 1 << 20));
    assert_eq!((config.capture.ring_bytes, config.capture.statistics), (4096, true));
    assert_eq!(config.discover.exclude.len(), 1);
    assert_eq!(config.trace.known_methods, ["GET", "PURGE"]);
    let own = [("OBI_TRACE_KNOWN_METHODS", "[PUT]"), ("OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS", "GET")];
    assert_eq!(load(file, &own).unwrap().trace.known_methods, ["PUT"]);
}

#[test]
fn variables_that_are_not_settings_are_passed_over() {
    let environment = [
        ("OBI_LOG", "debug"),
        ("OBI_CLANG", "clang-19"),
        ("OBI_SERVICE_HOST", "10.0.0.1"),
        ("OBI_PORT", "tcp://10.0.0.1:80"),
        ("OBI_WEB_SERVICE_PORT", "80"),
        ("OBI_WEB_PORT", "tcp://10.0.0.1:80"),
        ("OBI_WEB_PORT_80_TCP_ADDR", "10.0.0.1"),
        ("PATH", "/bin"),
    ];
    assert_eq!(load("", &environment), Ok(Config::default()));
}

#[test]
fn a_wrong_file_says_where_and_what_was_expected() {
    fn check(text: &str, expected: &str) {
        let error = load(text, &[]).expect_err(text);
        assert_eq!(error, expected, "{text:?}");
        assert!(!error.contains('\n'));
    }
    check(
        "wed: {}",
        "obi.yaml: wed: not known; expected one of capture, discover, export, kubernetes, metrics, profile, protocol, receive, slo, trace, web",
    );
    check(
        "web: {lisen: x}",
        "obi.yaml: web.lisen: not known; expected one of cert_file, client_ca_file, external_url, history_bytes, hosts, key_file, listen, open, protect_metrics, span_bytes, spans, token",
    );
    check(
        "discover: {include: [{exe: /usr/bin/x}]}",
        "obi.yaml: discover.include[0].exe: not known; expected one of executable, service, port, cgroup",
    );
    check(
        "web: {spans: 1}\nweb: {}",
        "obi.yaml: not valid YAML: the key web stands there twice, expected every key once at line 2, column 1",
    );
    check(
        "web: {}\n---\nweb: {}",
        "obi.yaml: not valid YAML: a second document begins, expected one document without `---` between its lines at line 3, column 1",
    );
    check(
        "slo: {state: var/slo}",
        "obi.yaml: slo.state: `var/slo` is not valid, expected an absolute path, such as /var/lib/obi/slo",
    );
    const HOSTS: &str = "a list of at most 100 host names without ports, such as [obi.example.org]";
    for (list, shown) in
        [("[a:9464]", "[\"a:9464\"]"), ("['']", "[\"\"]"), ("obi", "obi"), ("[a/b]", "[\"a/b\"]")]
    {
        check(
            &format!("web: {{hosts: {list}}}"),
            &format!("obi.yaml: web.hosts: `{shown}` is not valid, expected {HOSTS}"),
        );
    }
    const URL: &str = "an address such as https://obi.example.org, or an empty text";
    for url in ["obi.example.org", "ftp://obi", "http://", "https://obi#top"] {
        check(
            &format!("web: {{external_url: '{url}'}}"),
            &format!("obi.yaml: web.external_url: `{url}` is not valid, expected {URL}"),
        );
    }
    for token in ["short-secret-99", "0123456789abcde ", "0123456789abcdéf", "[x]"] {
        check(
            &format!("web: {{token: '{token}'}}"),
            "obi.yaml: web.token: `…` is not valid, expected 16 to 4096 letters, digits and `-._~+/=`, or an empty text",
        );
    }
    check(
        "slo: {alertmanagers: ['alerts:9093']}",
        "obi.yaml: slo.alertmanagers[0]: `alerts:9093` is not valid, expected an address such as http://alertmanager:9093",
    );
    check(
        "kubernetes: {metadata: informer}",
        "obi.yaml: kubernetes.metadata: `informer` is not valid, expected auto, kubelet, api, logs or off",
    );
    check(
        "kubernetes: {log_folder: logs}",
        "obi.yaml: kubernetes.log_folder: `logs` is not valid, expected an absolute path, such as /var/log/pods",
    );
    check(
        "kubernetes: {node: 'a,b'}",
        "obi.yaml: kubernetes.node: `a,b` is not valid, expected a name of letters, digits, `-`, `.` and `_`, at most 253",
    );
    check(
        "capture: {enabled: false}",
        "obi.yaml: capture.enabled: `false` lets the agent see nothing, expected an address in receive.otlp beside it",
    );
    check("receive: {rate: 9}", "obi.yaml: receive.rate: not known; expected one of otlp");
    for (otlp, key, expected) in [
        (
            "{grpc: 4317}",
            "grpc: `4317`",
            "is not valid, expected an address with a port, such as 127.0.0.1:4317",
        ),
        (
            "{token: short}",
            "token: `short`",
            "is not valid, expected 16 to 512 visible characters without spaces",
        ),
        ("{cert_file: /a}", "key_file: `null`", "is missing, expected the key of `cert_file`"),
        ("{key_file: /a}", "cert_file: `null`", "is missing, expected the certificate of `key_file`"),
        (
            "{http: '0.0.0.0:4318'}",
            "http: `0.0.0.0:4318`",
            "is not loopback, expected a `token` that senders have to say beside it",
        ),
        (
            "{grpc: '[::]:4317', token: 0123456789abcdef}",
            "grpc: `[::]:4317`",
            "is not loopback, expected a `cert_file` beside it: the token is a secret",
        ),
        (
            "{grpc: '127.0.0.1:4317', http: '127.0.0.1:4317'}",
            "http: `127.0.0.1:4317`",
            "is the address of `grpc` as well, expected another port",
        ),
    ] {
        check(&format!("receive: {{otlp: {otlp}}}"), &format!("obi.yaml: receive.otlp.{key} {expected}"));
    }
    for (web, key, expected) in [
        (
            "{cert_file: a.pem}",
            "cert_file: `a.pem`",
            "is not valid, expected an absolute path, such as /etc/obi/web.pem, or an empty text",
        ),
        ("{cert_file: /a}", "key_file: `null`", "is missing, expected the key of `cert_file`"),
        ("{key_file: /a}", "cert_file: `null`", "is missing, expected the certificate of `key_file`"),
        (
            "{client_ca_file: /a}",
            "client_ca_file: `/a`",
            "needs TLS, expected `cert_file` and `key_file` beside it",
        ),
    ] {
        check(&format!("web: {web}"), &format!("obi.yaml: web.{key} {expected}"));
    }
    check(
        "web: 7",
        "obi.yaml: web: `7` is not a section, expected one of cert_file, client_ca_file, external_url, history_bytes, hosts, key_file, listen, open, protect_metrics, span_bytes, spans, token",
    );
    check("7", "obi.yaml: `7` is not valid, expected sections such as `web:`");
    check(
        "web: {listen: 9464}",
        "obi.yaml: web.listen: `9464` is not valid, expected an address with a port, such as 127.0.0.1:9464 or [::1]:9464",
    );
    check(
        "web: {listen: localhost}",
        "obi.yaml: web.listen: `localhost` is not valid, expected an address with a port, such as 127.0.0.1:9464 or [::1]:9464",
    );
    check(
        "web: {spans: -1}",
        "obi.yaml: web.spans: `-1` is not valid, expected a whole number from 0 to 10000000",
    );
    check(
        "web: {spans: many}",
        "obi.yaml: web.spans: `many` is not valid, expected a whole number from 0 to 10000000",
    );
    check(
        "web: {spans: [1]}",
        "obi.yaml: web.spans: `[1]` is not valid, expected a whole number from 0 to 10000000",
    );
    check(
        "web: {spans: 1.5}",
        "obi.yaml: web.spans: `1.5` is not valid, expected a whole number from 0 to 10000000",
    );
    check(
        "capture: {btf: vmlinux}",
        "obi.yaml: capture.btf: `vmlinux` is not valid, expected an absolute path, such as /sys/kernel/btf/vmlinux",
    );
    check(
        "capture: {hooks: magic}",
        "obi.yaml: capture.hooks: `magic` is not a hook set, expected auto, socket, fentry, kprobe or syscall",
    );
    check(
        "capture: {hooks: 1}",
        "obi.yaml: capture.hooks: `1` is not valid, expected auto, socket, fentry, kprobe or syscall",
    );
    check(
        "capture: {statistics: 1}",
        "obi.yaml: capture.statistics: `1` is not valid, expected true or false",
    );
    for ring in ["5000", "2048", "2GiB", "8 megabytes", "true"] {
        check(
            &format!("capture: {{ring_bytes: {ring}}}"),
            &format!(
                "obi.yaml: capture.ring_bytes: `{ring}` is not valid, expected a power of two from 4096 to 1073741824 bytes, such as 8MiB"
            ),
        );
    }
    check(
        "capture: {head_limit: 100}",
        "obi.yaml: capture.head_limit: `100` is not valid, expected a size from 256 to 65536 bytes, such as 65536 or 64KiB",
    );
    check(
        "trace: {known_methods: ['GE T']}",
        "obi.yaml: trace.known_methods: `[\"GE T\"]` is not valid, expected a list of 1 to 64 method names, such as [GET, POST]",
    );
    check(
        "trace: {routes: ['/a', 'b']}",
        "obi.yaml: trace.routes: `[\"/a\",\"b\"]` is not valid: route pattern `b` does not begin with `/`, expected a list of at most 1000 routes, such as [\"/users/{id}\", \"/files/*\"]",
    );
    check(
        "trace: {route_state: routes.json}",
        "obi.yaml: trace.route_state: `routes.json` is not valid, expected an absolute path, such as /var/lib/obi/routes.json, or an empty text",
    );
    check("discover: {include: x}", "obi.yaml: discover.include: `x` is not valid, expected a list");
    check(
        "discover: {include: [x]}",
        "obi.yaml: discover.include[0]: `x` is not valid, expected a rule, such as {service: shop-*}",
    );
    check(
        "discover: {include: [{}]}",
        "obi.yaml: discover.include[0]: `{}` matches everything, expected at least one of executable, service, port, cgroup",
    );
    check(
        "discover: {include: [{port: 90-80}]}",
        "obi.yaml: discover.include[0].port: `90-80` is not valid, expected a port from 1 to 65535 or a range, such as 8080 or 8000-8099",
    );
    check(
        "discover: {exclude: [{port: 80}, {service: '[a'}]}",
        "obi.yaml: discover.exclude[1].service: `[a` is not a valid glob, expected a glob, such as */bin/shop-*",
    );
    check(
        "discover: {include: [{port: 80}], exclude: [{port: 22}, {port: 80-80}]}",
        "obi.yaml: discover.exclude[1]: `{\"port\":\"80-80\"}` is in discover.include as well, expected a rule to be in one of the two",
    );
}

#[test]
fn an_unknown_word_in_a_rule_names_the_known_ones() {
    let error = load("discover: {include: [{exe: x}]}", &[]).unwrap_err();
    assert!(error.starts_with("obi.yaml: discover.include[0]"), "{error}");
    assert!(error.contains("executable") && error.contains("cgroup"), "{error}");
}

#[test]
fn text_that_is_not_yaml_is_refused_on_one_line() {
    for text in ["web: [", "web: {listen: a}\nweb: {listen: b}\n", "a: b: c"] {
        let error = load(text, &[]).expect_err(text);
        assert!(error.starts_with("obi.yaml: not valid YAML: "), "{error}");
        assert!(!error.contains('\n'), "{error}");
    }
}

#[test]
fn a_wrong_variable_is_named() {
    fn check(name: &str, text: &str, expected: &str) {
        assert_eq!(load("web: {spans: 1}", &[(name, text)]).expect_err(name), expected);
    }
    check(
        "OBI_WEB_SPANS",
        "x",
        "environment OBI_WEB_SPANS: web.spans: `x` is not valid, expected a whole number from 0 to 10000000",
    );
    check(
        "OBI_CAPTURE_HOOKS",
        "uprobe",
        "environment OBI_CAPTURE_HOOKS: capture.hooks: `uprobe` is not a hook set, expected auto, socket, fentry, kprobe or syscall",
    );
    check(
        "OBI_WEB_LISTEM",
        "x",
        "environment OBI_WEB_LISTEM: web.listem: not known; expected one of OBI_WEB_CERT_FILE, OBI_WEB_CLIENT_CA_FILE, OBI_WEB_EXTERNAL_URL, OBI_WEB_HISTORY_BYTES, OBI_WEB_HOSTS, OBI_WEB_KEY_FILE, OBI_WEB_LISTEN, OBI_WEB_OPEN, OBI_WEB_PROTECT_METRICS, OBI_WEB_SPAN_BYTES, OBI_WEB_SPANS, OBI_WEB_TOKEN",
    );
    check(
        "OBI_DISCOVER_INCLUDE",
        "[{port: 0}]",
        "environment OBI_DISCOVER_INCLUDE: discover.include[0].port: `0` is not valid, expected a port from 1 to 65535 or a range, such as 8080 or 8000-8099",
    );
    check(
        "OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS",
        "",
        "environment OTEL_INSTRUMENTATION_HTTP_KNOWN_METHODS: trace.known_methods: `[\"\"]` is not valid, expected a list of 1 to 64 method names, such as [GET, POST]",
    );
}

#[test]
fn a_missing_file_is_named() {
    let error = super::load(Some(std::path::Path::new("/nonexistent/obi.yaml"))).unwrap_err().to_string();
    assert!(
        error.starts_with("/nonexistent/obi.yaml: failed to read the configuration: No such file"),
        "{error}"
    );
}

#[test]
fn changed_keys_are_named() {
    let (one, other) = (load("", &[]).unwrap(), load("web: {spans: 7}\ntrace: {routes: [/a]}", &[]).unwrap());
    assert_eq!(one.changed_keys(&other), ["trace.routes", "web.spans"]);
    assert!(one.changed_keys(&one.clone()).is_empty());
}

#[test]
fn destinations_are_checked() {
    fn check(export: &str, expected: &str) {
        let error = load(&format!("export: {{{export}}}"), &[]).expect_err(export);
        assert_eq!(error, format!("obi.yaml: export.{expected}"), "{export:?}");
    }
    const URL: &str = "an http or https URL without user and query, such as http://collector:4318";
    check(
        "otlp: [{endpoint: collector}]",
        &format!("otlp[0].endpoint: `collector` is not valid, expected {URL}"),
    );
    check(
        "otlp: [{endpoint: \"http://u:p@c\"}]",
        &format!("otlp[0].endpoint: `http://u:p@c` is not valid, expected {URL}"),
    );
    check(
        "otlp: [{traces_endpoint: \"http://c\"}]",
        "otlp[0].endpoint: `null` is missing, expected a URL here or in `metrics_endpoint`, such as http://collector:4318",
    );
    check(
        "otlp: [{endpoint: \"http://c\", protocol: http}]",
        "otlp[0].protocol: `http` is not valid, expected `grpc` or `http/protobuf`",
    );
    check(
        "otlp: [{endpoint: \"http://c\", signals: []}]",
        "otlp[0].signals: `[]` is empty, expected some of traces, metrics, profiles, logs",
    );
    check(
        "otlp: [{endpoint: \"http://c\"}, {endpoint: \"http://c\", signals: [metrics]}]",
        "otlp[1].name: `null` is used twice: `c` gets metrics already, expected another name",
    );
    check(
        "otlp: [{endpoint: \"http://c\", timeout: 10}]",
        "otlp[0].timeout: `10` is not valid, expected a time from 100ms to 5m, such as 10s",
    );
    check(
        "otlp: [{endpoint: \"http://c\", cert_file: /c.pem}]",
        "otlp[0].key_file: `null` is missing, expected the key of `cert_file`",
    );
    check(
        "sampling: {ratio: 2}",
        "sampling.ratio: `2` is not valid, expected a number from 0 to 1, such as 0.1",
    );
    check(
        "metric_interval: 1ms",
        "metric_interval: `1ms` is not valid, expected a time from 1s to 1h, such as 10s",
    );

    check(
        "remote_write: [{}]",
        "remote_write[0].url: `null` is missing, expected one such as http://prometheus:9090/api/v1/write",
    );
    check(
        "otlp: [{endpoint: \"http://c\"}], remote_write: [{url: \"http://c/w\"}]",
        "remote_write[0].name: `null` is used twice: `c`, expected another name",
    );
    for labels in ["{__name__: a}", "{le: a}", "{1a: a}", "{\"a-b\": c}", "{\"\": a}"] {
        let error =
            load(&format!("export: {{remote_write: [{{url: \"http://c/w\", labels: {labels}}}]}}"), &[]);
        let error = error.expect_err(labels);
        assert!(
            error.contains("export.remote_write[0].labels: ") && error.contains("expected labels such as"),
            "{error}"
        );
    }
    check(
        "remote_write: [{url: \"http://c/w\", histograms: exponential}]",
        "remote_write[0].histograms: `exponential` is not valid, expected one of `classic`, `native`, `both`",
    );

    let file = "export: {otlp: [{endpoint: \"http://a:4317\", protocol: grpc, headers: {k: v}}], sampling: {ratio: 0.5}}";
    let environment = [
        ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://b/x"),
        ("OTEL_TRACES_SAMPLER", "parentbased_always_off"),
    ];
    let export = load(file, &environment).unwrap().export;
    let remote_write =
        load("export: {remote_write: [{url: \"http://c/w\", labels: {Zone: a, instance: \"\"}}]}", &[])
            .unwrap();
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let destination = &remote_write.export.remote_write[0];
    assert_eq!(destination.series_labels("host"), pairs(&[("Zone", "a"), ("job", "obi")]));
    let labels: Vec<_> = export.otlp.iter().map(super::super::export::OtlpDestination::label).collect();
    assert_eq!((labels, export.sampling.ratio), (vec!["a:4317".to_owned(), "environment".to_owned()], 0.0));
    let secrets =
        format!("{:?}", load("export: {otlp: [{endpoint: \"http://c\", headers: {k: hidden}}]}", &[]));
    assert!(!secrets.contains("hidden"), "{secrets}");
}

#[test]
fn a_key_is_placed_where_it_is_set() {
    let check = |file: Option<&str>, expected: &str| {
        let source = Source { file: file.map(Into::into) };
        assert_eq!(source.place("slo.files"), expected);
    };
    check(Some("/etc/obi.yaml"), "/etc/obi.yaml: slo.files");
    check(None, "slo.files");
    assert_eq!(super::environment::variable("slo.files"), "OBI_SLO_FILES");
}
