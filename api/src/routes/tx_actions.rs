//! `POST /api/v1/tx/{txId}/cancel`, and `speed-up` and `resolve` for admins: what may be asked about a transaction.

use gapless::domain::TxId;
use gapless::store::{OperatorRequest, TxAction, TxRequestOutcome};
use poem::web::Data;
use poem_openapi::param::{Path, Query};
use poem_openapi::payload::Json;
use poem_openapi::{ApiResponse, OpenApi};

use super::Tag;
use super::submitter_actions::check_reason;
use crate::app::{App, SharedApp};
use crate::auth::{Administer, Caller, Write};
use crate::error::{ApiError, Failure, OnAdmin, OnTxAction};
use crate::wait::{dealt_with, parse_worker_wait};
use crate::wire::{Body, Resolution, ResolveAction, TxActionReason, TxActionResult};

#[derive(ApiResponse)]
pub(crate) enum Requested {
    /// The worker has dealt with it; `outcome` says how.
    #[oai(status = 200)]
    Applied(Json<TxActionResult>),
    /// Recorded. The worker that owns the submitter will deal with it.
    #[oai(status = 202)]
    Pending(Json<TxActionResult>),
}

#[derive(Debug)]
pub(crate) struct TxActions;

#[OpenApi]
impl TxActions {
    /// Cancel a transaction
    ///
    /// Before it is sent it is `CANCELLED` at once. On its way, an empty transaction competes with it; what is mined
    /// decides between `CANCELLED` and `CONFIRMED`, so follow it until it is final. Mined or final: 409.
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
        /// How long to wait for the worker; `5s` if absent.
        wait: Query<Option<String>>,
        body: Body<TxActionReason>,
    ) -> Result<Requested, Failure<OnTxAction>> {
        let reason = body.0.reason.unwrap_or_else(|| "cancelled by the client".to_owned());
        Ok(request(&app, &caller, &tx_id.0, TxAction::Cancel, &reason, wait.0.as_deref()).await?)
    }

    /// Raise the price of a transaction on its way
    ///
    /// Once, within the limits of the transaction and of its submitter's balance; otherwise 409. 200 means that the attempt is
    /// recorded. The transaction stays the same one: whichever price is mined counts.
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
        /// How long to wait for the worker; `5s` if absent.
        wait: Query<Option<String>>,
        body: Body<TxActionReason>,
    ) -> Result<Requested, Failure<OnAdmin>> {
        let reason = body.0.reason.unwrap_or_else(|| "sped up by an operator".to_owned());
        Ok(request(&app, &caller, &tx_id.0, TxAction::SpeedUp, &reason, wait.0.as_deref()).await?)
    }

    /// Resolve a stuck transaction
    ///
    /// `rebroadcast` sends the same bytes now, older attempts too if no node takes the newest; `bump` raises its price once;
    /// `cancel` has an empty transaction compete for its place. To wait, do nothing: it leaves STUCK by itself when it is mined.
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
        /// How long to wait for the worker; `5s` if absent.
        wait: Query<Option<String>>,
        body: Body<Resolution>,
    ) -> Result<Requested, Failure<OnAdmin>> {
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
) -> Result<Requested, ApiError> {
    check_reason(reason)?;
    let wait = parse_worker_wait(wait, app.max_wait)?;
    let tx_id: TxId =
        tx_id.parse().map_err(|_| ApiError::InvalidRequest("txId: is not a transaction id".into()))?;
    if caller.submitters().is_some() {
        // Whose it is never changes, so that a look before the request is enough.
        caller.own_tx(app.store.get_tx(tx_id).await?)?;
    }
    let actor = &caller.actor();
    let number = match app.store.request_tx_action(tx_id, action, OperatorRequest { actor, reason }).await? {
        TxRequestOutcome::Recorded(number) => number,
        TxRequestOutcome::UnknownTx => return Err(ApiError::UnknownTx),
        TxRequestOutcome::Final(state) => return Err(ApiError::TxFinal { tx_id, state }),
    };
    app.notifier.notify(1);
    tracing::info!(tx.id = %tx_id, actor, action = ?action, reason, "asked about a transaction");
    let entry = dealt_with(app, wait, || app.store.tx_request_entry(number), |entry| entry.applied).await?;
    if entry.refused {
        return Err(ApiError::ActionRefused(entry.outcome.unwrap_or_default()));
    }
    let result = Json(TxActionResult { tx_id: tx_id.0, outcome: entry.outcome });
    Ok(if entry.applied { Requested::Applied(result) } else { Requested::Pending(result) })
}
