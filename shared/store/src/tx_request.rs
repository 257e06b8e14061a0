//! Requests about an accepted intent: cancel, speed up, rebroadcast. A request is a row that the owning lane executes.

use super::error::StoreError;
use super::operator::Request;
use super::pending::TxAction;
use super::pool::Store;
use gapless_domain::{TxId, TxState};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestNo(pub i64);

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxRequestOutcome {
    Recorded(RequestNo),
    UnknownTx,
    /// The intent is final and cannot be changed.
    Final(TxState),
}

/// The current state of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxRequestEntry {
    pub applied: bool,
    pub outcome: Option<String>,
    pub refused: bool,
}

impl Store {
    /// Records a request. A repetition while one is pending returns the pending one, with its reason and outcome.
    pub async fn request_tx_action(
        &self,
        tx_id: TxId,
        action: TxAction,
        request: Request<'_>,
    ) -> Result<TxRequestOutcome, StoreError> {
        let number: Option<i64> = sqlx::query_scalar(
            "-- request_tx_action
            INSERT INTO tx_request (tx_id, chain_id, submitter, action, reason, actor)
            SELECT t.tx_id, t.chain_id, t.submitter, $2, $3, $4
            FROM managed_tx t
            WHERE t.tx_id = $1 AND t.finished_at IS NULL
            -- changes nothing; returns the number of the pending row
            ON CONFLICT (tx_id, action) WHERE applied_at IS NULL DO UPDATE SET action = EXCLUDED.action
            RETURNING request_no",
        )
        .bind(tx_id.0)
        .bind(action.as_str())
        .bind(request.reason)
        .bind(request.actor)
        .fetch_optional(&self.pool)
        .await
        .map_err(StoreError::db("request_tx_action"))?;
        if let Some(number) = number {
            return Ok(TxRequestOutcome::Recorded(RequestNo(number)));
        }
        Ok(self
            .get_tx(tx_id)
            .await?
            .map_or(TxRequestOutcome::UnknownTx, |tx| TxRequestOutcome::Final(tx.state)))
    }

    pub async fn tx_request_entry(&self, number: RequestNo) -> Result<TxRequestEntry, StoreError> {
        let (applied, outcome, refused) = sqlx::query_as(
            "-- tx_request_entry
            SELECT applied_at IS NOT NULL, outcome, refused
            FROM tx_request
            WHERE request_no = $1",
        )
        .bind(number.0)
        .fetch_one(&self.pool)
        .await
        .map_err(StoreError::db("tx_request_entry"))?;
        Ok(TxRequestEntry { applied, outcome, refused })
    }
}
