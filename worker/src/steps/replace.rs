//! Other bytes for a nonce that is given: the same intent at a higher price, or a placeholder that consumes the nonce
//! and does nothing. Committed like any attempt before they are sent; whichever attempt is mined decides.

use std::time::Duration;

use gapless::chain::fees::scale;
use gapless::chain::{CallOutcome, SubmitClass};
use gapless::domain::bump::{BumpFacts, fitted, replacement_fees};
use gapless::domain::{Ending, ErrorCode, Fees, Payload, TxError, TxState, U256, UnsignedTx};
use gapless::store::{AskedBy, Attempt, AttemptKind, DoneAction};
use tokio::time::Instant;

use super::policy;
use crate::lane::{Lane, OpenTx, StepError};

/// Between two tries to make other bytes when the node or the signer does not help.
const RETRY: Duration = Duration::from_secs(1);
/// Gas of a transfer to oneself, where the node cannot estimate it.
const TRANSFER_GAS: u64 = 21_000;

/// Makes the placeholders that are needed, and raises the price of the oldest nonce when it is time.
pub(crate) async fn advance(lane: &mut Lane) -> Result<(), StepError> {
    if !lane.may_replace() {
        return Ok(());
    }
    let now = Instant::now();
    pass_deadlines(lane, now);
    let due: Vec<usize> = (0..lane.open.len()).filter(|index| is_due(lane, *index, now)).collect();
    for index in &due {
        match make(lane, *index).await {
            // In the commit of the attempt: who asked is answered when it is on disk, and not before.
            Ok(Made::Bytes) => {
                finish(lane, *index, &Ok("an attempt with a higher price goes out".to_owned()))
            }
            Ok(Made::Nothing(error)) => {
                let tx = &mut lane.open[*index];
                tracing::warn!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
                    tx.id = %tx.intent.tx_id, code = error.code.as_str(), reason = error.message,
                    "no other attempt is made; the old bytes go on");
                stay(tx);
                tx.cannot_replace(error.clone());
                finish(lane, *index, &Err(error.message));
            }
            Err(reason) => {
                tracing::warn!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
                    tx.id = %lane.open[*index].intent.tx_id, reason, "no other attempt could be made yet");
                lane.open[*index].replace_at = Some(Instant::now() + RETRY);
            }
        }
    }
    for index in 0..lane.open.len() {
        if wanted_from(lane, index).is_none() {
            lane.open[index].unaffordable = None;
        }
    }
    if due.iter().any(|index| lane.open[*index].draft().is_some()) || !lane.done_actions.is_empty() {
        lane.flush().await?;
    }
    Ok(())
}

/// What became of a try to make other bytes.
enum Made {
    /// They are signed; the next commit records them.
    Bytes,
    /// None, and why.
    Nothing(TxError),
}

/// Finishes the requests that wait for other bytes of an intent.
fn finish(lane: &mut Lane, index: usize, outcome: &Result<String, String>) {
    for request_no in std::mem::take(&mut lane.open[index].asked) {
        let asked_by = AskedBy::TxRequest(request_no);
        lane.done_actions.push(DoneAction { asked_by, outcome: outcome.clone() });
    }
}

/// Requests for other bytes of intents that need none any more: refused in the commit that says so.
pub(crate) fn refuse_what_is_over(lane: &mut Lane) {
    for index in 0..lane.open.len() {
        let why = match lane.open[index].state() {
            _ if is_unmined(&lane.open[index]) => continue,
            TxState::Protect | TxState::Queued => "its nonce was taken by a transaction from outside",
            _ => "it was mined first",
        };
        finish(lane, index, &Err(why.to_owned()));
    }
}

fn is_unmined(tx: &OpenTx) -> bool {
    matches!(tx.state(), TxState::InFlight | TxState::Submitted | TxState::Stuck)
}

fn is_due(lane: &Lane, index: usize, now: Instant) -> bool {
    let tx = &lane.open[index];
    is_unmined(tx)
        && tx.attempt().is_some()
        && wanted_from(lane, index).is_some_and(|from| from <= now)
        && tx.replace_at.is_none_or(|at| at <= now)
}

/// From when on this intent wants other bytes; `None`: not at all.
fn wanted_from(lane: &Lane, index: usize) -> Option<Instant> {
    let (tx, bump) = (&lane.open[index], &lane.chain.config.gasbump);
    if tx.speed_up || (tx.intent.ending.is_some() && !tx.is_placeholder()) {
        return Some(tx.last_attempt_at);
    }
    let sendable = tx.is_taken || tx.underpriced;
    (sendable && may_bump(lane, index)).then(|| tx.last_attempt_at + bump.min_interval)
}

/// Whether gas bump may raise the price of this nonce, the time since the last attempt aside.
pub(super) fn may_bump(lane: &Lane, index: usize) -> bool {
    let bump = &lane.chain.config.gasbump;
    // Raising a later nonce helps nobody while the oldest waits.
    let oldest = lane.open.iter().position(is_unmined) == Some(index);
    bump.enabled && oldest && replacements(&lane.open[index]) < bump.max_attempts as usize
}

/// Attempts beyond the first.
fn replacements(tx: &OpenTx) -> usize {
    tx.intent.attempts.len().saturating_sub(1 + tx.kept_back())
}

/// When to look again.
pub(crate) fn next_time(lane: &Lane) -> Option<Instant> {
    if !lane.may_replace() {
        return None;
    }
    let wanted = (0..lane.open.len()).filter(|index| is_unmined(&lane.open[*index])).filter_map(|index| {
        let from = wanted_from(lane, index)?;
        Some(lane.open[index].replace_at.map_or(from, |at| at.max(from)))
    });
    let deadlines = lane.open.iter().filter(|tx| is_unmined(tx) && tx.intent.ending.is_none());
    wanted.chain(deadlines.filter_map(|tx| tx.intent.expires)).min()
}

/// An intent whose deadline passes while it is unmined is given up like a cancelled one.
fn pass_deadlines(lane: &mut Lane, now: Instant) {
    for tx in lane.open.iter_mut().filter(|tx| is_unmined(tx)) {
        if tx.intent.expires.is_some_and(|at| at <= now) {
            let reason = "its deadline passed before it was mined".to_owned();
            tx.give_up(Ending { state: TxState::Cancelled, code: ErrorCode::DeadlinePassed, reason });
        }
    }
}

/// No node will ever take these bytes. If they are the first, and no node is known to have them, the intent fails and
/// a placeholder consumes its nonce. A placeholder that is refused so is made anew.
pub(crate) fn refused_for_good(lane: &mut Lane, index: usize, why: &str) {
    if !lane.may_replace() {
        return;
    }
    let tx = &mut lane.open[index];
    if !tx.is_taken && tx.has_first_bytes_only() {
        let reason = format!("rejected: {why}");
        tx.give_up(Ending { state: TxState::Failed, code: ErrorCode::Unmineable, reason });
    }
    outbid(lane, index);
}

/// The node wants a higher price. A placeholder gets one; an intent, where bumping is on.
pub(crate) fn underpriced(lane: &mut Lane, index: usize) {
    lane.open[index].underpriced = true;
    outbid(lane, index);
}

/// The pool does not want this placeholder, or holds something better. It must win, so it is made again; but not for
/// ever, or a node that always says so would drive the price up without end.
pub(crate) fn outbid(lane: &mut Lane, index: usize) {
    let most = lane.chain.config.gasbump.max_attempts as usize;
    let tx = &mut lane.open[index];
    let placeholders =
        tx.intent.attempts.iter().filter(|attempt| attempt.kind() == AttemptKind::Placeholder).count();
    let is_newest = tx.attempt().is_some_and(|attempt| attempt.kind() == AttemptKind::Placeholder);
    if !is_newest {
        return;
    }
    if placeholders <= most {
        tx.speed_up = true;
        tx.replace_at = Some(Instant::now() + RETRY * u32::try_from(placeholders).unwrap_or(u32::MAX));
    } else {
        tracing::error!(tx.id = %tx.intent.tx_id, placeholders, "no placeholder is taken; a person has to look at it");
    }
}

/// Signs other bytes and hands them to the intent. Nothing is sent before the next commit.
async fn make(lane: &mut Lane, index: usize) -> Result<Made, String> {
    let tx = &lane.open[index];
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
    if let Some(error) = above_the_nodes_cap(&lane.open[index], kind) {
        return Ok(Made::Nothing(error));
    }
    let Some(fees) = price(lane, index, &payload, kind).await? else {
        let words = "the limits of its price leave no room for a higher one";
        return Ok(Made::Nothing(TxError::new(ErrorCode::FeeCapExceeded, words)));
    };
    let tx = &lane.open[index];
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
    let mut draft = lane.signer.sign(&unsigned).await.map_err(|error| error.to_string())?;
    if lane.open[index].hashes().contains(&draft.tx_hash) {
        // The very bytes of the placeholder that was kept back. One wei makes them an attempt of their own.
        unsigned.fees = fees.one_wei_more();
        draft = lane.signer.sign(&unsigned).await.map_err(|error| error.to_string())?;
    }
    let interval = lane.chain.config.resubmit.interval;
    tracing::info!(chain.id = lane.chain.config.id.0, submitter = %lane.lease.key().address_text(),
        tx.id = %lane.open[index].intent.tx_id, tx.hash = ?draft.tx_hash, kind = kind.as_str(), fees = ?fees,
        "other bytes for the same nonce");
    lane.open[index].redraft(kind, draft, interval, Instant::now());
    Ok(Made::Bytes)
}

/// The node refused the newest attempt because its fee is above a limit of the node's own: a higher price would be refused as
/// well. A first placeholder needs less gas than the intent and may pass.
fn above_the_nodes_cap(tx: &OpenTx, kind: AttemptKind) -> Option<TxError> {
    let newest = tx.attempt()?;
    let refused = newest.last_outcome() == Some(SubmitClass::FeeCapExceeded.as_str());
    let comparable = kind == AttemptKind::Replacement || newest.kind() == AttemptKind::Placeholder;
    (refused && comparable).then(|| {
        TxError::new(
            ErrorCode::FeeCapExceeded,
            "the node refuses its last price: above the node's own fee cap",
        )
    })
}

/// Bytes that cannot be paid are refused by every pool, and would only take the place of those that can. What earlier nonces may
/// cost is gone when this one is mined; what later ones cost is not.
async fn cannot_pay(lane: &Lane, unsigned: &UnsignedTx) -> Result<Option<TxError>, String> {
    let Some(cost) = unsigned.max_cost() else {
        return Ok(Some(TxError::new(
            ErrorCode::InsufficientFunds,
            "value and fees together would exceed 256 bits",
        )));
    };
    let balance = lane.chain.connector.balance(lane.address()).await.map_err(|error| error.to_string())?;
    let earlier = lane.open.iter().filter(|tx| is_unmined(tx) && tx.intent.nonce < unsigned.nonce);
    let owed = earlier.fold(U256::zero(), |sum, tx| sum.saturating_add(tx.intent.max_cost));
    let left = balance.saturating_sub(owed);
    Ok((left < cost).then(|| {
        let words =
            format!("a higher price needs up to {cost} wei, and {left} are left beyond earlier nonces");
        TxError::new(ErrorCode::InsufficientFunds, words)
    }))
}

/// At a limit: the old attempt goes out again by its timer, and never fails for that.
fn stay(tx: &mut OpenTx) {
    tx.speed_up = false;
    tx.last_attempt_at = Instant::now();
    tx.replace_at = Some(Instant::now() + RETRY);
}

/// Nothing, from the submitter to itself, in the kind of transaction the intent had.
fn placeholder(lane: &Lane, tx: &OpenTx) -> Payload {
    Payload { kind: tx.intent.payload.kind, ..Payload::transfer(lane.address(), U256::zero()) }
}

/// Above every earlier attempt, and at least what the market asks. `None`: a limit leaves no room.
async fn price(
    lane: &Lane,
    index: usize,
    payload: &Payload,
    kind: AttemptKind,
) -> Result<Option<Fees>, String> {
    let tx = &lane.open[index];
    let market_payload = Payload { max_fee_per_gas: None, max_priority_fee_per_gas: None, ..payload.clone() };
    let head = lane.chain.watcher.pricing_head();
    let market = lane.chain.fees.quote(lane.chain.connector.as_ref(), head, &market_payload).await;
    let market = market.map_err(|error| error.to_string())?;
    // A client's cap binds its own transaction; a placeholder has to win whatever that cap was. The operator's limit for
    // the chain binds both.
    let own = tx.intent.payload.max_fee_per_gas.filter(|_| kind != AttemptKind::Placeholder);
    let limit = own.into_iter().chain(lane.chain.config.fees.max_fee_per_gas).min();
    // A placeholder that was kept back while others followed is in no pool: there is nothing to outbid.
    let skipped = tx.kept_back().min(tx.intent.attempts.len().saturating_sub(1));
    let previous = tx.intent.attempts.iter().skip(skipped).map(Attempt::fees).max_by_key(Fees::cap);
    let fees = previous.and_then(|previous| {
        let replacements = u32::try_from(replacements(tx)).unwrap_or(u32::MAX);
        let facts = BumpFacts { previous, market, replacements, age: tx.prepared_at.elapsed(), limit };
        lane.chain.gas_bump.fees(&facts).and_then(|wanted| fitted(wanted, &facts))
    });
    if fees.is_some() || kind != AttemptKind::Placeholder {
        return Ok(fees);
    }
    // The nonce has to be consumed, or the sequence stands still: the least a pool takes, beyond the limit.
    tracing::warn!(chain.id = lane.chain.config.id.0, tx.id = %tx.intent.tx_id, limit = ?limit,
        "a placeholder has to exceed fees.max_fee_per_gas");
    Ok(previous.and_then(|previous| replacement_fees(previous, previous, 1.1, None)))
}

async fn gas_limit(lane: &Lane, index: usize, payload: &Payload, kind: AttemptKind) -> Result<U256, String> {
    if kind == AttemptKind::Replacement {
        let signed = lane.open[index].gas_limit();
        return signed.ok_or_else(|| "the gas limit of the earlier attempt is not known".to_owned());
    }
    match lane.chain.connector.estimate_gas(lane.address(), payload).await {
        Ok(CallOutcome::Ok(gas)) if gas == U256::from(TRANSFER_GAS) => Ok(gas),
        Ok(CallOutcome::Ok(gas)) => Ok(scale(gas, lane.chain.config.fees.gas_limit_multiplier)),
        Ok(_) => Ok(TRANSFER_GAS.into()),
        Err(error) => Err(error.to_string()),
    }
}
