//! Every look for receipts, from the watcher and from lanes: counted and bounded here, and nowhere else.

use std::collections::HashSet;
use std::sync::Arc;

use gapless::chain::{BlockId, ChainConnector, RpcError};
use gapless::config::ChainConfig;
use gapless::domain::{H256, Receipt};
use gapless::observe::metrics as m;
use tokio::sync::{Semaphore, SemaphorePermit};

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

/// How many receipts are looked for at once. Whoever waits for its turn holds none meanwhile, so nobody waits in a circle.
#[derive(Debug)]
struct Turns {
    slots: Semaphore,
    most: u32,
}

impl Turns {
    fn new(batches: usize, receipts_each: usize) -> Turns {
        let most = batches.saturating_mul(receipts_each).clamp(1, 1 << 24);
        Turns { slots: Semaphore::new(most), most: u32::try_from(most).unwrap_or(u32::MAX) }
    }

    /// Never more than there are.
    async fn take(&self, receipts: usize) -> Option<SemaphorePermit<'_>> {
        let wanted = u32::try_from(receipts).unwrap_or(u32::MAX).clamp(1, self.most);
        // It is never closed.
        self.slots.acquire_many(wanted).await.ok()
    }
}

#[derive(Debug)]
pub(crate) struct Receipts {
    connector: Arc<dyn ChainConnector>,
    turns: Turns,
}

impl Receipts {
    pub(crate) fn new(connector: Arc<dyn ChainConnector>, config: &ChainConfig) -> Receipts {
        let turns = Turns::new(config.confirmations.receipt_workers, config.rpc.max_batch);
        Receipts { connector, turns }
    }

    /// Hashes that are not mined, as far as the node knows, are left out of the answer.
    pub(crate) async fn of(&self, hashes: &[H256], place: Place) -> Result<Vec<Receipt>, RpcError> {
        let mut all = Vec::new();
        for hashes in hashes.chunks(self.turns.most as usize) {
            let _turn = self.turns.take(hashes.len()).await;
            let found = self.connector.receipts(hashes).await;
            count(place, hashes.len(), &found);
            all.extend(found?);
        }
        Ok(all)
    }

    /// The receipts of one block that are `wanted`. `None`: the node does not offer that.
    pub(crate) async fn of_block(
        &self,
        block: H256,
        wanted: &[H256],
    ) -> Result<Option<Vec<Receipt>>, RpcError> {
        let _turn = self.turns.take(1).await;
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
        let _turn = self.turns.take(hashes.len()).await;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn no_more_receipts_are_looked_for_at_once_than_was_set_and_everybody_has_a_turn() {
        let turns = Arc::new(Turns::new(2, 5));
        let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut looking = tokio::task::JoinSet::new();
        // Some want more than there is: they get all of it, once the others are done.
        for wanted in (0..200).map(|number| number % 13) {
            let (turns, now, peak) = (turns.clone(), now.clone(), peak.clone());
            looking.spawn(async move {
                let _turn = turns.take(wanted).await;
                let held = wanted.clamp(1, 10);
                peak.fetch_max(now.fetch_add(held, Ordering::SeqCst) + held, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(held, Ordering::SeqCst);
            });
        }
        assert_eq!(looking.join_all().await.len(), 200);
        assert_eq!(peak.load(Ordering::SeqCst), 10);
    }
}
