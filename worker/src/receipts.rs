//! All receipt requests of the watcher and of lanes: counts them in metrics and limits their concurrency.

use std::collections::HashSet;
use std::sync::Arc;

use gapless_chain::{BlockId, ChainConnector, RpcError};
use gapless_config::ChainConfig;
use gapless_domain::{H256, Receipt};
use gapless_telemetry::metrics as m;
use tokio::sync::{Semaphore, SemaphorePermit};

/// Origin of a receipt request (metric label `place`).
#[derive(Clone, Copy, Debug)]
pub(crate) enum Place {
    /// The watcher, for hashes seen in a block.
    Block,
    /// The watcher, for transactions just sent on a chain that mines instantly.
    Early,
    /// A lane: after loading, before a resend, for a stale receipt.
    Lane,
    /// A lane that determines which transaction consumed a nonce.
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

/// Limits how many receipts are requested concurrently. A waiting request holds no permits, so there is no deadlock.
#[derive(Debug)]
struct ReceiptLimit {
    slots: Semaphore,
    max: u32,
}

impl ReceiptLimit {
    fn new(batches: usize, receipts_each: usize) -> ReceiptLimit {
        let max = batches.saturating_mul(receipts_each).clamp(1, 1 << 24);
        ReceiptLimit { slots: Semaphore::new(max), max: u32::try_from(max).unwrap_or(u32::MAX) }
    }

    /// Requests for more than the limit take all permits.
    async fn take(&self, receipts: usize) -> Option<SemaphorePermit<'_>> {
        let wanted = u32::try_from(receipts).unwrap_or(u32::MAX).clamp(1, self.max);
        // The semaphore is never closed.
        self.slots.acquire_many(wanted).await.ok()
    }
}

#[derive(Debug)]
pub(crate) struct Receipts {
    connector: Arc<dyn ChainConnector>,
    limit: ReceiptLimit,
}

impl Receipts {
    pub(crate) fn new(connector: Arc<dyn ChainConnector>, config: &ChainConfig) -> Receipts {
        let limit = ReceiptLimit::new(config.confirmations.receipt_workers, config.rpc.max_batch);
        Receipts { connector, limit }
    }

    /// Hashes without a receipt at the node are omitted from the result.
    pub(crate) async fn of(&self, hashes: &[H256], place: Place) -> Result<Vec<Receipt>, RpcError> {
        let mut all = Vec::new();
        for hashes in hashes.chunks(self.limit.max as usize) {
            let _permit = self.limit.take(hashes.len()).await;
            let found = self.connector.receipts(hashes).await;
            count(place, hashes.len(), &found);
            all.extend(found?);
        }
        Ok(all)
    }

    /// The `wanted` receipts of one block. `None`: the node does not support `eth_getBlockReceipts`.
    pub(crate) async fn of_block(
        &self,
        block: H256,
        wanted: &[H256],
    ) -> Result<Option<Vec<Receipt>>, RpcError> {
        let _permit = self.limit.take(1).await;
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

    /// From the first node that has one; see `ChainConnector::receipts_from_any_node`.
    pub(crate) async fn of_any_node(
        &self,
        hashes: &[H256],
        block: Option<BlockId>,
    ) -> Result<Vec<Receipt>, RpcError> {
        let _permit = self.limit.take(hashes.len()).await;
        let found = self.connector.receipts_from_any_node(hashes, block).await;
        count(Place::Attribution, hashes.len(), &found);
        found
    }
}

fn count(place: Place, requested: usize, found: &Result<Vec<Receipt>, RpcError>) {
    let add = |result: &'static str, number: usize| {
        if number > 0 {
            metrics::counter!(m::RECEIPT_CHECK_TOTAL, "place" => place.as_str(), "result" => result)
                .increment(number as u64);
        }
    };
    match found {
        Ok(receipts) => {
            add("found", receipts.len());
            add("missing", requested.saturating_sub(receipts.len()));
        }
        Err(_) => add("error", 1),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[tokio::test]
    async fn concurrent_receipt_requests_stay_within_the_limit_and_all_complete() {
        let limit = Arc::new(ReceiptLimit::new(2, 5));
        let (now, peak) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let mut requests = tokio::task::JoinSet::new();
        // Some request more than the limit: they take all permits once the others are done.
        for wanted in (0..200).map(|number| number % 13) {
            let (limit, now, peak) = (limit.clone(), now.clone(), peak.clone());
            requests.spawn(async move {
                let _permit = limit.take(wanted).await;
                let held = wanted.clamp(1, 10);
                peak.fetch_max(now.fetch_add(held, Ordering::SeqCst) + held, Ordering::SeqCst);
                tokio::task::yield_now().await;
                now.fetch_sub(held, Ordering::SeqCst);
            });
        }
        assert_eq!(requests.join_all().await.len(), 200);
        assert_eq!(peak.load(Ordering::SeqCst), 10);
    }
}
