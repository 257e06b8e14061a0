//! Mempool diagnosis of unmined intents: queries the nodes' mempools in a background task and stores the result for
//! operators. With `mempool.diagnose.act` it also triggers a resend, a gas bump or a key check earlier than
//! scheduled. It never ends an intent, and nothing waits for it.

use gapless_domain::mempool::{Diagnosis, Verdict, diagnose};
use gapless_domain::{H256, Nonce, TxId};
use gapless_telemetry::metrics as m;
use tokio::time::Instant;

use super::replace;
use crate::lane::{Lane, OpenTx};
use crate::watcher::LaneEvent;

/// Intents per inspection, oldest first: later nonces wait for them anyway.
const MAX_INTENTS: usize = 16;

/// Schedule of one lane's inspections.
#[derive(Debug, Default)]
pub(crate) struct Inspections {
    /// At most one per lane, even if a node hangs.
    running: bool,
    /// Start of the last inspection; before the first one, start of the waiting time.
    last: Option<Instant>,
}

/// An intent to look for.
struct Target {
    tx_id: TxId,
    nonce: Nonce,
    hashes: Vec<H256>,
}

/// Starts an inspection when it is due. The result arrives as `LaneEvent::Diagnosed`.
pub(crate) fn begin(lane: &mut Lane) {
    let Some(inspector) = lane.chain.inspector.clone() else { return };
    let now = Instant::now();
    // After loading its rows, a lane looks up receipts and resends first: one interval passes before the first
    // inspection.
    lane.inspections.last.get_or_insert(now);
    if next_time(lane).is_none_or(|at| at > now) {
        return;
    }
    let interval = lane.chain.config.mempool.diagnose.interval;
    let due =
        lane.rows.open.iter().filter(|tx| tx.is_pending() && tx.sending.unmined_since + interval <= now);
    let targets: Vec<Target> = due
        .take(MAX_INTENTS)
        .map(|tx| Target { tx_id: tx.intent.tx_id, nonce: tx.intent.nonce, hashes: tx.hashes() })
        .collect();
    lane.inspections = Inspections { running: true, last: Some(now) };
    let (sender, mailbox) = (lane.address(), lane.signals.mailbox.clone());
    tokio::spawn(async move {
        let hashes: Vec<H256> = targets.iter().flat_map(|one| one.hashes.iter().copied()).collect();
        let survey = inspector.inspect(sender, &hashes).await;
        let found = targets.iter().map(|one| (one.tx_id, diagnose(one.nonce, &one.hashes, &survey)));
        mailbox.post(LaneEvent::Diagnosed(found.collect()));
    });
}

/// When the next inspection is due; `None` while one is running, or if diagnosis is off.
pub(crate) fn next_time(lane: &Lane) -> Option<Instant> {
    lane.chain.inspector.as_ref().filter(|_| !lane.inspections.running)?;
    let since =
        lane.rows.open.iter().filter(|tx| tx.is_pending()).map(|tx| tx.sending.unmined_since).min()?;
    Some(since.max(lane.inspections.last.unwrap_or(since)) + lane.chain.config.mempool.diagnose.interval)
}

/// Applies the result of an inspection to the intents that are still unmined.
pub(crate) fn apply(lane: &mut Lane, diagnoses: Vec<(TxId, Diagnosis)>) {
    lane.inspections.running = false;
    for (tx_id, diagnosis) in diagnoses {
        metrics::counter!(m::MEMPOOL_DIAGNOSES_TOTAL, "verdict" => diagnosis.verdict.as_str()).increment(1);
        let is_target = |tx: &OpenTx| tx.is_unmined() && tx.intent.tx_id == tx_id;
        let Some(index) = lane.rows.open.iter().position(is_target) else { continue };
        act(lane, index, diagnosis.verdict);
        let tx = &mut lane.rows.open[index];
        if tx.diagnosed(diagnosis.clone()) {
            tracing::info!(tx.id = %tx_id, tx.hash = ?tx.intent.tx_hash, verdict = diagnosis.verdict.as_str(),
                reason = diagnosis.explanation(), "mempool diagnosis");
        }
    }
}

/// Acts on a diagnosis, if enabled. Nodes may be wrong or malicious: each action is harmless if the verdict is wrong.
fn act(lane: &mut Lane, index: usize, verdict: Verdict) {
    if !lane.chain.config.mempool.diagnose.act || !lane.rows.open[index].is_pending() {
        return;
    }
    let action = match verdict {
        // The same bytes cannot be mined before the base fee falls, and pools drop them: a resend would not help.
        Verdict::InMempool | Verdict::ProbablyLost
            if may_raise(lane, index) && is_below_base_fee(lane, index) =>
        {
            lane.rows.open[index].replacing.speed_up = true;
            "bump"
        }
        // Resends the same bytes before the timer does.
        Verdict::ProbablyLost => {
            lane.rows.open[index].send_all_now(Instant::now());
            "resend"
        }
        // Only triggers the key check; transaction counts and blocks decide. Shared keys are checked regularly anyway.
        Verdict::ProbablyReplaced if !lane.key.is_doubted() => {
            lane.key.reset_check();
            "look_up"
        }
        _ => return,
    };
    metrics::counter!(m::MEMPOOL_ACTIONS_TOTAL, "action" => action).increment(1);
    tracing::info!(tx.id = %lane.rows.open[index].intent.tx_id, verdict = verdict.as_str(), action,
        "mempool diagnosis acted on");
}

fn may_raise(lane: &Lane, index: usize) -> bool {
    lane.may_replace() && lane.rows.open[index].intent.ending.is_none() && replace::may_bump(lane, index)
}

/// Whether the highest fee cap offered so far is below the base fee of the head.
fn is_below_base_fee(lane: &Lane, index: usize) -> bool {
    let tx = &lane.rows.open[index];
    let offered = tx.intent.attempts.iter().map(|attempt| attempt.fees().cap()).max();
    let base_fee = lane.chain.watcher.pricing_head().base_fee;
    tx.replacing.underpriced || offered.zip(base_fee).is_some_and(|(offered, base_fee)| offered < base_fee)
}
