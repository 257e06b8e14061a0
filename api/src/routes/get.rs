//! `GET /api/v1/tx/{txId}`.

use gapless_domain::{H256, TxId};
use gapless_store::ConfirmingBlocks;
use poem::web::Data;
use poem_openapi::OpenApi;
use poem_openapi::param::{Path, Query};
use poem_openapi::payload::Json;

use super::Tag;
use crate::app::{App, SharedApp};
use crate::auth::{Caller, Read};
use crate::error::{ApiError, Failure, OnRead};
use crate::wait::parse_wait;
use crate::wire::Tx;

#[derive(Debug)]
pub(crate) struct Get;

#[OpenApi]
impl Get {
    /// Get a transaction
    ///
    /// With `wait`, responds when the transaction is final or the time is up, whichever comes first.
    #[oai(path = "/api/v1/tx/:txId", method = "get", operation_id = "getTx", tag = "Tag::Transactions")]
    async fn get(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Read>,
        #[oai(name = "txId")] tx_id: Path<String>,
        /// How long to wait for a final state, for example `500ms`, `30s`, `2m`. At most `api.max_wait`.
        wait: Query<Option<String>>,
        /// Hash of the last block in your list of `confirmationBlocks`. The response has only the blocks on top of it
        /// (`newFork` is false: append), or all blocks if it is no longer in the chain (`newFork` is true: replace).
        /// Both fields are absent while the server does not have the blocks: keep your list.
        after: Query<Option<String>>,
    ) -> Result<Json<Tx>, Failure<OnRead>> {
        let wait = parse_wait(wait.0.as_deref(), app.max_wait)?;
        let after = parse_after(after.0.as_deref())?;
        let tx_id: TxId = tx_id.0.parse().map_err(|_| ApiError::invalid("txId", "must be a UUID"))?;
        // Before reading the row, so that no later state change is missed.
        let waiting = (!wait.is_zero()).then(|| app.long_polls.register(tx_id));
        let mut view = caller.own_tx(app.store.get_tx(tx_id).await?)?;
        if let Some(waiting) = waiting.filter(|_| !view.state.is_terminal()) {
            tokio::select! {
                _ = waiting.wait(wait) => {}
                () = app.shutdown.cancelled() => {}
            }
            caller.recheck(&app.authenticator).await?;
            view = caller.own_tx(app.store.get_tx(tx_id).await?)?;
        }
        Ok(Json(tx_with_confirmations(&app, view, after).await?))
    }
}

fn parse_after(text: Option<&str>) -> Result<Option<H256>, ApiError> {
    let bad = || ApiError::invalid("after", "must be a block hash, 0x and 64 hex digits");
    text.map(|text| {
        let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 64).ok_or_else(bad)?;
        digits.parse().map_err(|_| bad())
    })
    .transpose()
}

/// The transaction with its confirming blocks and what it waits for.
pub(crate) async fn tx_with_confirmations(
    app: &App,
    view: gapless_store::TxView,
    after: Option<H256>,
) -> Result<Tx, ApiError> {
    let (chain_id, head) = (view.submitter.chain_id, view.head);
    let mined_in = view.block_number.zip(view.block_hash);
    let waiting = if view.state.is_terminal() { None } else { app.store.waiting(view.tx_id).await? };
    // The confirming blocks of a final transaction are stored with it.
    let stored = match (&view.counted, mined_in) {
        (Some(counted), _) => {
            ConfirmingBlocks::Listed { blocks: counted.blocks.clone(), whole: counted.is_complete() }
        }
        // In no block, or no longer: the client must discard its list.
        (None, None) if after.is_some() => ConfirmingBlocks::Replaced,
        (None, None) => ConfirmingBlocks::NotStored,
        (None, Some((number, hash))) => match app.chains.required_confirmations(chain_id) {
            Some(required) => {
                app.store.confirmation_blocks(chain_id, number, hash, required.listed(), head).await?
            }
            None => ConfirmingBlocks::NotStored,
        },
    };
    let tx = tx_response(app, view).with_confirmations(&stored, after);
    Ok(match waiting {
        Some(waiting) => tx.with_waiting(waiting),
        None => tx,
    })
}

pub(super) fn tx_response(app: &App, view: gapless_store::TxView) -> Tx {
    let required = app.chains.required_confirmations(view.submitter.chain_id);
    Tx::new(view, required)
}
