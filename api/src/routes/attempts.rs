//! `GET /api/v1/tx/{txId}/attempts`.

use gapless_domain::TxId;
use poem::web::Data;
use poem_openapi::OpenApi;
use poem_openapi::param::Path;
use poem_openapi::payload::Json;

use super::Tag;
use crate::app::SharedApp;
use crate::auth::{Caller, Read};
use crate::error::{ApiError, Failure, OnRead};
use crate::wire::TxHistory;

#[derive(Debug)]
pub(crate) struct Attempts;

#[OpenApi]
impl Attempts {
    /// Get the attempts and states of a transaction
    ///
    /// All signed attempts in order of recording, with their results, and the state changes. Very short states may be
    /// missing, and the last send may be recorded up to a second late. Only admins see nonces.
    #[oai(
        path = "/api/v1/tx/:txId/attempts",
        method = "get",
        operation_id = "getTxAttempts",
        tag = "Tag::Transactions"
    )]
    async fn attempts(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Read>,
        #[oai(name = "txId")] tx_id: Path<String>,
    ) -> Result<Json<TxHistory>, Failure<OnRead>> {
        let tx_id: TxId = tx_id.0.parse().map_err(|_| ApiError::invalid("txId", "must be a UUID"))?;
        caller.own_tx(app.store.get_tx(tx_id).await?)?;
        let history = app.store.tx_history(tx_id).await?.ok_or(ApiError::UnknownTx)?;
        Ok(Json(TxHistory::new(tx_id, history, caller.sees_nonces())))
    }
}
