//! `GET /api/v1/tx/{txId}`.

use gapless::domain::{H256, TxId};
use gapless::store::ConfirmingBlocks;
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
    /// Follow a transaction
    ///
    /// With `wait`, the answer comes when the transaction is final or the time is up, whichever is first.
    #[oai(path = "/api/v1/tx/:txId", method = "get", operation_id = "getTx", tag = "Tag::Transactions")]
    async fn get(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Read>,
        #[oai(name = "txId")] tx_id: Path<String>,
        /// How long to wait, for example `500ms`, `30s`, `2m`. The server has a maximum (`api.max_wait`).
        wait: Query<Option<String>>,
        /// The hash of the last of `confirmationBlocks` you have. The answer then has only the blocks that came on top of it
        /// (`newFork` is false: append), or, if that block is not in the chain any more, all of them (`newFork` is true:
        /// replace). Neither is there while the server does not know: keep what you have.
        after: Query<Option<String>>,
    ) -> Result<Json<Tx>, Failure<OnRead>> {
        let wait = parse_wait(wait.0.as_deref(), app.max_wait)?;
        let after = parse_after(after.0.as_deref())?;
        let tx_id: TxId =
            tx_id.0.parse().map_err(|_| ApiError::InvalidRequest("txId: is not a transaction id".into()))?;
        // Before the row is read: what ends after that is heard of.
        let waiting = (!wait.is_zero()).then(|| app.long_polls.enrol(tx_id));
        let mut view = caller.own_tx(app.store.get_tx(tx_id).await?)?;
        if let Some(waiting) = waiting.filter(|_| !view.state.is_terminal()) {
            tokio::select! {
                () = waiting.ended(wait) => {}
                () = app.shutdown.cancelled() => {}
            }
            caller.recheck(&app.authenticator).await?;
            view = caller.own_tx(app.store.get_tx(tx_id).await?)?;
        }
        Ok(Json(told_in_full(&app, view, after).await?))
    }
}

fn parse_after(text: Option<&str>) -> Result<Option<H256>, ApiError> {
    let bad = || ApiError::InvalidRequest("after: is not the hash of a block".into());
    text.map(|text| {
        let digits = text.strip_prefix("0x").filter(|digits| digits.len() == 64).ok_or_else(bad)?;
        digits.parse().map_err(|_| bad())
    })
    .transpose()
}

/// With the blocks that confirm it.
pub(super) async fn told_in_full(
    app: &App,
    view: gapless::store::TxView,
    after: Option<H256>,
) -> Result<Tx, ApiError> {
    let (chain_id, head) = (view.submitter.chain_id, view.head);
    let place = view.block_number.zip(view.block_hash);
    // What made it final is in its row, whatever has become of the blocks.
    let kept = match (&view.counted, place) {
        (Some(counted), _) => {
            ConfirmingBlocks::Listed { blocks: counted.blocks.clone(), whole: counted.is_whole() }
        }
        // In no block (any more): whoever has blocks of it has to forget them.
        (None, None) if after.is_some() => ConfirmingBlocks::Replaced,
        (None, None) => ConfirmingBlocks::NotKept,
        (None, Some((number, hash))) => match app.chains.required_confirmations(chain_id) {
            Some(required) => {
                app.store.confirmation_blocks(chain_id, number, hash, required.listed(), head).await?
            }
            None => ConfirmingBlocks::NotKept,
        },
    };
    Ok(told(app, view).with_confirmations(&kept, after))
}

pub(super) fn told(app: &App, view: gapless::store::TxView) -> Tx {
    let required = app.chains.required_confirmations(view.submitter.chain_id);
    Tx::new(view, required)
}
