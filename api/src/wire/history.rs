//! Attempts and state changes of a transaction. Never contains signed bytes; nonces only for admins.

use chrono::{DateTime, Utc};
use gapless_domain::{Fees, TxId, U256};
use gapless_store as store;
use poem_openapi::types::Example;
use poem_openapi::{Enum, Object};
use uuid::Uuid;

use super::tx::{EXAMPLE_ID, TxState, example_hash, example_time};
use gapless_domain::redact_nonces;

/// The recorded attempts and state changes of a transaction.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", example)]
pub(crate) struct TxHistory {
    pub(crate) tx_id: Uuid,
    /// In order of recording.
    pub(crate) attempts: Vec<Attempt>,
    /// In order of recording. Times are from the database clock, which may step. Long histories keep the first two
    /// changes, the newest 64 after them, and the last.
    pub(crate) state_changes: Vec<StateChange>,
}

/// A signed version of the transaction. It is recorded before it is sent.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct Attempt {
    /// 1 for the first attempt, then 2, 3, …
    pub(crate) ordinal: u64,
    pub(crate) kind: AttemptKind,
    pub(crate) tx_hash: String,
    /// For admins only.
    pub(crate) nonce: Option<u64>,
    /// Decimal.
    pub(crate) gas_limit: Option<String>,
    /// Wei per gas, decimal.
    pub(crate) max_fee_per_gas: Option<String>,
    /// Wei per gas, decimal.
    pub(crate) max_priority_fee_per_gas: Option<String>,
    /// Legacy transactions only. Wei per gas, decimal.
    pub(crate) gas_price: Option<String>,
    pub(crate) committed_at: DateTime<Utc>,
    pub(crate) first_sent_at: Option<DateTime<Utc>>,
    pub(crate) last_sent_at: Option<DateTime<Utc>>,
    /// How often it was sent, with or without a response.
    pub(crate) sends: u64,
    /// Class of the last node response, for example `accepted`, `already_known` or `underpriced`. Absent: no response
    /// yet.
    pub(crate) last_answer_class: Option<String>,
    /// Error text of that response. Absent if the node accepted the transaction.
    pub(crate) last_answer: Option<String>,
    /// Whether this attempt is the one that was mined.
    pub(crate) mined: bool,
    /// When it was discarded because another transaction finally has its nonce.
    pub(crate) displaced_at: Option<DateTime<Utc>>,
}

/// The purpose of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "SCREAMING_SNAKE_CASE")]
pub(crate) enum AttemptKind {
    /// The requested transaction.
    Original,
    /// The same transaction at a different price.
    Replacement,
    /// An empty transaction from the submitter to itself that consumes the nonce of a cancelled or failed one.
    Placeholder,
}

/// A state and when it was recorded.
#[derive(Clone, Copy, Debug, Object)]
pub(crate) struct StateChange {
    pub(crate) state: TxState,
    pub(crate) at: DateTime<Utc>,
}

impl TxHistory {
    pub(crate) fn new(tx_id: TxId, history: store::TxHistory, for_admin: bool) -> TxHistory {
        let change = |change: store::StateChange| StateChange { state: change.state.into(), at: change.at };
        TxHistory {
            tx_id: tx_id.0,
            attempts: history.attempts.into_iter().map(|view| Attempt::new(view, for_admin)).collect(),
            state_changes: history.changes.into_iter().map(change).collect(),
        }
    }
}

impl Attempt {
    fn new(view: store::AttemptView, for_admin: bool) -> Attempt {
        let wei = |price: U256| Some(price.to_string());
        let (max_fee_per_gas, max_priority_fee_per_gas, gas_price) = match view.fees {
            Some(Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas }) => {
                (wei(max_fee_per_gas), wei(max_priority_fee_per_gas), None)
            }
            Some(Fees::Legacy { gas_price }) => (None, None, wei(gas_price)),
            None => (None, None, None),
        };
        let shown = |answer: String| if for_admin { answer } else { redact_nonces(&answer) };
        Attempt {
            ordinal: view.ordinal,
            kind: view.kind.into(),
            tx_hash: format!("{:#x}", view.tx_hash),
            nonce: for_admin.then_some(view.nonce.0),
            gas_limit: view.gas_limit.and_then(wei),
            max_fee_per_gas,
            max_priority_fee_per_gas,
            gas_price,
            committed_at: view.committed_at,
            first_sent_at: view.first_sent_at,
            last_sent_at: view.last_sent_at,
            sends: view.sends,
            last_answer_class: view.last_class,
            last_answer: view.last_answer.map(shown),
            mined: view.mined,
            displaced_at: view.displaced_at,
        }
    }
}

impl From<store::AttemptKind> for AttemptKind {
    fn from(kind: store::AttemptKind) -> Self {
        match kind {
            store::AttemptKind::Original => AttemptKind::Original,
            store::AttemptKind::Replacement => AttemptKind::Replacement,
            store::AttemptKind::Placeholder => AttemptKind::Placeholder,
        }
    }
}

impl Example for TxHistory {
    fn example() -> Self {
        let attempt = Attempt {
            ordinal: 1,
            kind: AttemptKind::Original,
            tx_hash: example_hash("4e"),
            nonce: None,
            gas_limit: Some("61481".into()),
            max_fee_per_gas: Some("2001000000".into()),
            max_priority_fee_per_gas: Some("1000000".into()),
            gas_price: None,
            committed_at: example_time(0),
            first_sent_at: Some(example_time(1)),
            last_sent_at: Some(example_time(1)),
            sends: 1,
            last_answer_class: Some("accepted".into()),
            last_answer: None,
            mined: true,
            displaced_at: None,
        };
        let change = |state, seconds| StateChange { state, at: example_time(seconds) };
        TxHistory {
            tx_id: EXAMPLE_ID,
            attempts: vec![attempt],
            state_changes: vec![change(TxState::Queued, 0), change(TxState::Submitted, 1)],
        }
    }
}

#[cfg(test)]
mod tests {
    use gapless_domain::{H256, Nonce};
    use poem_openapi::types::ToJSON;

    use super::*;

    #[test]
    fn only_admins_see_nonces_of_attempts_and_in_node_responses() {
        let view = store::AttemptView {
            ordinal: 1,
            kind: store::AttemptKind::Original,
            tx_hash: H256::repeat_byte(0xaa),
            nonce: Nonce(41),
            gas_limit: Some(21_000.into()),
            fees: Some(Fees::Legacy { gas_price: 7.into() }),
            committed_at: DateTime::UNIX_EPOCH,
            first_sent_at: None,
            last_sent_at: None,
            sends: 2,
            last_class: Some("nonce_too_low".into()),
            last_answer: Some("nonce too low: next nonce 42, tx nonce 41".into()),
            mined: false,
            displaced_at: None,
        };
        let public = Attempt::new(view.clone(), false).to_json_string();
        assert!(
            !public.contains("41") && !public.contains("42") && !public.contains("\"nonce\""),
            "{public}"
        );
        let admin = Attempt::new(view, true).to_json_string();
        assert!(admin.contains("\"nonce\":41") && admin.contains("next nonce 42"), "{admin}");
    }
}
