//! `POST /api/v1/tx/batch`.

use gapless_store::NewIntent;
use gapless_telemetry::TraceContext;
use poem::web::Data;
use poem_openapi::OpenApi;
use poem_openapi::payload::Json;

use super::Tag;
use super::create::{AcceptedTx, accept, check_policy, count, validate};
use crate::app::SharedApp;
use crate::auth::{Caller, Write};
use crate::error::{ApiError, Failure, OnBatch};
use crate::intake::IntakeError;
use crate::wire::{BatchRequest, BatchResponse, BatchResult, Body};

#[derive(Debug)]
pub(crate) struct Batch;

#[OpenApi]
impl Batch {
    /// Send several transactions
    ///
    /// Each item is accepted or refused separately, as if it were a single request. `results` are in the order of
    /// `items`. Items of the same submitter are queued in that order.
    #[oai(
        path = "/api/v1/tx/batch",
        method = "post",
        operation_id = "createTxBatch",
        tag = "Tag::Transactions"
    )]
    async fn create_batch(
        &self,
        app: Data<&SharedApp>,
        trace: Data<&TraceContext>,
        caller: Caller<Write>,
        body: Body<BatchRequest>,
    ) -> Result<Json<BatchResponse>, Failure<OnBatch>> {
        let items = body.0.items;
        if items.len() > app.max_batch {
            let problem = format!("{} items exceed the maximum of {}", items.len(), app.max_batch);
            return Err(ApiError::invalid("items", problem).into());
        }
        // Each item counts as a request; authentication has counted the first.
        caller.charge(&app.authenticator, items.len().saturating_sub(1));
        let mut checked: Vec<Result<NewIntent, ApiError>> = items
            .into_iter()
            .map(|item| {
                item.0
                    .map_err(ApiError::InvalidRequest)
                    .and_then(|request| validate(&app, &caller, request, None, &trace))
            })
            .collect();
        for item in &mut checked {
            if let Ok(intent) = item
                && let Err(error) = check_policy(&app, intent).await
            {
                *item = Err(error);
            }
        }
        let intents: Vec<_> = checked.iter().filter_map(|item| item.as_ref().ok().cloned()).collect();
        let outcomes = app.intake.submit_all(intents).await;
        if !outcomes.is_empty() && outcomes.iter().all(|outcome| *outcome == Err(IntakeError::Unavailable)) {
            // No item has a result of its own: the client can retry the whole batch.
            return Err(ApiError::DatabaseUnavailable.into());
        }
        let mut outcomes = outcomes.into_iter();
        let results = checked.into_iter().map(|item| {
            let result = item.and_then(|intent| {
                let outcome = outcomes.next().ok_or(ApiError::Internal)?;
                accept(intent.submitter, outcome.map_err(ApiError::from))
            });
            count(&result);
            as_result(result)
        });
        Ok(Json(BatchResponse { results: results.collect() }))
    }
}

fn as_result(result: Result<AcceptedTx, ApiError>) -> BatchResult {
    match result {
        Ok(AcceptedTx { tx_id, new }) => {
            BatchResult { status: if new { 202 } else { 200 }, tx_id: Some(tx_id.0), problem: None }
        }
        Err(error) => {
            let problem = error.problem();
            BatchResult { status: problem.status, tx_id: None, problem: Some(problem) }
        }
    }
}
