//! `GET /api/v1/submitters` and `GET /api/v1/submitters/{address}`.

use gapless_domain::hex_text::parse_address_any_case;
use gapless_domain::{ChainId, SubmitterKey};
use poem::web::Data;
use poem_openapi::OpenApi;
use poem_openapi::param::{Path, Query};
use poem_openapi::payload::Json;

use super::Tag;
use super::list::page_size;
use crate::app::SharedApp;
use crate::auth::{Caller, Read};
use crate::error::{ApiError, Failure, OnRead};
use crate::wire::{Submitter, SubmitterPage};

#[derive(Debug)]
pub(crate) struct Submitters;

#[OpenApi]
impl Submitters {
    /// List submitters
    ///
    /// The submitters that the key may use, by chain and address. Only admins see `nextNonce`.
    #[oai(
        path = "/api/v1/submitters",
        method = "get",
        operation_id = "listSubmitters",
        tag = "Tag::Submitters"
    )]
    async fn list(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Read>,
        #[oai(name = "chainId")] chain_id: Query<Option<u64>>,
        /// Page size, 1 to 200. Default: 50.
        limit: Query<Option<u32>>,
        /// `nextCursor` of the previous page.
        cursor: Query<Option<String>>,
    ) -> Result<Json<SubmitterPage>, Failure<OnRead>> {
        let limit = page_size(limit.0)?;
        let chain_id = chain_id.0.map(|id| app.chains.pick(Some(id))).transpose()?;
        let after = cursor.0.map(|text| parse_cursor(&text)).transpose()?;
        let mut views =
            app.store.list_submitters(chain_id, caller.submitters().as_deref(), after, limit + 1).await?;
        let more = views.len() > limit as usize;
        views.truncate(limit as usize);
        let next_cursor = views.last().filter(|_| more).map(|last| last.key.to_string());
        let items = views.into_iter().map(|view| Submitter::new(view, caller.sees_nonces())).collect();
        Ok(Json(SubmitterPage { items, next_cursor }))
    }

    /// Get a submitter
    ///
    /// Only admins see `nextNonce`.
    #[oai(
        path = "/api/v1/submitters/:address",
        method = "get",
        operation_id = "getSubmitter",
        tag = "Tag::Submitters"
    )]
    async fn get(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Read>,
        address: Path<String>,
        /// Optional if the server serves only one chain.
        #[oai(name = "chainId")]
        chain_id: Query<Option<u64>>,
    ) -> Result<Json<Submitter>, Failure<OnRead>> {
        let key = caller.own(app.chains.submitter_in("address", chain_id.0, &address.0)?)?;
        let view = app.store.get_submitter(key).await?.ok_or(ApiError::UnknownSubmitter(key))?;
        Ok(Json(Submitter::new(view, caller.sees_nonces())))
    }
}

/// A cursor is the last submitter of the page as text. Its chain need not be configured any more.
fn parse_cursor(text: &str) -> Result<SubmitterKey, ApiError> {
    let bad = || ApiError::invalid("cursor", "must be the nextCursor of a page");
    let (chain, address) = text.split_once(':').ok_or_else(bad)?;
    let chain = chain.parse().ok().filter(|chain| i64::try_from(*chain).is_ok()).ok_or_else(bad)?;
    let address = parse_address_any_case(address).map_err(|_| bad())?;
    Ok(SubmitterKey { chain_id: ChainId(chain), address })
}
