//! The task behind a `Watcher`: follows the head, finds what is ours in new blocks, and delivers its receipts.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use gapless::chain::{BlockTag, BlockWithHashes, RpcError};
use gapless::domain::{BlockRef, Finality, H256, Receipt, WorkerId};
use gapless::observe::metrics as m;
use gapless::store::Store;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Watcher;
use super::canon::{Canon, Change};
use super::pace::{FEW, Pace};
use super::saver::{Piece, Pieces, Saver};
use crate::receipts::Place;

/// Beyond this distance blocks are not walked one by one: every watched hash is looked up instead.
const MAX_WALK: u64 = 128;
/// From this many of our transactions in one block on, the block's receipts come in one call, if not too many of them
/// are somebody else's: one call is then cheaper than several, but what it brings has to be carried and read.
const BLOCK_RECEIPTS_FROM: usize = 2;
const OTHERS_FOR_EACH: usize = 16;
/// A head that cannot be read for this long is shown to those who wait for it.
const LASTS: Duration = Duration::from_secs(2);
/// A head that is below the highest for this long, and for a block time, is no hiccup of a node that lags.
const LASTS_BELOW: Duration = Duration::from_secs(1);
/// What was sent is remembered for so long where blocks come by the clock.
const LEARN_FOR: Duration = Duration::from_millis(100);

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
    saver: Pieces,
    pace: Pace,
    /// What nodes took, and when: it may be in a block any moment.
    taken: Vec<(H256, Instant)>,
    /// Every watched hash is to be looked up: blocks were passed over.
    leapt: bool,
    /// The chain could not be asked what is final, and that was said.
    finality_unknown: bool,
    /// Since when the head cannot be read.
    failing: Option<Instant>,
    /// Since when nodes show a head that is known and below the highest; and whether that was told.
    below: Option<(Instant, bool)>,
    /// Something happened after which what is open should be sent again.
    recovered: bool,
    /// How often a node had become well again at the last look.
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
        WatchTask::telling(watcher, saver.start())
    }

    /// Its blocks are saved by nobody.
    #[cfg(feature = "sim-driver")]
    pub(crate) fn unsaved(watcher: Arc<Watcher>) -> Self {
        WatchTask::telling(watcher, Pieces::new().0)
    }

    fn telling(watcher: Arc<Watcher>, saver: Pieces) -> Self {
        WatchTask {
            pace: Pace::new(watcher.poll_interval, Instant::now()),
            saver,
            watcher,
            taken: Vec::new(),
            leapt: false,
            finality_unknown: false,
            failing: None,
            below: None,
            recovered: false,
            recoveries: 0,
        }
    }

    pub(crate) async fn run(mut self, stop: CancellationToken) {
        loop {
            // Logged where it is found.
            let _ = self.look().await;
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.wait() => {}
            }
        }
    }

    /// Waits until a block is expected, or, where blocks come at once, until a lane has sent something.
    async fn wait(&self) {
        loop {
            // Asked anew after each nudge: now somebody waits.
            let until = self.pace.next(!self.watcher.registry.is_idle(), self.taken.len());
            if until <= Instant::now() {
                // A timer would take a millisecond to say so.
                return tokio::task::yield_now().await;
            }
            tokio::select! {
                () = self.watcher.nudge.notified() => if self.pace.is_at_once() {
                    return tokio::time::sleep_until(self.pace.earliest()).await;
                },
                () = tokio::time::sleep_until(until) => return,
            }
        }
    }

    /// One look at the head, and what it means for those who wait.
    pub(crate) async fn look(&mut self) -> Result<(), RpcError> {
        let looked = self.look_at_head().await;
        let chain = self.watcher.connector.chain_id().0;
        match &looked {
            Ok(()) => {
                if self.failing.take().is_some() {
                    tracing::info!(chain.id = chain, "the node answers again");
                    self.watcher.note_trouble(None);
                    self.recovered = true;
                }
            }
            Err(error) => {
                if self.failing.is_none() {
                    tracing::warn!(chain.id = chain, error = %error, "the head of the chain cannot be read; trying on");
                }
                let since = *self.failing.get_or_insert_with(Instant::now);
                if since.elapsed() >= LASTS && self.watcher.note_trouble(Some(error.to_string())) {
                    self.watcher.registry.wake_all();
                }
                self.pace.failed(Instant::now());
            }
        }
        let recoveries = self.watcher.connector.recoveries();
        self.recovered |= std::mem::replace(&mut self.recoveries, recoveries) != recoveries;
        let block_time = self.pace.block_time().as_millis();
        self.watcher.block_millis.store(u64::try_from(block_time).unwrap_or(u64::MAX), Ordering::Relaxed);
        if looked.is_ok() && std::mem::take(&mut self.recovered) {
            self.watcher.note_recovery();
        }
        looked
    }

    async fn look_at_head(&mut self) -> Result<(), RpcError> {
        self.note_taken();
        let looked_for = self.taken.len();
        // A receipt that cannot be read must not keep the others from hearing of new blocks.
        let paid = self.deliver(&self.watcher.registry.owed()).await;
        let paid = self.look_up_watched().await.and(paid);
        let (latest, early) =
            tokio::join!(self.watcher.connector.block(BlockTag::Latest), self.early_receipts());
        let grown = self.follow(latest?, &early).await;
        let blocks = *grown.as_ref().unwrap_or(&0);
        self.pace.looked(blocks, Instant::now());
        if looked_for > 0 && looked_for == self.taken.len() {
            self.pace.in_vain();
        }
        grown?;
        let final_known = self.refresh_final(blocks > 0).await;
        if let (Err(error), false) = (&final_known, self.finality_unknown) {
            tracing::warn!(chain.id = self.watcher.connector.chain_id().0, finality = %self.watcher.finality,
                error = %error, "the chain does not say what is final; nothing becomes final meanwhile");
        }
        self.finality_unknown = final_known.is_err();
        paid
    }

    /// Adds what was sent since the last look, and forgets what nobody waits for or what will not come at once.
    fn note_taken(&mut self) {
        let mut news = self.watcher.taken.lock().unwrap_or_else(PoisonError::into_inner);
        self.taken.append(&mut news);
        drop(news);
        if !self.pace.is_at_once() {
            // Only to learn from it, if it is mined in a moment.
            self.taken.retain(|(_, at)| at.elapsed() < LEARN_FOR);
        }
        let watched = self.watcher.registry.those_watched(self.taken.iter().map(|(hash, _)| *hash));
        self.taken.retain(|(hash, _)| watched.contains(hash));
    }

    /// Receipts that may be there already, so that they need no round trip of their own. What cannot be had is asked for
    /// when its block is seen; of more than a few it is cheaper to wait for their blocks.
    async fn early_receipts(&self) -> Vec<Receipt> {
        if !self.pace.is_at_once() || self.taken.is_empty() || self.taken.len() > FEW {
            return Vec::new();
        }
        let hashes: Vec<H256> = self.taken.iter().map(|(hash, _)| *hash).collect();
        self.watcher.receipts.of(&hashes, Place::Early).await.unwrap_or_default()
    }

    /// Makes `latest` the head. Answers how many blocks are new.
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
        self.rise();
        self.watcher.gas_limit.store(latest.gas_limit.unwrap_or(u64::MAX), Ordering::Relaxed);
        *self.watcher.base_fee.lock().unwrap_or_else(PoisonError::into_inner) = latest.base_fee_per_gas;
        let head = self.watcher.read_canon(Canon::head);
        let Some(head) = head.filter(|head| latest.block.number <= head.number + MAX_WALK) else {
            self.recovered |= head.is_some();
            self.restart(latest, false).await?;
            return Ok(1);
        };
        if latest.block.number < head.number {
            self.watcher.strange.notify_one();
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

    /// A head that is known and stays below the highest: the node lags, or it was rolled back and nothing is mined since.
    /// The latter needs what is open again, and to the former it does no harm.
    fn note_known_head(&mut self, number: u64) {
        if self.watcher.head().is_none_or(|head| number >= head) {
            return self.rise();
        }
        let (since, told) = self.below.get_or_insert((Instant::now(), false));
        if !*told && since.elapsed() >= self.pace.block_time().max(LASTS_BELOW) {
            *told = true;
            self.recovered = true;
            self.watcher.note_fall(Some(number));
        }
    }

    /// The head is not below what was seen.
    fn rise(&mut self) {
        self.below = None;
        self.watcher.note_fall(None);
    }

    fn note_fork(&mut self, from: u64) {
        self.recovered = true;
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
    async fn restart(&mut self, latest: BlockWithHashes, forked: bool) -> Result<(), RpcError> {
        let piece = self.history(latest.block).await;
        self.watcher.write_canon(|canon| canon.restart(&piece));
        self.save(Piece::Anew(piece));
        self.watcher.finalized.forget();
        if forked {
            self.watcher.registry.reorged(0);
        }
        // Lanes whose receipts lie below the window compare block hashes themselves.
        self.reached(latest.block.number);
        self.leapt = true;
        self.look_up_watched().await
    }

    /// After a leap, until a node could tell.
    async fn look_up_watched(&mut self) -> Result<(), RpcError> {
        if self.leapt {
            self.deliver(&self.watcher.registry.watched()).await?;
            self.leapt = false;
        }
        Ok(())
    }

    fn save(&mut self, piece: Piece) {
        let watcher = &self.watcher;
        self.saver.tell(piece, || watcher.read_canon(Canon::all));
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

    /// Answers how many blocks it is.
    async fn adopt(&mut self, branch: Vec<BlockWithHashes>, early: &[Receipt]) -> Result<usize, RpcError> {
        let blocks: Vec<BlockRef> = branch.iter().map(|block| block.block).collect();
        let change = self.watcher.write_canon(|canon| canon.graft(&blocks));
        if let Change::Forked { from } = change {
            self.note_fork(from);
            self.watcher.registry.reorged(from);
        }
        let (count, head) = (blocks.len(), blocks.last().map(|block| block.number));
        self.save(Piece::Grown(blocks));
        // Everything is owed before anything is asked for: if a node fails now, the next look pays.
        let ours: Vec<Vec<H256>> =
            branch.iter().map(|block| self.watcher.registry.among(&block.tx_hashes)).collect();
        ours.iter().for_each(|hashes| self.watcher.registry.owe(hashes));
        self.note_mined(&ours);
        let delivered = branch.iter().zip(&ours).map(|(block, ours)| self.deliver_block(block, ours, early));
        let delivered = futures::future::join_all(delivered).await;
        if let Some(head) = head {
            self.reached(head);
        }
        delivered.into_iter().collect::<Result<(), RpcError>>()?;
        Ok(count)
    }

    /// Learns how soon what was taken is mined.
    fn note_mined(&mut self, ours: &[Vec<H256>]) {
        let mined: HashSet<&H256> = ours.iter().flatten().collect();
        let (found, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.taken).into_iter().partition(|(hash, _)| mined.contains(hash));
        self.taken = left;
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
            && block.tx_hashes.len() <= missing.len() * OTHERS_FOR_EACH
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
