//! Sums of money at the edges of 256 bits: nothing panics, nothing wraps, and what a pool or a limit demands holds. The
//! judge is the same sum in 512 bits.
#![allow(clippy::unwrap_used)]

use ethers_core::types::{U256, U512};
use gapless_chain::fees::{
    BySpeed, FeeHistoryPolicy, FeePolicy, FixedPolicy, GasPricePolicy, GasStationPolicy, Market,
    StationPrice, limited, scale,
};
use gapless_config as config;
use gapless_domain::amount::parse_amount;
use gapless_domain::bump::replacement_fees;
use gapless_domain::gas::with_margin;
use gapless_domain::{Address, ChainId, Fees, Nonce, Payload, Speed, TxKind, UnsignedTx};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;

/// Anything, but mostly near the edges: zero, powers of two, the largest.
fn amount() -> impl Strategy<Value = U256> {
    prop_oneof![
        any::<[u64; 4]>().prop_map(U256),
        any::<u64>().prop_map(U256::from),
        (0u64..100).prop_map(U256::from),
        (0u64..100).prop_map(|below| U256::MAX - below),
        (0usize..256, 0u64..3).prop_map(|(bit, more)| (U256::one() << bit).saturating_add(more.into())),
        // Where a tenth more just fits, and just does not.
        (0u64..40).prop_map(|below| U256::MAX / 11 * 10 + 20 - below),
    ]
}

/// A tip is never above its cap.
fn fees() -> impl Strategy<Value = Fees> {
    prop_oneof![
        amount().prop_map(|gas_price| Fees::Legacy { gas_price }),
        (amount(), amount()).prop_map(|(one, other)| Fees::Eip1559 {
            max_fee_per_gas: one.max(other),
            max_priority_fee_per_gas: one.min(other),
        }),
    ]
}

fn multiplier() -> impl Strategy<Value = f64> {
    prop_oneof![
        0.0..10.0f64,
        Just(1.1),
        Just(1.125),
        Just(f64::MAX),
        Just(f64::INFINITY),
        Just(f64::NAN),
        Just(-1.0)
    ]
}

fn wide(value: U256) -> U512 {
    U512::from(value)
}

/// What a pool demands of whoever replaces: a tenth more, rounded up.
fn demanded(value: U256) -> U512 {
    (wide(value) * 11 + 9) / 10
}

/// Cap and tip; a legacy price is both.
fn parts(fees: Fees) -> (U256, U256) {
    match fees {
        Fees::Legacy { gas_price } => (gas_price, gas_price),
        Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas } => {
            (max_fee_per_gas, max_priority_fee_per_gas)
        }
    }
}

fn market() -> impl Strategy<Value = Market> {
    let tips = || proptest::collection::vec(amount(), 0..4);
    let tips = (tips(), tips(), tips()).prop_map(|(slow, normal, fast)| BySpeed { slow, normal, fast });
    let maybe = || proptest::option::of(amount());
    let price =
        || (maybe(), maybe(), maybe()).prop_map(|(tip, cap, gas_price)| StationPrice { tip, cap, gas_price });
    let station = (price(), price(), price()).prop_map(|(slow, normal, fast)| BySpeed { slow, normal, fast });
    (maybe(), tips, maybe(), proptest::option::of(station)).prop_map(
        |(next_base_fee, tips, gas_price, station)| Market { next_base_fee, tips, gas_price, station },
    )
}

proptest! {
    // The same cases every time.
    #![proptest_config(ProptestConfig {
        cases: 4_000, rng_seed: RngSeed::Fixed(20), failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn a_replacement_offers_what_pools_demand_and_never_more_than_the_limit(
        previous in fees(), market in fees(), multiplier in multiplier(), limit in proptest::option::of(amount()),
    ) {
        let (cap, tip) = parts(previous);
        match replacement_fees(previous, market, multiplier, limit) {
            Some(fees) => {
                let (new_cap, new_tip) = parts(fees);
                prop_assert!(wide(new_cap) >= demanded(cap) && wide(new_tip) >= demanded(tip));
                prop_assert!(new_cap > cap && new_tip > tip && new_tip <= new_cap);
                prop_assert!(limit.is_none_or(|limit| new_cap <= limit));
                prop_assert_eq!(matches!(fees, Fees::Legacy { .. }), matches!(previous, Fees::Legacy { .. }));
            }
            None => {
                let room = wide(limit.unwrap_or(U256::MAX));
                prop_assert!(demanded(cap).max(demanded(tip)) > room || (cap.is_zero() && room.is_zero()));
            }
        }
    }

    #[test]
    fn a_dearer_attempt_is_never_replaced_by_a_cheaper_one(one in amount(), other in amount(), market in fees()) {
        let bumped = |price| replacement_fees(Fees::Legacy { gas_price: price }, market, 1.125, None);
        if let (Some(low), Some(high)) = (bumped(one.min(other)), bumped(one.max(other))) {
            prop_assert!(low.cap() <= high.cap());
        }
    }

    #[test]
    fn scaling_is_exact_rounded_up_and_ends_at_the_largest(value in amount(), multiplier in multiplier()) {
        let positive = multiplier.is_finite() && multiplier > 0.0;
        let ppm = if positive { (multiplier * 1e6).round() as u64 } else { 1_000_000 };
        let exact = (wide(value) * ppm + 999_999) / 1_000_000;
        prop_assert_eq!(wide(scale(value, multiplier)), exact.min(wide(U256::MAX)));
    }

    #[test]
    fn a_margin_stays_below_what_is_refused_and_above_what_is_needed(
        estimate in amount(), margin in amount(), block in amount(),
    ) {
        let limit = with_margin(estimate, margin, block);
        prop_assert!(limit <= margin && limit <= block.max(estimate));
        prop_assert!(margin < estimate || limit >= estimate);
    }

    #[test]
    fn a_cost_is_exact_or_there_is_none(gas in amount(), fees in fees(), value in amount()) {
        let unsigned = UnsignedTx {
            chain_id: ChainId(1),
            from: Address::zero(),
            nonce: Nonce(0),
            gas_limit: gas,
            fees,
            payload: Payload::transfer(Address::zero(), value),
        };
        let exact = gas.full_mul(fees.cap()).checked_add(wide(value)).unwrap();
        let fits = exact <= wide(U256::MAX);
        prop_assert_eq!(unsigned.max_cost().map(wide), fits.then_some(exact));
        prop_assert!(fees.one_wei_more().cap() >= fees.cap());
    }

    #[test]
    fn every_policy_prices_every_market_and_a_tip_is_never_above_its_cap(
        market in market(), own in (proptest::option::of(amount()), proptest::option::of(amount())), limit in amount(),
        speed in prop_oneof![Just(Speed::Slow), Just(Speed::Normal), Just(Speed::Fast)], legacy in any::<bool>(),
    ) {
        let mut payload = Payload::transfer(Address::zero(), U256::zero());
        payload.speed = speed;
        payload.max_fee_per_gas = own.0;
        if legacy {
            payload.kind = TxKind::Legacy;
        } else {
            payload.max_priority_fee_per_gas = own.1.map(|tip| tip.min(own.0.unwrap_or(U256::MAX)));
        }
        let mut config = config::Fees::default();
        config.fixed.max_fee_per_gas = Some(limit);
        let policies: [Box<dyn FeePolicy>; 4] = [
            Box::new(FeeHistoryPolicy::new(config.clone())),
            Box::new(GasPricePolicy::new(config.clone())),
            Box::new(FixedPolicy::new(config.clone())),
            Box::new(GasStationPolicy::new(config)),
        ];
        for policy in policies {
            let (cap, tip) = parts(policy.price(&market, &payload));
            prop_assert!(tip <= cap, "{:?}", policy);
            prop_assert!(own.0.is_none_or(|own| cap == own), "{:?}", policy);
            let (cap, tip) = parts(limited(policy.price(&market, &payload), limit));
            prop_assert!(tip <= cap && cap <= limit, "{:?}", policy);
        }
    }

    #[test]
    fn amounts_come_back_as_they_were_written(value in amount(), zeros in 0usize..4) {
        let padded = format!("{}{value}", "0".repeat(zeros));
        prop_assert_eq!(parse_amount(&padded), Ok(value));
        prop_assert_eq!(parse_amount(&format!("{value:#x}")), Ok(value));
    }

    #[test]
    fn what_is_read_as_an_amount_is_digits_and_nothing_else(text in "(0x)?[0-9a-fA-F]{0,80}|\\PC{0,20}") {
        if let Ok(value) = parse_amount(&text) {
            let (digits, radix) = text.strip_prefix("0x").map_or((text.as_str(), 10), |digits| (digits, 16));
            let read = digits.chars().fold(U512::zero(), |sum, digit| {
                sum * radix + digit.to_digit(radix).expect("nothing but digits")
            });
            prop_assert_eq!(read, wide(value));
        }
    }
}
