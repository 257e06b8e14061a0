//! Where what stays unmined seems to be: the nodes' pools are looked into beside the lane's work, and what they show is
//! kept for people. Where `mempool.diagnose.act` is on it brings forward what would be done later anyway. It never ends anything,
//! and nothing waits for it.

use gapless::domain::mempool::{Diagnosis, Verdict, diagnose};
use gapless::domain::{H256, Nonce, TxId};
use gapless::observe::metrics as m;
use tokio::time::Instant;

use super::replace;
use crate::lane::{Lane, OpenTx};
use crate::watcher::LaneEvent;

/// Intents in one look, the oldest first: what is behind them waits for them anyway.
const MOST: usize = 16;

/// Looks of one lane.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// One at a time: a node that hangs gathers no more than one for each lane.
    under_way: bool,
    /// When the last one began; before the first, when the lane began to count.
    last: Option<Instant>,
}

/// An intent that is looked for.
struct Sought {
    tx_id: TxId,
    nonce: Nonce,
    hashes: Vec<H256>,
}

/// Starts a look when it is time. The answer comes by mail.
pub(crate) fn begin(lane: &mut Lane) {
    let Some(inspector) = lane.chain.inspector.clone() else { return };
    let now = Instant::now();
    // What a lane finds in its rows is about to be looked up and sent again: the picture settles first.
    lane.looks.last.get_or_insert(now);
    if next_time(lane).is_none_or(|at| at > now) {
        return;
    }
    let interval = lane.chain.config.mempool.diagnose.interval;
    let due = lane.open.iter().filter(|tx| tx.is_on_its_way() && tx.unmined_since + interval <= now);
    let sought: Vec<Sought> = due
        .take(MOST)
        .map(|tx| Sought { tx_id: tx.intent.tx_id, nonce: tx.intent.nonce, hashes: tx.hashes() })
        .collect();
    lane.looks = Looks { under_way: true, last: Some(now) };
    let (sender, mailbox) = (lane.address(), lane.mailbox.clone());
    tokio::spawn(async move {
        let hashes: Vec<H256> = sought.iter().flat_map(|one| one.hashes.iter().copied()).collect();
        let survey = inspector.inspect(sender, &hashes).await;
        let found = sought.iter().map(|one| (one.tx_id, diagnose(one.nonce, &one.hashes, &survey)));
        mailbox.post(LaneEvent::Diagnosed(found.collect()));
    });
}

/// When the next look is due; `None` while one is under way, or where there are none.
pub(crate) fn next_time(lane: &Lane) -> Option<Instant> {
    lane.chain.inspector.as_ref().filter(|_| !lane.looks.under_way)?;
    let since = lane.open.iter().filter(|tx| tx.is_on_its_way()).map(|tx| tx.unmined_since).min()?;
    Some(since.max(lane.looks.last.unwrap_or(since)) + lane.chain.config.mempool.diagnose.interval)
}

/// What a look has shown of those that are still unmined.
pub(crate) fn found(lane: &mut Lane, found: Vec<(TxId, Diagnosis)>) {
    lane.looks.under_way = false;
    for (tx_id, diagnosis) in found {
        metrics::counter!(m::MEMPOOL_DIAGNOSES_TOTAL, "verdict" => diagnosis.verdict.as_str()).increment(1);
        let sought = |tx: &OpenTx| tx.is_unmined() && tx.intent.tx_id == tx_id;
        let Some(index) = lane.open.iter().position(sought) else { continue };
        act(lane, index, diagnosis.verdict);
        let tx = &mut lane.open[index];
        if tx.diagnosed(diagnosis.clone()) {
            tracing::info!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
                tx.id = %tx_id, tx.hash = ?tx.intent.tx_hash, verdict = diagnosis.verdict.as_str(),
                reason = diagnosis.explanation(), "mempool diagnosis");
        }
    }
}

/// What the picture brings forward, where that is wanted. Nodes may be blind or lie: each of these is harmless if the verdict is wrong.
fn act(lane: &mut Lane, index: usize, verdict: Verdict) {
    if !lane.chain.config.mempool.diagnose.act || !lane.open[index].is_on_its_way() {
        return;
    }
    let action = match verdict {
        // The same bytes cannot be mined before the base fee falls, and pools drop them: sending them again helps nobody.
        Verdict::InMempool | Verdict::ProbablyLost
            if may_raise(lane, index) && is_below_base_fee(lane, index) =>
        {
            lane.open[index].speed_up = true;
            "bump"
        }
        // The same bytes again, before the timer.
        Verdict::ProbablyLost => {
            lane.open[index].send_all_now(Instant::now());
            "resend"
        }
        // The chain's count and its blocks decide, as always; they are only asked now. A shared key is watched anyway.
        Verdict::ProbablyReplaced if !lane.key.is_doubted() => {
            lane.key.look_anew();
            "look_up"
        }
        _ => return,
    };
    metrics::counter!(m::MEMPOOL_ACTIONS_TOTAL, "action" => action).increment(1);
    tracing::info!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
        fencing_token = lane.lease.token().0, tx.id = %lane.open[index].intent.tx_id, verdict = verdict.as_str(), action,
        "mempool diagnosis acted on");
}

fn may_raise(lane: &Lane, index: usize) -> bool {
    lane.may_replace() && lane.open[index].intent.ending.is_none() && replace::may_bump(lane, index)
}

/// Whether the highest price that was offered is below the base fee of the head.
fn is_below_base_fee(lane: &Lane, index: usize) -> bool {
    let tx = &lane.open[index];
    let offered = tx.intent.attempts.iter().map(|attempt| attempt.fees().cap()).max();
    let base_fee = lane.chain.watcher.pricing_head().base_fee;
    tx.underpriced || offered.zip(base_fee).is_some_and(|(offered, base_fee)| offered < base_fee)
}
