//! One per chain and worker: turns new blocks into "your hash is in block B" for every lane.
//!
//! Inclusion costs per block, not per transaction. The watcher keeps the recent canonical chain, and calls a block
//! replaced only when it has seen another one at its height; a node that merely lags shows nothing new.

mod canon;
mod finality;
mod mailbox;
mod pace;
mod registry;
mod saver;
mod task;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use gapless::chain::fees::Head;
use gapless::chain::{BlockId, ChainConnector};
use gapless::domain::{Confirmation, Finality, H256, Receipt, U256};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use canon::Canon;
use finality::FinalHeight;
pub(crate) use mailbox::{Inbox, LaneEvent, Mailbox};
use registry::Registry;
pub(crate) use task::WatchTask;

use crate::receipts::Receipts;

/// Canonical blocks kept in memory and in `chain_block`.
const KEEP_BLOCKS: usize = 512;

/// What lanes use of the watcher.
#[derive(Debug)]
pub(crate) struct Watcher {
    connector: Arc<dyn ChainConnector>,
    receipts: Receipts,
    registry: Registry,
    canon: RwLock<Canon>,
    finality: Finality,
    finalized: FinalHeight,
    nudge: Notify,
    /// What nodes took since the last look at the head, and when.
    taken: Mutex<Vec<(H256, Instant)>>,
    /// Told when the head does not fit what was seen before: a deep fork, or another chain.
    strange: Notify,
    poll_interval: Duration,
    /// What a block holds, as of the head; the largest number before anything is known.
    gas_limit: AtomicU64,
    /// The head's own base fee, where the chain has one.
    base_fee: Mutex<Option<U256>>,
    /// Counts how often a node was well again, blocks were replaced, or the head fell: lanes send again what is open.
    recovered: watch::Sender<u64>,
    /// Why no node shows the head, when that lasts.
    trouble: Mutex<Option<String>>,
    /// Where the head fell to and stays, below blocks that were seen.
    fell_to: Mutex<Option<u64>>,
    /// The mean time between blocks, in milliseconds.
    block_millis: AtomicU64,
}

impl Watcher {
    pub(crate) fn new(
        connector: Arc<dyn ChainConnector>,
        receipts: Receipts,
        poll_interval: Duration,
        finality: Finality,
    ) -> Arc<Self> {
        Arc::new(Watcher {
            receipts,
            connector,
            registry: Registry::default(),
            canon: RwLock::new(Canon::new(KEEP_BLOCKS)),
            finality,
            finalized: FinalHeight::default(),
            nudge: Notify::new(),
            taken: Mutex::default(),
            strange: Notify::new(),
            poll_interval,
            gas_limit: AtomicU64::new(u64::MAX),
            base_fee: Mutex::default(),
            recovered: watch::Sender::new(0),
            trouble: Mutex::default(),
            fell_to: Mutex::default(),
            block_millis: AtomicU64::new(0),
        })
    }

    /// For whoever looks for receipts on this chain.
    pub(crate) fn receipts(&self) -> &Receipts {
        &self.receipts
    }

    /// Has the lane told when the hash is in a block. Watched before it is sent, so that no block is missed.
    pub(crate) fn watch(&self, hash: H256, mailbox: &Mailbox) {
        self.registry.watch(hash, mailbox);
    }

    pub(crate) fn forget(&self, hashes: &[H256], mailbox: &Mailbox) {
        self.registry.forget(hashes, mailbox);
    }

    /// Forgets all that a lane waited for.
    pub(crate) fn leave(&self, hashes: &[H256], mailbox: &Mailbox) {
        self.registry.forget(hashes, mailbox);
        self.registry.leave(mailbox);
    }

    /// Whether one of these was seen in a canonical block, although no node could show its receipt yet.
    pub(crate) fn saw_any(&self, hashes: &[H256]) -> bool {
        self.registry.owes_any(hashes)
    }

    /// Has the lane woken when a height is final; at once if it is already.
    pub(crate) fn wake_when_final(&self, height: u64, mailbox: &Mailbox) {
        self.registry.wake_when_final(height, mailbox);
        if let Some(reached) = self.final_height().filter(|reached| *reached >= height) {
            self.registry.final_is(reached);
        }
    }

    /// Has the lane woken when the head is at a height; at once if it is already.
    pub(crate) fn wake_at_head(&self, height: u64, mailbox: &Mailbox) {
        self.registry.wake_at_head(height, mailbox);
        if let Some(head) = self.head().filter(|head| *head >= height) {
            self.registry.head_is(head);
        }
    }

    /// A node took this: the block that holds it may be there any moment.
    pub(crate) fn expect_block(&self, hash: H256) {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner).push((hash, Instant::now()));
        self.nudge.notify_one();
    }

    /// Returns when the head has not fitted what was seen before.
    pub(crate) async fn strange_head(&self) {
        self.strange.notified().await;
    }

    /// Changes when what is open should be looked up and sent again.
    pub(crate) fn recovered(&self) -> watch::Receiver<u64> {
        self.recovered.subscribe()
    }

    pub(crate) fn note_recovery(&self) {
        self.recovered.send_modify(|count| *count += 1);
    }

    /// Why no node shows the head, when that lasts.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// True if that is news.
    fn note_trouble(&self, trouble: Option<String>) -> bool {
        let mut known = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        let is_news = known.is_none() != trouble.is_none();
        *known = trouble;
        is_news
    }

    /// The height that nodes have shown for a while as their newest, although higher blocks were seen before.
    pub(crate) fn fell_to(&self) -> Option<u64> {
        *self.fell_to.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_fall(&self, to: Option<u64>) {
        *self.fell_to.lock().unwrap_or_else(PoisonError::into_inner) = to;
    }

    /// The mean time between blocks, as far as it was seen.
    pub(crate) fn block_time(&self) -> Duration {
        Duration::from_millis(self.block_millis.load(Ordering::Relaxed))
    }

    pub(crate) fn head(&self) -> Option<u64> {
        self.read_canon(|canon| canon.head().map(|head| head.number))
    }

    pub(crate) fn head_block(&self) -> Option<BlockId> {
        let head = self.read_canon(Canon::head)?;
        Some(BlockId { number: head.number, hash: head.hash })
    }

    /// The head as prices are asked for.
    pub(crate) fn pricing_head(&self) -> Head {
        let base_fee = *self.base_fee.lock().unwrap_or_else(PoisonError::into_inner);
        Head { number: self.head().unwrap_or_default(), base_fee }
    }

    /// The newest height that counts as final.
    pub(crate) fn final_height(&self) -> Option<u64> {
        let head = self.head()?;
        match self.finality {
            Finality::Blocks(blocks) => (head + 1).checked_sub(blocks),
            Finality::Safe | Finality::Finalized => self.finalized.get().map(|height| height.min(head)),
        }
    }

    /// The canonical blocks that confirm a receipt, its own first, as many as are worth telling. Empty if its block is not
    /// canonical, or not within the kept window.
    pub(crate) fn confirmations(&self, receipt: &Receipt) -> Vec<Confirmation> {
        let blocks = self.read_canon(|canon| canon.from(receipt.block_number, self.finality.listed()));
        if blocks.first().is_none_or(|own| own.hash != receipt.block_hash) {
            return Vec::new();
        }
        blocks.iter().map(|block| Confirmation { number: block.number, hash: block.hash }).collect()
    }

    /// Whether a block has lost its place; `None` if it is below the kept window, and a node has to be asked.
    pub(crate) fn has_replaced(&self, block: BlockId) -> Option<bool> {
        self.read_canon(|canon| canon.has_replaced(block.number, block.hash))
    }

    /// Gas that fits into a block.
    pub(crate) fn block_gas_limit(&self) -> u64 {
        self.gas_limit.load(Ordering::Relaxed)
    }

    /// The canonical hash at a height, if it is within the kept window.
    pub(crate) fn canonical_hash(&self, number: u64) -> Option<H256> {
        self.read_canon(|canon| canon.hash_at(number))
    }

    fn read_canon<T>(&self, read: impl FnOnce(&Canon) -> T) -> T {
        read(&self.canon.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn write_canon<T>(&self, write: impl FnOnce(&mut Canon) -> T) -> T {
        write(&mut self.canon.write().unwrap_or_else(PoisonError::into_inner))
    }
}
