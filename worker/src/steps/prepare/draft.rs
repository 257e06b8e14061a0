//! An intent becomes signed bytes, or a verdict why not. No nonce is used up here: the bytes are not recorded yet.

use std::time::Duration;

use gapless::chain::fees::scale;
use gapless::chain::{CallOutcome, RpcError};
use gapless::domain::gas::{intrinsic_gas, with_margin};
use gapless::domain::{
    Bytes, ErrorCode, Fees, H256, Nonce, Payload, SignedDraft, TxError, TxId, TxState, U256, UnsignedTx,
};
use gapless::signer::{ReadSigned, SignerError, read_signed};
use gapless::store::{QueuedIntent, WaitingReservation};
use tokio::time::Instant;

use super::super::recover::WAITING_NODE;
use super::revert;
use crate::failpoint;
use crate::lane::{Funds, Lane, OpenTx};

/// A balance is believed this long; spending is counted down meanwhile.
const FUNDS_FRESH: Duration = Duration::from_secs(30);
/// The pools' limit on a signed transaction.
const MAX_RAW_BYTES: usize = 128 * 1024;
/// Callers that wait say so every three seconds.
const CALLER_SILENT: Duration = Duration::from_secs(5);
/// Gas of a plain transfer: exact, no margin needed.
const TRANSFER_GAS: u64 = 21_000;

/// Why there are no bytes.
pub(in crate::steps) enum Verdict {
    /// It can never be sent.
    Dead { state: TxState, sub_state: &'static str, error: TxError },
    /// Not now. It stays at the head.
    Hold { sub_state: &'static str, error: TxError },
}

impl Verdict {
    pub(super) fn failed(sub_state: &'static str, error: TxError) -> Verdict {
        Verdict::Dead { state: TxState::Failed, sub_state, error }
    }

    /// The chain would never take it.
    pub(super) fn invalid(reason: impl Into<String>) -> Verdict {
        Verdict::failed("invalid", TxError::new(ErrorCode::Invalid, reason))
    }

    pub(super) fn hold(sub_state: &'static str, code: ErrorCode, reason: impl Into<String>) -> Verdict {
        Verdict::Hold { sub_state, error: TxError::new(code, reason) }
    }
}

/// A node that could not be asked says nothing about the intent.
impl From<RpcError> for Verdict {
    fn from(error: RpcError) -> Self {
        Verdict::hold(WAITING_NODE, ErrorCode::NodeUnavailable, error.to_string())
    }
}

impl From<SignerError> for Verdict {
    fn from(error: SignerError) -> Self {
        match error {
            SignerError::Unavailable { reason, .. } => {
                Verdict::hold("waiting_signer", ErrorCode::SignerUnavailable, reason)
            }
            SignerError::Refused { reason, .. } => {
                Verdict::failed("signer_refused", TxError::new(ErrorCode::SignerRefused, reason))
            }
        }
    }
}

/// Whether an intent is still to be sent at all.
pub(super) fn still_due(lane: &mut Lane, intent: &QueuedIntent) -> Result<(), Verdict> {
    if let Some(ending) = &intent.ending {
        return Err(Verdict::Dead { state: ending.state, sub_state: "given_up", error: ending.error() });
    }
    if intent.expires.is_some_and(|at| at <= Instant::now()) {
        let error = TxError::new(ErrorCode::DeadlinePassed, "its deadline passed before it had a nonce");
        return Err(Verdict::Dead { state: TxState::Cancelled, sub_state: "deadline", error });
    }
    match &intent.reservation {
        Some(reservation) => still_wanted(lane, intent.tx_id, reservation),
        None => Ok(()),
    }
}

pub(super) async fn draft(lane: &mut Lane, payload: &Payload) -> Result<SignedDraft, Verdict> {
    // The lease makes us the only writer, so memory knows the next nonce.
    let nonce = lane.next_nonce();
    at(lane, payload, nonce, &[]).await
}

/// Nobody is given a nonce who may not be there to use it, nor where it could not be consumed without them.
fn still_wanted(lane: &mut Lane, tx_id: TxId, reservation: &WaitingReservation) -> Result<(), Verdict> {
    let abandoned = |reason: &str| Verdict::Dead {
        state: TxState::Cancelled,
        sub_state: "abandoned",
        error: TxError::new(ErrorCode::Cancelled, reason),
    };
    if let Some(reason) = &reservation.gave_up {
        return Err(abandoned(reason));
    }
    if reservation.wanted_until <= Instant::now() {
        // A clock that was set forward makes it look so, too. A caller that lives says so again in less than this.
        let known = lane.caller_silent.filter(|(silent, _)| *silent == tx_id);
        let (_, since) = *lane.caller_silent.insert(known.unwrap_or((tx_id, Instant::now())));
        if since.elapsed() < CALLER_SILENT {
            let reason = "its caller was not heard of; it is looked for once more";
            return Err(Verdict::hold("waiting_caller", ErrorCode::Unknown, reason));
        }
        return Err(abandoned("its caller was not heard of any more"));
    }
    lane.caller_silent = None;
    if !lane.may_replace() {
        let reason = "nonce.profile = stability_first forbids the placeholder that a held nonce needs";
        return Err(Verdict::failed("forbidden", TxError::new(ErrorCode::Invalid, reason)));
    }
    Ok(())
}

/// Signed bytes at a nonce, the next one or one that is held. They differ from those that are recorded at it already.
pub(in crate::steps) async fn at(
    lane: &mut Lane,
    payload: &Payload,
    nonce: Nonce,
    recorded: &[H256],
) -> Result<SignedDraft, Verdict> {
    let mut unsigned = UnsignedTx {
        chain_id: lane.chain.config.id,
        from: lane.address(),
        nonce,
        gas_limit: gas_limit(lane, payload, nonce).await?,
        fees: price(lane, payload).await?,
        payload: payload.clone(),
    };
    let Some(cost) = unsigned.max_cost() else {
        return Err(Verdict::invalid("value and fees together exceed 256 bits"));
    };
    afford(lane, cost, nonce).await?;
    failpoint::hit("prepared");
    let mut draft = sign(lane, &unsigned).await?;
    if recorded.contains(&draft.tx_hash) {
        // Somebody wants exactly what the placeholder does. One wei makes it a transaction of its own.
        unsigned.fees = unsigned.fees.one_wei_more();
        draft = sign(lane, &unsigned).await?;
    }
    fits_a_pool(&draft)?;
    if let Some(funds) = &mut lane.funds {
        funds.left = funds.left.saturating_sub(cost);
    }
    Ok(draft)
}

/// What bytes do that a caller signed for the nonce it holds.
pub(in crate::steps) fn read(
    lane: &Lane,
    raw: &Bytes,
    nonce: Nonce,
    recorded: &[H256],
) -> Result<ReadSigned, Verdict> {
    let read = read_signed(lane.chain.config.id, lane.address(), nonce, raw).map_err(Verdict::invalid)?;
    if recorded.contains(&read.draft.tx_hash) {
        return Err(Verdict::invalid("these are the bytes of the placeholder"));
    }
    Ok(read)
}

/// Bytes of a caller, checked like our own as far as they can still be judged. Their prices are what they are.
pub(in crate::steps) async fn of_signed(
    lane: &mut Lane,
    draft: SignedDraft,
    payload: &Payload,
    nonce: Nonce,
) -> Result<SignedDraft, Verdict> {
    fits_a_pool(&draft)?;
    gas_limit(lane, payload, nonce).await?;
    if let Some(limit) = lane.chain.config.fees.max_fee_per_gas.filter(|limit| draft.fees.cap() > *limit) {
        return Err(Verdict::invalid(format!("its fee cap is above fees.max_fee_per_gas, {limit} wei")));
    }
    price(lane, payload).await?;
    afford(lane, draft.max_cost, nonce).await?;
    Ok(draft)
}

fn fits_a_pool(draft: &SignedDraft) -> Result<(), Verdict> {
    if draft.raw.len() > MAX_RAW_BYTES {
        let reason = format!("signed it has {} bytes, pools take {MAX_RAW_BYTES}", draft.raw.len());
        return Err(Verdict::invalid(reason));
    }
    Ok(())
}

/// The limit the client gave, or an estimate with a margin. One that no block can hold, or that is used up before the
/// first instruction, is found here, where it costs no nonce.
async fn gas_limit(lane: &mut Lane, payload: &Payload, nonce: Nonce) -> Result<U256, Verdict> {
    let gas_limit = match payload.gas_limit {
        Some(gas) => gas,
        None => estimate(lane, payload, nonce).await?,
    };
    let needed = intrinsic_gas(payload);
    if gas_limit < needed {
        return Err(Verdict::invalid(format!("a gas limit of {gas_limit} is below the intrinsic {needed}")));
    }
    let fits = lane.chain.watcher.block_gas_limit();
    if gas_limit > fits.into() {
        return Err(Verdict::invalid(format!("a gas limit of {gas_limit} exceeds the block's {fits}")));
    }
    Ok(gas_limit)
}

async fn estimate(lane: &mut Lane, payload: &Payload, nonce: Nonce) -> Result<U256, Verdict> {
    if let Some(verdict) = revert::too_early(lane, payload, nonce) {
        return Err(verdict);
    }
    let outcome = lane.chain.connector.estimate_gas(lane.address(), payload).await.map_err(not_estimated)?;
    let outcome = match known_limit(lane, outcome) {
        // What is in flight may be what it needs (an approval before a transfer): judge when that is mined.
        CallOutcome::Reverted(failure) if earlier_is_unmined(lane, nonce) => {
            let error = TxError::would_revert(failure, &payload.errors);
            return Err(Verdict::Hold { sub_state: "waiting_earlier", error });
        }
        CallOutcome::Reverted(_) | CallOutcome::Fatal { .. } => revert::judge(lane, payload, nonce).await?,
        other => other,
    };
    lane.reverts.forget();
    match outcome {
        CallOutcome::Ok(gas) if gas == U256::from(TRANSFER_GAS) => Ok(gas),
        CallOutcome::Ok(gas) => {
            let scaled = scale(gas, lane.chain.config.fees.gas_limit_multiplier);
            Ok(with_margin(gas, scaled, lane.chain.watcher.block_gas_limit().into()))
        }
        CallOutcome::InsufficientFunds { message } => {
            Err(Verdict::hold("waiting_funds", ErrorCode::InsufficientFunds, message))
        }
        CallOutcome::Unwilling { message, .. } | CallOutcome::Fatal { message } => {
            Err(Verdict::hold(WAITING_NODE, ErrorCode::EstimateRefused, message))
        }
        CallOutcome::Reverted(failure) => {
            let error = TxError::would_revert(failure, &payload.errors);
            Err(Verdict::Hold { sub_state: revert::CHECKING, error })
        }
    }
}

/// A node that lets an execution use all the gas of a block, and finds that too little, speaks of the transaction. One
/// that lets it use less speaks of its own settings.
pub(super) fn known_limit(lane: &Lane, outcome: CallOutcome<U256>) -> CallOutcome<U256> {
    match outcome {
        CallOutcome::Unwilling { gas_cap: Some(cap), message }
            if cap >= lane.chain.watcher.block_gas_limit().into() =>
        {
            CallOutcome::Fatal { message }
        }
        other => other,
    }
}

/// Not answered, or refused in words that say nothing about the transaction. It costs nothing to wait: a node's trouble
/// never ends an intent, however long it lasts.
pub(super) fn not_estimated(error: RpcError) -> Verdict {
    match error {
        RpcError::Refused { .. } => {
            Verdict::hold(WAITING_NODE, ErrorCode::EstimateRefused, error.to_string())
        }
        error => error.into(),
    }
}

fn earlier_is_unmined(lane: &Lane, nonce: Nonce) -> bool {
    lane.open.iter().any(|tx: &OpenTx| tx.intent.nonce < nonce && tx.intent.receipt.is_none())
}

/// What the fee policy says. A client's cap below the base fee waits, without a nonce, for the base fee to fall.
async fn price(lane: &Lane, payload: &Payload) -> Result<Fees, Verdict> {
    let (connector, head) = (lane.chain.connector.as_ref(), lane.chain.watcher.pricing_head());
    let fees = lane.chain.fees.quote(connector, head, payload).await?;
    match lane.chain.fees.next_base_fee(connector, head).await? {
        Some(base) if fees.cap() < base => {
            let reason = format!("its fee cap of {} wei is below the base fee of {base}", fees.cap());
            Err(Verdict::hold("waiting_fee", ErrorCode::Underpriced, reason))
        }
        _ => Ok(fees),
    }
}

async fn afford(lane: &mut Lane, cost: U256, nonce: Nonce) -> Result<(), Verdict> {
    if lane.funds.is_some_and(|funds| funds.read_at.elapsed() < FUNDS_FRESH && funds.left >= cost) {
        return Ok(());
    }
    let balance = lane.chain.connector.balance(lane.address()).await?;
    // What is mined is already taken off the balance; what is not may still cost all it was signed for.
    let owed = lane
        .open
        .iter()
        // Nor does what is recorded at the same nonce come on top: one of the two is mined.
        .filter(|tx| tx.state() != TxState::Tracking && !tx.state().is_terminal() && tx.intent.nonce != nonce)
        .fold(U256::zero(), |sum, tx| sum.saturating_add(tx.intent.max_cost));
    let left = balance.saturating_sub(owed);
    lane.funds = Some(Funds { left, read_at: Instant::now() });
    if left < cost {
        let reason = format!("needs up to {cost} wei, has {left} beyond what is in flight");
        return Err(Verdict::hold("waiting_funds", ErrorCode::InsufficientFunds, reason));
    }
    Ok(())
}

async fn sign(lane: &Lane, unsigned: &UnsignedTx) -> Result<SignedDraft, SignerError> {
    if failpoint::signer_is_away() {
        return Err(SignerError::Unavailable { address: unsigned.from, reason: "failpoint".to_owned() });
    }
    lane.signer.sign(unsigned).await
}
