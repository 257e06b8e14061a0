//! Turns an intent into signed bytes, or into a refusal. No nonce is used here: the bytes are not committed yet.

use std::cmp::Ordering;
use std::time::Duration;

use gapless_chain::fees::scale;
use gapless_chain::{CallOutcome, RpcError};
use gapless_domain::gas::{intrinsic_gas, is_chain_gas_cap, with_margin};
use gapless_domain::{
    Bytes, ErrorCode, Fees, H256, Nonce, Payload, SignedDraft, SubState, TxError, TxId, TxState, U256,
    UnsignedTx,
};
use gapless_signer::{ReadSigned, SignerError, read_signed};
use gapless_store::{QueuedIntent, WaitingReservation};
use gapless_telemetry::child_span;
use tokio::time::Instant;
use tracing::Instrument;

use super::super::late;
use super::{Funds, revert};
use crate::failpoint;
use crate::lane::{Lane, OpenTx};

/// Maximum age of a balance; spending is subtracted meanwhile.
const FUNDS_MAX_AGE: Duration = Duration::from_secs(30);
/// The mempools' size limit for a signed transaction.
const MAX_RAW_BYTES: usize = 128 * 1024;
/// A client that waits for a reservation renews its request every three seconds.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// An intent is not begun if less time is left: the commit would refuse its nonce, and those of others with it.
pub(super) const START_MARGIN: Duration = Duration::from_millis(300);
/// Gas of a plain transfer: exact, no margin needed.
const TRANSFER_GAS: u64 = 21_000;

/// Why there are no bytes.
pub(in crate::steps) enum Refusal {
    /// It can never be sent.
    Final { state: TxState, sub_state: SubState, error: TxError },
    /// Not now. It stays at the head of the queue.
    Wait { sub_state: SubState, error: TxError },
}

impl Refusal {
    pub(super) fn failed(sub_state: SubState, error: TxError) -> Refusal {
        Refusal::Final { state: TxState::Failed, sub_state, error }
    }

    /// The chain would never accept it.
    pub(super) fn invalid(reason: impl Into<String>) -> Refusal {
        Refusal::failed(SubState::Invalid, TxError::new(ErrorCode::Invalid, reason))
    }

    pub(super) fn wait(sub_state: SubState, code: ErrorCode, reason: impl Into<String>) -> Refusal {
        Refusal::Wait { sub_state, error: TxError::new(code, reason) }
    }
}

/// A failed request to a node is no evidence about the intent.
impl From<RpcError> for Refusal {
    fn from(error: RpcError) -> Self {
        Refusal::wait(SubState::WaitingNode, ErrorCode::NodeUnavailable, error.to_string())
    }
}

impl From<SignerError> for Refusal {
    fn from(error: SignerError) -> Self {
        match error {
            SignerError::Unavailable { reason, .. } => {
                Refusal::wait(SubState::WaitingSigner, ErrorCode::SignerUnavailable, reason)
            }
            SignerError::Refused { reason, .. } => {
                Refusal::failed(SubState::SignerRefused, TxError::new(ErrorCode::SignerRefused, reason))
            }
        }
    }
}

/// Checks that an intent is not given up, expired or abandoned.
pub(super) fn check_still_wanted(lane: &mut Lane, intent: &QueuedIntent) -> Result<(), Refusal> {
    if let Some(ending) = &intent.ending {
        return Err(Refusal::Final {
            state: ending.state,
            sub_state: SubState::GivenUp,
            error: ending.error(),
        });
    }
    if intent.expires.is_some_and(|at| at <= Instant::now()) {
        let error = TxError::new(ErrorCode::DeadlinePassed, "deadline passed before a nonce was assigned");
        return Err(Refusal::Final { state: TxState::Cancelled, sub_state: SubState::Deadline, error });
    }
    if intent.start_by.is_some_and(|at| at <= Instant::now() + START_MARGIN) {
        let error = late::error(intent.last_error.as_ref().map(|error| error.message.as_str()));
        return Err(Refusal::Final { state: TxState::Cancelled, sub_state: SubState::Deadline, error });
    }
    check_expected_nonce(lane, intent)?;
    match &intent.reservation {
        Some(reservation) => check_reservation(lane, intent.tx_id, reservation),
        None => Ok(()),
    }
}

/// An intent whose client expects a later nonce waits for the intents before it, which may arrive after it: a client
/// that counts nonces sends several at once.
fn check_expected_nonce(lane: &Lane, intent: &QueuedIntent) -> Result<(), Refusal> {
    let Some(expected) = intent.expected_nonce else { return Ok(()) };
    match expected.cmp(&lane.next_nonce()) {
        Ordering::Equal => Ok(()),
        Ordering::Less => {
            let reason =
                "the nonce in the request was used before; leave it out, or send it with the next one";
            Err(Refusal::failed(SubState::Invalid, TxError::new(ErrorCode::NonceMismatch, reason)))
        }
        Ordering::Greater => {
            let reason = "the nonce in the request is not the next one: earlier ones were not sent";
            Err(Refusal::wait(SubState::WaitingEarlier, ErrorCode::NonceMismatch, reason))
        }
    }
}

pub(super) async fn draft(lane: &mut Lane, payload: &Payload) -> Result<SignedDraft, Refusal> {
    // The lease makes this worker the only writer, so the cursor in memory is current.
    let nonce = lane.next_nonce();
    draft_at(lane, payload, nonce, &[]).await
}

/// A nonce is reserved only for a client that is still waiting, and only if a placeholder may consume it.
fn check_reservation(lane: &mut Lane, tx_id: TxId, reservation: &WaitingReservation) -> Result<(), Refusal> {
    let abandoned = |reason: &str| Refusal::Final {
        state: TxState::Cancelled,
        sub_state: SubState::Abandoned,
        error: TxError::new(ErrorCode::Cancelled, reason),
    };
    if let Some(reason) = &reservation.gave_up {
        return Err(abandoned(reason));
    }
    if reservation.wanted_until <= Instant::now() {
        // A clock that was set forward has the same effect. A live client renews within this time.
        let known = lane.prepare.client_silent.filter(|(silent, _)| *silent == tx_id);
        let (_, since) = *lane.prepare.client_silent.insert(known.unwrap_or((tx_id, Instant::now())));
        if since.elapsed() < CLIENT_TIMEOUT {
            let reason = "the reserving client did not renew its request; checking again";
            return Err(Refusal::wait(SubState::WaitingClient, ErrorCode::Unknown, reason));
        }
        return Err(abandoned("the reserving client stopped renewing its request"));
    }
    lane.prepare.client_silent = None;
    if !lane.may_replace() {
        let reason = "nonce.profile = stability_first forbids the placeholder that a reserved nonce needs";
        return Err(Refusal::failed(SubState::Forbidden, TxError::new(ErrorCode::Invalid, reason)));
    }
    Ok(())
}

/// Signs a transaction for the next nonce or a reserved one. Its hash differs from the ones recorded for that nonce.
pub(in crate::steps) async fn draft_at(
    lane: &mut Lane,
    payload: &Payload,
    nonce: Nonce,
    recorded: &[H256],
) -> Result<SignedDraft, Refusal> {
    let mut unsigned = UnsignedTx {
        chain_id: lane.chain.config.id,
        from: lane.address(),
        nonce,
        gas_limit: gas_limit(lane, payload, nonce).await?,
        fees: quote_fees(lane, payload).await?,
        payload: payload.clone(),
    };
    let Some(cost) = unsigned.max_cost() else {
        return Err(Refusal::invalid("value and fees together exceed 256 bits"));
    };
    check_funds(lane, cost, nonce).await?;
    failpoint::hit("prepared");
    let mut draft = sign(lane, &unsigned).await?;
    if recorded.contains(&draft.tx_hash) {
        // The client's transaction equals the placeholder. One more wei makes it a different transaction.
        unsigned.fees = unsigned.fees.one_wei_more();
        draft = sign(lane, &unsigned).await?;
    }
    check_size(&draft)?;
    if let Some(funds) = &mut lane.prepare.funds {
        funds.left = funds.left.saturating_sub(cost);
    }
    Ok(draft)
}

/// Decodes the transaction that the reserving client signed itself.
pub(in crate::steps) fn decode_signed(
    lane: &Lane,
    raw: &Bytes,
    nonce: Nonce,
    recorded: &[H256],
) -> Result<ReadSigned, Refusal> {
    let read = read_signed(lane.chain.config.id, lane.address(), nonce, raw).map_err(Refusal::invalid)?;
    if recorded.contains(&read.draft.tx_hash) {
        return Err(Refusal::invalid("the signed transaction is identical to the placeholder"));
    }
    Ok(read)
}

/// Applies the same checks to a transaction signed by the client as to our own. Its prices cannot be changed.
pub(in crate::steps) async fn check_signed(
    lane: &mut Lane,
    draft: SignedDraft,
    payload: &Payload,
    nonce: Nonce,
) -> Result<SignedDraft, Refusal> {
    check_size(&draft)?;
    gas_limit(lane, payload, nonce).await?;
    if let Some(limit) = lane.chain.config.fees.max_fee_per_gas.filter(|limit| draft.fees.cap() > *limit) {
        return Err(Refusal::invalid(format!("fee cap exceeds fees.max_fee_per_gas ({limit} wei)")));
    }
    quote_fees(lane, payload).await?;
    check_funds(lane, draft.max_cost, nonce).await?;
    Ok(draft)
}

fn check_size(draft: &SignedDraft) -> Result<(), Refusal> {
    if draft.raw.len() > MAX_RAW_BYTES {
        let reason = format!("signed transaction has {} bytes, limit is {MAX_RAW_BYTES}", draft.raw.len());
        return Err(Refusal::invalid(reason));
    }
    Ok(())
}

/// The client's gas limit, or an estimate with a margin. A limit above the block's or below the intrinsic gas is
/// refused here, before a nonce is used.
async fn gas_limit(lane: &mut Lane, payload: &Payload, nonce: Nonce) -> Result<U256, Refusal> {
    let gas_limit = match payload.gas_limit {
        Some(gas) => gas,
        None => estimate(lane, payload, nonce).await?,
    };
    let needed = intrinsic_gas(payload);
    if gas_limit < needed {
        return Err(Refusal::invalid(format!("gas limit {gas_limit} is below the intrinsic gas {needed}")));
    }
    let block_limit = lane.chain.watcher.block_gas_limit();
    if gas_limit > block_limit.into() {
        let reason = format!("gas limit {gas_limit} exceeds the block gas limit {block_limit}");
        return Err(Refusal::invalid(reason));
    }
    Ok(gas_limit)
}

async fn estimate(lane: &mut Lane, payload: &Payload, nonce: Nonce) -> Result<U256, Refusal> {
    if let Some(refusal) = revert::too_early(lane, payload, nonce) {
        return Err(refusal);
    }
    let outcome = lane.chain.connector.estimate_gas(lane.address(), payload).await.map_err(estimate_error)?;
    let outcome = match classify_gas_cap(lane, outcome) {
        // It may depend on an unmined earlier intent (an approval before a transfer): decide once that is mined.
        CallOutcome::Reverted(failure) if earlier_is_unmined(lane, nonce) => {
            let error = TxError::would_revert(failure, &payload.errors);
            return Err(Refusal::Wait { sub_state: SubState::WaitingEarlier, error });
        }
        CallOutcome::Reverted(_) | CallOutcome::Fatal { .. } => {
            revert::evaluate(lane, payload, nonce).await?
        }
        other => other,
    };
    lane.prepare.reverts.clear();
    match outcome {
        CallOutcome::Ok(gas) if gas == U256::from(TRANSFER_GAS) => Ok(gas),
        CallOutcome::Ok(gas) => {
            let scaled = scale(gas, lane.chain.config.fees.gas_limit_multiplier);
            Ok(with_margin(gas, scaled, lane.chain.watcher.block_gas_limit().into()))
        }
        CallOutcome::InsufficientFunds { message } => {
            Err(Refusal::wait(SubState::WaitingFunds, ErrorCode::InsufficientFunds, message))
        }
        CallOutcome::Unwilling { message, .. } | CallOutcome::Fatal { message } => {
            Err(Refusal::wait(SubState::WaitingNode, ErrorCode::EstimateRefused, message))
        }
        CallOutcome::Reverted(failure) => {
            let error = TxError::would_revert(failure, &payload.errors);
            Err(Refusal::Wait { sub_state: SubState::CheckingRevert, error })
        }
    }
}

/// Exceeding a gas cap of the chain is a property of the transaction, exceeding one of the node is not.
pub(super) fn classify_gas_cap(lane: &Lane, outcome: CallOutcome<U256>) -> CallOutcome<U256> {
    match outcome {
        CallOutcome::Unwilling { gas_cap: Some(cap), message }
            if is_chain_gas_cap(cap, lane.chain.watcher.block_gas_limit().into()) =>
        {
            CallOutcome::Fatal { message }
        }
        other => other,
    }
}

/// No answer, or an unclassified refusal. The intent waits: a node failure never ends an intent, however long it
/// lasts.
pub(super) fn estimate_error(error: RpcError) -> Refusal {
    match error {
        RpcError::Refused { .. } => {
            Refusal::wait(SubState::WaitingNode, ErrorCode::EstimateRefused, error.to_string())
        }
        error => error.into(),
    }
}

fn earlier_is_unmined(lane: &Lane, nonce: Nonce) -> bool {
    lane.rows.open.iter().any(|tx: &OpenTx| tx.intent.nonce < nonce && tx.intent.receipt.is_none())
}

/// The fee policy's quote. An intent whose fee cap is below the base fee waits, without a nonce, until the base fee
/// falls.
async fn quote_fees(lane: &Lane, payload: &Payload) -> Result<Fees, Refusal> {
    let (connector, head) = (lane.chain.connector.as_ref(), lane.chain.watcher.pricing_head());
    let fees = lane.chain.fees.quote(connector, head, payload).await?;
    match lane.chain.fees.next_base_fee(connector, head).await? {
        Some(base) if fees.cap() < base => {
            let reason = format!("fee cap of {} wei is below the base fee of {base} wei", fees.cap());
            Err(Refusal::wait(SubState::WaitingFee, ErrorCode::Underpriced, reason))
        }
        _ => Ok(fees),
    }
}

async fn check_funds(lane: &mut Lane, cost: U256, nonce: Nonce) -> Result<(), Refusal> {
    if lane.prepare.funds.is_some_and(|funds| funds.read_at.elapsed() < FUNDS_MAX_AGE && funds.left >= cost) {
        return Ok(());
    }
    let balance = lane.chain.connector.balance(lane.address()).await?;
    // The balance already excludes mined transactions; an unmined one may still cost its signed maximum.
    let owed = lane
        .rows
        .open
        .iter()
        // Attempts at the same nonce do not add up: only one of them is mined.
        .filter(|tx| tx.state() != TxState::Tracking && !tx.state().is_terminal() && tx.intent.nonce != nonce)
        .fold(U256::zero(), |sum, tx| sum.saturating_add(tx.intent.max_cost));
    let left = balance.saturating_sub(owed);
    lane.prepare.funds = Some(Funds { left, read_at: Instant::now() });
    if left < cost {
        let reason = format!("needs up to {cost} wei, {left} wei available after in-flight transactions");
        return Err(Refusal::wait(SubState::WaitingFunds, ErrorCode::InsufficientFunds, reason));
    }
    Ok(())
}

async fn sign(lane: &Lane, unsigned: &UnsignedTx) -> Result<SignedDraft, SignerError> {
    if failpoint::signer_is_away() {
        return Err(SignerError::Unavailable { address: unsigned.from, reason: "failpoint".to_owned() });
    }
    lane.signing.signer.sign(unsigned).instrument(child_span("sign")).await
}
