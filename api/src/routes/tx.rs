//! `/api/v1/tx`: what is done there is in `create.rs` and `list.rs`. One path has to be documented in one place: the
//! framework would write it twice, and readers of the document would see the last alone.

use chrono::{DateTime, Utc};
use gapless::observe::TraceContext;
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
    /// Answers as soon as the request is safely stored. Follow it with `GET /api/v1/tx/{txId}?wait=30s`.
    #[oai(path = "/api/v1/tx", method = "post", operation_id = "createTx", tag = "Tag::Transactions")]
    async fn create(
        &self,
        app: Data<&SharedApp>,
        trace: Data<&TraceContext>,
        caller: Caller<Write>,
        /// May carry the requestId. If both are given they must be the same.
        #[oai(name = "Idempotency-Key")]
        idempotency_key: Header<Option<String>>,
        body: Body<CreateTx>,
    ) -> Result<Created, Failure<OnCreate>> {
        create(&app, &caller, &trace, idempotency_key.0, body.0).await
    }

    /// List transactions
    ///
    /// Newest first. All given conditions must hold. Only of the submitters that the key is for.
    #[oai(path = "/api/v1/tx", method = "get", operation_id = "listTx", tag = "Tag::Transactions")]
    #[allow(clippy::too_many_arguments)] // one per query parameter: that is how the document is made
    async fn list(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Read>,
        /// Needed with `submitter` when the server serves several chains.
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
        /// 1 to 200; 50 if absent.
        limit: Query<Option<u32>>,
        /// `nextCursor` of the page before.
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
