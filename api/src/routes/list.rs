//! `GET /api/v1/tx`.

use chrono::{DateTime, Utc};
use gapless::domain::TxId;
use gapless::store::{StoreError, TxFilter};

use super::get::told;
use crate::app::App;
use crate::auth::{Caller, Read};
use crate::error::ApiError;
use crate::wire::{Tx, TxPage, TxState};

pub(crate) const MAX_PAGE: u32 = 200;
pub(super) const DEFAULT_PAGE: u32 = 50;

/// What the client asked for; all of it must hold.
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

pub(super) async fn list(app: &App, caller: &Caller<Read>, asked: Conditions) -> Result<TxPage, ApiError> {
    let limit = page_size(asked.limit)?;
    let submitter =
        asked.submitter.map(|address| app.chains.submitter(asked.chain_id, &address)).transpose()?;
    let submitter = submitter.map(|key| caller.own(key)).transpose()?;
    let filter = TxFilter {
        chain_id: asked.chain_id.map(|id| app.chains.pick(Some(id))).transpose()?,
        submitter,
        // One that was named is theirs.
        among: if submitter.is_some() { None } else { caller.submitters() },
        state: asked.state.map(Into::into),
        created_after: asked.created_after,
        created_before: asked.created_before,
        before: asked.cursor.map(|text| parse_cursor(&text)).transpose()?,
        // One more than asked for tells whether there is another page.
        limit: limit + 1,
    };
    Ok(page(app, &filter, limit).await?)
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
