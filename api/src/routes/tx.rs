//! `/api/v1/tx`, implemented in `create.rs` and `list.rs`. All operations of a path must be in one `#[OpenApi]` impl:
//! from two, the framework would write the path twice, and parsers of the document would use only the last.

use chrono::{DateTime, Utc};
use gapless_telemetry::TraceContext;
use poem::web::Data;
use poem_openapi::OpenApi;
use poem_openapi::param::{Header, Query};
use poem_openapi::payload::Json;

use super::Tag;
use super::create::{Created, create};
use super::list::{Conditions, list};
use crate::app::SharedApp;
use crate::auth::{Caller, Read, Write};
use crate::error::{Failure, OnCreate, OnRead};
use crate::wire::{Body, CreateTx, TxPage, TxState};

#[derive(Debug)]
pub(crate) struct Transactions;

#[OpenApi]
impl Transactions {
    /// Send a transaction
    ///
    /// Responds as soon as the request is stored durably. Track it with `GET /api/v1/tx/{txId}?wait=30s`.
    #[oai(path = "/api/v1/tx", method = "post", operation_id = "createTx", tag = "Tag::Transactions")]
    async fn create(
        &self,
        app: Data<&SharedApp>,
        trace: Data<&TraceContext>,
        caller: Caller<Write>,
        /// Alternative to `requestId`. If both are given they must be equal.
        #[oai(name = "Idempotency-Key")]
        idempotency_key: Header<Option<String>>,
        body: Body<CreateTx>,
    ) -> Result<Created, Failure<OnCreate>> {
        create(&app, &caller, &trace, idempotency_key.0, body.0).await
    }

    /// List transactions
    ///
    /// Newest first. All given filters must match. Only transactions of submitters that the key may use.
    #[oai(path = "/api/v1/tx", method = "get", operation_id = "listTx", tag = "Tag::Transactions")]
    #[allow(clippy::too_many_arguments)] // one per documented query parameter
    async fn list(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Read>,
        /// Required with `submitter` if the server serves several chains.
        #[oai(name = "chainId")]
        chain_id: Query<Option<u64>>,
        submitter: Query<Option<String>>,
        state: Query<Option<TxState>>,
        /// Accepted at or after this time.
        #[oai(name = "createdAfter")]
        created_after: Query<Option<DateTime<Utc>>>,
        /// Accepted before this time.
        #[oai(name = "createdBefore")]
        created_before: Query<Option<DateTime<Utc>>>,
        /// Page size, 1 to 200. Default: 50.
        limit: Query<Option<u32>>,
        /// `nextCursor` of the previous page.
        cursor: Query<Option<String>>,
    ) -> Result<Json<TxPage>, Failure<OnRead>> {
        let conditions = Conditions {
            chain_id: chain_id.0,
            submitter: submitter.0,
            state: state.0,
            created_after: created_after.0,
            created_before: created_before.0,
            limit: limit.0,
            cursor: cursor.0,
        };
        Ok(Json(list(&app, &caller, conditions).await?))
    }
}
