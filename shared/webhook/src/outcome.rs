//! The result of one delivery.

use std::fmt;
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use reqwest::StatusCode;
use reqwest::header::{HeaderMap, RETRY_AFTER};

use crate::address::RefusedReason;
use crate::excerpt::excerpt;
use crate::target::TargetUrl;

/// A receiver cannot stop its deliveries for longer than this.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// The result of one delivery. `Display` is one sentence without secrets: it can be logged, stored and shown to the
/// webhook's owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Status 2xx, whatever the body is.
    Delivered { status: u16 },
    /// Status 410: the receiver wants no more deliveries.
    Gone,
    /// Any other status. Redirects are not followed: they could lead to an address that was not checked.
    Failed {
        status: u16,
        /// What the receiver asked for, at most 24 hours.
        retry_after: Option<Duration>,
        /// Status, and the beginning of the body without control characters.
        text: String,
    },
    /// There was no response in time. The receiver may have processed the delivery.
    TimedOut { after: Duration },
    /// The name was not resolved, the connection was not made, or it was closed before the response.
    ConnectionFailed { text: String },
    /// Nothing was sent: the policy refuses this address of the receiver.
    AddressRefused { address: IpAddr, reason: RefusedReason },
}

impl Outcome {
    /// The outcome of a response. `body` is its beginning.
    pub(crate) fn of_response(
        target: &TargetUrl,
        status: StatusCode,
        headers: &HeaderMap,
        body: &[u8],
        now: SystemTime,
    ) -> Outcome {
        if status.is_success() {
            return Outcome::Delivered { status: status.as_u16() };
        }
        if status == StatusCode::GONE {
            return Outcome::Gone;
        }
        let mut text = format!("the receiver answered {}", status.as_u16());
        if let Some(phrase) = status.canonical_reason() {
            text = format!("{text} {phrase}");
        }
        if status.is_redirection() {
            text.push_str("; redirects are not followed");
        }
        if let Some(excerpt) = excerpt(target, body) {
            text = format!("{text}: {excerpt}");
        }
        Outcome::Failed { status: status.as_u16(), retry_after: retry_after(headers, now), text }
    }

    /// What the receiver asked for, for the retry schedule.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Outcome::Failed { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Outcome::Delivered { status } => {
                write!(f, "the receiver accepted the delivery with status {status}")
            }
            Outcome::Gone => f.write_str("the receiver answered 410 Gone and wants no more deliveries"),
            Outcome::Failed { text, .. } => f.write_str(text),
            Outcome::TimedOut { after } => write!(f, "the receiver did not respond within {after:?}"),
            Outcome::ConnectionFailed { text } => write!(f, "the connection to the receiver failed: {text}"),
            Outcome::AddressRefused { address, reason } => {
                write!(
                    f,
                    "the receiver's address {address} is refused: {reason}, not in events.webhook.allow"
                )
            }
        }
    }
}

/// Seconds or a date. An invalid header is ignored, as if it were absent.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Only a number that is too large fails.
        text.parse().map_or(MAX_RETRY_AFTER, Duration::from_secs)
    } else {
        let date = httpdate::parse_http_date(text).ok()?;
        // A date in the past: at once.
        date.duration_since(now).unwrap_or_default()
    };
    Some(wait.min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(status: u16, header: Option<&str>, body: &str) -> Outcome {
        let target = TargetUrl::parse("https://example.com/hooks?token=hunter2").unwrap();
        let headers = header.map(|value| (RETRY_AFTER, value.parse().unwrap()));
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let status = StatusCode::from_u16(status).unwrap();
        Outcome::of_response(&target, status, &HeaderMap::from_iter(headers), body.as_bytes(), now)
    }

    #[test]
    fn the_status_decides() {
        for status in [200, 201, 202, 204, 299] {
            assert_eq!(of(status, Some("60"), "no"), Outcome::Delivered { status });
        }
        assert_eq!(of(410, Some("60"), "no"), Outcome::Gone);
        for (status, text) in [
            (302, "the receiver answered 302 Found; redirects are not followed"),
            (304, "the receiver answered 304 Not Modified; redirects are not followed"),
            (404, "the receiver answered 404 Not Found"),
            (500, "the receiver answered 500 Internal Server Error"),
            (599, "the receiver answered 599"),
        ] {
            let expected = Outcome::Failed { status, retry_after: None, text: text.into() };
            assert_eq!(of(status, None, ""), expected);
            assert_eq!(expected.to_string(), text);
        }
    }

    #[test]
    fn the_beginning_of_the_body_is_shown_unless_it_repeats_a_secret() {
        let shown = of(503, None, "database\r\nis down").to_string();
        assert_eq!(shown, "the receiver answered 503 Service Unavailable: database is down");
        let shown = of(404, None, "Cannot POST /hooks?token=hunter2").to_string();
        assert_eq!(shown, "the receiver answered 404 Not Found");
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_at_most_a_day() {
        for (header, seconds) in [
            ("0", Some(0)),
            ("120", Some(120)),
            (" 120 ", Some(120)),
            ("86401", Some(86_400)),
            ("99999999999999999999999999", Some(86_400)),
            ("Sun, 06 Nov 1994 08:51:37 GMT", Some(120)),
            ("Sunday, 06-Nov-94 08:51:37 GMT", Some(120)),
            ("Sun Nov  6 08:51:37 1994", Some(120)),
            ("Sun, 06 Nov 1994 08:00:00 GMT", Some(0)),
            ("Sun, 06 Nov 2094 08:00:00 GMT", None),
            ("Sat, 06 Nov 2094 08:00:00 GMT", Some(86_400)),
            ("", None),
            ("-1", None),
            ("1.5", None),
            ("soon", None),
        ] {
            let outcome = of(429, Some(header), "");
            assert_eq!(outcome.retry_after(), seconds.map(Duration::from_secs), "{header}");
        }
        assert_eq!(of(429, None, "").retry_after(), None);
    }
}
