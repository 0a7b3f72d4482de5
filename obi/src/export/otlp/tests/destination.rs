//! What becomes of spans on their way to destinations that are down, none, or changed.

use super::*;

#[test]
fn without_destinations_everything_counts_as_sampled() {
    let (mut span_export, exporter) = {
        let _runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Plan::new(&Export::default(), 1).unwrap().start()
    };
    let mut span = span(SpanKind::Server);
    assert!(span_export.sample(&mut span).is_none() && span.sampled);
    assert!(!exporter.wants_metrics() && span_export.lanes().is_empty());
}

#[test]
fn a_certificate_that_is_none_stops_the_start() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let check = |url: &str, ca_file: &std::path::Path, part: Option<&str>| {
        let destination = OtlpDestination {
            endpoint: Some(url.to_owned()),
            ca_file: Some(ca_file.to_owned()),
            ..OtlpDestination::default()
        };
        let export = Export { otlp: vec![destination], ..Export::default() };
        match (Plan::new(&export, 1), part) {
            (Ok(_), None) => {}
            (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, _) => panic!("{url}: {found:?}"),
        }
    };
    check("https://c:1", "/nowhere.pem".as_ref(), Some("destination `c:1`: failed to read `/nowhere.pem`"));
    check("https://c:1", file.path(), Some("no certificate in it"));
    check("http://c:1", file.path(), None);
}

/// No process listens: every item is queued, then counted as lost, and nothing takes longer than it may.
#[tokio::test]
async fn what_cannot_be_sent_before_the_end_is_counted() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let destination =
        OtlpDestination { endpoint: Some(url), batch_delay: Duration::ZERO, ..OtlpDestination::default() };
    let export = Export { otlp: vec![destination], ..Export::default() };
    let (mut span_export, exporter) = Plan::new(&export, 1).unwrap().start();
    for _ in 0..1_000 {
        let mut span = span(SpanKind::Server);
        let kept = span_export.sample(&mut span).expect("no sampling");
        span_export.push(&span, kept);
    }
    span_export.flush();
    let accounts = span_export.accounts.clone();
    drop(span_export);
    exporter.finish(Duration::from_millis(50)).await;
    let traces = accounts[0].state();
    assert_eq!((traces.signal, traces.sent), ("traces", 0));
    assert_eq!((traces.lost[Lost::Shutdown as usize], traces.queued_items), (("shutdown", 1_000), 0));
}

/// A new configuration for a destination that is down: the old queue's end takes nothing from the new one, one account
/// has both, and a destination that is gone keeps its own.
#[tokio::test]
async fn counts_outlive_a_new_configuration() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let destination = |name: &str| OtlpDestination {
        name: name.to_owned(),
        endpoint: Some(url.clone()),
        signals: vec![Signal::Traces],
        batch_delay: Duration::ZERO,
        ..OtlpDestination::default()
    };
    let with = |names: &[&str]| {
        let mut export =
            Export { otlp: names.iter().map(|name| destination(name)).collect(), ..Export::default() };
        export.sampling.ratio = 0.0;
        export
    };
    let errors = |span_export: &mut SpanExport, n: usize| {
        for _ in 0..n {
            let mut span = span_with(SpanKind::Server, |span| span.error_type = "503");
            let kept = span_export.sample(&mut span).expect("errors are kept");
            span_export.push(&span, kept);
        }
    };
    let plan = Plan::new(&with(&["stays", "goes"]), 1).unwrap();
    let accounts = plan.accounts().clone();
    let (mut span_export, first) = plan.start();
    errors(&mut span_export, 10);
    let mut fast = span(SpanKind::Server);
    fast.end = fast.start;
    assert!(span_export.sample(&mut fast).is_none());
    assert_eq!((span_export.unsampled(), first.retry_for()), (Some(1), Duration::from_secs(300)));

    let plan = Plan::after(accounts, &with(&["new", "stays"])).unwrap();
    let accounts = plan.accounts().clone();
    let (next, second) = plan.start();
    span_export.replace(next);
    errors(&mut span_export, 5);
    span_export.flush();
    let queued = |span_export: &SpanExport| -> Vec<(String, u64, u64)> {
        let lost = |lane: &stats::Lane| lane.lost[Lost::Shutdown as usize].1;
        span_export
            .lanes()
            .iter()
            .map(|lane| (lane.destination.to_string(), lane.queued_items, lost(lane)))
            .collect()
    };
    let rows = |rows: [(&str, u64, u64); 3]| rows.map(|(name, queued, lost)| (name.to_owned(), queued, lost));
    assert_eq!(queued(&span_export), rows([("stays", 15, 0), ("goes", 10, 0), ("new", 5, 0)]));
    first.finish(Duration::ZERO).await;
    assert_eq!(queued(&span_export), rows([("stays", 5, 10), ("goes", 0, 10), ("new", 5, 0)]));

    // Without any destination left, everything is still reported.
    let (last, _) = Plan::after(accounts, &with(&[])).unwrap().start();
    span_export.replace(last);
    second.finish(Duration::ZERO).await;
    assert_eq!(queued(&span_export), rows([("stays", 0, 15), ("goes", 0, 10), ("new", 0, 5)]));
    assert_eq!(span_export.unsampled(), Some(1));
}
