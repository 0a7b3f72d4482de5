//! Deliveries to a peer on a socket that behaves as the test sets it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use axum::Router;
use axum::http::{StatusCode, Uri};
use serde_json::Value;

use super::*;
use crate::objective::alert::Labels;

const PATIENCE: Duration = Duration::from_secs(20);

/// A peer that answers with these statuses, then with 200, and keeps what it took.
#[derive(Clone, Default)]
struct Fake {
    statuses: Arc<Mutex<VecDeque<u16>>>,
    taken: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Fake {
    fn answering(statuses: &[u16]) -> Self {
        Self { statuses: Arc::new(Mutex::new(statuses.iter().copied().collect())), ..Self::default() }
    }

    async fn listen(&self, address: SocketAddr) -> SocketAddr {
        let fake = self.clone();
        let router = Router::new().fallback(async move |uri: Uri, body: String| {
            let status =
                fake.statuses.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(200);
            if status == 200 {
                let body = serde_json::from_str(&body).unwrap();
                fake.taken.lock().unwrap_or_else(PoisonError::into_inner).push((uri.path().to_owned(), body));
            }
            StatusCode::from_u16(status).unwrap()
        });
        let listener = tokio::net::TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    async fn await_taken(&self, n: usize) -> Vec<(String, Value)> {
        let begun = Instant::now();
        loop {
            let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner).clone();
            if taken.len() >= n {
                return taken;
            }
            assert!(begun.elapsed() < PATIENCE, "{n} requests expected, {taken:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn alert(name: &str, resolved_at: Option<u64>) -> Alert {
    let labels = Labels::from([("slo".to_owned(), name.to_owned())]);
    Alert { labels, annotations: Labels::new(), starts_at: 1_000_000_000, resolved_at }
}

fn endpoint(url: &str) -> Endpoint {
    serde_json::from_value(url.into()).unwrap()
}

async fn notifier(managers: &[String], hooks: &[String]) -> Notifier {
    let [managers, hooks] =
        [managers, hooks].map(|urls| urls.iter().map(|url| endpoint(url)).collect::<Vec<_>>());
    Notifier::start(&managers, &hooks, "http://localhost:9464/").unwrap()
}

/// Waits until the numbers of the first peer are as wanted.
async fn await_stats(notifier: &Notifier, wanted: fn(&PeerStats) -> bool) {
    let begun = Instant::now();
    while !wanted(&notifier.peers().stats()[0]) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", notifier.peers().stats());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

#[tokio::test]
async fn every_manager_gets_every_message_and_webhooks_what_changed() {
    let (first, second, hook) = (Fake::default(), Fake::default(), Fake::default());
    let managers = [
        format!("http://{}", first.listen(ANYWHERE).await),
        format!("http://{}/am/", second.listen(ANYWHERE).await),
    ];
    let hooks = [format!("http://{}/hook?key=secret", hook.listen(ANYWHERE).await)];
    let notifier = notifier(&managers, &hooks).await;
    notifier.send(&[alert("a", None), alert("b", None)], &[alert("a", None), alert("b", None)]);
    let slos = |body: &Value| -> Vec<String> {
        body.as_array()
            .unwrap()
            .iter()
            .map(|alert| alert["labels"]["slo"].as_str().unwrap().to_owned())
            .collect()
    };
    for (fake, path) in [(&first, "/api/v2/alerts"), (&second, "/am/api/v2/alerts")] {
        let taken = fake.await_taken(1).await;
        assert_eq!((taken[0].0.as_str(), slos(&taken[0].1)), (path, vec!["a".to_owned(), "b".to_owned()]));
    }
    let reported = hook.await_taken(2).await;
    assert_eq!(
        (reported[0].0.as_str(), &reported[1].1["alerts"][0]["labels"]["slo"]),
        ("/hook", &Value::from("b"))
    );
    let stats = notifier.peers().stats();
    assert_eq!(stats.iter().map(|peer| peer.dropped).sum::<u64>(), 0);
    assert!(stats.iter().all(|peer| !peer.peer.contains("secret")), "{stats:?}");
}

#[tokio::test]
async fn what_is_not_taken_is_tried_again_in_order() {
    let fake = Fake::answering(&[503, 429]);
    let notifier = notifier(&[format!("http://{}", fake.listen(ANYWHERE).await)], &[]).await;
    let peers = notifier.peers();
    notifier.send(&[alert("a", None)], &[]);
    notifier.send(&[alert("b", None)], &[]);
    let taken = fake.await_taken(1).await;
    assert_eq!(taken[0].1[0]["labels"]["slo"], "a");
    notifier.finish().await;
    let PeerStats { sent, dropped, waiting, failed, .. } = peers.stats().remove(0);
    assert_eq!((sent, dropped, waiting), (2, 0, 0));
    assert!(failed >= 2, "{failed}");
}

#[tokio::test]
async fn what_is_refused_for_good_is_counted() {
    let fake = Fake::answering(&[400]);
    let notifier = notifier(&[format!("http://{}", fake.listen(ANYWHERE).await)], &[]).await;
    notifier.send(&[alert("a", None)], &[]);
    await_stats(&notifier, |peer| peer.dropped == 1).await;
}

#[tokio::test]
async fn a_peer_that_was_down_gets_everything_later() {
    // Bound and let go: no process listens there.
    let address = std::net::TcpListener::bind(ANYWHERE).unwrap().local_addr().unwrap();
    let (down, up) = (Fake::default(), Fake::default());
    let managers = [format!("http://{address}"), format!("http://{}", up.listen(ANYWHERE).await)];
    let notifier = notifier(&managers, &[]).await;
    for _ in 0..3 {
        notifier.send(&[alert("a", None)], &[]);
    }
    up.await_taken(1).await;
    await_stats(&notifier, |peer| peer.failed > 0).await;
    notifier.send(&[alert("a", Some(2_000_000_000))], &[]);
    down.listen(address).await;
    let taken = down.await_taken(1).await;
    let end: jiff::Timestamp = taken[0].1[0]["endsAt"].as_str().unwrap().parse().unwrap();
    assert!(end > jiff::Timestamp::now(), "it fires first, although it is over");
    // The peer has it before the answer is counted here; its end waits.
    await_stats(&notifier, |peer| peer.sent > 0 && peer.waiting == 1).await;
}

#[test]
fn addresses() {
    fn check(url: &str, alerts: &str, shown: &str) {
        let endpoint = endpoint(url);
        assert_eq!((alerts_url(endpoint.url()).as_str(), public(endpoint.url()).as_str()), (alerts, shown));
    }
    check("http://am:9093", "http://am:9093/api/v2/alerts", "http://am:9093/");
    check("https://u:p@am/x/", "https://u:p@am/x/api/v2/alerts", "https://am/x/");
    check("https://am/x?token=1", "https://am/x/api/v2/alerts?token=1", "https://am/x");
}
