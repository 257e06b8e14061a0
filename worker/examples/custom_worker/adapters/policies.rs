//! Custom policies. Pure functions of their arguments.

use std::time::Duration;

use gapless_chain::{FeePolicy, Market};
use gapless_domain::bump::{BumpFacts, GasBumpPolicy, fitted};
use gapless_domain::stuck::{StuckAction, StuckFacts, StuckPolicy};
use gapless_domain::{Fees, Payload, TxKind, U256};

/// Gas costs nothing.
#[derive(Debug)]
pub(crate) struct Free;

impl FeePolicy for Free {
    fn price(&self, _: &Market, payload: &Payload) -> Fees {
        let zero = U256::zero();
        match payload.kind {
            TxKind::Legacy => Fees::Legacy { gas_price: zero },
            TxKind::Eip1559 => Fees::Eip1559 { max_fee_per_gas: zero, max_priority_fee_per_gas: zero },
        }
    }
}

/// Doubles the price each time, as far as the limit allows.
#[derive(Debug)]
pub(crate) struct Steep;

impl GasBumpPolicy for Steep {
    fn fees(&self, facts: &BumpFacts) -> Option<Fees> {
        let doubled = |price: U256| {
            let doubled = price.saturating_mul(2.into());
            facts.limit.map_or(doubled, |limit| doubled.min(limit))
        };
        let wanted = match facts.previous {
            Fees::Legacy { gas_price } => Fees::Legacy { gas_price: doubled(gas_price) },
            Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas } => Fees::Eip1559 {
                max_fee_per_gas: doubled(max_fee_per_gas),
                max_priority_fee_per_gas: doubled(max_priority_fee_per_gas),
            },
        };
        // `None` if the limit does not allow a price that mempools accept as a replacement.
        fitted(wanted, facts)
    }
}

/// Rebroadcasts what no node has accepted, bumps a transaction once during its first hour, and escalates otherwise.
#[derive(Debug)]
pub(crate) struct Patient;

const OLD: Duration = Duration::from_secs(3_600);

impl StuckPolicy for Patient {
    fn decide(&self, facts: StuckFacts) -> StuckAction {
        match facts {
            StuckFacts { taken: false, .. } => StuckAction::Rebroadcast,
            StuckFacts { replacements: 0, age, .. } if age < OLD => StuckAction::Bump,
            _ => StuckAction::Escalate,
        }
    }
}
