//! New attempts for an assigned nonce: a replacement of the intent at a higher price, or a placeholder that only
//! consumes the nonce. Committed before they are sent, like any attempt; whichever is mined first wins.

use std::time::Duration;

use gapless_chain::fees::scale;
use gapless_chain::{CallOutcome, SubmitClass};
use gapless_domain::bump::{BumpFacts, fitted, replacement_fees};
use gapless_domain::{Ending, ErrorCode, Fees, Payload, TxError, TxState, U256, UnsignedTx};
use gapless_store::{AskedBy, Attempt, AttemptKind};
use tokio::time::Instant;

use super::policy;
use crate::lane::{Lane, OpenTx, StepError};

/// Pause after the node or the signer failed to provide a new attempt.
const RETRY: Duration = Duration::from_secs(1);
/// Gas of a transfer to the own address, if the node cannot estimate it.
const TRANSFER_GAS: u64 = 21_000;

/// Makes the required placeholders, and bumps the price of the oldest nonce when due.
pub(crate) async fn advance(lane: &mut Lane) -> Result<(), StepError> {
    if !lane.may_replace() {
        return Ok(());
    }
    let now = Instant::now();
    apply_deadlines(lane, now);
    let due: Vec<usize> = (0..lane.rows.open.len()).filter(|index| is_due(lane, *index, now)).collect();
    for index in &due {
        match make(lane, *index).await {
            // In the commit of the attempt: the request is answered only once the attempt is persisted.
            Ok(Made::Attempt) => {
                finish(lane, *index, &Ok("an attempt with a higher price will be sent".to_owned()))
            }
            Ok(Made::Nothing(error)) => {
                let tx = &mut lane.rows.open[*index];
                tracing::warn!(tx.id = %tx.intent.tx_id, code = error.code.as_str(), reason = error.message,
                    "no new attempt made; the current one stays");
                keep_current_attempt(tx);
                tx.cannot_replace(error.clone());
                finish(lane, *index, &Err(error.message));
            }
            Err(reason) => {
                tracing::warn!(tx.id = %lane.rows.open[*index].intent.tx_id, reason,
                    "new attempt could not be made yet; retrying");
                lane.rows.open[*index].replacing.replace_at = Some(Instant::now() + RETRY);
            }
        }
    }
    for index in 0..lane.rows.open.len() {
        if wanted_from(lane, index).is_none() {
            lane.rows.open[index].replacing.unaffordable = None;
        }
    }
    if due.iter().any(|index| lane.rows.open[*index].draft().is_some()) || lane.pending.finishes_requests() {
        lane.flush().await?;
    }
    Ok(())
}

/// Result of an attempt to make new bytes.
enum Made {
    /// Signed; the next commit records them.
    Attempt,
    /// None, with the reason.
    Nothing(TxError),
}

/// Finishes the requests that wait for a new attempt of an intent.
fn finish(lane: &mut Lane, index: usize, outcome: &Result<String, String>) {
    for request_no in std::mem::take(&mut lane.rows.open[index].replacing.speed_up_requests) {
        let asked_by = AskedBy::TxRequest(request_no);
        lane.pending.finish_request(asked_by, outcome.clone());
    }
}

/// Refuses speed-up requests of intents that are no longer unmined, in the commit of that state change.
pub(crate) fn refuse_obsolete_requests(lane: &mut Lane) {
    for index in 0..lane.rows.open.len() {
        let why = match lane.rows.open[index].state() {
            _ if is_unmined(&lane.rows.open[index]) => continue,
            TxState::Protect | TxState::Queued => "its nonce was consumed by an external transaction",
            _ => "already mined",
        };
        finish(lane, index, &Err(why.to_owned()));
    }
}

fn is_unmined(tx: &OpenTx) -> bool {
    matches!(tx.state(), TxState::InFlight | TxState::Submitted | TxState::Stuck)
}

fn is_due(lane: &Lane, index: usize, now: Instant) -> bool {
    let tx = &lane.rows.open[index];
    is_unmined(tx)
        && tx.attempt().is_some()
        && wanted_from(lane, index).is_some_and(|from| from <= now)
        && tx.replacing.replace_at.is_none_or(|at| at <= now)
}

/// From when on this intent needs a new attempt; `None`: it does not.
fn wanted_from(lane: &Lane, index: usize) -> Option<Instant> {
    let (tx, bump) = (&lane.rows.open[index], &lane.chain.config.gasbump);
    if tx.replacing.speed_up || (tx.intent.ending.is_some() && !tx.is_placeholder()) {
        return Some(tx.replacing.last_attempt_at);
    }
    let sendable = tx.sending.is_accepted || tx.replacing.underpriced;
    (sendable && may_bump(lane, index)).then(|| tx.replacing.last_attempt_at + bump.min_interval)
}

/// Whether gas bump may raise the price of this nonce, ignoring the time since the last attempt.
pub(super) fn may_bump(lane: &Lane, index: usize) -> bool {
    let bump = &lane.chain.config.gasbump;
    // A later nonce cannot be mined before the oldest one.
    let oldest = lane.rows.open.iter().position(is_unmined) == Some(index);
    bump.enabled && oldest && replacements(&lane.rows.open[index]) < bump.max_attempts as usize
}

/// Attempts beyond the first.
fn replacements(tx: &OpenTx) -> usize {
    tx.intent.attempts.len().saturating_sub(1 + tx.unsent_placeholders())
}

/// When this step is due again.
pub(crate) fn next_time(lane: &Lane) -> Option<Instant> {
    if !lane.may_replace() {
        return None;
    }
    let wanted =
        (0..lane.rows.open.len()).filter(|index| is_unmined(&lane.rows.open[*index])).filter_map(|index| {
            let from = wanted_from(lane, index)?;
            Some(lane.rows.open[index].replacing.replace_at.map_or(from, |at| at.max(from)))
        });
    let deadlines = lane.rows.open.iter().filter(|tx| is_unmined(tx) && tx.intent.ending.is_none());
    wanted.chain(deadlines.filter_map(|tx| tx.intent.expires)).min()
}

/// An intent whose deadline passes while it is unmined is given up like a cancelled one.
fn apply_deadlines(lane: &mut Lane, now: Instant) {
    for tx in lane.rows.open.iter_mut().filter(|tx| is_unmined(tx)) {
        if tx.intent.expires.is_some_and(|at| at <= now) {
            let reason = "deadline passed before it was mined".to_owned();
            tx.give_up(Ending { state: TxState::Cancelled, code: ErrorCode::DeadlinePassed, reason });
        }
    }
}

/// The node rejected these bytes permanently. If they are the first attempt and no node is known to have accepted
/// them, the intent fails and a placeholder consumes its nonce. A rejected placeholder is made again.
pub(crate) fn refused_for_good(lane: &mut Lane, index: usize, why: &str) {
    if !lane.may_replace() {
        return;
    }
    let tx = &mut lane.rows.open[index];
    if !tx.sending.is_accepted && tx.has_first_bytes_only() {
        let reason = format!("rejected: {why}");
        tx.give_up(Ending { state: TxState::Failed, code: ErrorCode::Unmineable, reason });
    }
    outbid(lane, index);
}

/// The node requires a higher price. A placeholder gets one; an intent only if gas bump is enabled.
pub(crate) fn underpriced(lane: &mut Lane, index: usize) {
    lane.rows.open[index].replacing.underpriced = true;
    outbid(lane, index);
}

/// The mempool refused this placeholder, or has a better-priced transaction. It must win, so it is made again at a
/// higher price. The number is limited, or a node that always refuses could raise the price without end.
pub(crate) fn outbid(lane: &mut Lane, index: usize) {
    let most = lane.chain.config.gasbump.max_attempts as usize;
    let tx = &mut lane.rows.open[index];
    let placeholders =
        tx.intent.attempts.iter().filter(|attempt| attempt.kind() == AttemptKind::Placeholder).count();
    let is_newest = tx.attempt().is_some_and(|attempt| attempt.kind() == AttemptKind::Placeholder);
    if !is_newest {
        return;
    }
    if placeholders <= most {
        tx.replacing.speed_up = true;
        tx.replacing.replace_at =
            Some(Instant::now() + RETRY * u32::try_from(placeholders).unwrap_or(u32::MAX));
    } else {
        tracing::error!(tx.id = %tx.intent.tx_id, placeholders, "no placeholder was accepted; operator action required");
    }
}

/// Signs a new attempt and adds it to the intent. Nothing is sent before the next commit.
async fn make(lane: &mut Lane, index: usize) -> Result<Made, String> {
    let tx = &lane.rows.open[index];
    let (kind, payload) = match tx.intent.ending {
        Some(_) => (AttemptKind::Placeholder, placeholder(lane, tx)),
        None => (AttemptKind::Replacement, tx.intent.payload.clone()),
    };
    let forbidden = match kind {
        AttemptKind::Replacement => policy::forbids_replacement(lane, index),
        _ => None,
    };
    if let Some(error) = forbidden {
        return Ok(Made::Nothing(error));
    }
    if let Some(error) = above_node_fee_cap(&lane.rows.open[index], kind) {
        return Ok(Made::Nothing(error));
    }
    let Some(fees) = price(lane, index, &payload, kind).await? else {
        let message = "the fee limits allow no higher price";
        return Ok(Made::Nothing(TxError::new(ErrorCode::FeeCapExceeded, message)));
    };
    let tx = &lane.rows.open[index];
    let mut unsigned = UnsignedTx {
        chain_id: lane.chain.config.id,
        from: lane.address(),
        nonce: tx.intent.nonce,
        gas_limit: gas_limit(lane, index, &payload, kind).await?,
        fees,
        payload,
    };
    if let Some(error) = cannot_pay(lane, &unsigned).await? {
        return Ok(Made::Nothing(error));
    }
    let mut draft = lane.signing.signer.sign(&unsigned).await.map_err(|error| error.to_string())?;
    if lane.rows.open[index].hashes().contains(&draft.tx_hash) {
        // Identical to the unsent placeholder of the reservation. One more wei makes it a different attempt.
        unsigned.fees = fees.one_wei_more();
        draft = lane.signing.signer.sign(&unsigned).await.map_err(|error| error.to_string())?;
    }
    let interval = lane.chain.config.resubmit.interval;
    tracing::info!(tx.id = %lane.rows.open[index].intent.tx_id, tx.hash = ?draft.tx_hash, kind = kind.as_str(),
        fees = ?fees, "new attempt for the same nonce");
    lane.rows.open[index].redraft(kind, draft, interval, Instant::now());
    Ok(Made::Attempt)
}

/// The node refused the newest attempt because of its own fee cap: a higher price would be refused as well. A first
/// placeholder needs less gas than the intent and may pass.
fn above_node_fee_cap(tx: &OpenTx, kind: AttemptKind) -> Option<TxError> {
    let newest = tx.attempt()?;
    let refused = newest.last_outcome() == Some(SubmitClass::FeeCapExceeded.as_str());
    let comparable = kind == AttemptKind::Replacement || newest.kind() == AttemptKind::Placeholder;
    (refused && comparable).then(|| {
        TxError::new(
            ErrorCode::FeeCapExceeded,
            "the node refused the last price: above the node's own fee cap",
        )
    })
}

/// Mempools refuse an attempt without sufficient funds, and it would displace one that can be paid. The maximum cost
/// of earlier nonces is subtracted, because they are mined first; later nonces do not count.
async fn cannot_pay(lane: &Lane, unsigned: &UnsignedTx) -> Result<Option<TxError>, String> {
    let Some(cost) = unsigned.max_cost() else {
        return Ok(Some(TxError::new(
            ErrorCode::InsufficientFunds,
            "value and fees together would exceed 256 bits",
        )));
    };
    let balance = lane.chain.connector.balance(lane.address()).await.map_err(|error| error.to_string())?;
    let earlier = lane.rows.open.iter().filter(|tx| is_unmined(tx) && tx.intent.nonce < unsigned.nonce);
    let owed = earlier.fold(U256::zero(), |sum, tx| sum.saturating_add(tx.intent.max_cost));
    let left = balance.saturating_sub(owed);
    Ok((left < cost).then(|| {
        let message =
            format!("a higher price needs up to {cost} wei, {left} wei available after earlier nonces");
        TxError::new(ErrorCode::InsufficientFunds, message)
    }))
}

/// A limit is reached: the current attempt is resent by its timer. The intent does not fail.
fn keep_current_attempt(tx: &mut OpenTx) {
    tx.replacing.speed_up = false;
    tx.replacing.last_attempt_at = Instant::now();
    tx.replacing.replace_at = Some(Instant::now() + RETRY);
}

/// A transfer of zero from the submitter to itself, with the intent's transaction type.
fn placeholder(lane: &Lane, tx: &OpenTx) -> Payload {
    Payload { kind: tx.intent.payload.kind, ..Payload::transfer(lane.address(), U256::zero()) }
}

/// A price above every earlier attempt, and at least the market price. `None`: not possible within the limits.
async fn price(
    lane: &Lane,
    index: usize,
    payload: &Payload,
    kind: AttemptKind,
) -> Result<Option<Fees>, String> {
    let tx = &lane.rows.open[index];
    let market_payload = Payload { max_fee_per_gas: None, max_priority_fee_per_gas: None, ..payload.clone() };
    let head = lane.chain.watcher.pricing_head();
    let market = lane.chain.fees.quote(lane.chain.connector.as_ref(), head, &market_payload).await;
    let market = market.map_err(|error| error.to_string())?;
    // The client's cap applies to its own transaction only: a placeholder has to win. The operator's limit for the
    // chain applies to both.
    let own = tx.intent.payload.max_fee_per_gas.filter(|_| kind != AttemptKind::Placeholder);
    let limit = own.into_iter().chain(lane.chain.config.fees.max_fee_per_gas).min();
    // The unsent placeholder of a reservation is in no mempool and need not be outbid.
    let skipped = tx.unsent_placeholders().min(tx.intent.attempts.len().saturating_sub(1));
    let previous = tx.intent.attempts.iter().skip(skipped).map(Attempt::fees).max_by_key(Fees::cap);
    let fees = previous.and_then(|previous| {
        let replacements = u32::try_from(replacements(tx)).unwrap_or(u32::MAX);
        let facts = BumpFacts { previous, market, replacements, age: tx.prepared_at.elapsed(), limit };
        lane.chain.gas_bump.fees(&facts).and_then(|wanted| fitted(wanted, &facts))
    });
    if fees.is_some() || kind != AttemptKind::Placeholder {
        return Ok(fees);
    }
    // The nonce must be consumed, or the sequence stops. Uses the smallest increase that mempools accept, above the
    // limit.
    tracing::warn!(tx.id = %tx.intent.tx_id, limit = ?limit, "placeholder exceeds fees.max_fee_per_gas");
    Ok(previous.and_then(|previous| replacement_fees(previous, previous, 1.1, None)))
}

async fn gas_limit(lane: &Lane, index: usize, payload: &Payload, kind: AttemptKind) -> Result<U256, String> {
    if kind == AttemptKind::Replacement {
        let signed = lane.rows.open[index].gas_limit();
        return signed.ok_or_else(|| "the gas limit of the earlier attempt is unknown".to_owned());
    }
    match lane.chain.connector.estimate_gas(lane.address(), payload).await {
        Ok(CallOutcome::Ok(gas)) if gas == U256::from(TRANSFER_GAS) => Ok(gas),
        Ok(CallOutcome::Ok(gas)) => Ok(scale(gas, lane.chain.config.fees.gas_limit_multiplier)),
        Ok(_) => Ok(TRANSFER_GAS.into()),
        Err(error) => Err(error.to_string()),
    }
}
