//! `GET /api/v1/tx/{txId}`.

use gapless::domain::TxId;
use poem::web::Data;
use poem_openapi::OpenApi;
use poem_openapi::param::{Path, Query};
use poem_openapi::payload::Json;

use super::Tag;
use crate::app::{App, SharedApp};
use crate::error::{ApiError, Failure, OnRead};
use crate::wait::parse_wait;
use crate::wire::Tx;

#[derive(Debug)]
pub(crate) struct Get;

#[OpenApi]
impl Get {
    /// Follow a transaction
    ///
    /// With `wait`, the answer comes when the transaction is final or the time is up, whichever is first.
    #[oai(path = "/api/v1/tx/:txId", method = "get", operation_id = "getTx", tag = "Tag::Transactions")]
    async fn get(
        &self,
        app: Data<&SharedApp>,
        #[oai(name = "txId")] tx_id: Path<String>,
        /// How long to wait, for example `500ms`, `30s`, `2m`. The server has a maximum (`api.max_wait`).
        wait: Query<Option<String>>,
    ) -> Result<Json<Tx>, Failure<OnRead>> {
        let wait = parse_wait(wait.0.as_deref(), app.max_wait)?;
        let tx_id: TxId =
            tx_id.0.parse().map_err(|_| ApiError::InvalidRequest("txId: is not a transaction id".into()))?;
        let mut view = app.store.get_tx(tx_id).await?.ok_or(ApiError::UnknownTx)?;
        if !wait.is_zero() && !view.state.is_terminal() {
            tokio::select! {
                () = app.settled.wait(tx_id, wait) => {}
                () = app.shutdown.cancelled() => {}
            }
            view = app.store.get_tx(tx_id).await?.ok_or(ApiError::UnknownTx)?;
        }
        Ok(Json(told(&app, view)))
    }
}

pub(super) fn told(app: &App, view: gapless::store::TxView) -> Tx {
    let required = app.chains.required_confirmations(view.submitter.chain_id);
    Tx::new(view, required)
}
