//! The task of a `Watcher`: follows the head, finds watched hashes in new blocks, and delivers their receipts to the
//! lanes.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use gapless_chain::{BlockTag, BlockWithHashes, RpcError};
use gapless_domain::{BlockRef, Finality, H256, Receipt, WorkerId};
use gapless_store::Store;
use gapless_telemetry::metrics as m;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Watcher;
use super::canon::{Canon, Change};
use super::pace::{FEW_SENT, Pace};
use super::saver::{Piece, Pieces, Saver};
use crate::receipts::Place;

/// If the head moved further than this, blocks are not fetched one by one: every watched hash is looked up instead.
const MAX_WALK: u64 = 128;
/// With at least this many watched transactions in a block, all its receipts are fetched in one call, unless the block
/// has more than `MAX_BLOCK_TXS_PER_RECEIPT` transactions per watched one: transferring and parsing them costs more
/// then.
const BLOCK_RECEIPTS_FROM: usize = 2;
const MAX_BLOCK_TXS_PER_RECEIPT: usize = 16;
/// A head that is unreadable for this long is reported to the lanes.
const UNREADABLE_AFTER: Duration = Duration::from_secs(2);
/// A head below the highest seen counts as fallen after this time and a block time: a node that lags catches up
/// sooner.
const FALL_AFTER: Duration = Duration::from_secs(1);
/// How long sent hashes are remembered on a chain with periodic blocks.
const REMEMBER_SENT_FOR: Duration = Duration::from_millis(100);

/// The blocks that lead to a new head.
enum Branch {
    /// Oldest first; the parent of the first block is canonical.
    Attached(Vec<BlockWithHashes>),
    /// No common block within `MAX_WALK`: a deeper reorg, or another chain.
    Loose(BlockWithHashes),
}

/// The task of a `Watcher`.
#[derive(Debug)]
pub(crate) struct WatchTask {
    watcher: Arc<Watcher>,
    saver: Pieces,
    pace: Pace,
    /// Hashes accepted by nodes and not mined yet, and when they were accepted.
    sent: Vec<(H256, Instant)>,
    /// Blocks were skipped: every watched hash has to be looked up.
    relookup_needed: bool,
    /// The final block could not be read, and that was logged.
    finality_unknown: bool,
    /// Since when the head cannot be read.
    failing: Option<Instant>,
    /// Since when nodes show a known head below the highest, and whether that was reported.
    below: Option<(Instant, bool)>,
    /// Lanes should look up and resend open transactions.
    recovered: bool,
    /// The connector's recovery count at the last poll.
    recoveries: u64,
}

impl WatchTask {
    pub(crate) fn new(
        watcher: Arc<Watcher>,
        store: Store,
        worker_id: WorkerId,
        duty_duration: Duration,
    ) -> Self {
        let saver = Saver { store, chain: watcher.connector.chain_id(), worker_id, duty_duration };
        WatchTask::with_saver(watcher, saver.start())
    }

    /// Without a task that saves blocks.
    #[cfg(feature = "sim-driver")]
    pub(crate) fn unsaved(watcher: Arc<Watcher>) -> Self {
        WatchTask::with_saver(watcher, Pieces::new().0)
    }

    fn with_saver(watcher: Arc<Watcher>, saver: Pieces) -> Self {
        WatchTask {
            pace: Pace::new(watcher.poll_interval, Instant::now()),
            saver,
            watcher,
            sent: Vec::new(),
            relookup_needed: false,
            finality_unknown: false,
            failing: None,
            below: None,
            recovered: false,
            recoveries: 0,
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            // Errors are logged in `poll_head`.
            let _ = self.poll_head().await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wait() => {}
            }
        }
    }

    /// Waits until a block is expected, or, on a chain that mines instantly, until a lane has sent something.
    async fn wait(&self) {
        loop {
            // Computed again after each nudge, because a lane may be waiting now.
            let until = self.pace.next(!self.watcher.registry.is_idle(), self.sent.len());
            if until <= Instant::now() {
                // A timer would take a millisecond.
                return tokio::task::yield_now().await;
            }
            tokio::select! {
                () = self.watcher.nudge.notified() => if self.pace.mines_instantly() {
                    return tokio::time::sleep_until(self.pace.earliest()).await;
                },
                () = tokio::time::sleep_until(until) => return,
            }
        }
    }

    /// Polls the head once and updates the recovery and error state.
    pub(crate) async fn poll_head(&mut self) -> Result<(), RpcError> {
        let result = self.read_head().await;
        let chain = self.watcher.connector.chain_id().0;
        match &result {
            Ok(()) => {
                if self.failing.take().is_some() {
                    tracing::info!(chain.id = chain, "chain head readable again");
                    self.watcher.set_outage(None);
                    self.recovered = true;
                }
            }
            Err(error) => {
                if self.failing.is_none() {
                    tracing::warn!(chain.id = chain, error = %error,
                        "could not read the chain head; retrying");
                }
                let since = *self.failing.get_or_insert_with(Instant::now);
                if since.elapsed() >= UNREADABLE_AFTER && self.watcher.set_outage(Some(error.to_string())) {
                    self.watcher.registry.wake_all();
                }
                self.pace.failed(Instant::now());
            }
        }
        let recoveries = self.watcher.connector.recoveries();
        self.recovered |= std::mem::replace(&mut self.recoveries, recoveries) != recoveries;
        let block_time = self.pace.block_time().as_millis();
        self.watcher.block_millis.store(u64::try_from(block_time).unwrap_or(u64::MAX), Ordering::Relaxed);
        if result.is_ok() && std::mem::take(&mut self.recovered) {
            self.watcher.note_recovery();
        }
        result
    }

    async fn read_head(&mut self) -> Result<(), RpcError> {
        self.update_sent();
        let sent_before = self.sent.len();
        // A receipt that cannot be read must not stop the processing of new blocks.
        let delivered = self.deliver(&self.watcher.registry.missing_receipts()).await;
        let delivered = self.deliver_watched().await.and(delivered);
        let (latest, early) =
            tokio::join!(self.watcher.connector.block(BlockTag::Latest), self.early_receipts());
        let grown = self.follow(latest?, &early).await;
        let blocks = *grown.as_ref().unwrap_or(&0);
        self.pace.polled(blocks, Instant::now());
        if sent_before > 0 && sent_before == self.sent.len() {
            self.pace.sent_not_mined();
        }
        grown?;
        let final_known = self.refresh_final(blocks > 0).await;
        if let (Err(error), false) = (&final_known, self.finality_unknown) {
            tracing::warn!(chain.id = self.watcher.connector.chain_id().0, finality = %self.watcher.finality,
                error = %error,
                "could not read the final block; nothing becomes final until it is readable");
        }
        self.finality_unknown = final_known.is_err();
        delivered
    }

    /// Adds what was sent since the last poll, and drops hashes that are unwatched or will not be mined instantly.
    fn update_sent(&mut self) {
        let mut new = self.watcher.sent.lock();
        self.sent.append(&mut new);
        drop(new);
        if !self.pace.mines_instantly() {
            // Remembered only to detect whether the chain mines instantly.
            self.sent.retain(|(_, at)| at.elapsed() < REMEMBER_SENT_FOR);
        }
        let watched = self.watcher.registry.those_watched(self.sent.iter().map(|(hash, _)| *hash));
        self.sent.retain(|(hash, _)| watched.contains(hash));
    }

    /// Requests receipts together with the head, which saves a round trip on a chain that mines instantly. Missing
    /// ones are requested when their block is seen; with more than a few sent it is cheaper to wait for the block.
    async fn early_receipts(&self) -> Vec<Receipt> {
        if !self.pace.mines_instantly() || self.sent.is_empty() || self.sent.len() > FEW_SENT {
            return Vec::new();
        }
        let hashes: Vec<H256> = self.sent.iter().map(|(hash, _)| *hash).collect();
        self.watcher.receipts.of(&hashes, Place::Early).await.unwrap_or_default()
    }

    /// Makes `latest` the head. Returns the number of new blocks.
    async fn follow(
        &mut self,
        latest: Option<BlockWithHashes>,
        early: &[Receipt],
    ) -> Result<usize, RpcError> {
        let Some(latest) = latest else { return Ok(0) };
        if self.watcher.read_canon(|canon| canon.contains(&latest.block)) {
            self.note_known_head(latest.block.number);
            return Ok(0);
        }
        self.clear_fall();
        self.watcher.gas_limit.store(latest.gas_limit.unwrap_or(u64::MAX), Ordering::Relaxed);
        *self.watcher.base_fee.lock() = latest.base_fee_per_gas;
        let head = self.watcher.read_canon(Canon::head);
        let Some(head) = head.filter(|head| latest.block.number <= head.number + MAX_WALK) else {
            self.recovered |= head.is_some();
            self.restart(latest, false).await?;
            return Ok(1);
        };
        if latest.block.number < head.number {
            self.watcher.head_mismatch.notify_one();
        }
        match self.branch_to(latest, head).await? {
            Some(Branch::Attached(branch)) => self.adopt(branch, early).await,
            Some(Branch::Loose(latest)) => {
                self.note_fork(0);
                self.restart(latest, true).await?;
                Ok(1)
            }
            None => Ok(0),
        }
    }

    /// Handles a known head below the highest: the node lags, or it was rolled back and nothing was mined since. After
    /// a rollback open transactions must be resent; for a lagging node that does no harm.
    fn note_known_head(&mut self, number: u64) {
        if self.watcher.head().is_none_or(|head| number >= head) {
            return self.clear_fall();
        }
        let (since, reported) = self.below.get_or_insert((Instant::now(), false));
        if !*reported && since.elapsed() >= self.pace.block_time().max(FALL_AFTER) {
            *reported = true;
            self.recovered = true;
            self.watcher.note_fall(Some(number));
        }
    }

    /// The head is not below the highest seen.
    fn clear_fall(&mut self) {
        self.below = None;
        self.watcher.note_fall(None);
    }

    fn note_fork(&mut self, from: u64) {
        self.recovered = true;
        metrics::counter!(m::CONFIRMATIONS_NEW_FORK_TOTAL).increment(1);
        tracing::warn!(
            chain.id = self.watcher.connector.chain_id().0,
            from_block = from,
            "reorg: blocks were replaced"
        );
        // `safe` may move back with a reorg.
        self.watcher.finalized.forget();
    }

    /// Wakes lanes that wait for this head, or for a height that is final by it.
    fn reached(&self, head: u64) {
        self.watcher.registry.head_is(head);
        if let Some(height) = self.watcher.final_height() {
            self.watcher.registry.final_is(height);
        }
    }

    /// With finality `safe` or `finalized`, reads that block once per new head, and again after an error.
    async fn refresh_final(&self, new_head: bool) -> Result<(), RpcError> {
        let tag = match self.watcher.finality {
            Finality::Blocks(_) => return Ok(()),
            Finality::Safe => BlockTag::Safe,
            Finality::Finalized => BlockTag::Finalized,
        };
        if !self.watcher.finalized.is_due(new_head) {
            return Ok(());
        }
        // `None`: nothing is final yet.
        let Some(block) = self.watcher.connector.block(tag).await? else {
            self.watcher.finalized.nothing_yet();
            return Ok(());
        };
        let block = block.block;
        if self.watcher.read_canon(|canon| canon.has_replaced(block.number, block.hash)) == Some(true) {
            // Not on the known canonical chain: from another node's fork, or newer than the known head. Read again
            // later.
            return Ok(());
        }
        self.watcher.finalized.rise_to(block.number);
        if let Some(height) = self.watcher.final_height() {
            self.watcher.registry.final_is(height);
        }
        Ok(())
    }

    /// Starts over from `latest` at the first poll or after a gap too wide to walk, and looks up every watched hash.
    /// `forked`: the blocks known before are not just old, they were replaced.
    async fn restart(&mut self, latest: BlockWithHashes, forked: bool) -> Result<(), RpcError> {
        let piece = self.history(latest.block).await;
        self.watcher.write_canon(|canon| canon.restart(&piece));
        self.save(Piece::Replaced(piece));
        self.watcher.finalized.forget();
        if forked {
            self.watcher.registry.reorged(0);
        }
        // Lanes whose receipts are below the retained window compare block hashes themselves.
        self.reached(latest.block.number);
        self.relookup_needed = true;
        self.deliver_watched().await
    }

    /// Looks up every watched hash after skipped blocks; repeated until it succeeds.
    async fn deliver_watched(&mut self) -> Result<(), RpcError> {
        if self.relookup_needed {
            self.deliver(&self.watcher.registry.watched()).await?;
            self.relookup_needed = false;
        }
        Ok(())
    }

    fn save(&mut self, piece: Piece) {
        let watcher = &self.watcher;
        self.saver.send(piece, || watcher.read_canon(Canon::all));
    }

    /// The block and the contiguous ones before it that may still confirm a transaction, oldest first. Best effort:
    /// they are used to report confirmations, and nothing is decided by them alone.
    async fn history(&self, latest: BlockRef) -> Vec<BlockRef> {
        let (connector, length) = (&self.watcher.connector, self.watcher.finality.listed() - 1);
        let numbers = latest.number.saturating_sub(length)..latest.number;
        let requests = numbers.map(|number| connector.block(BlockTag::Number(number)));
        let mut piece = VecDeque::from([latest]);
        for block in futures::future::join_all(requests).await.into_iter().rev() {
            match block {
                Ok(Some(below)) if below.block.hash == piece[0].parent => piece.push_front(below.block),
                _ => break,
            }
        }
        piece.into()
    }

    /// The blocks that lead from the canonical chain to `latest`, oldest first. `None`: a block is not available now.
    async fn branch_to(&self, latest: BlockWithHashes, head: BlockRef) -> Result<Option<Branch>, RpcError> {
        let connector = &self.watcher.connector;
        let between = (head.number + 1)..latest.block.number;
        let fetched =
            futures::future::try_join_all(between.map(|number| connector.block(BlockTag::Number(number))))
                .await?;
        let mut branch: Vec<BlockWithHashes> = fetched.into_iter().flatten().collect();
        branch.push(latest);
        if !branch.windows(2).all(|pair| pair[1].block.parent == pair[0].block.hash) {
            // The chain changed meanwhile, or the nodes disagree: walk back by hash from the newest.
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
                    self.watcher.head_mismatch.notify_one();
                    return Ok(None);
                }
            }
        }
        // No common block: a very deep reorg or another chain. The identity check decides which.
        self.watcher.head_mismatch.notify_one();
        Ok(branch.pop().map(Branch::Loose))
    }

    /// Appends the branch to the canonical chain and delivers its receipts. Returns the number of blocks.
    async fn adopt(&mut self, branch: Vec<BlockWithHashes>, early: &[Receipt]) -> Result<usize, RpcError> {
        let blocks: Vec<BlockRef> = branch.iter().map(|block| block.block).collect();
        let change = self.watcher.write_canon(|canon| canon.graft(&blocks));
        if let Change::Forked { from } = change {
            self.note_fork(from);
            self.watcher.registry.reorged(from);
        }
        let (count, head) = (blocks.len(), blocks.last().map(|block| block.number));
        self.save(Piece::Grown(blocks));
        // All receipts are marked as missing before any is requested: if a request fails, the next poll repeats it.
        let ours: Vec<Vec<H256>> =
            branch.iter().map(|block| self.watcher.registry.among(&block.tx_hashes)).collect();
        ours.iter().for_each(|hashes| self.watcher.registry.mark_missing(hashes));
        self.note_mined(&ours);
        let delivered = branch.iter().zip(&ours).map(|(block, ours)| self.deliver_block(block, ours, early));
        let delivered = futures::future::join_all(delivered).await;
        if let Some(head) = head {
            self.reached(head);
        }
        delivered.into_iter().collect::<Result<(), RpcError>>()?;
        Ok(count)
    }

    /// Measures how soon sent transactions are mined.
    fn note_mined(&mut self, ours: &[Vec<H256>]) {
        let mined: HashSet<&H256> = ours.iter().flatten().collect();
        let (found, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.sent).into_iter().partition(|(hash, _)| mined.contains(hash));
        self.sent = left;
        if let Some(youngest) = found.iter().map(|(_, at)| at.elapsed()).min() {
            self.pace.mined_after(youngest);
        }
    }

    async fn deliver_block(
        &self,
        block: &BlockWithHashes,
        ours: &[H256],
        early: &[Receipt],
    ) -> Result<(), RpcError> {
        let is_known = |hash: &H256| {
            early.iter().find(|known| known.tx_hash == *hash && known.block_hash == block.block.hash)
        };
        ours.iter().filter_map(is_known).for_each(|known| self.watcher.registry.included(known.clone()));
        let missing: Vec<H256> = ours.iter().copied().filter(|hash| is_known(hash).is_none()).collect();
        if missing.len() >= BLOCK_RECEIPTS_FROM
            && block.tx_hashes.len() <= missing.len() * MAX_BLOCK_TXS_PER_RECEIPT
            && let Some(receipts) = self.watcher.receipts.of_block(block.block.hash, &missing).await?
        {
            receipts.into_iter().for_each(|receipt| self.watcher.registry.included(receipt));
            return Ok(());
        }
        self.deliver(&missing).await
    }

    async fn deliver(&self, hashes: &[H256]) -> Result<(), RpcError> {
        if hashes.is_empty() {
            return Ok(());
        }
        let receipts = self.watcher.receipts.of(hashes, Place::Block).await?;
        receipts.into_iter().for_each(|receipt| self.watcher.registry.included(receipt));
        Ok(())
    }
}
