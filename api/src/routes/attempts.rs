//! `GET /api/v1/tx/{txId}/attempts`.

use gapless::domain::TxId;
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
    /// Look at the attempts and states of a transaction
    ///
    /// Every set of signed bytes it had, in the order in which they were recorded, and what became of each; and the states it
    /// was in. All of it as far as it is recorded: a state that lasted only a moment may be missing, and the last send may be
    /// noted a second late. Nonces are shown to admins only.
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
        let tx_id: TxId =
            tx_id.0.parse().map_err(|_| ApiError::InvalidRequest("txId: is not a transaction id".into()))?;
        caller.own_tx(app.store.get_tx(tx_id).await?)?;
        let history = app.store.tx_history(tx_id).await?.ok_or(ApiError::UnknownTx)?;
        Ok(Json(TxHistory::new(tx_id, history, caller.sees_nonces())))
    }
}
