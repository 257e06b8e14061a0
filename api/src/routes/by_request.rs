//! `GET /api/v1/tx/by-request`.

use gapless_domain::intent::check_request_id;
use poem::web::Data;
use poem_openapi::OpenApi;
use poem_openapi::param::Query;
use poem_openapi::payload::Json;

use super::Tag;
use super::get::tx_with_confirmations;
use crate::app::SharedApp;
use crate::auth::{Caller, Read};
use crate::error::{ApiError, Failure, OnRead};
use crate::wire::Tx;

#[derive(Debug)]
pub(crate) struct ByRequest;

#[OpenApi]
impl ByRequest {
    /// Find a transaction by its requestId
    ///
    /// For clients that lost the response to a request and do not want to send it again.
    #[oai(
        path = "/api/v1/tx/by-request",
        method = "get",
        operation_id = "getTxByRequest",
        tag = "Tag::Transactions"
    )]
    async fn by_request(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Read>,
        submitter: Query<String>,
        #[oai(name = "requestId")] request_id: Query<String>,
        /// Optional if the server serves only one chain.
        #[oai(name = "chainId")]
        chain_id: Query<Option<u64>>,
    ) -> Result<Json<Tx>, Failure<OnRead>> {
        let key = caller.own(app.chains.submitter(chain_id.0, &submitter.0)?)?;
        check_request_id(&request_id.0).map_err(ApiError::InvalidRequest)?;
        let view = app.store.get_tx_by_request(key, &request_id.0).await?.ok_or(ApiError::UnknownTx)?;
        Ok(Json(tx_with_confirmations(&app, view, None).await?))
    }
}
