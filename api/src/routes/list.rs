//! `GET /api/v1/tx`.

use chrono::{DateTime, Utc};
use gapless_domain::TxId;
use gapless_domain::intent::check_time;
use gapless_store::{StoreError, TxFilter};

use super::get::tx_response;
use crate::app::App;
use crate::auth::{Caller, Read};
use crate::error::ApiError;
use crate::wire::{Tx, TxPage, TxState};

pub(crate) const MAX_PAGE: u32 = 200;
pub(super) const DEFAULT_PAGE: u32 = 50;

/// Query parameters; a transaction must match all of them.
#[derive(Debug)]
pub(super) struct Conditions {
    pub(super) chain_id: Option<u64>,
    pub(super) submitter: Option<String>,
    pub(super) state: Option<TxState>,
    pub(super) created_after: Option<DateTime<Utc>>,
    pub(super) created_before: Option<DateTime<Utc>>,
    pub(super) limit: Option<u32>,
    pub(super) cursor: Option<String>,
}

pub(super) async fn list(
    app: &App,
    caller: &Caller<Read>,
    conditions: Conditions,
) -> Result<TxPage, ApiError> {
    let limit = page_size(conditions.limit)?;
    let submitter = conditions
        .submitter
        .map(|address| app.chains.submitter(conditions.chain_id, &address))
        .transpose()?;
    let submitter = submitter.map(|key| caller.own(key)).transpose()?;
    let filter = TxFilter {
        chain_id: conditions.chain_id.map(|id| app.chains.pick(Some(id))).transpose()?,
        submitter,
        // `caller.own` has checked the given submitter.
        among: if submitter.is_some() { None } else { caller.submitters() },
        state: conditions.state.map(Into::into),
        created_after: in_range("createdAfter", conditions.created_after)?,
        created_before: in_range("createdBefore", conditions.created_before)?,
        before: conditions.cursor.map(|text| parse_cursor(&text)).transpose()?,
        // One more row than requested shows whether there is another page.
        limit: limit + 1,
    };
    Ok(page(app, &filter, limit).await?)
}

/// `filter.limit` is `limit + 1`: the extra row shows whether there is another page.
pub(super) async fn page(app: &App, filter: &TxFilter, limit: u32) -> Result<TxPage, StoreError> {
    let views = app.store.list_tx(filter).await?;
    let mut items: Vec<Tx> = views.into_iter().map(|view| tx_response(app, view).without_payload()).collect();
    let more = items.len() > limit as usize;
    items.truncate(limit as usize);
    let next_cursor = items.last().filter(|_| more).map(|last| last.tx_id.simple().to_string());
    Ok(TxPage { items, next_cursor })
}

/// The parser accepts years that the database does not.
fn in_range(field: &str, at: Option<DateTime<Utc>>) -> Result<Option<DateTime<Utc>>, ApiError> {
    check_time(field, at).map_err(ApiError::InvalidRequest)?;
    Ok(at)
}

pub(super) fn page_size(limit: Option<u32>) -> Result<u32, ApiError> {
    match limit.unwrap_or(DEFAULT_PAGE) {
        limit @ 1..=MAX_PAGE => Ok(limit),
        _ => Err(ApiError::invalid("limit", format!("must be 1 to {MAX_PAGE}"))),
    }
}

pub(super) fn parse_cursor(text: &str) -> Result<TxId, ApiError> {
    text.parse().map_err(|_| ApiError::invalid("cursor", "must be the nextCursor of a page"))
}
