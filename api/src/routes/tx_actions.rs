//! `POST /api/v1/tx/{txId}/cancel`, and `speed-up` and `resolve` for admins.

use gapless_domain::TxId;
use gapless_store::{OperatorRequest, TxAction, TxRequestOutcome};
use poem::web::Data;
use poem_openapi::param::{Path, Query};
use poem_openapi::payload::Json;
use poem_openapi::{ApiResponse, OpenApi};

use super::Tag;
use super::submitter_actions::check_reason;
use crate::app::{App, SharedApp};
use crate::auth::{Administer, Caller, Write};
use crate::error::{ApiError, Failure, OnAdmin, OnTxAction};
use crate::wait::{parse_worker_wait, wait_until_handled};
use crate::wire::{Body, Resolution, ResolveAction, TxActionReason, TxActionResult};

#[derive(ApiResponse)]
pub(crate) enum ActionResponse {
    /// Done; see `outcome`.
    #[oai(status = 200)]
    Applied(Json<TxActionResult>),
    /// Recorded. The submitter's worker will handle it.
    #[oai(status = 202)]
    Pending(Json<TxActionResult>),
}

#[derive(Debug)]
pub(crate) struct TxActions;

#[OpenApi]
impl TxActions {
    /// Cancel a transaction
    ///
    /// A queued transaction becomes `CANCELLED` at once. One in flight is replaced by an empty transaction with the
    /// same nonce: it ends as `CANCELLED` or `CONFIRMED`, whichever is mined first, so track it until it is final.
    /// Mined or final: 409.
    #[oai(
        path = "/api/v1/tx/:txId/cancel",
        method = "post",
        operation_id = "cancelTx",
        tag = "Tag::Transactions"
    )]
    async fn cancel(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Write>,
        #[oai(name = "txId")] tx_id: Path<String>,
        /// How long to wait for the worker. Default: `5s`.
        wait: Query<Option<String>>,
        body: Body<TxActionReason>,
    ) -> Result<ActionResponse, Failure<OnTxAction>> {
        let reason = body.0.reason.unwrap_or_else(|| "cancelled by the client".to_owned());
        Ok(request(&app, &caller, &tx_id.0, TxAction::Cancel, &reason, wait.0.as_deref()).await?)
    }

    /// Speed up a transaction in flight
    ///
    /// Raises the price once, within the limits of the transaction and the submitter's balance; otherwise 409. 200
    /// means that the new attempt is recorded. The transaction stays the same, whichever attempt is mined.
    #[oai(
        path = "/api/v1/tx/:txId/speed-up",
        method = "post",
        operation_id = "speedUpTx",
        tag = "Tag::Transactions"
    )]
    async fn speed_up(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Administer>,
        #[oai(name = "txId")] tx_id: Path<String>,
        /// How long to wait for the worker. Default: `5s`.
        wait: Query<Option<String>>,
        body: Body<TxActionReason>,
    ) -> Result<ActionResponse, Failure<OnAdmin>> {
        let reason = body.0.reason.unwrap_or_else(|| "sped up by an operator".to_owned());
        Ok(request(&app, &caller, &tx_id.0, TxAction::SpeedUp, &reason, wait.0.as_deref()).await?)
    }

    /// Resolve a stuck transaction
    ///
    /// `rebroadcast` sends the same bytes now, and older attempts if no node accepts the newest. `bump` raises the
    /// price once. `cancel` replaces it with an empty transaction. To wait, do nothing: it leaves STUCK when it is
    /// mined.
    #[oai(
        path = "/api/v1/tx/:txId/resolve",
        method = "post",
        operation_id = "resolveTx",
        tag = "Tag::Transactions"
    )]
    async fn resolve(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Administer>,
        #[oai(name = "txId")] tx_id: Path<String>,
        /// How long to wait for the worker. Default: `5s`.
        wait: Query<Option<String>>,
        body: Body<Resolution>,
    ) -> Result<ActionResponse, Failure<OnAdmin>> {
        let action = match body.0.action {
            ResolveAction::Rebroadcast => TxAction::Rebroadcast,
            ResolveAction::Bump => TxAction::SpeedUp,
            ResolveAction::Cancel => TxAction::Cancel,
        };
        Ok(request(&app, &caller, &tx_id.0, action, &body.0.reason, wait.0.as_deref()).await?)
    }
}

async fn request<R>(
    app: &App,
    caller: &Caller<R>,
    tx_id: &str,
    action: TxAction,
    reason: &str,
    wait: Option<&str>,
) -> Result<ActionResponse, ApiError> {
    check_reason(reason)?;
    let wait = parse_worker_wait(wait, app.max_wait)?;
    let tx_id: TxId = tx_id.parse().map_err(|_| ApiError::invalid("txId", "must be a UUID"))?;
    if caller.submitters().is_some() {
        // A transaction's submitter never changes, so checking before the request is enough.
        caller.own_tx(app.store.get_tx(tx_id).await?)?;
    }
    let actor = &caller.actor();
    let number = match app.store.request_tx_action(tx_id, action, OperatorRequest { actor, reason }).await? {
        TxRequestOutcome::Recorded(number) => number,
        TxRequestOutcome::UnknownTx => return Err(ApiError::UnknownTx),
        TxRequestOutcome::Final(state) => return Err(ApiError::TxFinal { tx_id, state }),
    };
    app.notifier.notify(1);
    tracing::info!(tx.id = %tx_id, actor, action = ?action, reason, "transaction action requested");
    let read = || app.store.tx_request_entry(number);
    let entry = wait_until_handled(app, wait, read, |entry| entry.applied).await?;
    if entry.refused {
        return Err(ApiError::ActionRefused(entry.outcome.unwrap_or_default()));
    }
    let result = Json(TxActionResult { tx_id: tx_id.0, outcome: entry.outcome });
    Ok(if entry.applied { ActionResponse::Applied(result) } else { ActionResponse::Pending(result) })
}
