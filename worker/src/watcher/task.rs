//! The task behind a `Watcher`: follows the head, finds what is ours in new blocks, and delivers its receipts.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use gapless::chain::{BlockTag, BlockWithHashes, RpcError};
use gapless::domain::{BlockRef, Finality, H256, NodeId};
use gapless::observe::metrics as m;
use gapless::store::Store;
use tokio_util::sync::CancellationToken;

use super::canon::{Canon, Change};
use super::{KEEP_BLOCKS, Watcher};

/// Beyond this distance blocks are not walked one by one: every watched hash is looked up instead.
const MAX_WALK: u64 = 128;
/// From this many of our transactions in one block on, the block's receipts come in one call.
const BLOCK_RECEIPTS_FROM: usize = 4;
/// Bounds of the shortest pause between two looks at the head, however eagerly lanes ask.
const MIN_GAP: Duration = Duration::from_millis(2);
const MAX_GAP: Duration = Duration::from_millis(50);

/// How a new head is reached from what is known.
enum Branch {
    /// Oldest first; its first block stands on a canonical one.
    Attached(Vec<BlockWithHashes>),
    /// No common block within reach: the fork is deeper than what is kept, or it is another chain.
    Loose(BlockWithHashes),
}

/// The task behind a `Watcher`.
#[derive(Debug)]
pub(crate) struct WatchTask {
    watcher: Arc<Watcher>,
    store: Store,
    node: NodeId,
    duty: String,
    duty_duration: Duration,
    elected_until: Option<Instant>,
    unsaved: Vec<BlockRef>,
    last_save: Instant,
    /// Mean time between blocks: how long it is worth waiting before looking again.
    block_interval: Duration,
    last_block_at: Instant,
    /// The chain could not be asked what is final, and that was said.
    finality_unknown: bool,
}

impl WatchTask {
    pub(crate) fn new(watcher: Arc<Watcher>, store: Store, node: NodeId, duty_duration: Duration) -> Self {
        let duty = format!("head:{}", watcher.connector.chain_id());
        WatchTask {
            block_interval: watcher.poll_interval,
            watcher,
            store,
            node,
            duty,
            duty_duration,
            elected_until: None,
            unsaved: Vec::new(),
            last_save: Instant::now(),
            last_block_at: Instant::now(),
            finality_unknown: false,
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut failing = false;
        let mut pause = Duration::ZERO;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wait(pause) => {}
            }
            match self.look().await {
                Ok(found_block) => {
                    if failing {
                        tracing::info!(
                            chain.id = self.watcher.connector.chain_id().0,
                            "the node answers again"
                        );
                        failing = false;
                    }
                    pause = self.next_pause(found_block, pause);
                }
                Err(error) => {
                    if !failing {
                        tracing::warn!(chain.id = self.watcher.connector.chain_id().0, error = %error,
                            "the head of the chain cannot be read; trying on");
                        failing = true;
                    }
                    pause = self.watcher.poll_interval;
                }
            }
            self.save().await;
        }
    }

    /// Waits for the pause to end or for a lane that expects a block, but always for the shortest gap: lanes ask with
    /// every send, and the answer changes once per block.
    async fn wait(&self, pause: Duration) {
        tokio::time::sleep(self.gap()).await;
        tokio::select! {
            () = self.watcher.nudge.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    fn gap(&self) -> Duration {
        (self.block_interval / 20).clamp(MIN_GAP, MAX_GAP)
    }

    /// Looks again soon while somebody waits for a block, then ever later; at the common interval when nobody does.
    fn next_pause(&self, found_block: bool, last: Duration) -> Duration {
        let poll = self.watcher.poll_interval;
        match () {
            () if self.watcher.registry.is_idle() => poll,
            () if found_block => self.gap().min(poll),
            () => (last * 2).max(self.gap()).min(poll),
        }
    }

    /// One look at the head. True: there were new blocks.
    async fn look(&mut self) -> Result<bool, RpcError> {
        // A receipt that cannot be read must not keep the others from hearing of new blocks.
        let paid = self.deliver(&self.watcher.registry.owed()).await;
        let found = self.follow().await?;
        let final_known = self.refresh_final(found).await;
        if let (Err(error), false) = (&final_known, self.finality_unknown) {
            tracing::warn!(chain.id = self.watcher.connector.chain_id().0, finality = %self.watcher.finality,
                error = %error, "the chain does not say what is final; nothing becomes final meanwhile");
        }
        self.finality_unknown = final_known.is_err();
        paid?;
        Ok(found)
    }

    async fn follow(&mut self) -> Result<bool, RpcError> {
        let Some(latest) = self.watcher.connector.block(BlockTag::Latest).await? else { return Ok(false) };
        if self.watcher.read_canon(|canon| canon.contains(&latest.block)) {
            return Ok(false);
        }
        self.watcher.gas_limit.store(latest.gas_limit.unwrap_or(u64::MAX), Ordering::Relaxed);
        let Some(head) = self.watcher.read_canon(Canon::head) else {
            return self.restart(latest, false).await;
        };
        if latest.block.number > head.number + MAX_WALK {
            return self.restart(latest, false).await;
        }
        if latest.block.number < head.number {
            self.watcher.strange.notify_one();
        }
        match self.branch_to(latest, head).await? {
            Some(Branch::Attached(branch)) => self.adopt(branch).await?,
            Some(Branch::Loose(latest)) => {
                self.note_fork(0);
                self.restart(latest, true).await?;
            }
            None => return Ok(false),
        }
        Ok(true)
    }

    fn note_fork(&self, from: u64) {
        metrics::counter!(m::CONFIRMATIONS_NEW_FORK_TOTAL).increment(1);
        tracing::warn!(
            chain.id = self.watcher.connector.chain_id().0,
            from_block = from,
            "blocks were replaced"
        );
        // `safe` may move back with a fork.
        self.watcher.finalized.forget();
    }

    /// Wakes those who waited for the head, and, where finality is a matter of depth, for that.
    fn reached(&self, head: u64) {
        self.watcher.registry.head_is(head);
        if let Some(height) = self.watcher.final_height() {
            self.watcher.registry.final_is(height);
        }
    }

    /// Where the chain itself says what is final, it is asked once for each new head, and again if it could not answer.
    async fn refresh_final(&self, new_head: bool) -> Result<(), RpcError> {
        let tag = match self.watcher.finality {
            Finality::Blocks(_) => return Ok(()),
            Finality::Safe => BlockTag::Safe,
            Finality::Finalized => BlockTag::Finalized,
        };
        if !self.watcher.finalized.is_due(new_head) {
            return Ok(());
        }
        // None: nothing is final yet.
        let Some(block) = self.watcher.connector.block(tag).await? else {
            self.watcher.finalized.nothing_yet();
            return Ok(());
        };
        let block = block.block;
        if self.watcher.read_canon(|canon| canon.has_replaced(block.number, block.hash)) == Some(true) {
            // Another node's chain, or one that moved on meanwhile: no evidence. Asked again at the next look.
            return Ok(());
        }
        self.watcher.finalized.rise_to(block.number);
        if let Some(height) = self.watcher.final_height() {
            self.watcher.registry.final_is(height);
        }
        Ok(())
    }

    /// First sight of the chain, or a gap too wide to walk: start here, and look every watched hash up.
    /// `forked`: what was known before is not merely old, it is wrong.
    async fn restart(&mut self, latest: BlockWithHashes, forked: bool) -> Result<bool, RpcError> {
        let piece = self.history(latest.block).await;
        self.watcher.write_canon(|canon| canon.restart(&piece));
        self.unsaved = piece;
        self.watcher.finalized.forget();
        if forked {
            self.watcher.registry.reorged(0);
        }
        // Lanes whose receipts lie below the window compare block hashes themselves.
        self.reached(latest.block.number);
        let watched = self.watcher.registry.watched();
        self.deliver(&watched).await?;
        Ok(true)
    }

    /// The block and those before it that may still be confirming something, oldest first, as far as a node can show them
    /// in one piece. Best effort: they serve for telling of confirmations, and nothing is decided by them alone.
    async fn history(&self, latest: BlockRef) -> Vec<BlockRef> {
        let (connector, length) = (&self.watcher.connector, self.watcher.finality.listed() - 1);
        let numbers = latest.number.saturating_sub(length)..latest.number;
        let asked = numbers.map(|number| connector.block(BlockTag::Number(number)));
        let mut piece = VecDeque::from([latest]);
        for block in futures::future::join_all(asked).await.into_iter().rev() {
            match block {
                Ok(Some(below)) if below.block.hash == piece[0].parent => piece.push_front(below.block),
                _ => break,
            }
        }
        piece.into()
    }

    /// The blocks that lead from the canonical chain to `latest`, oldest first. `None`: it cannot be walked now.
    async fn branch_to(&self, latest: BlockWithHashes, head: BlockRef) -> Result<Option<Branch>, RpcError> {
        let connector = &self.watcher.connector;
        let between = (head.number + 1)..latest.block.number;
        let fetched =
            futures::future::try_join_all(between.map(|number| connector.block(BlockTag::Number(number))))
                .await?;
        let mut branch: Vec<BlockWithHashes> = fetched.into_iter().flatten().collect();
        branch.push(latest);
        if !branch.windows(2).all(|pair| pair[1].block.parent == pair[0].block.hash) {
            // The chain moved under us, or the nodes disagree: walk by hash from the top.
            branch.drain(..branch.len() - 1);
        }
        for _ in 0..MAX_WALK {
            let root = &branch[0].block;
            if self.watcher.read_canon(|canon| canon.attaches(root)) {
                return Ok(Some(Branch::Attached(branch)));
            }
            if root.number == 0 {
                break;
            }
            match connector.block_by_hash(root.parent).await? {
                Some(parent) => branch.insert(0, parent),
                None => {
                    self.watcher.strange.notify_one();
                    return Ok(None);
                }
            }
        }
        // No common block within the window: either a very deep reorg or another chain. The identity check tells.
        self.watcher.strange.notify_one();
        Ok(branch.pop().map(Branch::Loose))
    }

    async fn adopt(&mut self, branch: Vec<BlockWithHashes>) -> Result<(), RpcError> {
        let blocks: Vec<BlockRef> = branch.iter().map(|block| block.block).collect();
        let change = self.watcher.write_canon(|canon| canon.graft(&blocks));
        if let Change::Forked { from } = change {
            self.note_fork(from);
            self.watcher.registry.reorged(from);
        }
        self.pace(blocks.len());
        self.unsaved.retain(|block| block.number < blocks[0].number);
        self.unsaved.extend(&blocks);
        // Everything is owed before anything is asked for: if a node fails now, the next look pays.
        let ours: Vec<Vec<H256>> =
            branch.iter().map(|block| self.watcher.registry.among(&block.tx_hashes)).collect();
        ours.iter().for_each(|hashes| self.watcher.registry.owe(hashes));
        let mut delivered = Ok(());
        for (block, ours) in branch.iter().zip(&ours) {
            delivered = delivered.and(self.deliver_block(block.block.hash, ours).await);
        }
        if let Some(head) = blocks.last() {
            self.reached(head.number);
        }
        delivered
    }

    fn pace(&mut self, blocks: usize) {
        let since = self.last_block_at.elapsed() / u32::try_from(blocks.max(1)).unwrap_or(1);
        self.last_block_at = Instant::now();
        self.block_interval = (self.block_interval * 3 + since.min(Duration::from_secs(15))) / 4;
    }

    async fn deliver_block(&self, block: H256, ours: &[H256]) -> Result<(), RpcError> {
        if ours.len() >= BLOCK_RECEIPTS_FROM
            && let Some(receipts) = self.watcher.connector.block_receipts(block).await?
        {
            let wanted: HashSet<H256> = ours.iter().copied().collect();
            for receipt in receipts.into_iter().filter(|receipt| wanted.contains(&receipt.tx_hash)) {
                self.tell(receipt);
            }
            return Ok(());
        }
        self.deliver(ours).await
    }

    async fn deliver(&self, hashes: &[H256]) -> Result<(), RpcError> {
        if hashes.is_empty() {
            return Ok(());
        }
        let receipts = self.watcher.connector.receipts(hashes).await.inspect_err(|_| {
            metrics::counter!(m::RECEIPT_CHECK_TOTAL, "result" => "error").increment(1);
        })?;
        let missing = hashes.len().saturating_sub(receipts.len());
        metrics::counter!(m::RECEIPT_CHECK_TOTAL, "result" => "missing").increment(missing as u64);
        for receipt in receipts {
            self.tell(receipt);
        }
        Ok(())
    }

    fn tell(&self, receipt: gapless::domain::Receipt) {
        metrics::counter!(m::RECEIPT_CHECK_TOTAL, "result" => "found").increment(1);
        self.watcher.registry.included(receipt);
    }

    /// Keeps `chain_block` for the API, if this worker is the one elected for it. Not needed for any promise.
    async fn save(&mut self) {
        /// Often enough for people, rare enough for a chain with a block per transaction.
        const SAVE_EVERY: Duration = Duration::from_millis(200);
        if self.unsaved.is_empty() || self.last_save.elapsed() < SAVE_EVERY {
            return;
        }
        self.last_save = Instant::now();
        if self.elected_until.is_none_or(|until| until < Instant::now()) {
            let asked_at = Instant::now();
            match self.store.hold_duty(&self.duty, &self.node, self.duty_duration).await {
                Ok(true) => self.elected_until = Some(asked_at + self.duty_duration / 2),
                Ok(false) => {
                    let keep_from = self.unsaved.len().saturating_sub(KEEP_BLOCKS);
                    self.unsaved.drain(..keep_from);
                    return;
                }
                Err(error) => {
                    return tracing::debug!(error = %error, "could not ask for the duty of the head");
                }
            }
        }
        let chain = self.watcher.connector.chain_id();
        match self.store.save_blocks(chain, &self.unsaved, KEEP_BLOCKS as u64).await {
            Ok(()) => self.unsaved.clear(),
            Err(error) => tracing::debug!(error = %error, "could not save blocks"),
        }
    }
}
