//! Block watcher, one per chain and worker: finds the lanes' transactions in new blocks and posts their receipts.
//!
//! The cost is per block, not per transaction. The watcher retains the recent canonical chain, and treats a block as
//! replaced only when it has seen another one at its height; the old head of a lagging node changes nothing.

mod canon;
mod finality;
mod mailbox;
mod pace;
mod registry;
mod saver;
mod task;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use gapless_chain::fees::Head;
use gapless_chain::{BlockId, ChainConnector};
use gapless_domain::{Confirmation, Finality, H256, Receipt, U256};
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use canon::Canon;
use finality::FinalHeight;
pub(crate) use mailbox::{Inbox, LaneEvent, Mailbox};
use registry::Registry;
pub(crate) use task::WatchTask;

use crate::receipts::Receipts;

/// Canonical blocks retained in memory and in `chain_block`.
const RETAINED_BLOCKS: usize = 512;

/// The watcher's interface for lanes.
#[derive(Debug)]
pub(crate) struct Watcher {
    connector: Arc<dyn ChainConnector>,
    receipts: Receipts,
    registry: Registry,
    canon: RwLock<Canon>,
    finality: Finality,
    finalized: FinalHeight,
    nudge: Notify,
    /// Hashes accepted by nodes since the last head poll, and when.
    sent: Mutex<Vec<(H256, Instant)>>,
    /// Notified when the head does not fit the known chain: a deep reorg, or another chain.
    head_mismatch: Notify,
    poll_interval: Duration,
    /// Block gas limit of the head; `u64::MAX` until it is known.
    gas_limit: AtomicU64,
    /// Base fee of the head, if the chain has one.
    base_fee: Mutex<Option<U256>>,
    /// Incremented when a node recovered, blocks were replaced, or the head fell: lanes resend what is open.
    recovered: watch::Sender<u64>,
    /// Why the head has been unreadable for a while.
    outage: Mutex<Option<String>>,
    /// Height of a head that stays below blocks seen before.
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
            canon: RwLock::new(Canon::new(RETAINED_BLOCKS)),
            finality,
            finalized: FinalHeight::default(),
            nudge: Notify::new(),
            sent: Mutex::default(),
            head_mismatch: Notify::new(),
            poll_interval,
            gas_limit: AtomicU64::new(u64::MAX),
            base_fee: Mutex::default(),
            recovered: watch::Sender::new(0),
            outage: Mutex::default(),
            fell_to: Mutex::default(),
            block_millis: AtomicU64::new(0),
        })
    }

    /// Receipt requests of this chain.
    pub(crate) fn receipts(&self) -> &Receipts {
        &self.receipts
    }

    /// Posts the receipt to the lane when the hash is in a block. Call it before sending, so that no block is missed.
    pub(crate) fn watch(&self, hash: H256, mailbox: &Mailbox) {
        self.registry.watch(hash, mailbox);
    }

    pub(crate) fn forget(&self, hashes: &[H256], mailbox: &Mailbox) {
        self.registry.forget(hashes, mailbox);
    }

    /// Removes everything a lane waits for.
    pub(crate) fn leave(&self, hashes: &[H256], mailbox: &Mailbox) {
        self.registry.forget(hashes, mailbox);
        self.registry.leave(mailbox);
    }

    /// Whether one of these was seen in a canonical block while its receipt is still missing.
    pub(crate) fn saw_any(&self, hashes: &[H256]) -> bool {
        self.registry.misses_any_receipt(hashes)
    }

    /// Wakes the lane when a height is final; immediately if it already is.
    pub(crate) fn wake_when_final(&self, height: u64, mailbox: &Mailbox) {
        self.registry.wake_when_final(height, mailbox);
        if let Some(reached) = self.final_height().filter(|reached| *reached >= height) {
            self.registry.final_is(reached);
        }
    }

    /// Wakes the lane when the head reaches a height; immediately if it already has.
    pub(crate) fn wake_at_head(&self, height: u64, mailbox: &Mailbox) {
        self.registry.wake_at_head(height, mailbox);
        if let Some(head) = self.head().filter(|head| *head >= height) {
            self.registry.head_is(head);
        }
    }

    /// A node accepted this transaction: its block may follow at any moment.
    pub(crate) fn expect_block(&self, hash: H256) {
        self.sent.lock().push((hash, Instant::now()));
        self.nudge.notify_one();
    }

    /// Returns when a head did not fit the known chain.
    pub(crate) async fn unexpected_head(&self) {
        self.head_mismatch.notified().await;
    }

    /// Changes when open transactions should be looked up and resent.
    pub(crate) fn recovered(&self) -> watch::Receiver<u64> {
        self.recovered.subscribe()
    }

    pub(crate) fn note_recovery(&self) {
        self.recovered.send_modify(|count| *count += 1);
    }

    /// Why the head has been unreadable for a while.
    pub(crate) fn outage(&self) -> Option<String> {
        self.outage.lock().clone()
    }

    /// True if the error is new or over.
    fn set_outage(&self, outage: Option<String>) -> bool {
        let mut known = self.outage.lock();
        let changed = known.is_none() != outage.is_none();
        *known = outage;
        changed
    }

    /// The height of a head that has stayed below blocks seen before.
    pub(crate) fn fell_to(&self) -> Option<u64> {
        *self.fell_to.lock()
    }

    fn note_fall(&self, to: Option<u64>) {
        *self.fell_to.lock() = to;
    }

    /// The observed mean time between blocks.
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

    /// The head for fee requests.
    pub(crate) fn pricing_head(&self) -> Head {
        let base_fee = *self.base_fee.lock();
        Head { number: self.head().unwrap_or_default(), base_fee }
    }

    /// The highest final block number.
    pub(crate) fn final_height(&self) -> Option<u64> {
        let head = self.head()?;
        match self.finality {
            Finality::Blocks(blocks) => (head + 1).checked_sub(blocks),
            Finality::Safe | Finality::Finalized => self.finalized.get().map(|height| height.min(head)),
        }
    }

    /// The canonical blocks that confirm a receipt, its own first, at most as many as are reported. Empty if its block
    /// is not canonical or not within the retained window.
    pub(crate) fn confirmations(&self, receipt: &Receipt) -> Vec<Confirmation> {
        let blocks = self.read_canon(|canon| canon.from(receipt.block_number, self.finality.listed()));
        if blocks.first().is_none_or(|own| own.hash != receipt.block_hash) {
            return Vec::new();
        }
        blocks.iter().map(|block| Confirmation { number: block.number, hash: block.hash }).collect()
    }

    /// Whether a block was replaced; `None` if it is below the retained window and a node has to be queried.
    pub(crate) fn has_replaced(&self, block: BlockId) -> Option<bool> {
        self.read_canon(|canon| canon.has_replaced(block.number, block.hash))
    }

    /// Block gas limit.
    pub(crate) fn block_gas_limit(&self) -> u64 {
        self.gas_limit.load(Ordering::Relaxed)
    }

    /// The canonical hash at a height, if it is within the retained window.
    pub(crate) fn canonical_hash(&self, number: u64) -> Option<H256> {
        self.read_canon(|canon| canon.hash_at(number))
    }

    fn read_canon<T>(&self, read: impl FnOnce(&Canon) -> T) -> T {
        read(&self.canon.read())
    }

    fn write_canon<T>(&self, write: impl FnOnce(&mut Canon) -> T) -> T {
        write(&mut self.canon.write())
    }
}
