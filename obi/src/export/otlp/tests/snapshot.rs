//! Snapshots through the encoders of metrics.

use super::*;

/// Points by service and metric, checked for what all have in common.
fn metrics(payloads: &[Payload]) -> BTreeMap<(String, String), Vec<Data>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for payload in payloads {
        let request = ExportMetricsServiceRequest::decode(payload.bytes.clone()).unwrap();
        let mut n_items = 0;
        for resource in request.resource_metrics {
            let service = plain(&resource.resource.unwrap().attributes)["service.name"].clone();
            assert_eq!([&resource.schema_url, &resource.scope_metrics[0].schema_url], [SCHEMA_URL; 2]);
            assert_eq!(resource.scope_metrics[0].scope.as_ref().unwrap().name, "obi");
            for metric in resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
                let data = metric.data.unwrap();
                let (n, temporality) = match &data {
                    Data::Histogram(data) => (data.data_points.len(), data.aggregation_temporality),
                    Data::ExponentialHistogram(data) => {
                        (data.data_points.len(), data.aggregation_temporality)
                    }
                    Data::Sum(data) => (data.data_points.len(), data.aggregation_temporality),
                    other => panic!("{other:?}"),
                };
                // Cumulative.
                assert_eq!(temporality, 2);
                n_items += n as u64;
                found
                    .entry((service.clone(), format!("{} {}", metric.name, metric.unit)))
                    .or_default()
                    .push(data);
            }
        }
        assert_eq!(n_items, payload.n_items);
    }
    found
}

fn histograms(payloads: &[Payload]) -> BTreeMap<String, Vec<HistogramDataPoint>> {
    let of = |data: Data| match data {
        Data::Histogram(histogram) => histogram.data_points,
        _ => Vec::new(),
    };
    let found = metrics(payloads).into_iter();
    found.map(|((_, name), data)| (name, data.into_iter().flat_map(of).collect())).collect()
}

fn encoded(registry: &mut Registry, now: u64) -> Vec<Payload> {
    metric::encode(&registry.snapshot(), START, now, Histograms::Explicit)
}

fn registry() -> Registry {
    Registry::new(red::Limits::default())
}

#[test]
fn a_snapshot_becomes_histograms_with_exemplars() {
    let mut registry = registry();
    registry.record(&span(SpanKind::Server));
    registry.record(&span(SpanKind::Client));
    registry.record(&span_with(SpanKind::Server, |span| {
        span.http().status = None;
        span.error_type = "reset";
    }));
    let mut unsampled = span_with(SpanKind::Client, |span| span.http().status = Some(404));
    unsampled.sampled = false;
    registry.record(&unsampled);
    let found = histograms(&encoded(&mut registry, START + 90_000_000));
    let [server, failed] = &found["http.server.request.duration s"][..] else { panic!("{found:?}") };
    let [client, unsampled] = &found["http.client.request.duration s"][..] else { panic!("{found:?}") };
    assert_eq!(
        plain(&client.attributes),
        expected([
            ("http.request.method", "GET"),
            ("server.address", "shop.example"),
            ("server.port", "8080i"),
            ("http.response.status_code", "200i"),
            ("url.scheme", "http"),
            ("network.protocol.version", "1.1"),
        ])
    );
    let attributes = plain(&failed.attributes);
    assert_eq!(attributes["error.type"], "reset");
    assert!(!attributes.contains_key("http.response.status_code"));
    assert_eq!(plain(&server.attributes)["http.route"], "/item/{id}");
    assert!(unsampled.exemplars.is_empty() && unsampled.count == 1);
    for point in [client, server, failed] {
        assert_eq!((point.count, point.sum, point.explicit_bounds.len()), (1, Some(0.012), 14));
        assert_eq!(point.bucket_counts[2], 1);
        // Counted from the end of the first span.
        let times = (point.start_time_unix_nano, point.time_unix_nano);
        assert_eq!(times, (START + 12_000_000, START + 90_000_000));
        let [exemplar] = &point.exemplars[..] else { panic!("{point:?}") };
        assert_eq!((&exemplar.trace_id[..], &exemplar.span_id[..]), (&[0xab; 16][..], &[0xcd; 8][..]));
        assert_eq!(exemplar.time_unix_nano, START + 12_000_000);
        assert_eq!(exemplar.value, Some(exemplar::Value::AsDouble(0.012)));
    }
    let [wait] = &found["obi.server.queue_wait s"][..] else { panic!("{found:?}") };
    assert_eq!((wait.count, wait.sum, wait.attributes.len()), (2, Some(0.004), 0));
}

#[test]
fn everything_of_the_snapshot_goes_out() {
    let mut registry = registry();
    registry.record(&span_with(SpanKind::Server, |span| {
        span.request_bytes = Some(100);
        span.response_bytes = Some(9_000);
    }));
    registry.record(&span_with(SpanKind::Client, |span| span.request_bytes = Some(7)));
    registry.record(&call_ended(SpanKind::Server, Code::DEADLINE_EXCEEDED));
    registry.record(&call_ended(SpanKind::Client, Code::OK));
    registry.record(&websocket(SpanKind::Server));
    let active = crate::red::ActiveLabels {
        service: service(1),
        kind: SpanKind::Server,
        method: "GET",
        scheme: "http",
        server_address: String::new(),
        server_port: 0,
    };
    registry.set_active([active.clone(), active]);
    let payloads = encoded(&mut registry, START + 90_000_000);
    let found = metrics(&payloads);
    let names: Vec<_> = found.keys().map(|(_, name)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "http.client.request.body.size By",
            "http.client.request.duration s",
            "http.server.active_requests {request}",
            "http.server.request.body.size By",
            "http.server.request.duration s",
            "http.server.response.body.size By",
            "obi.server.queue_wait s",
            "rpc.client.call.duration s",
            "rpc.server.call.duration s",
            "traces.span.metrics.calls ",
            "traces.span.metrics.duration s",
        ]
    );
    let sums = |name: &str| match &found[&("service-1".to_owned(), name.to_owned())][..] {
        [Data::Sum(sum)] => (sum.is_monotonic, sum.data_points.clone()),
        other => panic!("{other:?}"),
    };
    let (monotonic, active) = sums("http.server.active_requests {request}");
    assert_eq!((monotonic, active[0].value), (false, Some(number_data_point::Value::AsInt(2))));
    assert_eq!(
        plain(&active[0].attributes),
        expected([("http.request.method", "GET"), ("url.scheme", "http")])
    );
    let (monotonic, calls) = sums("traces.span.metrics.calls ");
    assert_eq!((monotonic, calls.len()), (true, 5));
    assert_eq!(
        plain(&calls[0].attributes),
        expected([
            ("span.name", "GET /item/{id}"),
            ("span.kind", "SPAN_KIND_SERVER"),
            ("status.code", "STATUS_CODE_UNSET"),
        ])
    );
    let names = |points: &[HistogramDataPoint]| {
        points.iter().map(|point| plain(&point.attributes)["span.name"].clone()).collect::<Vec<_>>()
    };
    let timed = names(&histograms(&payloads)["traces.span.metrics.duration s"]);
    assert!(calls.iter().any(|point| plain(&point.attributes)["span.name"].starts_with("WEBSOCKET")));
    assert_eq!(timed.iter().filter(|name| name.starts_with("WEBSOCKET")).count(), 0, "{timed:?}");
    let durations = &histograms(&payloads)["rpc.server.call.duration s"][0];
    assert_eq!((durations.count, durations.exemplars.len()), (1, 1));
    assert_eq!(
        plain(&durations.attributes),
        expected([
            ("rpc.system.name", "grpc"),
            ("rpc.method", "shop.Cart/Add"),
            ("rpc.response.status_code", "DEADLINE_EXCEEDED"),
            ("error.type", "DEADLINE_EXCEEDED"),
        ])
    );
    let sizes = &histograms(&payloads)["http.server.response.body.size By"][0];
    assert_eq!((sizes.count, sizes.sum, sizes.explicit_bounds.len()), (1, Some(9_000.0), 8));
}

#[test]
fn exponential_histograms_hold_the_same() {
    let mut registry = registry();
    let durations = [0, 1, 1_000_000_000, 1_000_000_001, 3_900_000_000];
    for duration in durations {
        let mut span = span(SpanKind::Server);
        span.start = span.end - duration;
        registry.record(&span);
    }
    let payloads = metric::encode(&registry.snapshot(), START, START * 2, Histograms::Exponential);
    let found = metrics(&payloads);
    let key = ("service-1".to_owned(), "http.server.request.duration s".to_owned());
    let [Data::ExponentialHistogram(histogram)] = &found[&key][..] else { panic!("{found:?}") };
    let [point] = &histogram.data_points[..] else { panic!("{histogram:?}") };
    assert_eq!((point.count, point.zero_count, point.sum), (5, 1, Some(5.900_000_002)));
    assert!(!point.exemplars.is_empty());
    let positive = point.positive.as_ref().unwrap();
    assert_eq!(positive.bucket_counts.iter().sum::<u64>(), 4);
    // OpenTelemetry's bucket i holds what is in (base^i, base^(i+1)], base = 2^(2^-scale).
    let base = (-f64::from(point.scale)).exp2().exp2();
    for duration in durations.into_iter().filter(|duration| *duration > 0) {
        let index = red::seconds(duration).log(base).ceil() as i32 - 1;
        let place = usize::try_from(index - positive.offset).unwrap();
        assert!(positive.bucket_counts[place] > 0, "{duration} ns in {point:?}");
    }
}

#[test]
fn a_clock_set_back_makes_no_point_end_before_it_starts() {
    let mut registry = registry();
    registry.record(&span(SpanKind::Client));
    let found = histograms(&encoded(&mut registry, START));
    let point = &found["http.client.request.duration s"][0];
    assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (START + 12_000_000, START + 12_000_000));
}

#[test]
fn many_series_become_many_payloads_below_the_limit() {
    let mut registry = Registry::new(red::Limits { series: 20_000, ..red::Limits::default() });
    for number in 0..3_000_u32 {
        let route: Arc<str> = format!("/{number}/{}", "x".repeat(200)).into();
        registry.record(&span_with(SpanKind::Server, |span| span.http().route = route));
    }
    let payloads = encoded(&mut registry, START * 2);
    assert!(payloads.iter().all(|payload| payload.bytes.len() < queue::PAYLOAD_BYTES));
    assert_eq!(histograms(&payloads)["http.server.request.duration s"].len(), 3_000);
}

#[test]
fn an_overflow_series_says_so() {
    let mut registry = Registry::new(red::Limits { series: 1_000, ..red::Limits::default() });
    for number in 0..2_000 {
        registry.record(&span_with(SpanKind::Server, |span| span.http().route = format!("/{number}").into()));
    }
    let found = histograms(&encoded(&mut registry, START * 2));
    let points = &found["http.server.request.duration s"];
    let overflow: Vec<_> =
        points.iter().map(|point| plain(&point.attributes)).filter(|point| point.len() == 4).collect();
    assert_eq!(
        overflow,
        [expected([
            ("http.request.method", "_OTHER"),
            ("http.route", "_OTHER"),
            ("http.response.status_code", "2xx"),
            ("otel.metric.overflow", "trueb"),
        ])]
    );
    assert_eq!(points.iter().map(|point| point.count).sum::<u64>(), 2_000);
}
