//! The contracts of the policies: deterministic functions that respect their limits.

use std::time::Duration;

use ethers_core::types::{Address, U256};

use super::Findings;
use gapless_chain::fees::{BySpeed, FeePolicy, Market};
use gapless_domain::bump::{BumpFacts, GasBumpPolicy, fitted};
use gapless_domain::stuck::{StuckFacts, StuckPolicy};
use gapless_domain::{Fees, Payload, TxKind};

/// The same decision for the same facts, including extreme values.
pub fn stuck_policy(policy: &dyn StuckPolicy) -> Vec<String> {
    let mut found = Findings::default();
    for age in [0, 1, 60, 3_600, u64::MAX] {
        for sends in [0, 1, u32::MAX] {
            for (taken, replacements) in [(false, 0), (true, 0), (true, 3), (true, u32::MAX)] {
                let facts = StuckFacts { age: Duration::from_secs(age), sends, taken, replacements };
                let (first, second) = (policy.decide(facts), policy.decide(facts));
                found.expect(first == second, format!("{facts:?}: {first:?}, and then {second:?}"));
            }
        }
    }
    found.0
}

/// Prices from zero to the maximum of 256 bits.
fn prices() -> [U256; 5] {
    [U256::zero(), 1.into(), 1_000_000_000.into(), U256::from(10).pow(24.into()), U256::MAX]
}

/// The same fees for the same facts; at least the minimum bump that mempools accept; never above the limit; the same
/// transaction type.
pub fn gas_bump_policy(policy: &dyn GasBumpPolicy) -> Vec<String> {
    let mut found = Findings::default();
    for previous in prices() {
        for market in prices() {
            for limit in [None, Some(U256::from(50_000_000_000_u64))] {
                for legacy in [false, true] {
                    let facts = BumpFacts {
                        previous: fees(previous, legacy),
                        market: fees(market, legacy),
                        replacements: 1,
                        age: Duration::from_secs(60),
                        limit,
                    };
                    check_bump(&mut found, policy, &facts);
                }
            }
        }
    }
    found.0
}

fn check_bump(found: &mut Findings, policy: &dyn GasBumpPolicy, facts: &BumpFacts) {
    let (first, second) = (policy.fees(facts), policy.fees(facts));
    found.expect(first == second, format!("{facts:?}: {first:?}, and then {second:?}"));
    if let Some(wanted) = first {
        // The worker corrects fees that are too low and refuses fees that are too high; a policy must not rely on
        // that.
        found.expect(
            fitted(wanted, facts) == Some(wanted),
            format!("{facts:?}: {wanted:?} is below the minimum bump, above the limit, or of another type"),
        );
    }
}

fn fees(price: U256, legacy: bool) -> Fees {
    if legacy {
        Fees::Legacy { gas_price: price }
    } else {
        Fees::Eip1559 { max_fee_per_gas: price, max_priority_fee_per_gas: price / 10 }
    }
}

/// The same fees for the same market; the transaction type of the payload; the tip at most the cap; the client's own
/// caps respected.
pub fn fee_policy(policy: &dyn FeePolicy) -> Vec<String> {
    let mut found = Findings::default();
    let markets = prices().into_iter().flat_map(|price| {
        let tips = BySpeed::each(|_| vec![price / 10]);
        [
            Market::default(),
            Market { next_base_fee: Some(price), tips: tips.clone(), ..Market::default() },
            Market { gas_price: Some(price), ..Market::default() },
        ]
    });
    for market in markets {
        for kind in [TxKind::Eip1559, TxKind::Legacy] {
            for own in [None, Some(U256::from(7))] {
                let transfer = Payload::transfer(Address::repeat_byte(1), U256::one());
                check_price(&mut found, policy, &market, &Payload { kind, max_fee_per_gas: own, ..transfer });
            }
        }
    }
    found.0
}

fn check_price(found: &mut Findings, policy: &dyn FeePolicy, market: &Market, payload: &Payload) {
    let (first, second) = (policy.price(market, payload), policy.price(market, payload));
    found.expect(first == second, format!("{market:?}: {first:?}, and then {second:?}"));
    let fits = match (payload.kind, first) {
        (TxKind::Legacy, Fees::Legacy { .. }) => true,
        (TxKind::Eip1559, Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas }) => {
            max_priority_fee_per_gas <= max_fee_per_gas
        }
        _ => false,
    };
    found.expect(fits, format!("{:?}: {first:?} has another type, or its tip exceeds its cap", payload.kind));
    let own = payload.max_fee_per_gas;
    found.expect(
        own.is_none_or(|own| first.cap() <= own),
        format!("the price {first:?} exceeds the client's cap {own:?}"),
    );
}
