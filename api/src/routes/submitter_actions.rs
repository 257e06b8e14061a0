//! `POST /api/v1/submitters/{address}/pause|resume|release|adopt`, for admins.

use gapless_domain::{H256, SubmitterKey};
use gapless_store::{
    AuditEntry, AuditId, OperatorAction, OperatorOutcome, OperatorRequest, SubmitterStatus, TakenBy,
};
use poem::web::Data;
use poem_openapi::param::{Path, Query};
use poem_openapi::payload::Json;
use poem_openapi::{ApiResponse, OpenApi};

use super::Tag;
use crate::app::{App, SharedApp};
use crate::auth::{Administer, Caller};
use crate::error::{ApiError, Failure, OnAdmin};
use crate::wait::{parse_worker_wait, wait_until_handled};
use crate::wire::{ActionResult, ActionStatus, AdoptReason, Body, OperatorReason};

#[derive(ApiResponse)]
pub(crate) enum ActionResponse {
    /// Done; see `outcome`.
    #[oai(status = 200)]
    Applied(Json<ActionResult>),
    /// Recorded. The submitter's worker will execute it.
    #[oai(status = 202)]
    Pending(Json<ActionResult>),
}

/// The largest integer that all JSON parsers read exactly; more than any chain's block number.
pub(crate) const MAX_BLOCK: u64 = (1 << 53) - 1;

type Answer = Result<ActionResponse, Failure<OnAdmin>>;

#[derive(Debug)]
pub(crate) struct SubmitterActions;

#[OpenApi(tag = "Tag::Submitters")]
impl SubmitterActions {
    /// Pause a submitter
    ///
    /// Transactions in flight are tracked until they are final; nothing new is sent until `resume`. Takes effect
    /// within `worker.poll_interval`, usually at once. New requests are still accepted.
    #[oai(path = "/api/v1/submitters/:address/pause", method = "post", operation_id = "pauseSubmitter")]
    async fn pause(
        &self,
        app: Data<&SharedApp>,
        admin: Caller<Administer>,
        address: Path<String>,
        /// Optional if the server serves only one chain.
        #[oai(name = "chainId")]
        chain_id: Query<Option<u64>>,
        body: Body<OperatorReason>,
    ) -> Answer {
        let key = admin.own(app.chains.submitter_in("address", chain_id.0, &address.0)?)?;
        set_status(&app, &admin, key, SubmitterStatus::Paused, "pause", &body.0.reason).await
    }

    /// Resume a paused submitter
    ///
    /// Its queue is sent again, in order.
    #[oai(path = "/api/v1/submitters/:address/resume", method = "post", operation_id = "resumeSubmitter")]
    async fn resume(
        &self,
        app: Data<&SharedApp>,
        admin: Caller<Administer>,
        address: Path<String>,
        /// Optional if the server serves only one chain.
        #[oai(name = "chainId")]
        chain_id: Query<Option<u64>>,
        body: Body<OperatorReason>,
    ) -> Answer {
        let key = admin.own(app.chains.submitter_in("address", chain_id.0, &address.0)?)?;
        set_status(&app, &admin, key, SubmitterStatus::Active, "resume", &body.0.reason).await
    }

    /// Release a submitter from PROTECT
    ///
    /// For false alarms: continues with the stored nonce.
    #[oai(path = "/api/v1/submitters/:address/release", method = "post", operation_id = "releaseSubmitter")]
    async fn release(
        &self,
        app: Data<&SharedApp>,
        admin: Caller<Administer>,
        address: Path<String>,
        /// Optional if the server serves only one chain.
        #[oai(name = "chainId")]
        chain_id: Query<Option<u64>>,
        /// How long to wait for the worker. Default: `5s`.
        wait: Query<Option<String>>,
        body: Body<OperatorReason>,
    ) -> Answer {
        let key = admin.own(app.chains.submitter_in("address", chain_id.0, &address.0)?)?;
        let actor = &admin.actor();
        let requested = OperatorRequest { actor, reason: &body.0.reason };
        request(&app, key, (OperatorAction::Release, None), "release", requested, wait.0.as_deref()).await
    }

    /// Adopt the chain's nonce for a submitter
    ///
    /// For addresses with earlier transactions, and after the key was used externally: continues with the chain's
    /// nonce. Refused while it is unknown which transaction consumed a nonce, unless `takenBy` names it.
    #[oai(path = "/api/v1/submitters/:address/adopt", method = "post", operation_id = "adoptSubmitter")]
    async fn adopt(
        &self,
        app: Data<&SharedApp>,
        admin: Caller<Administer>,
        address: Path<String>,
        /// Optional if the server serves only one chain.
        #[oai(name = "chainId")]
        chain_id: Query<Option<u64>>,
        /// How long to wait for the worker. Default: `5s`.
        wait: Query<Option<String>>,
        body: Body<AdoptReason>,
    ) -> Answer {
        let key = admin.own(app.chains.submitter_in("address", chain_id.0, &address.0)?)?;
        let actor = &admin.actor();
        let requested = OperatorRequest { actor, reason: &body.0.reason };
        let action = (OperatorAction::Adopt, taken_by(&body.0)?);
        request(&app, key, action, "adopt", requested, wait.0.as_deref()).await
    }
}

async fn set_status(
    app: &App,
    admin: &Caller<Administer>,
    key: SubmitterKey,
    status: SubmitterStatus,
    action: &str,
    reason: &str,
) -> Answer {
    check_reason(reason)?;
    let actor = &admin.actor();
    let request = OperatorRequest { actor, reason };
    let id = recorded(key, app.store.set_status(key, status, request).await?)?;
    app.notifier.notify(1);
    log(actor, key, action, reason);
    let entry = app.store.audit_entry(id).await?;
    Ok(answer(id, key, action, reason, entry))
}

fn taken_by(body: &AdoptReason) -> Result<Option<TakenBy>, ApiError> {
    let Some(named) = &body.taken_by else { return Ok(None) };
    let digits = named.tx_hash.strip_prefix("0x").filter(|digits| digits.len() == 64);
    let Some(tx_hash) = digits.and_then(|digits| digits.parse::<H256>().ok()) else {
        let problem = "must be a transaction hash, 0x and 64 hex digits";
        return Err(ApiError::invalid("takenBy.txHash", problem));
    };
    if named.block > MAX_BLOCK {
        return Err(ApiError::invalid("takenBy.block", format!("must be at most {MAX_BLOCK}")));
    }
    Ok(Some(TakenBy { tx_hash, block: named.block }))
}

async fn request(
    app: &App,
    key: SubmitterKey,
    (action, taken_by): (OperatorAction, Option<TakenBy>),
    name: &str,
    request: OperatorRequest<'_>,
    wait: Option<&str>,
) -> Answer {
    let (actor, reason) = (request.actor, request.reason);
    check_reason(reason)?;
    let wait = parse_worker_wait(wait, app.max_wait)?;
    let id = recorded(key, app.store.request_action(key, action, request, taken_by).await?)?;
    app.notifier.notify(1);
    log(actor, key, name, reason);
    let read = || app.store.audit_entry(id);
    let entry = wait_until_handled(app, wait, read, |entry| entry.applied_at.is_some()).await?;
    if entry.refused {
        return Err(ApiError::ActionRefused(entry.outcome.unwrap_or_default()).into());
    }
    Ok(answer(id, key, name, reason, entry))
}

fn recorded(key: SubmitterKey, outcome: OperatorOutcome) -> Result<AuditId, ApiError> {
    match outcome {
        OperatorOutcome::Recorded(id) => Ok(id),
        OperatorOutcome::UnknownSubmitter => Err(ApiError::UnknownSubmitter(key)),
        OperatorOutcome::NotProtected => Err(ApiError::NotProtected),
    }
}

/// Checks what the length limits in the document cannot express.
pub(super) fn check_reason(reason: &str) -> Result<(), ApiError> {
    let blank = reason.trim().is_empty();
    if blank
        || reason.chars().count() > 1000
        || reason.contains(|c: char| c.is_control() && c != '\n' && c != '\t')
    {
        return Err(ApiError::invalid("reason", "must be 1 to 1000 printable characters"));
    }
    Ok(())
}

fn log(actor: &str, key: SubmitterKey, action: &str, reason: &str) {
    tracing::info!(
        chain.id = key.chain_id.0,
        submitter = key.address_text(),
        actor,
        action,
        reason,
        "operator action requested"
    );
}

fn answer(id: AuditId, key: SubmitterKey, action: &str, reason: &str, entry: AuditEntry) -> ActionResponse {
    let done = entry.applied_at.is_some();
    let result = Json(ActionResult {
        audit_id: id.0,
        chain_id: key.chain_id.0,
        submitter: key.address_text(),
        action: action.to_owned(),
        reason: reason.to_owned(),
        status: if done { ActionStatus::Applied } else { ActionStatus::Pending },
        requested_at: entry.requested_at,
        applied_at: entry.applied_at,
        outcome: entry.outcome,
    });
    if done { ActionResponse::Applied(result) } else { ActionResponse::Pending(result) }
}
