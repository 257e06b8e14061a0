//! Writes recent blocks to `chain_block` for the API, if this worker is elected for it. No guarantee depends on it, so
//! nothing waits for it.

use std::time::Duration;

use gapless_domain::{BlockRef, ChainId, WorkerId};
use gapless_store::Store;
use gapless_telemetry::metrics as m;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TrySendError;
use tokio::time::Instant;

use super::RETAINED_BLOCKS;

/// Shortest time between two writes: limits the load on a chain with a block per transaction.
const SAVE_EVERY: Duration = Duration::from_millis(200);

/// Queue capacity while the database is slow; the saver takes all queued pieces at once.
const MAX_PIECES: usize = 64;

/// Retry interval for unsaved blocks if no new piece arrives.
const RETRY: Duration = Duration::from_secs(1);

/// A contiguous piece of the chain, oldest first.
#[derive(Debug)]
pub(super) enum Piece {
    /// Replaces earlier blocks at its heights and above.
    Grown(Vec<BlockRef>),
    /// Replaces all earlier blocks.
    Replaced(Vec<BlockRef>),
}

/// Bounded queue to the saver. Sending never waits: if a piece did not fit, the next one is the whole window.
#[derive(Debug)]
pub(super) struct Pieces {
    sender: mpsc::Sender<Piece>,
    missed: bool,
}

impl Pieces {
    pub(super) fn new() -> (Pieces, mpsc::Receiver<Piece>) {
        let (sender, received) = mpsc::channel(MAX_PIECES);
        (Pieces { sender, missed: false }, received)
    }

    /// `whole`: the window including this piece.
    pub(super) fn send(&mut self, piece: Piece, whole: impl FnOnce() -> Vec<BlockRef>) {
        let piece = if self.missed { Piece::Replaced(whole()) } else { piece };
        let result = self.sender.try_send(piece);
        self.missed = matches!(result, Err(TrySendError::Full(_)));
        if self.missed {
            metrics::counter!(m::INTERNAL_QUEUE_DROPPED_TOTAL, "queue" => "blocks").increment(1);
        }
        let depth = self.sender.max_capacity() - self.sender.capacity();
        metrics::gauge!(m::INTERNAL_QUEUE_DEPTH, "queue" => "blocks").set(depth as f64);
    }
}

#[derive(Debug)]
pub(super) struct Saver {
    pub(super) store: Store,
    pub(super) chain: ChainId,
    pub(super) worker_id: WorkerId,
    pub(super) duty_duration: Duration,
}

impl Saver {
    /// Runs until the watcher is dropped.
    pub(super) fn start(self) -> Pieces {
        let (pieces, received) = Pieces::new();
        tokio::spawn(self.run(received));
        pieces
    }

    async fn run(self, mut pieces: mpsc::Receiver<Piece>) {
        let duty = format!("head:{}", self.chain);
        let (mut unsaved, mut received): (Vec<BlockRef>, Vec<Piece>) = (Vec::new(), Vec::new());
        let mut elected_until: Option<Instant> = None;
        loop {
            tokio::select! {
                count = pieces.recv_many(&mut received, RETAINED_BLOCKS) => if count == 0 { return },
                () = tokio::time::sleep(RETRY), if !unsaved.is_empty() => {}
            }
            received.drain(..).for_each(|piece| add(&mut unsaved, piece));
            if elected_until.is_none_or(|until| until < Instant::now()) {
                let requested_at = Instant::now();
                match self.store.hold_duty(&duty, &self.worker_id, self.duty_duration).await {
                    Ok(true) => elected_until = Some(requested_at + self.duty_duration / 2),
                    // Unsaved blocks are retained: the elected worker may end before it has saved them.
                    Ok(false) => elected_until = None,
                    Err(error) => tracing::debug!(error = %error, "could not claim the block-saving duty"),
                }
            }
            if elected_until.is_some_and(|until| until >= Instant::now()) {
                match self.store.save_blocks(self.chain, &unsaved, RETAINED_BLOCKS as u64).await {
                    Ok(()) => unsaved.clear(),
                    Err(error) => tracing::debug!(error = %error, "could not save blocks"),
                }
            }
            tokio::time::sleep(SAVE_EVERY).await;
        }
    }
}

fn add(unsaved: &mut Vec<BlockRef>, piece: Piece) {
    match piece {
        Piece::Grown(blocks) => {
            let first = blocks.first().map_or(u64::MAX, |block| block.number);
            unsaved.retain(|block| block.number < first);
            unsaved.extend(blocks);
        }
        Piece::Replaced(blocks) => *unsaved = blocks,
    }
    unsaved.drain(..unsaved.len().saturating_sub(RETAINED_BLOCKS));
}

#[cfg(test)]
mod tests {
    use gapless_domain::H256;

    use super::*;

    fn block(number: u64, tag: u64) -> BlockRef {
        BlockRef { number, hash: H256::from_low_u64_be(tag), parent: H256::zero() }
    }

    #[test]
    fn after_a_dropped_piece_the_whole_window_is_sent() {
        let (mut pieces, mut received) = Pieces::new();
        let window = |upto: u64| (upto - 9..=upto).map(|number| block(number, 1)).collect::<Vec<_>>();
        for number in 10..10_000 {
            pieces.send(Piece::Grown(vec![block(number, 1)]), || window(number));
        }
        let mut unsaved = Vec::new();
        let mut waited = 0;
        while let Ok(piece) = received.try_recv() {
            add(&mut unsaved, piece);
            waited += 1;
        }
        assert_eq!(waited, MAX_PIECES);
        pieces.send(Piece::Grown(vec![block(10_000, 1)]), || window(10_000));
        add(&mut unsaved, received.try_recv().unwrap());
        assert_eq!(unsaved, window(10_000), "no gap");
    }

    #[test]
    fn a_fork_replaces_blocks_and_the_list_is_bounded() {
        let mut unsaved = Vec::new();
        add(&mut unsaved, Piece::Grown(vec![block(1, 1), block(2, 1), block(3, 1)]));
        add(&mut unsaved, Piece::Grown(vec![block(2, 2)]));
        assert_eq!(unsaved, [block(1, 1), block(2, 2)]);
        add(&mut unsaved, Piece::Grown((3..2_000).map(|number| block(number, 1)).collect()));
        assert_eq!((unsaved.len(), unsaved[RETAINED_BLOCKS - 1]), (RETAINED_BLOCKS, block(1_999, 1)));
        add(&mut unsaved, Piece::Replaced(vec![block(5, 1)]));
        assert_eq!(unsaved, [block(5, 1)]);
    }
}
