//! The upper bound: only the SQL of a worker. Leases are claimed, queues are prefetched,
//! and one fenced write per transaction confirms the previous one and assigns the next nonce. The transactions were
//! signed and mined before the measurement, so that the audit passes.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ethers_core::types::{Bytes, H256, U256};
use gapless_config as config;
use gapless_domain::{Fees, Nonce, Receipt, SignedDraft, SubmitterKey, TxId, TxState, WorkerId};
use gapless_store::{Applied, Attempt, AttemptKind, Cursor, CursorWrite, FencedWrite, Lease, Move, Store};
use tokio::task::JoinSet;

use crate::bed::{Bed, CHAIN_ID, GAS, Key};
use crate::chain::{Chain, Mining};
use crate::measure::Usage;
use crate::report::Row;

/// As in a worker: concurrent transactions, writes per transaction, prefetched intents.
const WRITERS: usize = 3;
const BATCH: usize = 500;
const READ_AHEAD: u32 = 16;
const LEASE: config::Lease = config::Lease {
    duration: Duration::from_secs(3600),
    renew_interval: Duration::from_secs(600),
    clock_skew: Duration::ZERO,
};

#[derive(Debug)]
pub(crate) struct Ceiling {
    pub(super) rate: f64,
    usage: Usage,
    count: f64,
}

impl Ceiling {
    pub(super) fn postgres_ms(&self) -> f64 {
        self.usage.postgres_cpu * 1000.0 / self.count
    }

    pub(super) fn row(&self, submitters: usize, each: usize) -> Row {
        let row = Row::default().text("what", "SQL only").number("submitters", submitters as f64, 0);
        let row = row.number("each", each as f64, 0).number("tx/s", self.rate, 0);
        self.usage.columns(row, self.count)
    }
}

/// Mined transactions of one submitter by nonce: hash, raw bytes and receipt.
type Signed = Vec<(H256, Bytes, Receipt)>;

pub(super) async fn measure(bed: &Bed, keys: &[Key], each: usize) -> Result<Ceiling> {
    let chain = Chain::start(CHAIN_ID, Mining::AtOnce).await?;
    let run = bed.run(&format!("ceiling-{}", keys.len()), chain.url()).await?;
    run.announce(keys, false).await?;
    run.fill(keys, each).await?;
    let signed = sign_and_mine(&chain, keys, each)?;
    let submitters: Vec<SubmitterKey> = keys.iter().map(Key::submitter).collect();
    let leases = run.store.claim(&WorkerId("ceiling".to_owned()), &submitters, &LEASE).await?;
    if leases.len() != keys.len() {
        bail!("{} of {} leases were claimed", leases.len(), keys.len());
    }
    let mut signed: HashMap<SubmitterKey, Signed> = submitters.iter().copied().zip(signed).collect();
    let lane = |lease: Lease| {
        let own = signed.remove(&lease.key()).unwrap_or_default();
        Lane::new(lease, own)
    };
    let mut lanes: Vec<Lane> = leases.into_iter().map(lane).collect();
    let meter = run.meter(&[], &[]).await?;
    let begun = Instant::now();
    let mut writers = JoinSet::new();
    let share = lanes.len().div_ceil(WRITERS);
    while !lanes.is_empty() {
        let rest = lanes.split_off(share.min(lanes.len()));
        writers.spawn(write_all(run.store.clone(), std::mem::replace(&mut lanes, rest)));
    }
    while let Some(done) = writers.join_next().await {
        done??;
    }
    let elapsed = begun.elapsed();
    let usage = meter.stop();
    // Sessions report their statistics when they end.
    run.store.close().await;
    let count = (keys.len() * each) as f64;
    let usage = usage.usage(&run.monitor).await?;
    run.lifetimes(keys.len() * each).await?;
    run.finish().await?;
    Ok(Ceiling { rate: count / elapsed.as_secs_f64(), usage, count })
}

/// One block per nonce.
fn sign_and_mine(chain: &Chain, keys: &[Key], each: usize) -> Result<Vec<Signed>> {
    let mut signed: Vec<Signed> = keys.iter().map(|_| Vec::with_capacity(each)).collect();
    for nonce in 0..each as u64 {
        let round: Vec<(H256, Bytes)> = keys.iter().map(|key| key.sign(nonce)).collect();
        let raws: Vec<Bytes> = round.iter().map(|(_, raw)| raw.clone()).collect();
        let (block_number, block_hash) = chain.plant(&raws)?;
        for (index, (tx_hash, raw)) in round.into_iter().enumerate() {
            let receipt = Receipt {
                tx_hash,
                block_number,
                block_hash,
                transaction_index: index as u64,
                succeeded: true,
                gas_used: GAS.into(),
                effective_gas_price: None,
                contract_address: None,
            };
            signed[index].push((tx_hash, raw, receipt));
        }
    }
    Ok(signed)
}

/// In-memory state of a submitter.
struct Lane {
    lease: Lease,
    signed: Signed,
    next: Nonce,
    queue: VecDeque<TxId>,
    more_queued: bool,
    open: Option<Attempt>,
}

impl Lane {
    fn new(lease: Lease, signed: Signed) -> Lane {
        Lane { lease, signed, next: Nonce(0), queue: VecDeque::new(), more_queued: true, open: None }
    }

    fn is_done(&self) -> bool {
        self.open.is_none() && self.queue.is_empty() && !self.more_queued
    }

    /// The write of a lane with a window of one: confirms the previous intent and assigns a nonce to the next.
    fn write(&mut self) -> Result<FencedWrite> {
        let mut write = FencedWrite::new(&self.lease);
        if let Some(attempt) = self.open.take() {
            let nonce = usize::try_from(attempt.nonce().0)?;
            let (_, _, receipt) = self.signed.get(nonce).context("a nonce that was never signed")?;
            let done = change(attempt.tx_id(), TxState::InFlight, TxState::Confirmed, attempt.nonce());
            let (tx_hash, receipt) = (Some(attempt.tx_hash()), Some(receipt.clone()));
            write.change(Move { tx_hash, receipt, ..done });
        }
        let tx_id = self.queue.pop_front();
        let nonce = self.next;
        if let Some(tx_id) = tx_id {
            let (hash, raw, _) =
                self.signed.get(usize::try_from(nonce.0)?).context("more intents than signatures")?;
            let draft = draft(nonce, *hash, raw.clone());
            let given = change(tx_id, TxState::Queued, TxState::InFlight, nonce);
            let resubmit_in = Some(Duration::from_secs(60));
            let tx_hash = Some(*hash);
            write.change(Move { tx_hash, sends: 1, resubmit_in, ..given });
            write.record(tx_id, AttemptKind::Original, draft);
            self.next = nonce.next();
        }
        let cursor = |next| Cursor { next, open_from: nonce, ..Cursor::starting_at(Nonce(0), 1) };
        write.cursor(CursorWrite {
            before: (nonce.0 > 0).then(|| cursor(nonce)),
            after: Cursor { in_flight: tx_id.map(|tx_id| (tx_id, nonce)), ..cursor(self.next) },
        });
        Ok(write)
    }
}

fn change(tx_id: TxId, from: TxState, to: TxState, nonce: Nonce) -> Move {
    Move { nonce: Some(nonce), ..Move::new(tx_id, from, to) }
}

fn draft(nonce: Nonce, tx_hash: H256, raw: Bytes) -> SignedDraft {
    let fees = Fees::Eip1559 { max_fee_per_gas: U256::exp10(11), max_priority_fee_per_gas: U256::exp10(9) };
    let max_cost = fees.cap() * U256::from(GAS) + 1;
    SignedDraft { nonce, raw, tx_hash, gas_limit: GAS.into(), fees, max_cost }
}

/// One writer: writes its lanes in batches, round by round.
async fn write_all(store: Store, mut lanes: Vec<Lane>) -> Result<()> {
    while !lanes.is_empty() {
        for batch in lanes.chunks_mut(BATCH) {
            read_ahead(&store, batch).await?;
            let mut busy: Vec<&mut Lane> = batch.iter_mut().filter(|lane| !lane.is_done()).collect();
            let writes = busy.iter_mut().map(|lane| lane.write()).collect::<Result<Vec<_>>>()?;
            if writes.is_empty() {
                continue;
            }
            for (lane, applied) in busy.into_iter().zip(store.apply(&writes).await?) {
                match applied {
                    Applied::Yes(mut attempts) => lane.open = attempts.pop(),
                    Applied::LeaseLost => bail!("a lease was lost"),
                }
            }
        }
        lanes.retain(|lane| !lane.is_done());
    }
    Ok(())
}

async fn read_ahead(store: &Store, lanes: &mut [Lane]) -> Result<()> {
    let is_hungry = |lane: &Lane| lane.queue.is_empty() && lane.more_queued;
    let wanted: Vec<(SubmitterKey, u32)> =
        lanes.iter().filter(|lane| is_hungry(lane)).map(|lane| (lane.lease.key(), READ_AHEAD)).collect();
    if wanted.is_empty() {
        return Ok(());
    }
    let mut heads = store.queue_heads(&wanted).await?;
    for lane in lanes.iter_mut().filter(|lane| is_hungry(lane)) {
        let found = heads.remove(&lane.lease.key()).unwrap_or_default();
        lane.more_queued = found.len() >= READ_AHEAD as usize;
        lane.queue.extend(found.iter().map(|intent| intent.tx_id));
    }
    Ok(())
}
