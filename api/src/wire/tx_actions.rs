//! What is asked about a transaction, and what came of it.

use poem_openapi::{Enum, Object};
use serde::Deserialize;
use uuid::Uuid;

/// Why. May be left out.
#[derive(Clone, Debug, Default, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct TxActionReason {
    /// 1 to 1000 characters, kept with the request.
    #[oai(validator(min_length = 1, max_length = 1000))]
    #[serde(default)]
    pub(crate) reason: Option<String>,
}

/// What to do about a stuck transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum, Deserialize)]
#[oai(rename_all = "lowercase")]
#[serde(rename_all = "lowercase")]
pub(crate) enum ResolveAction {
    Rebroadcast,
    Bump,
    Cancel,
}

#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct Resolution {
    pub(crate) action: ResolveAction,
    /// 1 to 1000 characters, kept with the request.
    #[oai(validator(min_length = 1, max_length = 1000))]
    pub(crate) reason: String,
}

/// What came of it so far.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct TxActionResult {
    pub(crate) tx_id: Uuid,
    /// Absent while the worker has not dealt with it.
    pub(crate) outcome: Option<String>,
}
