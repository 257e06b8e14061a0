//! `GET /api/v1/stuck`.

use gapless_domain::TxState;
use gapless_store::TxFilter;
use poem::web::Data;
use poem_openapi::OpenApi;
use poem_openapi::param::Query;
use poem_openapi::payload::Json;

use super::Tag;
use super::list::{page, page_size, parse_cursor};
use crate::app::SharedApp;
use crate::auth::{Caller, Read};
use crate::error::{Failure, OnRead};
use crate::wire::TxPage;

#[derive(Debug)]
pub(crate) struct Stuck;

#[OpenApi]
impl Stuck {
    /// List stuck transactions
    ///
    /// Transactions that stayed unmined for `stuck.after` or for `stuck.max_attempts` sends, newest first. Processing
    /// continues; an admin may resolve them.
    #[oai(path = "/api/v1/stuck", method = "get", operation_id = "listStuck", tag = "Tag::Transactions")]
    async fn stuck(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Read>,
        #[oai(name = "chainId")] chain_id: Query<Option<u64>>,
        /// Page size, 1 to 200. Default: 50.
        limit: Query<Option<u32>>,
        /// `nextCursor` of the previous page.
        cursor: Query<Option<String>>,
    ) -> Result<Json<TxPage>, Failure<OnRead>> {
        let limit = page_size(limit.0)?;
        let filter = TxFilter {
            chain_id: chain_id.0.map(|id| app.chains.pick(Some(id))).transpose()?,
            submitter: None,
            among: caller.submitters(),
            state: Some(TxState::Stuck),
            created_after: None,
            created_before: None,
            before: cursor.0.map(|text| parse_cursor(&text)).transpose()?,
            limit: limit + 1,
        };
        Ok(Json(page(&app, &filter, limit).await?))
    }
}
