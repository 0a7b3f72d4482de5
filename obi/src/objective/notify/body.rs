//! Alerts as JSON: Alertmanager's API v2, and the shape that Alertmanager gives to its own webhooks.
//!
//! In: alerts and the time. Out: request bodies. Refuses to know who gets them.

use std::collections::BTreeMap;

use jiff::Timestamp;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;

use crate::objective::alert::{Alert, Labels, VALIDITY, nanos};
use crate::objective::identity;

/// `PostableAlert` of Alertmanager's API v2.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Postable<'a> {
    labels: &'a Labels,
    annotations: &'a BTreeMap<String, String>,
    starts_at: String,
    ends_at: String,
    #[serde(rename = "generatorURL")]
    generator_url: String,
}

/// The body of `POST /api/v2/alerts`. What fires has an end ahead of `now`, so that it ends by itself when we are gone.
pub(super) fn alertmanager(alerts: &[Alert], generator_url: &str, now: u64) -> Vec<u8> {
    let postable: Vec<_> = alerts
        .iter()
        .map(|alert| Postable {
            labels: &alert.labels,
            annotations: &alert.annotations,
            starts_at: time(alert.starts_at),
            ends_at: time(alert.resolved_at.unwrap_or_else(|| now.saturating_add(nanos(VALIDITY)))),
            generator_url: page(generator_url, &alert.labels),
        })
        .collect();
    to_vec(&postable)
}

/// The message of a webhook, version 4.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Message<'a> {
    version: &'static str,
    group_key: String,
    truncated_alerts: u64,
    status: &'static str,
    receiver: &'static str,
    group_labels: BTreeMap<&'a str, &'a str>,
    common_labels: &'a Labels,
    common_annotations: &'a BTreeMap<String, String>,
    #[serde(rename = "externalURL")]
    external_url: &'a str,
    alerts: [Notified<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Notified<'a> {
    status: &'static str,
    labels: &'a Labels,
    annotations: &'a BTreeMap<String, String>,
    starts_at: String,
    ends_at: String,
    #[serde(rename = "generatorURL")]
    generator_url: String,
    fingerprint: String,
}

/// The body of a webhook: one alert, which is a group of its own. While it fires, its end is the zero time.
pub(super) fn webhook(alert: &Alert, generator_url: &str) -> Vec<u8> {
    let Alert { labels, annotations, starts_at, resolved_at } = alert;
    let status = if alert.is_firing() { "firing" } else { "resolved" };
    let group_labels: BTreeMap<&str, &str> =
        labels.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    to_vec(&Message {
        version: "4",
        group_key: format!("{{}}:{group_labels:?}"),
        truncated_alerts: 0,
        status,
        receiver: "obi",
        group_labels,
        common_labels: labels,
        common_annotations: annotations,
        external_url: generator_url,
        alerts: [Notified {
            status,
            labels,
            annotations,
            starts_at: time(*starts_at),
            ends_at: resolved_at.map_or_else(|| "0001-01-01T00:00:00Z".to_owned(), time),
            generator_url: page(generator_url, labels),
            fingerprint: format!("{:016x}", fingerprint(labels)),
        }],
    })
}

/// Where people go on from an alert: the page of its objective.
fn page(agent: &str, labels: &Labels) -> String {
    const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
    let name = labels.get("slo").map_or("", String::as_str);
    format!("{agent}slos/{}", utf8_percent_encode(name, PLAIN))
}

/// The same for the same labels, in every run.
fn fingerprint(labels: &Labels) -> u64 {
    identity::hash(&format!("{labels:?}"))
}

/// RFC 3339.
fn time(unix_nanoseconds: u64) -> String {
    Timestamp::from_nanosecond(i128::from(unix_nanoseconds)).unwrap_or(Timestamp::MAX).to_string()
}

fn to_vec(value: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(value).expect("texts and numbers are always JSON")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn alert(resolved_at: Option<u64>) -> Alert {
        let map = |name: &str, value: &str| Labels::from([(name.to_owned(), value.to_owned())]);
        let starts_at = 1_700_000_000_500_000_000;
        Alert { labels: map("slo", "shop"), annotations: map("summary", "burns"), starts_at, resolved_at }
    }

    #[test]
    fn alertmanager_gets_an_end_that_moves_ahead() {
        fn check(resolved_at: Option<u64>, ends_at: &str) {
            let body = alertmanager(&[alert(resolved_at)], "http://h:1/", 1_700_000_100_000_000_000);
            let expected = json!([{
                "labels": {"slo": "shop"}, "annotations": {"summary": "burns"},
                "startsAt": "2023-11-14T22:13:20.5Z", "endsAt": ends_at, "generatorURL": "http://h:1/slos/shop"
            }]);
            assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
        }
        check(None, "2023-11-14T22:19:00Z");
        check(Some(1_700_000_060_000_000_000), "2023-11-14T22:14:20Z");
    }

    #[test]
    fn a_webhook_gets_what_alertmanager_would_send() {
        fn check(resolved_at: Option<u64>, status: &str, ends_at: &str) {
            let message: Value =
                serde_json::from_slice(&webhook(&alert(resolved_at), "http://h:1/")).unwrap();
            assert_eq!((&message["version"], &message["status"]), (&json!("4"), &json!(status)));
            assert_eq!(message["commonLabels"], json!({"slo": "shop"}));
            let reported = &message["alerts"][0];
            assert_eq!((&reported["status"], &reported["endsAt"]), (&json!(status), &json!(ends_at)));
            assert_eq!(reported["generatorURL"], "http://h:1/slos/shop");
            assert_eq!(reported["fingerprint"].as_str().unwrap().len(), 16);
        }
        check(None, "firing", "0001-01-01T00:00:00Z");
        check(Some(1_700_000_060_000_000_000), "resolved", "2023-11-14T22:14:20Z");
        assert_eq!(fingerprint(&alert(None).labels), fingerprint(&alert(Some(1)).labels));
    }
}
