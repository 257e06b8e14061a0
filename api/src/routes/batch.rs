//! `POST /api/v1/tx/batch`.

use gapless::observe::TraceContext;
use gapless::store::NewIntent;
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
    /// Each item is accepted or refused on its own, exactly as if it had been posted alone; `results` stand in the order
    /// of `items`. Items of one submitter are queued in that order.
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
            let problem = format!("items: {} given, at most {} allowed", items.len(), app.max_batch);
            return Err(ApiError::InvalidRequest(problem).into());
        }
        // Each item counts as a request; one was counted when the caller came in.
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
                && let Err(broken) = check_policy(&app, intent).await
            {
                *item = Err(broken);
            }
        }
        let intents: Vec<_> = checked.iter().filter_map(|item| item.as_ref().ok().cloned()).collect();
        let outcomes = app.intake.submit_all(intents).await;
        if !outcomes.is_empty() && outcomes.iter().all(|outcome| *outcome == Err(IntakeError::Unavailable)) {
            // Nothing was judged one by one: the whole batch may simply be sent again.
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
