//! Every look for receipts, from the watcher and from lanes: counted here, and nowhere else.

use std::collections::HashSet;
use std::sync::Arc;

use gapless::chain::{BlockId, ChainConnector, RpcError};
use gapless::domain::{H256, Receipt};
use gapless::observe::metrics as m;

/// Who looks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// The watcher, for hashes that it saw in a block.
    Block,
    /// The watcher, for what was just sent on a chain that mines at once.
    Early,
    /// A lane: after its rows were read, before a resend, for a receipt that is stale.
    Lane,
    /// A lane that wants to know who consumed a nonce.
    Attribution,
}

impl Place {
    fn as_str(self) -> &'static str {
        match self {
            Place::Block => "block",
            Place::Early => "early",
            Place::Lane => "lane",
            Place::Attribution => "attribution",
        }
    }
}

#[derive(Debug)]
pub(crate) struct Receipts {
    connector: Arc<dyn ChainConnector>,
}

impl Receipts {
    pub(crate) fn new(connector: Arc<dyn ChainConnector>) -> Receipts {
        Receipts { connector }
    }

    /// Hashes that are not mined, as far as the node knows, are left out of the answer.
    pub(crate) async fn of(&self, hashes: &[H256], place: Place) -> Result<Vec<Receipt>, RpcError> {
        let found = self.connector.receipts(hashes).await;
        count(place, hashes.len(), &found);
        found
    }

    /// The receipts of one block that are `wanted`. `None`: the node does not offer that.
    pub(crate) async fn of_block(
        &self,
        block: H256,
        wanted: &[H256],
    ) -> Result<Option<Vec<Receipt>>, RpcError> {
        let found = match self.connector.block_receipts(block).await {
            Ok(None) => return Ok(None),
            Ok(Some(mut receipts)) => {
                let wanted: HashSet<&H256> = wanted.iter().collect();
                receipts.retain(|receipt| wanted.contains(&receipt.tx_hash));
                Ok(receipts)
            }
            Err(error) => Err(error),
        };
        count(Place::Block, wanted.len(), &found);
        found.map(Some)
    }

    /// From the first node that shows one; see `ChainConnector::receipts_from_any_node`.
    pub(crate) async fn of_any_node(
        &self,
        hashes: &[H256],
        block: Option<BlockId>,
    ) -> Result<Vec<Receipt>, RpcError> {
        let found = self.connector.receipts_from_any_node(hashes, block).await;
        count(Place::Attribution, hashes.len(), &found);
        found
    }
}

fn count(place: Place, asked: usize, found: &Result<Vec<Receipt>, RpcError>) {
    let add = |result: &'static str, number: usize| {
        if number > 0 {
            metrics::counter!(m::RECEIPT_CHECK_TOTAL, "place" => place.as_str(), "result" => result)
                .increment(number as u64);
        }
    };
    match found {
        Ok(receipts) => {
            add("found", receipts.len());
            add("missing", asked.saturating_sub(receipts.len()));
        }
        Err(_) => add("error", 1),
    }
}
