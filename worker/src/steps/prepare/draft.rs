//! An intent becomes signed bytes, or a verdict why not. No nonce is used up here: the bytes are not recorded yet.

use std::time::{Duration, Instant};

use gapless::chain::fees::scale;
use gapless::chain::{CallOutcome, RpcError};
use gapless::domain::gas::{intrinsic_gas, with_margin};
use gapless::domain::{Fees, Nonce, Payload, SignedDraft, TxState, U256, UnsignedTx};
use gapless::signer::SignerError;
use gapless::store::QueuedIntent;

use crate::failpoint;
use crate::lane::{Funds, Lane, OpenTx};

/// A balance is believed this long; spending is counted down meanwhile.
const FUNDS_FRESH: Duration = Duration::from_secs(30);
/// The pools' limit on a signed transaction.
const MAX_RAW_BYTES: usize = 128 * 1024;
/// A node that refuses to estimate for this long means it.
const REFUSED_FOR_GOOD: Duration = Duration::from_secs(60);
/// Gas of a plain transfer: exact, no margin needed.
const TRANSFER_GAS: u64 = 21_000;

/// Why there are no bytes.
pub(super) enum Verdict {
    /// It can never be sent.
    Dead { state: TxState, sub_state: &'static str, reason: String },
    /// Not now. It stays at the head.
    Hold { sub_state: &'static str, reason: String },
}

impl Verdict {
    fn failed(sub_state: &'static str, reason: impl Into<String>) -> Verdict {
        Verdict::Dead { state: TxState::Failed, sub_state, reason: reason.into() }
    }

    fn hold(sub_state: &'static str, reason: impl Into<String>) -> Verdict {
        Verdict::Hold { sub_state, reason: reason.into() }
    }
}

/// A node that could not be asked says nothing about the intent.
impl From<RpcError> for Verdict {
    fn from(error: RpcError) -> Self {
        Verdict::hold("waiting_node", error.to_string())
    }
}

impl From<SignerError> for Verdict {
    fn from(error: SignerError) -> Self {
        match error {
            SignerError::Unavailable { reason, .. } => Verdict::hold("waiting_signer", reason),
            SignerError::Refused { reason, .. } => Verdict::failed("signer_refused", reason),
        }
    }
}

pub(super) async fn draft(lane: &mut Lane, intent: &QueuedIntent) -> Result<SignedDraft, Verdict> {
    if let Some(ending) = &intent.ending {
        let (state, reason) = (ending.state, ending.reason.clone());
        return Err(Verdict::Dead { state, sub_state: "given_up", reason });
    }
    if intent.expires.is_some_and(|at| at <= Instant::now()) {
        let reason = "its deadline passed before it had a nonce".to_owned();
        return Err(Verdict::Dead { state: TxState::Cancelled, sub_state: "deadline", reason });
    }
    let unsigned = UnsignedTx {
        chain_id: lane.chain.config.id,
        from: lane.address(),
        // The lease makes us the only writer, so memory knows the next nonce.
        nonce: lane.sequence.as_ref().map_or(Nonce(0), |sequence| sequence.next),
        gas_limit: gas_limit(lane, &intent.payload).await?,
        fees: price(lane, &intent.payload).await?,
        payload: intent.payload.clone(),
    };
    let Some(cost) = unsigned.max_cost() else {
        return Err(Verdict::failed("invalid", "value and fees together exceed 256 bits"));
    };
    afford(lane, cost).await?;
    failpoint::hit("prepared");
    let draft = sign(lane, &unsigned).await?;
    if draft.raw.len() > MAX_RAW_BYTES {
        let reason = format!("signed it has {} bytes, pools take {MAX_RAW_BYTES}", draft.raw.len());
        return Err(Verdict::failed("invalid", reason));
    }
    if let Some(funds) = &mut lane.funds {
        funds.left = funds.left.saturating_sub(cost);
    }
    Ok(draft)
}

/// The limit the client gave, or an estimate with a margin. One that no block can hold, or that is used up before the
/// first instruction, is found here, where it costs no nonce.
async fn gas_limit(lane: &mut Lane, payload: &Payload) -> Result<U256, Verdict> {
    let gas_limit = match payload.gas_limit {
        Some(gas) => gas,
        None => estimate(lane, payload).await?,
    };
    let needed = intrinsic_gas(payload);
    if gas_limit < needed {
        return Err(Verdict::failed(
            "invalid",
            format!("a gas limit of {gas_limit} is below the intrinsic {needed}"),
        ));
    }
    let fits = lane.chain.watcher.block_gas_limit();
    if gas_limit > fits.into() {
        return Err(Verdict::failed(
            "invalid",
            format!("a gas limit of {gas_limit} exceeds the block's {fits}"),
        ));
    }
    Ok(gas_limit)
}

async fn estimate(lane: &mut Lane, payload: &Payload) -> Result<U256, Verdict> {
    let outcome = match lane.chain.connector.estimate_gas(lane.address(), payload).await {
        Ok(outcome) => outcome,
        Err(error) => return Err(not_estimated(lane, error)),
    };
    lane.refused_since = None;
    match outcome {
        CallOutcome::Ok(gas) if gas == U256::from(TRANSFER_GAS) => Ok(gas),
        CallOutcome::Ok(gas) => {
            let scaled = scale(gas, lane.chain.config.fees.gas_limit_multiplier);
            Ok(with_margin(gas, scaled, lane.chain.watcher.block_gas_limit().into()))
        }
        // What is in flight may be what it needs (an approval before a transfer): judge when that is mined.
        CallOutcome::Reverted { reason } if lane.open.iter().any(is_unmined) => {
            Err(Verdict::hold("waiting_earlier", reason))
        }
        CallOutcome::Reverted { reason } => {
            Err(Verdict::failed("would_revert", format!("would revert: {reason}")))
        }
        CallOutcome::InsufficientFunds { message } => Err(Verdict::hold("waiting_funds", message)),
        CallOutcome::Fatal { message } => Err(Verdict::failed("invalid", message)),
    }
}

/// Not answered, or refused in words that say nothing about the transaction. It costs nothing to wait, but an answer
/// that stays the same for long, with nothing in flight that could change it, is an answer.
fn not_estimated(lane: &mut Lane, error: RpcError) -> Verdict {
    if !matches!(error, RpcError::Refused { .. }) {
        lane.refused_since = None;
        return error.into();
    }
    let since = *lane.refused_since.get_or_insert_with(Instant::now);
    if since.elapsed() < REFUSED_FOR_GOOD || lane.open.iter().any(is_unmined) {
        return error.into();
    }
    lane.refused_since = None;
    Verdict::failed("estimate_refused", error.to_string())
}

fn is_unmined(tx: &OpenTx) -> bool {
    tx.intent.receipt.is_none()
}

/// What the fee policy says. A client's cap below the base fee waits, without a nonce, for the base fee to fall.
async fn price(lane: &Lane, payload: &Payload) -> Result<Fees, Verdict> {
    let (connector, head) = (lane.chain.connector.as_ref(), lane.chain.watcher.head().unwrap_or_default());
    let fees = lane.chain.fees.quote(connector, head, payload).await?;
    match lane.chain.fees.next_base_fee(connector, head).await? {
        Some(base) if fees.cap() < base => {
            let reason = format!("its fee cap of {} wei is below the base fee of {base}", fees.cap());
            Err(Verdict::hold("waiting_fee", reason))
        }
        _ => Ok(fees),
    }
}

async fn afford(lane: &mut Lane, cost: U256) -> Result<(), Verdict> {
    if lane.funds.is_some_and(|funds| funds.read_at.elapsed() < FUNDS_FRESH && funds.left >= cost) {
        return Ok(());
    }
    let balance = lane.chain.connector.balance(lane.address()).await?;
    // What is mined is already taken off the balance; what is not may still cost all it was signed for.
    let owed = lane
        .open
        .iter()
        .filter(|tx| tx.state() != TxState::Tracking && !tx.state().is_terminal())
        .fold(U256::zero(), |sum, tx| sum.saturating_add(tx.intent.max_cost));
    let left = balance.saturating_sub(owed);
    lane.funds = Some(Funds { left, read_at: Instant::now() });
    if left < cost {
        let reason = format!("needs up to {cost} wei, has {left} beyond what is in flight");
        return Err(Verdict::hold("waiting_funds", reason));
    }
    Ok(())
}

async fn sign(lane: &Lane, unsigned: &UnsignedTx) -> Result<SignedDraft, SignerError> {
    if failpoint::signer_is_away() {
        return Err(SignerError::Unavailable { address: unsigned.from, reason: "failpoint".to_owned() });
    }
    lane.signer.sign(unsigned).await
}
