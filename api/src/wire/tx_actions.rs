//! Actions on a transaction and their results.

use poem_openapi::types::Example;
use poem_openapi::{Enum, Object};
use serde::Deserialize;
use uuid::Uuid;

use super::body::{request_names, request_objects};
use super::tx::EXAMPLE_ID;

request_objects!(TxActionReason, Resolution);
request_names!(ResolveAction);

/// The reason of an action. Optional.
#[derive(Clone, Debug, Default, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields, example)]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self", expecting = "an object")]
pub(crate) struct TxActionReason {
    /// 1 to 1000 characters, stored with the request.
    #[oai(validator(min_length = 1, max_length = 1000))]
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// Action on a stuck transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum, Deserialize)]
#[oai(rename_all = "lowercase")]
#[serde(rename_all = "lowercase", remote = "Self")]
pub(crate) enum ResolveAction {
    /// Send the same bytes again.
    Rebroadcast,
    /// Raise the price once.
    Bump,
    /// Replace it with an empty transaction.
    Cancel,
}

/// How to resolve a stuck transaction.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields, example)]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self", expecting = "an object")]
pub(crate) struct Resolution {
    pub(crate) action: ResolveAction,
    /// 1 to 1000 characters, stored with the request.
    #[oai(validator(min_length = 1, max_length = 1000))]
    pub(crate) reason: String,
}

/// The result of an action on a transaction.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct TxActionResult {
    pub(crate) tx_id: Uuid,
    /// Absent while the worker has not handled it.
    pub(crate) outcome: Option<String>,
}

impl Example for TxActionReason {
    fn example() -> Self {
        TxActionReason { reason: Some("the order was withdrawn".into()) }
    }
}

impl Example for Resolution {
    fn example() -> Self {
        Resolution { action: ResolveAction::Bump, reason: "unmined for an hour".into() }
    }
}

impl Example for TxActionResult {
    fn example() -> Self {
        TxActionResult { tx_id: EXAMPLE_ID, outcome: Some("CANCELLED".into()) }
    }
}
