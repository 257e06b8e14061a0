//! `GET /api/v1/tx`.

use chrono::{DateTime, Utc};
use gapless::domain::TxId;
use gapless::store::{StoreError, TxFilter};
use poem::web::Data;
use poem_openapi::OpenApi;
use poem_openapi::param::Query;
use poem_openapi::payload::Json;

use super::Tag;
use super::get::told;
use crate::app::{App, SharedApp};
use crate::auth::{Caller, Read};
use crate::error::{ApiError, Failure, OnRead};
use crate::wire::{Tx, TxPage, TxState};

pub(super) const MAX_PAGE: u32 = 200;
pub(super) const DEFAULT_PAGE: u32 = 50;

#[derive(Debug)]
pub(crate) struct List;

#[OpenApi]
impl List {
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
        let limit = page_size(limit.0)?;
        let submitter = submitter.0.map(|address| app.chains.submitter(chain_id.0, &address)).transpose()?;
        let submitter = submitter.map(|key| caller.own(key)).transpose()?;
        let filter = TxFilter {
            chain_id: chain_id.0.map(|id| app.chains.pick(Some(id))).transpose()?,
            submitter,
            // One that was named is theirs.
            among: if submitter.is_some() { None } else { caller.submitters() },
            state: state.0.map(Into::into),
            created_after: created_after.0,
            created_before: created_before.0,
            before: cursor.0.map(|text| parse_cursor(&text)).transpose()?,
            // One more than asked for tells whether there is another page.
            limit: limit + 1,
        };
        Ok(Json(page(&app, &filter, limit).await?))
    }
}

/// Reads one row more than asked for, which tells whether there is another page.
pub(super) async fn page(app: &App, filter: &TxFilter, limit: u32) -> Result<TxPage, StoreError> {
    let views = app.store.list_tx(filter).await?;
    let mut items: Vec<Tx> = views.into_iter().map(|view| told(app, view).without_payload()).collect();
    let more = items.len() > limit as usize;
    items.truncate(limit as usize);
    let next_cursor = items.last().filter(|_| more).map(|last| last.tx_id.simple().to_string());
    Ok(TxPage { items, next_cursor })
}

pub(super) fn page_size(limit: Option<u32>) -> Result<u32, ApiError> {
    match limit.unwrap_or(DEFAULT_PAGE) {
        limit @ 1..=MAX_PAGE => Ok(limit),
        limit => Err(ApiError::InvalidRequest(format!("limit: {limit} is not between 1 and {MAX_PAGE}"))),
    }
}

pub(super) fn parse_cursor(text: &str) -> Result<TxId, ApiError> {
    text.parse().map_err(|_| ApiError::InvalidRequest("cursor: is not one of ours".into()))
}
