//! The price of a replacement. Mempools accept one only if both tip and cap rise by at least 10 %, rounded up.

use std::time::Duration;

use ethers_core::types::U256;

use super::unsigned::Fees;

/// Input of the policy: what is known when an attempt is to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BumpFacts {
    /// The highest price sent for this nonce.
    pub previous: Fees,
    /// The fee policy's current price.
    pub market: Fees,
    /// Attempts for this nonce after the first.
    pub replacements: u32,
    /// Since its nonce was assigned.
    pub age: Duration,
    /// Maximum price: the client's cap or the chain's, whichever is lower.
    pub limit: Option<U256>,
}

/// The port: the price of a replacement. A pure function, called each time a replacement is due. `None`: no
/// replacement now; the old attempt is sent again. `fitted` applies the mempool minimum and the limit to the result.
pub trait GasBumpPolicy: Send + Sync + std::fmt::Debug {
    fn fees(&self, facts: &BumpFacts) -> Option<Fees>;
}

/// `gasbump.multiplier` times the previous price, and at least the market price.
#[derive(Clone, Copy, Debug)]
pub struct Multiply(pub f64);

impl GasBumpPolicy for Multiply {
    fn fees(&self, facts: &BumpFacts) -> Option<Fees> {
        replacement_fees(facts.previous, facts.market, self.0, facts.limit)
    }
}

/// A policy's result, raised to the minimum that mempools accept. `None`: above the limit, beyond 256 bits, or of
/// another transaction type.
pub fn fitted(wanted: Fees, facts: &BumpFacts) -> Option<Fees> {
    let fits = |cap: U256| facts.limit.is_none_or(|limit| cap <= limit);
    match (facts.previous, wanted) {
        (Fees::Legacy { gas_price: previous }, Fees::Legacy { gas_price }) => {
            let gas_price = gas_price.max(min_bump(previous)?);
            fits(gas_price).then_some(Fees::Legacy { gas_price })
        }
        (
            Fees::Eip1559 { max_fee_per_gas: old_cap, max_priority_fee_per_gas: old_tip },
            Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas },
        ) => {
            let max_priority_fee_per_gas = max_priority_fee_per_gas.max(min_bump(old_tip)?);
            let max_fee_per_gas = max_fee_per_gas.max(min_bump(old_cap)?).max(max_priority_fee_per_gas);
            fits(max_fee_per_gas).then_some(Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas })
        }
        _ => None,
    }
}

/// 10 % more, rounded up: the minimum that mempools accept. `None`: more than 256 bits.
fn min_bump(value: U256) -> Option<U256> {
    let tenth = value / 10 + if (value % 10).is_zero() { U256::zero() } else { U256::one() };
    // At least one wei more; otherwise an attempt with price 0 could never be replaced.
    value.checked_add(tenth.max(U256::one()))
}

/// `value` times `permille` / 1000, rounded up, and at least `least`.
fn raised(value: U256, permille: u64, least: U256) -> U256 {
    let (whole, rest) = value.div_mod(U256::from(1_000));
    let rest = (rest * permille + U256::from(999)) / U256::from(1_000);
    let product = whole.checked_mul(permille.into()).and_then(|whole| whole.checked_add(rest));
    product.unwrap_or(U256::MAX).max(least)
}

/// The fees of an attempt that replaces one with `previous` fees: raised, and at least the market price.
/// `None`: above the limit or 256 bits; the old attempt is sent again instead.
pub fn replacement_fees(previous: Fees, market: Fees, multiplier: f64, limit: Option<U256>) -> Option<Fees> {
    let permille = (multiplier * 1_000.0).ceil().clamp(1_100.0, 100_000.0) as u64;
    let fits = |cap: U256| limit.is_none_or(|limit| cap <= limit);
    match previous {
        Fees::Legacy { gas_price } => {
            let least = min_bump(gas_price)?;
            let wanted = raised(gas_price, permille, least).max(market.cap());
            let gas_price = limit.map_or(wanted, |limit| wanted.min(limit)).max(least);
            fits(gas_price).then_some(Fees::Legacy { gas_price })
        }
        Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas } => {
            let market_tip = match market {
                Fees::Eip1559 { max_priority_fee_per_gas, .. } => max_priority_fee_per_gas,
                Fees::Legacy { .. } => U256::zero(),
            };
            let least = (min_bump(max_fee_per_gas)?, min_bump(max_priority_fee_per_gas)?);
            let wanted_tip = raised(max_priority_fee_per_gas, permille, least.1).max(market_tip);
            let wanted_cap = raised(max_fee_per_gas, permille, least.0).max(market.cap()).max(wanted_tip);
            let cap = limit.map_or(wanted_cap, |limit| wanted_cap.min(limit)).max(least.0).max(least.1);
            let tip = wanted_tip.min(cap).max(least.1);
            fits(cap).then_some(Fees::Eip1559 { max_fee_per_gas: cap, max_priority_fee_per_gas: tip })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn eip1559(cap: u64, tip: u64) -> Fees {
        Fees::Eip1559 { max_fee_per_gas: cap.into(), max_priority_fee_per_gas: tip.into() }
    }

    #[test]
    fn both_tip_and_cap_rise_by_the_multiplier_rounded_up() {
        assert_eq!(
            replacement_fees(eip1559(1_001, 100), eip1559(0, 0), 1.125, None),
            Some(eip1559(1_127, 113))
        );
    }

    #[test]
    fn a_higher_market_price_is_used() {
        assert_eq!(replacement_fees(eip1559(100, 10), eip1559(900, 90), 1.125, None), Some(eip1559(900, 90)));
    }

    #[test]
    fn the_raise_is_reduced_to_the_limit_and_none_below_the_mempool_minimum() {
        assert_eq!(
            replacement_fees(eip1559(1_000, 100), eip1559(0, 0), 1.5, Some(1_120.into())),
            Some(eip1559(1_120, 150))
        );
        assert_eq!(replacement_fees(eip1559(1_000, 100), eip1559(0, 0), 1.5, Some(1_099.into())), None);
    }

    #[test]
    fn a_policy_result_is_adjusted_to_the_mempool_minimum_and_the_limit() {
        let facts = |limit| BumpFacts {
            previous: eip1559(1_000, 100),
            market: eip1559(0, 0),
            replacements: 0,
            age: Duration::ZERO,
            limit,
        };
        assert_eq!(fitted(eip1559(5, 5), &facts(None)), Some(eip1559(1_100, 110)), "too little is raised");
        assert_eq!(
            fitted(eip1559(9_000, 9_500), &facts(None)),
            Some(eip1559(9_500, 9_500)),
            "a tip does not exceed its cap"
        );
        assert_eq!(fitted(eip1559(2_000, 500), &facts(Some(1_999.into()))), None, "above the limit");
        assert_eq!(
            fitted(Fees::Legacy { gas_price: 9_000.into() }, &facts(None)),
            None,
            "another transaction type"
        );
    }

    #[test]
    fn nothing_overflows_and_an_attempt_with_price_zero_can_be_replaced() {
        let top = Fees::Legacy { gas_price: U256::MAX };
        assert_eq!(replacement_fees(top, top, 2.0, None), None, "the same price does not replace");
        assert_eq!(replacement_fees(eip1559(0, 0), eip1559(0, 0), 1.125, None), Some(eip1559(1, 1)));
    }
}
