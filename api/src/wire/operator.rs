//! What operators ask for and what came of it.

use chrono::{DateTime, Utc};
use poem_openapi::{Enum, Object};
use serde::Deserialize;

/// Why. Goes to the audit log.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct OperatorReason {
    /// 1 to 1000 characters, for whoever reads the audit log.
    #[oai(validator(min_length = 1, max_length = 1000))]
    pub(crate) reason: String,
}

/// Why, and where to look. Goes to the audit log.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct AdoptReason {
    /// 1 to 1000 characters, for whoever reads the audit log.
    #[oai(validator(min_length = 1, max_length = 1000))]
    pub(crate) reason: String,
    /// The transaction that took a nonce of this submitter, where no node shows it by itself. The worker reads its block and
    /// checks signature, nonce and finality.
    pub(crate) taken_by: Option<NamedTransaction>,
}

/// A transaction, and the block that holds it.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct NamedTransaction {
    /// Its hash.
    #[oai(validator(pattern = "^0x[0-9a-fA-F]{64}$"))]
    pub(crate) tx_hash: String,
    /// The number of its block.
    pub(crate) block: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "lowercase")]
pub(crate) enum ActionStatus {
    /// Carried out; `outcome` says what it led to.
    Applied,
    /// Recorded; the worker that owns the submitter will carry it out.
    Pending,
}

/// What came of an operator's request.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct ActionResult {
    /// Its row in the audit log.
    pub(crate) audit_id: i64,
    pub(crate) chain_id: u64,
    pub(crate) submitter: String,
    /// `pause`, `resume`, `release` or `adopt`.
    pub(crate) action: String,
    pub(crate) reason: String,
    pub(crate) status: ActionStatus,
    pub(crate) requested_at: DateTime<Utc>,
    pub(crate) applied_at: Option<DateTime<Utc>>,
    pub(crate) outcome: Option<String>,
}
