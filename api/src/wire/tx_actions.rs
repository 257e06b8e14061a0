//! Actions on a transaction and their results.

use poem_openapi::{Enum, Object};
use serde::Deserialize;
use uuid::Uuid;

/// The reason of an action. Optional.
#[derive(Clone, Debug, Default, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TxActionReason {
    /// 1 to 1000 characters, stored with the request.
    #[oai(validator(min_length = 1, max_length = 1000))]
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// Action on a stuck transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum, Deserialize)]
#[oai(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
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
#[oai(rename_all = "camelCase", deny_unknown_fields)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Resolution {
    pub(crate) action: ResolveAction,
    /// 1 to 1000 characters, stored with the request.
    #[oai(validator(min_length = 1, max_length = 1000))]
    pub(crate) reason: String,
}

/// The result of an action on a transaction.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct TxActionResult {
    pub(crate) tx_id: Uuid,
    /// Absent while the worker has not handled it.
    pub(crate) outcome: Option<String>,
}
