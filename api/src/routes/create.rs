//! `POST /api/v1/tx`.

use gapless_domain::intent::check_request_id;
use gapless_domain::{RequestedTx, TxId};
use gapless_store::{IntakeOutcome, NewIntent};
use gapless_telemetry::metrics::TX_CREATE_TOTAL;
use gapless_telemetry::{TraceContext, child_span};
use poem_openapi::ApiResponse;
use poem_openapi::payload::Json;
use tracing::Instrument;

use crate::app::App;
use crate::auth::{Caller, Write};
use crate::error::{ApiError, Failure, OnCreate};
use crate::wire::{Accepted, CreateTx};

#[derive(ApiResponse)]
pub(crate) enum Created {
    /// Accepted. The transaction is queued and processed until it is final.
    #[oai(status = 202)]
    New(
        Json<Accepted>,
        /// URL of the transaction.
        #[oai(header = "Location")]
        String,
    ),
    /// The same request was accepted before; nothing was added.
    #[oai(status = 200)]
    Known(
        Json<Accepted>,
        /// URL of the transaction.
        #[oai(header = "Location")]
        String,
    ),
}

pub(super) async fn create(
    app: &App,
    caller: &Caller<Write>,
    trace: &TraceContext,
    idempotency_key: Option<String>,
    request: CreateTx,
) -> Result<Created, Failure<OnCreate>> {
    let accepted = match validate(app, caller, request, idempotency_key, trace) {
        Ok(intent) => match check_policy(app, &intent).await {
            Ok(()) => accept(
                intent.submitter,
                app.intake.submit(intent).instrument(child_span("insert")).await.map_err(ApiError::from),
            ),
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    count(&accepted);
    let accepted = accepted?;
    let location = format!("/api/v1/tx/{}", accepted.tx_id);
    let body = Json(Accepted { tx_id: accepted.tx_id.0 });
    Ok(if accepted.new { Created::New(body, location) } else { Created::Known(body, location) })
}

/// An accepted request and whether it is new.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AcceptedTx {
    pub(crate) tx_id: TxId,
    pub(crate) new: bool,
}

/// The checks that need no database. Shared with the batch route.
pub(crate) fn validate(
    app: &App,
    caller: &Caller<Write>,
    request: CreateTx,
    idempotency_key: Option<String>,
    trace: &TraceContext,
) -> Result<NewIntent, ApiError> {
    let request_id = match (request.request_id, idempotency_key) {
        (Some(id), Some(key)) if id != key => {
            return Err(ApiError::invalid("requestId", "does not match the Idempotency-Key header"));
        }
        (Some(id), _) | (None, Some(id)) => id,
        (None, None) => {
            let problem = "is required, here or in the Idempotency-Key header";
            return Err(ApiError::invalid("requestId", problem));
        }
    };
    check_request_id(&request_id).map_err(ApiError::InvalidRequest)?;
    let submitter = caller.own(app.chains.submitter(request.chain_id, &request.submitter)?)?;
    let payload = RequestedTx::from(request.payload).validate().map_err(ApiError::InvalidPayload)?;
    Ok(NewIntent::new(submitter, request_id, payload, Some(trace.to_string())))
}

/// Refuses what the submitter's policy forbids, which would otherwise become FAILED later. A request that was accepted
/// before passes, so that a retry gets the same answer after a policy change. Shared with the batch route.
pub(crate) async fn check_policy(app: &App, intent: &NewIntent) -> Result<(), ApiError> {
    let Err(error) = app.policies.check(intent.submitter, &intent.payload) else { return Ok(()) };
    if app.store.get_tx_by_request(intent.submitter, &intent.request_id).await?.is_some() {
        return Ok(());
    }
    tracing::info!(chain.id = intent.submitter.chain_id.0, submitter = intent.submitter.address_text(),
        code = error.code(), reason = %error, "refused by the submitter's policy");
    Err(error)
}

pub(crate) fn accept(
    submitter: gapless_domain::SubmitterKey,
    outcome: Result<IntakeOutcome, ApiError>,
) -> Result<AcceptedTx, ApiError> {
    match outcome? {
        IntakeOutcome::Created(tx_id) => {
            tracing::debug!(chain.id = submitter.chain_id.0, submitter = submitter.address_text(), tx.id = %tx_id,
                "accepted");
            Ok(AcceptedTx { tx_id, new: true })
        }
        IntakeOutcome::Existing(tx_id) => Ok(AcceptedTx { tx_id, new: false }),
        IntakeOutcome::Conflict(tx_id) => Err(ApiError::RequestIdConflict { tx_id }),
        IntakeOutcome::UnknownSubmitter => Err(ApiError::UnknownSubmitter(submitter)),
        IntakeOutcome::Protected { reason } => Err(ApiError::SubmitterProtected { reason }),
        IntakeOutcome::LowLevel => Err(ApiError::SubmitterLowLevel),
    }
}

pub(crate) fn count(result: &Result<AcceptedTx, ApiError>) {
    let result = match result {
        Ok(AcceptedTx { new: true, .. }) => "created",
        Ok(AcceptedTx { new: false, .. }) => "existing",
        Err(error) => error.code(),
    };
    metrics::counter!(TX_CREATE_TOTAL, "result" => result).increment(1);
}
