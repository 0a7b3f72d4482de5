//! What becomes of spans on their way to destinations that are down, none, or changed.

use super::*;

#[test]
fn without_destinations_everything_counts_as_sampled() {
    let (mut tap, exporter) = {
        let _runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Plan::new(&Export::default(), 1).unwrap().start()
    };
    let mut span = span(SpanKind::Server);
    assert!(tap.sample(&mut span).is_none() && span.sampled);
    assert!(!exporter.wants_metrics() && tap.lanes().is_empty());
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
    let (mut tap, exporter) = Plan::new(&export, 1).unwrap().start();
    for _ in 0..1_000 {
        let mut span = span(SpanKind::Server);
        let kept = tap.sample(&mut span).expect("no sampling");
        tap.push(&span, kept);
    }
    tap.flush();
    let accounts = tap.accounts.clone();
    drop(tap);
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
    let errors = |tap: &mut Tap, n: usize| {
        for _ in 0..n {
            let mut span = span_with(SpanKind::Server, |span| span.error_type = "503");
            let kept = tap.sample(&mut span).expect("errors are kept");
            tap.push(&span, kept);
        }
    };
    let plan = Plan::new(&with(&["stays", "goes"]), 1).unwrap();
    let accounts = plan.accounts().clone();
    let (mut tap, first) = plan.start();
    errors(&mut tap, 10);
    let mut fast = span(SpanKind::Server);
    fast.end = fast.start;
    assert!(tap.sample(&mut fast).is_none());
    assert_eq!((tap.unsampled(), first.retry_for()), (Some(1), Duration::from_secs(300)));

    let plan = Plan::after(accounts, &with(&["new", "stays"])).unwrap();
    let accounts = plan.accounts().clone();
    let (next, second) = plan.start();
    tap.replace(next);
    errors(&mut tap, 5);
    tap.flush();
    let queued = |tap: &Tap| -> Vec<(String, u64, u64)> {
        let lost = |lane: &stats::Lane| lane.lost[Lost::Shutdown as usize].1;
        tap.lanes().iter().map(|lane| (lane.destination.to_string(), lane.queued_items, lost(lane))).collect()
    };
    let rows = |rows: [(&str, u64, u64); 3]| rows.map(|(name, queued, lost)| (name.to_owned(), queued, lost));
    assert_eq!(queued(&tap), rows([("stays", 15, 0), ("goes", 10, 0), ("new", 5, 0)]));
    first.finish(Duration::ZERO).await;
    assert_eq!(queued(&tap), rows([("stays", 5, 10), ("goes", 0, 10), ("new", 5, 0)]));

    // Without any destination left, everything is still reported.
    let (last, _) = Plan::after(accounts, &with(&[])).unwrap().start();
    tap.replace(last);
    second.finish(Duration::ZERO).await;
    assert_eq!(queued(&tap), rows([("stays", 0, 15), ("goes", 0, 10), ("new", 0, 5)]));
    assert_eq!(tap.unsampled(), Some(1));
}
