//! What the specification says about answers: which requests are sent again, and when.
//!
//! In: status codes and headers. Out: an [`Answer`]; pauses that grow. Refuses to know connections.

use std::time::{Duration, SystemTime};

use tonic::Code;

/// What became of one request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Taken, but for some items.
    Accepted {
        /// Items that the destination does not want (partial success); they are not sent again.
        rejected: u64,
        /// What it says about that, or as a warning.
        message: String,
    },
    /// To be sent again, after this time where the destination says so.
    Again(Option<Duration>, String),
    /// Not to be sent again.
    Refused(String),
    /// Nothing of the kind is taken there.
    Unsupported(String),
}

/// First pause; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// No pause that the agent chooses by itself is longer.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Exponential back-off: pauses with jitter, so that agents do not come back together.
#[derive(Debug)]
pub(super) struct Backoff {
    next: Duration,
}

impl Backoff {
    pub(super) fn new() -> Self {
        Self { next: FIRST_PAUSE }
    }

    /// The next pause: half of it certain, half of it random; never less than what was asked for.
    pub(super) fn pause(&mut self, asked: Option<Duration>) -> Duration {
        let whole = self.next;
        self.next = (whole * 2).min(LONGEST_PAUSE);
        let jittered = whole.mul_f64(0.5 + fastrand::f64() / 2.0);
        asked.map_or(jittered, |asked| asked.saturating_add(jittered.mul_f64(0.1)))
    }
}

/// A gRPC status (OTLP specification, "OTLP/gRPC Response", "Failures").
pub(super) fn of_status(code: Code, retry_info: Option<Duration>, message: String) -> Answer {
    match code {
        Code::Cancelled
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::OutOfRange
        | Code::Unavailable
        | Code::DataLoss => Answer::Again(retry_info, message),
        // Only who says when has room again later.
        Code::ResourceExhausted if retry_info.is_some() => Answer::Again(retry_info, message),
        _ => Answer::Refused(message),
    }
}

/// An HTTP status that is not 200 (OTLP specification, "OTLP/HTTP Response", "Failures").
pub(super) fn of_http(status: u16, retry_after: Option<Duration>, message: String) -> Answer {
    match status {
        429 | 502 | 503 | 504 => Answer::Again(retry_after, message),
        _ => Answer::Refused(message),
    }
}

/// An HTTP status of remote write that is not 2xx (specification 2.0, "Retries & Backoff").
pub(super) fn of_remote_write(status: u16, retry_after: Option<Duration>, message: String) -> Answer {
    match status {
        429 | 500..600 => Answer::Again(retry_after, message),
        _ => Answer::Refused(message),
    }
}

/// `Retry-After` (RFC 9110 §10.2.3): seconds, or a date.
pub(super) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    let text = text.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn grpc_codes_as_the_specification_lists_them() {
        let again = [1, 4, 10, 11, 14, 15];
        for code in 1..=16 {
            let expected = |info: Option<Duration>, again: bool| {
                if again { Answer::Again(info, String::new()) } else { Answer::Refused(String::new()) }
            };
            let with = Some(SECOND);
            let check = |info, expected: Answer| {
                assert_eq!(of_status(Code::from(code), info, String::new()), expected, "{code} {info:?}");
            };
            check(None, expected(None, again.contains(&code)));
            check(with, expected(with, again.contains(&code) || code == 8));
        }
    }

    #[test]
    fn http_codes_as_the_specification_lists_them() {
        for status in 201..600 {
            let answer = of_http(status, Some(SECOND), String::new());
            let again = [429, 502, 503, 504].contains(&status);
            assert_eq!(answer == Answer::Again(Some(SECOND), String::new()), again, "{status}");
        }
    }

    #[test]
    fn remote_write_tries_again_as_its_specification_asks() {
        for status in 300..600 {
            let answer = of_remote_write(status, Some(SECOND), String::new());
            assert_eq!(
                answer == Answer::Again(Some(SECOND), String::new()),
                status == 429 || status >= 500,
                "{status}"
            );
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let check = |text: &str, seconds: Option<u64>| {
            assert_eq!(retry_after(text, now), seconds.map(Duration::from_secs), "{text}");
        };
        check("120", Some(120));
        check(" 0 ", Some(0));
        check("Sun, 06 Nov 1994 08:50:37 GMT", Some(60));
        check("Sun, 06 Nov 1994 08:49:36 GMT", Some(0));
        check("soon", None);
        check("-1", None);
    }

    #[test]
    fn pauses_grow_and_obey() {
        let mut backoff = Backoff::new();
        let mut bounds = Vec::new();
        for seconds in [1, 2, 4, 8, 16, 30, 30] {
            let pause = backoff.pause(None);
            bounds.push(pause.as_secs_f64() / f64::from(seconds));
        }
        assert!(bounds.iter().all(|share| (0.5..=1.0).contains(share)), "{bounds:?}");
        assert!(Backoff::new().pause(Some(SECOND * 7)) >= SECOND * 7);
    }
}
