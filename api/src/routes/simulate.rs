//! `POST /api/v1/tx/simulate`: the outcome and cost of a transaction in the current chain state. Stores nothing, and
//! the outcome may differ when the transaction is sent.

use gapless_chain::fees::scale;
use gapless_chain::{BlockTag, CallOutcome, ChainConnector};
use gapless_domain::gas::{intrinsic_gas, with_margin};
use gapless_domain::intent::check_request_id;
use gapless_domain::{self as domain, Address, Fees, Payload, RequestedTx, U256};
use poem::web::Data;
use poem_openapi::OpenApi;
use poem_openapi::payload::Json;

use super::Tag;
use crate::app::SharedApp;
use crate::auth::{Caller, Write};
use crate::error::{ApiError, Failure, OnSimulate};
use crate::nodes::Node;
use crate::wire::{Body, CreateTx, Outcome, Simulation};

/// Gas of a plain transfer. It is exact, so no margin is added.
const TRANSFER_GAS: u64 = 21_000;

#[derive(Debug)]
pub(crate) struct Simulate;

#[OpenApi]
impl Simulate {
    /// Simulate a transaction
    ///
    /// Takes the same body as `POST /api/v1/tx`; `requestId` is optional. Returns gas, fees and cost, or why the
    /// transaction would not succeed. What the submitter's policy forbids is refused. Nothing is sent or stored.
    /// Queued and in-flight transactions are not taken into account.
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
            check_request_id(request_id).map_err(ApiError::InvalidRequest)?;
        }
        let submitter = caller.own(app.chains.submitter(request.chain_id, &request.submitter)?)?;
        let payload = RequestedTx::from(request.payload).validate().map_err(ApiError::InvalidPayload)?;
        app.policies.check(submitter, &payload)?;
        let node = app.nodes.get(submitter.chain_id).await?;
        app.store.get_submitter(submitter).await?.ok_or(ApiError::UnknownSubmitter(submitter))?;
        Ok(Json(simulate(node, submitter.address, &payload).await?))
    }
}

/// Checks gas, then price, then balance, in the same order as a worker.
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
        let reason = format!("gas limit {gas_limit} exceeds the block's gas limit");
        return Ok(Simulation { outcome: Outcome::Invalid, reason: Some(reason), ..priced });
    }
    if let Some(base) = base_fee.filter(|base| fees.cap() < *base) {
        let reason = format!("fee cap of {} wei is below the base fee of {base} wei", fees.cap());
        return Ok(Simulation { outcome: Outcome::Underpriced, reason: Some(reason), ..priced });
    }
    let balance = node.client.balance(from).await?;
    if balance < max_cost {
        let reason = format!("needs up to {max_cost} wei, balance is {balance} wei");
        return Ok(Simulation { outcome: Outcome::InsufficientFunds, reason: Some(reason), ..priced });
    }
    Ok(priced)
}

/// The estimated gas. A request with a gas limit is first executed with that limit, to detect one that is too low.
async fn execute(node: &Node, from: Address, payload: &Payload) -> Result<CallOutcome<U256>, ApiError> {
    if payload.gas_limit.is_some() {
        let outcome = node.client.call(from, payload, BlockTag::Latest).await?;
        if outcome != CallOutcome::Ok(()) {
            return outcome.try_map(|()| Ok(U256::zero()));
        }
    }
    Ok(match node.client.estimate_gas(from, payload).await? {
        CallOutcome::Ok(gas) if payload.gas_limit.is_some_and(|limit| limit < gas) => {
            let message = format!("out of gas: needs {gas}");
            CallOutcome::Reverted(domain::Failure { revert: None, message, out_of_gas: true })
        }
        CallOutcome::Ok(gas) => CallOutcome::Ok(gas.max(intrinsic_gas(payload))),
        other => other,
    })
}

/// The gas limit a worker would choose, except that it is not capped at the block's gas limit.
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
    fn fees_range_from_the_next_block_price_to_the_cap() {
        let fees = Fees::Eip1559 { max_fee_per_gas: 30.into(), max_priority_fee_per_gas: 2.into() };
        let result = priced(100.into(), 120.into(), fees, Some(10.into()));
        assert_eq!((result.expected_fee.as_deref(), result.max_fee.as_deref()), (Some("1200"), Some("3600")));
        assert_eq!((result.max_fee_per_gas.as_deref(), result.gas_price), (Some("30"), None));
        let result = priced(100.into(), 120.into(), Fees::Legacy { gas_price: 7.into() }, None);
        assert_eq!((result.expected_fee.as_deref(), result.max_fee.as_deref()), (Some("700"), Some("840")));
        assert_eq!((result.gas_price.as_deref(), result.max_fee_per_gas), (Some("7"), None));
    }

    #[test]
    fn a_plain_transfer_has_no_margin() {
        assert_eq!(sent_limit(21_000.into(), 1.2), 21_000.into());
        assert_eq!(sent_limit(50_000.into(), 1.2), 60_000.into());
    }
}
