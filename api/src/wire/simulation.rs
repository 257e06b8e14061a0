//! Simulation results.

use gapless_domain::Failure;
use poem_openapi::types::Example;
use poem_openapi::{Enum, Object};

use super::tx_error::Revert;

/// The result of a simulation against the current chain state. Amounts are decimal; prices are in wei per gas.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct Simulation {
    pub(crate) outcome: Outcome,
    /// Why it would not succeed: the decoded revert reason, or the node's error message.
    pub(crate) reason: Option<String>,
    /// The decoded revert data.
    pub(crate) revert: Option<Revert>,
    /// Estimated gas.
    pub(crate) gas: Option<String>,
    /// Gas limit it would be sent with: that of the request, or the estimate plus a margin.
    pub(crate) gas_limit: Option<String>,
    /// Base fee of the next block, if the chain has one.
    pub(crate) base_fee_per_gas: Option<String>,
    /// `eip1559` only.
    pub(crate) max_fee_per_gas: Option<String>,
    /// `eip1559` only.
    pub(crate) max_priority_fee_per_gas: Option<String>,
    /// `legacy` only.
    pub(crate) gas_price: Option<String>,
    /// Wei: `gas` at the price of the next block, without the value.
    pub(crate) expected_fee: Option<String>,
    /// Wei: `gasLimit` at the highest price, without the value.
    pub(crate) max_fee: Option<String>,
    /// Wei the sender's balance must cover: `maxFee` plus the value.
    pub(crate) max_cost: Option<String>,
}

/// The outcome of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It would succeed.
    Success,
    /// It would revert. If submitted, it would become `FAILED` without using a nonce or gas.
    Reverted,
    /// The sender's balance is too low. If submitted, it would wait for funds.
    InsufficientFunds,
    /// Its price is below the base fee. If submitted, it would wait until the base fee falls.
    Underpriced,
    /// The chain would never accept it.
    Invalid,
}

impl Simulation {
    /// `errors`: the contract's custom errors, from the request.
    pub(crate) fn reverted(failure: &Failure, errors: &[String]) -> Simulation {
        let revert = failure.revert.as_ref().map(|revert| Revert::new(revert, errors));
        Simulation { revert, ..Simulation::of(Outcome::Reverted, Some(failure.describe(errors))) }
    }

    pub(crate) fn of(outcome: Outcome, reason: Option<String>) -> Simulation {
        Simulation {
            outcome,
            reason,
            revert: None,
            gas: None,
            gas_limit: None,
            base_fee_per_gas: None,
            max_fee_per_gas: None,
            max_priority_fee_per_gas: None,
            gas_price: None,
            expected_fee: None,
            max_fee: None,
            max_cost: None,
        }
    }
}

impl Example for Simulation {
    fn example() -> Self {
        let text = |text: &str| Some(text.to_owned());
        Simulation {
            gas: text("51234"),
            gas_limit: text("61481"),
            base_fee_per_gas: text("1000000000"),
            max_fee_per_gas: text("2001000000"),
            max_priority_fee_per_gas: text("1000000"),
            expected_fee: text("51285234000000"),
            max_fee: text("123023481000000"),
            max_cost: text("123023481000000"),
            ..Simulation::of(Outcome::Success, None)
        }
    }
}
