//! Deliveries of events to a webhook, and requests to repeat them.

use chrono::{DateTime, Utc};
use gapless_domain::SubmitterKey;
use gapless_store::webhooks::{DeliveryState as StoredState, DeliveryView};
use poem_openapi::types::Example;
use poem_openapi::{Enum, Object};
use serde::Deserialize;
use uuid::Uuid;

use super::body::request_objects;
use super::request::time;
use super::tx::{EXAMPLE_ID, EXAMPLE_SUBMITTER, example_time};

request_objects!(Replay);

const EXAMPLE_EVENT: Uuid = Uuid::from_u128(0x6d1f_0a52_2c1e_4a70_9f53_0d2b_9d1c_7a11);

/// State of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "snake_case")]
pub(crate) enum DeliveryState {
    /// Requested (test, replay) and not tried yet.
    Pending,
    /// The last attempt failed. There will be another one.
    Retrying,
    /// The receiver answered 2xx.
    Delivered,
    /// The last attempt failed, and there is no further one. It can be replayed.
    Exhausted,
}

/// The delivery of one event to one webhook.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct Delivery {
    /// Id of the event, the same in every attempt: the header `webhook-id`.
    pub(crate) event_id: Uuid,
    /// Type of the event.
    #[oai(rename = "type")]
    pub(crate) kind: String,
    pub(crate) chain_id: Option<u64>,
    /// Lower case.
    pub(crate) submitter: Option<String>,
    pub(crate) tx_id: Option<Uuid>,
    pub(crate) state: DeliveryState,
    /// Attempts so far, with those of replays.
    pub(crate) attempts: u32,
    /// Absent if there was no attempt yet.
    pub(crate) first_attempt_at: Option<DateTime<Utc>>,
    /// Absent if there was no attempt yet.
    pub(crate) last_attempt_at: Option<DateTime<Utc>>,
    pub(crate) next_attempt_at: Option<DateTime<Utc>>,
    /// HTTP status of the last response. Absent if there was none.
    pub(crate) status_code: Option<u16>,
    /// Why the last attempt failed. The text may change.
    pub(crate) error: Option<String>,
    /// How long the last attempt took.
    pub(crate) duration_ms: u64,
}

/// A page of deliveries, newest first.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct DeliveryPage {
    pub(crate) items: Vec<Delivery>,
    /// Pass as `cursor` to get the next page. Absent on the last page.
    pub(crate) next_cursor: Option<String>,
}

/// Which events to deliver again: `eventIds`, or those of the time between `from` and `until`.
#[derive(Clone, Debug, Default, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields, skip_serializing_if_is_none, example)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self", expecting = "an object")]
pub(crate) struct Replay {
    /// Ids of events. Not together with the other fields.
    #[oai(validator(min_items = 1, max_items = 10000))]
    pub(crate) event_ids: Option<Vec<String>>,
    /// Time of the first event. With `until`.
    #[serde(deserialize_with = "time")]
    pub(crate) from: Option<DateTime<Utc>>,
    /// Events before this time. With `from`.
    #[serde(deserialize_with = "time")]
    pub(crate) until: Option<DateTime<Utc>>,
    /// Only events whose delivery is exhausted. Default: false.
    pub(crate) only_failed: Option<bool>,
}

/// An accepted replay.
#[derive(Clone, Copy, Debug, Object)]
#[oai(rename_all = "camelCase", example)]
pub(crate) struct Replayed {
    /// Number of events that are delivered again: those in the log that the webhook's filter and key allow.
    pub(crate) requested: u64,
}

impl From<StoredState> for DeliveryState {
    fn from(state: StoredState) -> Self {
        match state {
            StoredState::Pending => DeliveryState::Pending,
            StoredState::Retrying => DeliveryState::Retrying,
            StoredState::Delivered => DeliveryState::Delivered,
            StoredState::Exhausted => DeliveryState::Exhausted,
        }
    }
}

impl From<DeliveryState> for StoredState {
    fn from(state: DeliveryState) -> Self {
        match state {
            DeliveryState::Pending => StoredState::Pending,
            DeliveryState::Retrying => StoredState::Retrying,
            DeliveryState::Delivered => StoredState::Delivered,
            DeliveryState::Exhausted => StoredState::Exhausted,
        }
    }
}

impl From<DeliveryView> for Delivery {
    fn from(view: DeliveryView) -> Self {
        let tried = view.attempts > 0;
        Delivery {
            event_id: view.event_id,
            kind: view.kind,
            chain_id: view.submitter.map(|submitter| submitter.chain_id.0),
            submitter: view.submitter.as_ref().map(SubmitterKey::address_text),
            tx_id: view.tx_id.map(|tx_id| tx_id.0),
            state: view.state.into(),
            attempts: view.attempts,
            first_attempt_at: tried.then_some(view.first_at),
            last_attempt_at: tried.then_some(view.last_at),
            next_attempt_at: view.next_at,
            status_code: view.status_code,
            error: view.error,
            duration_ms: u64::try_from(view.duration.as_millis()).unwrap_or(u64::MAX),
        }
    }
}

impl Example for Delivery {
    fn example() -> Self {
        Delivery {
            event_id: EXAMPLE_EVENT,
            kind: "tx.confirmed".into(),
            chain_id: Some(31337),
            submitter: Some(EXAMPLE_SUBMITTER.into()),
            tx_id: Some(EXAMPLE_ID),
            state: DeliveryState::Delivered,
            attempts: 2,
            first_attempt_at: Some(example_time(20)),
            last_attempt_at: Some(example_time(25)),
            next_attempt_at: None,
            status_code: Some(204),
            error: None,
            duration_ms: 38,
        }
    }
}

impl Example for DeliveryPage {
    fn example() -> Self {
        DeliveryPage { items: vec![Delivery::example()], next_cursor: Some("1042".into()) }
    }
}

impl Example for Replay {
    fn example() -> Self {
        Replay {
            from: Some(example_time(0)),
            until: Some(example_time(3600)),
            only_failed: Some(true),
            ..Replay::default()
        }
    }
}

impl Example for Replayed {
    fn example() -> Self {
        Replayed { requested: 17 }
    }
}

#[cfg(test)]
mod tests {
    use poem_openapi::types::ToJSON;

    use super::*;
    use crate::wire::body::parse;

    #[test]
    fn the_words_are_those_of_the_store() {
        for state in StoredState::ALL {
            let word = DeliveryState::from(state);
            assert_eq!(word.to_json_string(), format!("\"{}\"", state.as_str()));
            assert_eq!(StoredState::from(word), state);
        }
    }

    #[test]
    fn a_malformed_replay_is_refused_with_its_path() {
        for (body, message) in [
            (r#"{"eventIds": "x"}"#, "eventIds: must be an array, not this text"),
            (r#"{"eventIds": [7]}"#, "eventIds[0]: must be a string, not the number 7"),
            (r#"{"from": "today"}"#, "from: must be a date and time such as"),
            (r#"{"onlyFailed": "yes"}"#, "onlyFailed: must be a boolean, not this text"),
            (r#"{"to": "2026-01-01T00:00:00Z"}"#, "to: is not a known field"),
        ] {
            let refusal = parse::<Replay>(body.as_bytes()).unwrap_err().to_string();
            assert!(refusal.starts_with(message), "{body}: {refusal}");
        }
        assert!(parse::<Replay>(b"{}").unwrap().event_ids.is_none());
    }
}
