//! Operator actions on submitters and their results.

use chrono::{DateTime, Utc};
use poem_openapi::types::Example;
use poem_openapi::{Enum, Object};
use serde::Deserialize;

use super::body::request_objects;
use super::tx::{EXAMPLE_SUBMITTER, example_hash, example_time};

request_objects!(OperatorReason, AdoptReason, NamedTransaction);

/// The reason of an operator action. Stored in the audit log.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields, example)]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self", expecting = "an object")]
pub(crate) struct OperatorReason {
    /// 1 to 1000 characters.
    #[oai(validator(min_length = 1, max_length = 1000))]
    pub(crate) reason: String,
}

/// The reason of an adopt action, and optionally the external transaction. Stored in the audit log.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields, example)]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self", expecting = "an object")]
pub(crate) struct AdoptReason {
    /// 1 to 1000 characters.
    #[oai(validator(min_length = 1, max_length = 1000))]
    pub(crate) reason: String,
    /// The external transaction that consumed a nonce of this submitter, if no node finds it by itself. The worker
    /// reads its block and checks signature, nonce and finality.
    pub(crate) taken_by: Option<NamedTransaction>,
}

/// A transaction and its block.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields)]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self", expecting = "an object")]
pub(crate) struct NamedTransaction {
    /// Transaction hash, 0x hex.
    #[oai(validator(pattern = "^0x[0-9a-fA-F]{64}$"))]
    pub(crate) tx_hash: String,
    /// Block number.
    pub(crate) block: u64,
}

/// Progress of an operator action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "lowercase")]
pub(crate) enum ActionStatus {
    /// Done; see `outcome`.
    Applied,
    /// Recorded; the submitter's worker will execute it.
    Pending,
}

/// The result of an operator action.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct ActionResult {
    /// Id of the audit log row.
    pub(crate) audit_id: i64,
    pub(crate) chain_id: u64,
    pub(crate) submitter: String,
    /// `pause`, `resume`, `release` or `adopt`.
    pub(crate) action: String,
    pub(crate) reason: String,
    pub(crate) status: ActionStatus,
    pub(crate) requested_at: DateTime<Utc>,
    pub(crate) applied_at: Option<DateTime<Utc>>,
    /// What the action changed. Absent while pending.
    pub(crate) outcome: Option<String>,
}

impl Example for OperatorReason {
    fn example() -> Self {
        OperatorReason { reason: "maintenance of the node".into() }
    }
}

impl Example for AdoptReason {
    fn example() -> Self {
        let taken_by = NamedTransaction { tx_hash: example_hash("7a"), block: 1_040 };
        AdoptReason { reason: "sent by hand during the incident".into(), taken_by: Some(taken_by) }
    }
}

impl Example for ActionResult {
    fn example() -> Self {
        ActionResult {
            audit_id: 17,
            chain_id: 31337,
            submitter: EXAMPLE_SUBMITTER.into(),
            action: "pause".into(),
            reason: OperatorReason::example().reason,
            status: ActionStatus::Applied,
            requested_at: example_time(0),
            applied_at: Some(example_time(0)),
            outcome: Some("PAUSED".into()),
        }
    }
}
