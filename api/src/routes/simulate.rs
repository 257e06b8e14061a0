//! `POST /api/v1/tx/simulate`: what a transaction would do and cost now. Stores nothing, promises nothing: by the time it
//! is sent the chain may be another.

use gapless::chain::fees::scale;
use gapless::chain::{BlockTag, CallOutcome, ChainConnector};
use gapless::domain::gas::{intrinsic_gas, with_margin};
use gapless::domain::intent::check_request_id;
use gapless::domain::{self, Address, Fees, Payload, RequestedTx, U256};
use poem::web::Data;
use poem_openapi::OpenApi;
use poem_openapi::payload::Json;

use super::Tag;
use crate::app::SharedApp;
use crate::auth::{Caller, Write};
use crate::error::{ApiError, Failure, OnSimulate};
use crate::nodes::Node;
use crate::wire::{Body, CreateTx, Outcome, Simulation};

/// Gas of a plain transfer: exact, sent without a margin.
const TRANSFER_GAS: u64 = 21_000;

#[derive(Debug)]
pub(crate) struct Simulate;

#[OpenApi]
impl Simulate {
    /// Try a transaction without sending it
    ///
    /// Takes what `POST /api/v1/tx` takes; `requestId` may be left out. Answers gas, fees and cost, or why it would not
    /// succeed; what the submitter's policy forbids is refused as it would be there. Nothing is stored. Transactions that are queued or on their way are not taken into account.
    #[oai(
        path = "/api/v1/tx/simulate",
        method = "post",
        operation_id = "simulateTx",
        tag = "Tag::Transactions"
    )]
    async fn simulate(
        &self,
        app: Data<&SharedApp>,
        caller: Caller<Write>,
        body: Body<CreateTx>,
    ) -> Result<Json<Simulation>, Failure<OnSimulate>> {
        let request = body.0;
        if let Some(request_id) = &request.request_id {
            check_request_id(request_id).map_err(|invalid| ApiError::InvalidRequest(invalid.to_string()))?;
        }
        let submitter = caller.own(app.chains.submitter(request.chain_id, &request.submitter)?)?;
        let payload = RequestedTx::from(request.payload).validate().map_err(ApiError::InvalidPayload)?;
        app.policies.judge(submitter, &payload)?;
        let node = app.nodes.get(submitter.chain_id).await?;
        app.store.get_submitter(submitter).await?.ok_or(ApiError::UnknownSubmitter(submitter))?;
        Ok(Json(simulate(node, submitter.address, &payload).await?))
    }
}

/// Gas, then price, then whether the sender can pay: the order in which a worker prepares a transaction.
async fn simulate(node: &Node, from: Address, payload: &Payload) -> Result<Simulation, ApiError> {
    let gas = match execute(node, from, payload).await? {
        CallOutcome::Ok(gas) => gas,
        CallOutcome::Reverted(failure) => return Ok(Simulation::reverted(&failure, &payload.errors)),
        CallOutcome::InsufficientFunds { message } => {
            return Ok(Simulation::of(Outcome::InsufficientFunds, Some(message)));
        }
        CallOutcome::Fatal { message } | CallOutcome::Unwilling { message, .. } => {
            return Ok(Simulation::of(Outcome::Invalid, Some(message)));
        }
    };
    let latest = node.client.block(BlockTag::Latest).await?.ok_or(ApiError::NodeUnavailable)?;
    let fees = node.fees.quote(&node.client, latest.block.number, payload).await?;
    let base_fee = node.fees.next_base_fee(&node.client, latest.block.number).await?;
    let gas_limit = payload.gas_limit.unwrap_or_else(|| sent_limit(gas, node.gas_limit_multiplier));
    let priced = priced(gas, gas_limit, fees, base_fee);
    let Some(max_cost) = gas_limit.checked_mul(fees.cap()).and_then(|fee| fee.checked_add(payload.value))
    else {
        let reason = "value and fees together exceed 256 bits".to_owned();
        return Ok(Simulation { outcome: Outcome::Invalid, reason: Some(reason), ..priced });
    };
    let priced = Simulation { max_cost: Some(max_cost.to_string()), ..priced };
    if latest.gas_limit.is_some_and(|fits| gas_limit > fits.into()) {
        let reason = format!("a gas limit of {gas_limit} exceeds the block's");
        return Ok(Simulation { outcome: Outcome::Invalid, reason: Some(reason), ..priced });
    }
    if let Some(base) = base_fee.filter(|base| fees.cap() < *base) {
        let reason = format!("its fee cap of {} wei is below the base fee of {base}", fees.cap());
        return Ok(Simulation { outcome: Outcome::Underpriced, reason: Some(reason), ..priced });
    }
    let balance = node.client.balance(from).await?;
    if balance < max_cost {
        let reason = format!("needs up to {max_cost} wei, has {balance}");
        return Ok(Simulation { outcome: Outcome::InsufficientFunds, reason: Some(reason), ..priced });
    }
    Ok(priced)
}

/// The gas it would use. With a limit of its own it is executed within that: too little is found here and not on chain.
async fn execute(node: &Node, from: Address, payload: &Payload) -> Result<CallOutcome<U256>, ApiError> {
    if payload.gas_limit.is_some() {
        let outcome = node.client.call(from, payload, BlockTag::Latest).await?;
        if outcome != CallOutcome::Ok(()) {
            return outcome.try_map(|()| Ok(U256::zero()));
        }
    }
    Ok(match node.client.estimate_gas(from, payload).await? {
        CallOutcome::Ok(gas) if payload.gas_limit.is_some_and(|limit| limit < gas) => {
            let message = format!("out of gas: it needs {gas}");
            CallOutcome::Reverted(domain::Failure { revert: None, message, out_of_gas: true })
        }
        CallOutcome::Ok(gas) => CallOutcome::Ok(gas.max(intrinsic_gas(payload))),
        other => other,
    })
}

/// As a worker would choose it, but for the gas limit of the block, which is not asked for here.
fn sent_limit(gas: U256, multiplier: f64) -> U256 {
    if gas == U256::from(TRANSFER_GAS) { gas } else { with_margin(gas, scale(gas, multiplier), U256::MAX) }
}

fn priced(gas: U256, gas_limit: U256, fees: Fees, base_fee: Option<U256>) -> Simulation {
    let text = |amount: U256| Some(amount.to_string());
    let (max_fee_per_gas, max_priority_fee_per_gas, gas_price) = match fees {
        Fees::Legacy { gas_price } => (None, None, text(gas_price)),
        Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas } => {
            (text(max_fee_per_gas), text(max_priority_fee_per_gas), None)
        }
    };
    let expected = match (fees, base_fee) {
        (Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas }, Some(base)) => {
            base.saturating_add(max_priority_fee_per_gas).min(max_fee_per_gas)
        }
        _ => fees.cap(),
    };
    Simulation {
        gas: text(gas),
        gas_limit: text(gas_limit),
        base_fee_per_gas: base_fee.and_then(text),
        max_fee_per_gas,
        max_priority_fee_per_gas,
        gas_price,
        expected_fee: text(gas.saturating_mul(expected)),
        max_fee: text(gas_limit.saturating_mul(fees.cap())),
        ..Simulation::of(Outcome::Success, None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_range_of_fees_goes_from_the_next_block_s_price_to_the_cap() {
        let fees = Fees::Eip1559 { max_fee_per_gas: 30.into(), max_priority_fee_per_gas: 2.into() };
        let told = priced(100.into(), 120.into(), fees, Some(10.into()));
        assert_eq!((told.expected_fee.as_deref(), told.max_fee.as_deref()), (Some("1200"), Some("3600")));
        assert_eq!((told.max_fee_per_gas.as_deref(), told.gas_price), (Some("30"), None));
        let told = priced(100.into(), 120.into(), Fees::Legacy { gas_price: 7.into() }, None);
        assert_eq!((told.expected_fee.as_deref(), told.max_fee.as_deref()), (Some("700"), Some("840")));
        assert_eq!((told.gas_price.as_deref(), told.max_fee_per_gas), (Some("7"), None));
    }

    #[test]
    fn a_plain_transfer_has_no_margin() {
        assert_eq!(sent_limit(21_000.into(), 1.2), 21_000.into());
        assert_eq!(sent_limit(50_000.into(), 1.2), 60_000.into());
    }
}
