//! What a transaction would cost and do, as clients see it.

use gapless::domain::Failure;
use poem_openapi::types::Example;
use poem_openapi::{Enum, Object};

use super::tx_error::Revert;

/// What would happen to the transaction now. Amounts are decimal; prices are wei per gas.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none, example)]
pub(crate) struct Simulation {
    pub(crate) outcome: Outcome,
    /// Why it would not succeed: the decoded revert reason, or the node's words.
    pub(crate) reason: Option<String>,
    /// What the contract returned when it reverted.
    pub(crate) revert: Option<Revert>,
    /// Gas it would use.
    pub(crate) gas: Option<String>,
    /// Gas limit it would be sent with: the request's own, or the estimate with a margin.
    pub(crate) gas_limit: Option<String>,
    /// Base fee of the next block, where the chain has one.
    pub(crate) base_fee_per_gas: Option<String>,
    /// `eip1559` only.
    pub(crate) max_fee_per_gas: Option<String>,
    /// `eip1559` only.
    pub(crate) max_priority_fee_per_gas: Option<String>,
    /// `legacy` only.
    pub(crate) gas_price: Option<String>,
    /// Wei for `gas` at the price of the next block, without the value.
    pub(crate) expected_fee: Option<String>,
    /// Wei for `gasLimit` at the highest price, without the value.
    pub(crate) max_fee: Option<String>,
    /// Wei the sender must own: `maxFee` and the value.
    pub(crate) max_cost: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "snake_case")]
pub(crate) enum Outcome {
    /// It would succeed.
    Success,
    /// It would be executed and revert. Sent, it would end as `FAILED` before it used anything.
    Reverted,
    /// The sender cannot pay for it. Sent, it would wait for funds.
    InsufficientFunds,
    /// Its price is below the base fee. Sent, it would wait for the base fee to fall.
    Underpriced,
    /// The chain would never take it.
    Invalid,
}

impl Simulation {
    /// `errors`: those of the contract, as the request gave them.
    pub(crate) fn reverted(failure: &Failure, errors: &[String]) -> Simulation {
        let revert = failure.revert.as_ref().map(|revert| Revert::new(revert, errors));
        Simulation { revert, ..Simulation::of(Outcome::Reverted, Some(failure.in_words(errors))) }
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
