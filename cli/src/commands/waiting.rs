//! Prints why a transaction or a submitter waits.

use chrono::{DateTime, Utc};
use gapless_domain::WaitReason;
use serde_json::Value;

use crate::output::cell;

/// `funds, since 2026-11-17T22:35:12Z (3 min): The submitter has …`; `None` if it does not wait.
pub fn line(waiting: &Value, now: DateTime<Utc>) -> Option<String> {
    let reason = waiting["reason"].as_str()?;
    let since = match since(waiting) {
        Some(since) => format!("{} ({})", cell(&waiting["since"]), age(now - since)),
        None => cell(&waiting["since"]),
    };
    Some(format!("{reason}, since {since}: {}", cell(&waiting["message"])))
}

/// `funds, 3 min`, for a column of a table.
pub fn short(waiting: &Value, now: DateTime<Utc>) -> Option<String> {
    let reason = waiting["reason"].as_str()?;
    Some(match since(waiting) {
        Some(since) => format!("{reason}, {}", age(now - since)),
        None => reason.to_owned(),
    })
}

/// The message, unless the reason is part of the normal course. A reason of a later version is shown.
pub fn problem(waiting: &Value) -> Option<String> {
    let reason = waiting["reason"].as_str()?;
    let known = WaitReason::ALL.into_iter().find(|known| known.as_str() == reason);
    (!known.is_some_and(WaitReason::is_progress)).then(|| format!("{reason}: {}", cell(&waiting["message"])))
}

/// `cancel since …, speed_up since …`; `None` if there are none.
pub fn pending(requests: &Value) -> Option<String> {
    let requests = requests.as_array().filter(|requests| !requests.is_empty())?;
    let one = |request: &Value| format!("{} since {}", cell(&request["kind"]), cell(&request["since"]));
    Some(requests.iter().map(one).collect::<Vec<_>>().join(", "))
}

fn since(waiting: &Value) -> Option<DateTime<Utc>> {
    waiting["since"].as_str()?.parse().ok()
}

/// In the largest unit that fits. The clock of this computer may be behind that of the database.
fn age(age: chrono::TimeDelta) -> String {
    match age.num_seconds().max(0) {
        seconds @ ..60 => format!("{seconds} s"),
        seconds @ ..3_600 => format!("{} min", seconds / 60),
        seconds @ ..86_400 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn waiting(reason: &str) -> Value {
        json!({ "reason": reason, "since": "2026-11-17T22:00:00.5+00:00", "message": "Fund its address." })
    }

    #[test]
    fn a_reason_is_one_line_with_its_age() {
        let now = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
        let shown = line(&waiting("funds"), now("2026-11-17T22:03:10Z")).unwrap();
        assert_eq!(shown, "funds, since 2026-11-17T22:00:00.5+00:00 (3 min): Fund its address.");
        assert_eq!(short(&waiting("funds"), now("2026-11-17T21:00:00Z")).unwrap(), "funds, 0 s");
        assert_eq!(short(&waiting("funds"), now("2026-11-18T03:01:00Z")).unwrap(), "funds, 5 h");
        assert_eq!(short(&waiting("funds"), now("2026-11-20T03:01:00Z")).unwrap(), "funds, 2 d");
        assert_eq!(line(&Value::Null, Utc::now()), None);
    }

    #[test]
    fn the_normal_course_is_no_problem() {
        assert_eq!(problem(&waiting("confirmations")), None);
        assert_eq!(problem(&waiting("paused")).unwrap(), "paused: Fund its address.");
        assert_eq!(problem(&waiting("of_a_later_version")).unwrap(), "of_a_later_version: Fund its address.");
    }

    #[test]
    fn pending_requests_are_one_line() {
        let requests = json!([{ "kind": "cancel", "since": "t1" }, { "kind": "speed_up", "since": "t2" }]);
        assert_eq!(pending(&requests).unwrap(), "cancel since t1, speed_up since t2");
        assert_eq!(pending(&json!([])), None);
    }
}
