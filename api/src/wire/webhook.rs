//! Webhooks in requests and responses.

use std::fmt;

use chrono::{DateTime, Utc};
use gapless_domain::SubmitterKey;
use gapless_store::webhooks::{self as store, DisabledReason as StoredReason, WebhookView};
use poem_openapi::types::Example;
use poem_openapi::{Enum, NewType, Object};
use serde::Deserialize;
use uuid::Uuid;

use super::body::request_objects;
use super::outlet::OutletHealth;
use super::tx::{EXAMPLE_SUBMITTER, example_time};

request_objects!(CreateWebhook, ChangeWebhook, NewSecret, WebhookFilter);

/// The webhook in all examples.
pub(super) const EXAMPLE_WEBHOOK: Uuid = Uuid::from_u128(0x0197_3c5e_9b20_7d11_8e6f_5a0c_44d2_b001);

// A signing secret of a request or a response. `Debug` does not show it. No doc comment: the document would have it.
#[derive(Clone, NewType, Deserialize)]
#[oai(to_header = false, from_multipart = false, from_parameter = false)]
#[serde(transparent)]
pub(crate) struct SecretText(pub(crate) String);

impl fmt::Debug for SecretText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretText(…)")
    }
}

/// A webhook to create.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields, skip_serializing_if_is_none, example)]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self", expecting = "an object")]
pub(crate) struct CreateWebhook {
    /// Where deliveries go: `http://` or `https://`, at most 2048 bytes, without user name, password and fragment. The
    /// address must be public, unless the operator allows it.
    #[oai(validator(max_length = 2048))]
    pub(crate) url: String,
    /// A note of yours, at most 200 characters.
    #[oai(validator(max_length = 200))]
    pub(crate) description: Option<String>,
    /// Which events are delivered. Default: all that the key may see.
    pub(crate) filter: Option<WebhookFilter>,
    /// A signing secret of your own: `whsec_` and the base64 of 24 to 64 bytes. Default: a new one.
    pub(crate) secret: Option<SecretText>,
}

/// Changes of a webhook. What is absent stays.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields, skip_serializing_if_is_none, example)]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self", expecting = "an object")]
pub(crate) struct ChangeWebhook {
    /// As in a new webhook.
    #[oai(validator(max_length = 2048))]
    pub(crate) url: Option<String>,
    /// A note of yours, at most 200 characters.
    #[oai(validator(max_length = 200))]
    pub(crate) description: Option<String>,
    /// Replaces the whole filter. `{}`: all events that the key may see.
    pub(crate) filter: Option<WebhookFilter>,
    /// False: nothing is delivered until it is true again. Events of the time between are delivered then, as long as
    /// they are in the log.
    pub(crate) enabled: Option<bool>,
}

/// The signing secret after a rotation.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields, skip_serializing_if_is_none, example)]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self", expecting = "an object")]
pub(crate) struct NewSecret {
    /// A secret of your own: `whsec_` and the base64 of 24 to 64 bytes. Default: a new one.
    pub(crate) secret: Option<SecretText>,
}

/// Conditions for events; an event must match all of them.
#[derive(Clone, Debug, Default, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields, skip_serializing_if_is_none)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self", expecting = "an object")]
pub(crate) struct WebhookFilter {
    /// Required with `submitter` if the server serves several chains.
    pub(crate) chain_id: Option<u64>,
    pub(crate) submitter: Option<String>,
    pub(crate) tx_id: Option<String>,
    /// Types of events, any of them.
    #[oai(validator(min_items = 1, max_items = 50))]
    pub(crate) types: Option<Vec<String>>,
}

/// Whether events are delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "snake_case")]
pub(crate) enum WebhookStatus {
    Active,
    /// Nothing is delivered until it is enabled. See `disabledReason`.
    Disabled,
}

/// Why a webhook is disabled. Later versions may add values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "snake_case")]
pub(crate) enum DisabledReason {
    /// Somebody disabled it.
    Requested,
    /// The receiver answered 410.
    Gone,
    /// All deliveries failed for `events.webhook.disable_after`.
    Failing,
    /// The API key that created it was revoked or has expired.
    KeyRevoked,
}

/// A webhook.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct Webhook {
    pub(crate) webhook_id: Uuid,
    /// Where deliveries go.
    pub(crate) url: String,
    /// A note of yours.
    pub(crate) description: String,
    pub(crate) filter: WebhookFilter,
    pub(crate) status: WebhookStatus,
    pub(crate) disabled_reason: Option<DisabledReason>,
    pub(crate) disabled_at: Option<DateTime<Utc>>,
    pub(crate) created_at: DateTime<Utc>,
    /// Deliveries are signed with the previous secret too, until then.
    pub(crate) previous_secret_until: Option<DateTime<Utc>>,
    /// False: the operator does not record events, so there is nothing to deliver.
    pub(crate) events_recorded: bool,
    pub(crate) health: OutletHealth,
}

/// A webhook with its signing secret, which is shown only once.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", example)]
pub(crate) struct WebhookWithSecret {
    pub(crate) webhook: Webhook,
    /// Verifies the signature of deliveries. Not shown again.
    pub(crate) secret: SecretText,
}

/// A page of webhooks, oldest first.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct WebhookPage {
    pub(crate) items: Vec<Webhook>,
    /// Pass as `cursor` to get the next page. Absent on the last page.
    pub(crate) next_cursor: Option<String>,
}

/// The fields of `disabled`.
pub(super) fn status(
    disabled: Option<(StoredReason, DateTime<Utc>)>,
) -> (WebhookStatus, Option<DisabledReason>, Option<DateTime<Utc>>) {
    match disabled {
        Some((reason, at)) => (WebhookStatus::Disabled, Some(reason.into()), Some(at)),
        None => (WebhookStatus::Active, None, None),
    }
}

impl From<StoredReason> for DisabledReason {
    fn from(reason: StoredReason) -> Self {
        match reason {
            StoredReason::Requested => DisabledReason::Requested,
            StoredReason::Gone => DisabledReason::Gone,
            StoredReason::Failing => DisabledReason::Failing,
            StoredReason::KeyRevoked => DisabledReason::KeyRevoked,
        }
    }
}

impl From<store::WebhookFilter> for WebhookFilter {
    fn from(filter: store::WebhookFilter) -> Self {
        // The chain of a submitter may have been implied.
        let chain = filter.chain_id.or(filter.submitter.map(|submitter| submitter.chain_id));
        WebhookFilter {
            chain_id: chain.map(|chain| chain.0),
            submitter: filter.submitter.as_ref().map(SubmitterKey::address_text),
            tx_id: filter.tx_id.map(|tx_id| tx_id.to_string()),
            types: filter.kinds,
        }
    }
}

impl From<WebhookView> for Webhook {
    fn from(view: WebhookView) -> Self {
        let (status, disabled_reason, disabled_at) = status(view.disabled);
        Webhook {
            webhook_id: view.id.0,
            url: view.url,
            description: view.description,
            filter: view.filter.into(),
            status,
            disabled_reason,
            disabled_at,
            created_at: view.created_at,
            previous_secret_until: view.previous_secret_until,
            events_recorded: view.recording,
            health: view.health.into(),
        }
    }
}

fn example_filter() -> WebhookFilter {
    WebhookFilter {
        chain_id: Some(31337),
        submitter: Some(EXAMPLE_SUBMITTER.into()),
        tx_id: None,
        types: Some(vec!["tx.confirmed".into(), "tx.failed".into(), "tx.cancelled".into()]),
    }
}

const EXAMPLE_URL: &str = "https://example.com/hooks/gapless";

impl Example for CreateWebhook {
    fn example() -> Self {
        CreateWebhook {
            url: EXAMPLE_URL.into(),
            description: Some("payouts".into()),
            filter: Some(example_filter()),
            secret: None,
        }
    }
}

impl Example for ChangeWebhook {
    fn example() -> Self {
        ChangeWebhook { url: None, description: None, filter: None, enabled: Some(true) }
    }
}

impl Example for NewSecret {
    fn example() -> Self {
        NewSecret { secret: None }
    }
}

impl Example for Webhook {
    fn example() -> Self {
        Webhook {
            webhook_id: EXAMPLE_WEBHOOK,
            url: EXAMPLE_URL.into(),
            description: "payouts".into(),
            filter: example_filter(),
            status: WebhookStatus::Active,
            disabled_reason: None,
            disabled_at: None,
            created_at: example_time(0),
            previous_secret_until: None,
            events_recorded: true,
            health: OutletHealth::example(),
        }
    }
}

impl Example for WebhookWithSecret {
    fn example() -> Self {
        // The example of the specification.
        let secret = SecretText("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw".into());
        WebhookWithSecret { webhook: Webhook::example(), secret }
    }
}

impl Example for WebhookPage {
    fn example() -> Self {
        WebhookPage {
            items: vec![Webhook::example()],
            next_cursor: Some(EXAMPLE_WEBHOOK.simple().to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use poem_openapi::types::ToJSON;

    use super::*;
    use crate::wire::body::parse;

    #[test]
    fn a_secret_is_not_in_the_debug_output() {
        let body = br#"{"url": "https://example.com", "secret": "whsec_hunter2"}"#;
        let request: CreateWebhook = parse(body).unwrap();
        assert_eq!(request.secret.as_ref().unwrap().0, "whsec_hunter2");
        assert!(!format!("{request:?}").contains("hunter2"));
        assert!(!format!("{:?}", WebhookWithSecret::example()).contains("MfKQ"));
    }

    #[test]
    fn unknown_fields_and_wrong_types_are_refused_with_their_path() {
        for (body, message) in [
            ("{}", "url: is required"),
            ("[]", "body: must be an object, not an array"),
            (r#"{"url": 7}"#, "url: must be a string, not the number 7"),
            (r#"{"url": "", "events": []}"#, "events: is not a known field"),
            (r#"{"url": "", "filter": []}"#, "filter: must be an object, not an array"),
            (r#"{"url": "", "filter": {"type": ""}}"#, "filter.type: is not a known field"),
            (
                r#"{"url": "", "filter": {"types": "tx.failed"}}"#,
                "filter.types: must be an array, not this text",
            ),
            (r#"{"url": "", "secret": ["x"]}"#, "secret: must be a string, not an array"),
        ] {
            let refusal = parse::<CreateWebhook>(body.as_bytes()).unwrap_err().to_string();
            assert!(refusal.starts_with(message), "{body}: {refusal}");
        }
    }

    #[test]
    fn the_words_are_those_of_the_store() {
        use StoredReason::{Failing, Gone, KeyRevoked, Requested};
        for reason in [Requested, Gone, Failing, KeyRevoked] {
            let word = DisabledReason::from(reason).to_json_string();
            assert_eq!(word, format!("\"{}\"", reason.as_str()));
        }
    }
}
