//! Requests that wait for a lane: operators' requests about a submitter, clients' requests about an intent.

use std::collections::HashMap;

use uuid::Uuid;

use super::error::StoreError;
use super::lease::columns;
use super::load::LaneRows;
use super::operator::TakenBy;
use super::pool::Store;
use super::row::{self, Cell, StoredAddress, StoredHash};
use gapless_domain::{SubmitterKey, TxId, TxState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperatorAction {
    /// Leave PROTECT without changing the sequence.
    Release,
    /// Continue from the chain's transaction count.
    Adopt,
}

/// A client's request about an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TxAction {
    Cancel,
    SpeedUp,
    Rebroadcast,
}

impl TxAction {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            TxAction::Cancel => "cancel",
            TxAction::SpeedUp => "speed_up",
            TxAction::Rebroadcast => "rebroadcast",
        }
    }
}

impl std::str::FromStr for TxAction {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "cancel" => Ok(TxAction::Cancel),
            "speed_up" => Ok(TxAction::SpeedUp),
            "rebroadcast" => Ok(TxAction::Rebroadcast),
            other => Err(format!("unknown transaction action `{other}`")),
        }
    }
}

#[derive(Clone, Debug)]
pub struct PendingTxRequest {
    pub request_no: i64,
    pub tx_id: TxId,
    pub action: TxAction,
    pub reason: String,
    /// The state of the intent when the request was read.
    pub state: TxState,
    /// The intent is blocked in the queue.
    pub blocked: bool,
    /// An owner has marked it as seen and is working on it.
    pub seen: bool,
}

#[derive(Clone, Debug)]
pub struct PendingAction {
    pub audit_id: i64,
    pub action: OperatorAction,
    pub reason: String,
    /// The transaction that consumed a nonce, according to the operator.
    pub taken_by: Option<TakenBy>,
}

/// An intent whose `start_by` passed before it had a nonce.
#[derive(Clone, Debug)]
pub struct LateIntent {
    pub tx_id: TxId,
    /// What it waited for.
    pub last_error: Option<String>,
    pub trace_context: Option<String>,
    /// It is blocked in the queue.
    pub blocked: bool,
}

/// Late intents of a submitter that are read at once; the others follow.
pub const MAX_LATE: usize = 500;

impl Store {
    pub(super) async fn load_actions(
        &self,
        keys: &[SubmitterKey],
        lanes: &mut HashMap<SubmitterKey, LaneRows>,
    ) -> Result<(), StoreError> {
        let (chains, submitters) = columns(keys);
        type Row = (i64, i64, StoredAddress, String, String, Option<StoredHash>, Option<i64>);
        let rows: Vec<Row> = sqlx::query_as(
            "-- load_actions
            SELECT a.audit_id, a.chain_id, a.submitter, a.action, a.reason, a.taken_by, a.taken_block
            FROM unnest($1::BIGINT[], $2::BYTEA[]) AS u (chain_id, submitter)
            JOIN audit_log a ON a.chain_id = u.chain_id AND a.submitter = u.submitter
            WHERE a.applied_at IS NULL AND a.action IN ('release', 'adopt')
            ORDER BY a.audit_id",
        )
        .bind(chains)
        .bind(submitters)
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("load_actions"))?;
        for (audit_id, chain_id, submitter, action, reason, taken_by, taken_block) in rows {
            let action = match action.as_str() {
                "adopt" => OperatorAction::Adopt,
                _ => OperatorAction::Release,
            };
            let key = row::key("audit_log", chain_id, submitter)?;
            let cell = |column| Cell { table: "audit_log", column, id: &submitter };
            let taken_by = match taken_by.zip(taken_block) {
                Some((hash, block)) => {
                    Some(TakenBy { tx_hash: hash.into(), block: cell("taken_block").unsigned(block)? })
                }
                None => None,
            };
            lanes.entry(key).or_default().actions.push(PendingAction { audit_id, action, reason, taken_by });
        }
        Ok(())
    }

    pub(super) async fn load_tx_requests(
        &self,
        keys: &[SubmitterKey],
        lanes: &mut HashMap<SubmitterKey, LaneRows>,
    ) -> Result<(), StoreError> {
        let (chains, submitters) = columns(keys);
        type Row = (i64, i64, StoredAddress, Uuid, String, String, String, bool, bool);
        let rows: Vec<Row> = sqlx::query_as(
            "-- load_tx_requests
            SELECT r.request_no, r.chain_id, r.submitter, r.tx_id, r.action, r.reason, t.state,
                   r.fencing_token IS NOT NULL AS seen, t.blocked_since IS NOT NULL AS blocked
            FROM unnest($1::BIGINT[], $2::BYTEA[]) AS u (chain_id, submitter)
            JOIN tx_request r ON r.chain_id = u.chain_id AND r.submitter = u.submitter
            JOIN managed_tx t ON t.tx_id = r.tx_id
            WHERE r.applied_at IS NULL
            ORDER BY r.request_no",
        )
        .bind(chains)
        .bind(submitters)
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("load_tx_requests"))?;
        for (request_no, chain_id, submitter, tx_id, action, reason, state, seen, blocked) in rows {
            let key = row::key("tx_request", chain_id, submitter)?;
            let id = tx_id.to_string();
            let state = Cell { table: "managed_tx", column: "state", id: &id }.parse(&state)?;
            let action = Cell { table: "tx_request", column: "action", id: &id }.parse(&action)?;
            let tx_id = TxId(tx_id);
            let request = PendingTxRequest { request_no, tx_id, action, reason, state, blocked, seen };
            lanes.entry(key).or_default().tx_requests.push(request);
        }
        Ok(())
    }

    /// Queued intents of several submitters that can no longer start, at most `MAX_LATE` of each, in the order of `keys`.
    pub async fn late_intents(&self, keys: &[SubmitterKey]) -> Result<Vec<Vec<LateIntent>>, StoreError> {
        let (chains, submitters) = columns(keys);
        type Row = (i64, Uuid, Option<String>, Option<String>, bool);
        let rows: Vec<Row> = sqlx::query_as(
            "-- late_intents
            SELECT u.ord, l.tx_id, l.last_error, l.trace_context, l.blocked
            FROM unnest($1::BIGINT[], $2::BYTEA[]) WITH ORDINALITY AS u (chain_id, submitter, ord)
            CROSS JOIN LATERAL (
                SELECT t.tx_id, t.last_error, t.trace_context, t.blocked_since IS NOT NULL AS blocked
                FROM managed_tx t
                WHERE t.queued AND t.start_by <= statement_timestamp() AND t.history IS NULL
                  AND t.chain_id = u.chain_id AND t.submitter = u.submitter
                ORDER BY t.start_by
                LIMIT $3
            ) l",
        )
        .bind(chains)
        .bind(submitters)
        .bind(i64::try_from(MAX_LATE).unwrap_or(i64::MAX))
        .fetch_all(&self.pool)
        .await
        .map_err(StoreError::db("late_intents"))?;
        let mut late = vec![Vec::new(); keys.len()];
        for (ord, tx_id, last_error, trace_context, blocked) in rows {
            if let Some(own) = usize::try_from(ord - 1).ok().and_then(|index| late.get_mut(index)) {
                own.push(LateIntent { tx_id: TxId(tx_id), last_error, trace_context, blocked });
            }
        }
        Ok(late)
    }
}
