//! Prices at the limits of the arithmetic, and the effect of speeds.

use ethers_core::types::Address;

use super::*;
use gapless_config as config;
use gapless_domain::TxKind;

pub(super) fn config() -> config::Fees {
    config::Fees { min_priority_fee: 10, ..config::Fees::default() }
}

fn policy() -> FeeHistoryPolicy {
    FeeHistoryPolicy::new(config())
}

/// The same tips for every speed.
fn history(base: U256, tips: &[u64]) -> Market {
    let tips: Vec<U256> = tips.iter().copied().map(U256::from).collect();
    Market { next_base_fee: Some(base), tips: BySpeed::each(|_| tips.clone()), ..Market::default() }
}

fn suggestion(price: impl Into<U256>) -> Market {
    Market { gas_price: Some(price.into()), ..Market::default() }
}

pub(super) fn legacy() -> Payload {
    Payload { kind: TxKind::Legacy, ..payload() }
}

pub(super) fn at(speed: Speed) -> Payload {
    Payload { speed, ..payload() }
}

pub(super) fn one(price: u64) -> Fees {
    Fees::Legacy { gas_price: price.into() }
}

pub(super) fn payload() -> Payload {
    Payload::transfer(Address::zero(), U256::one())
}

pub(super) fn dynamic(cap: u64, tip: u64) -> Fees {
    Fees::Eip1559 { max_fee_per_gas: cap.into(), max_priority_fee_per_gas: tip.into() }
}

#[test]
fn the_cap_leaves_room_for_the_base_fee_and_the_tip_is_the_median() {
    assert_eq!(policy().price(&history(100.into(), &[40, 20, 30]), &payload()), dynamic(230, 30));
}

#[test]
fn empty_blocks_do_not_lower_the_tip_and_the_minimum_applies() {
    assert_eq!(policy().price(&history(100.into(), &[0, 0, 50]), &payload()), dynamic(250, 50));
    assert_eq!(policy().price(&history(100.into(), &[0, 0]), &payload()), dynamic(210, 10));
    assert_eq!(policy().price(&history(100.into(), &[3]), &payload()), dynamic(210, 10));
}

#[test]
fn a_zero_base_fee_still_includes_the_tip() {
    assert_eq!(policy().price(&history(U256::zero(), &[]), &payload()), dynamic(10, 10));
}

#[test]
fn the_largest_base_fee_saturates() {
    let fees = policy().price(&history(U256::MAX, &[5]), &payload());
    assert_eq!(fees, Fees::Eip1559 { max_fee_per_gas: U256::MAX, max_priority_fee_per_gas: 10.into() });
}

#[test]
fn limits_of_the_payload_are_used_unchanged() {
    let market = history(100.into(), &[30]);
    let with = |cap: Option<u64>, tip: Option<u64>| Payload {
        max_fee_per_gas: cap.map(U256::from),
        max_priority_fee_per_gas: tip.map(U256::from),
        ..payload()
    };
    assert_eq!(policy().price(&market, &with(Some(500), None)), dynamic(500, 30));
    assert_eq!(policy().price(&market, &with(Some(5), None)), dynamic(5, 5), "a tip is never above the cap");
    assert_eq!(policy().price(&market, &with(None, Some(7))), dynamic(207, 7));
    assert_eq!(policy().price(&market, &with(None, Some(0))), dynamic(200, 0));
    assert_eq!(policy().price(&market, &with(Some(8), Some(9))), dynamic(8, 8));
}

#[test]
fn a_legacy_payload_gets_one_price() {
    assert_eq!(policy().price(&history(100.into(), &[30]), &legacy()), one(230));
    assert_eq!(policy().price(&suggestion(77), &legacy()), one(77));
    let capped = Payload { max_fee_per_gas: Some(3.into()), ..legacy() };
    assert_eq!(policy().price(&history(100.into(), &[30]), &capped), one(3));
}

#[test]
fn without_history_the_node_s_gas_price_is_used() {
    assert_eq!(policy().price(&suggestion(100), &payload()), dynamic(200, 10));
    assert_eq!(policy().price(&suggestion(0), &payload()), dynamic(10, 10));
}

#[test]
fn a_speed_uses_its_percentile_and_prices_are_ordered_by_speed() {
    let list = |tips: &[u64]| tips.iter().copied().map(U256::from).collect::<Vec<_>>();
    let market = |slow: &[u64], normal: &[u64], fast: &[u64]| Market {
        next_base_fee: Some(100.into()),
        tips: BySpeed { slow: list(slow), normal: list(normal), fast: list(fast) },
        ..Market::default()
    };
    let sound = market(&[20, 21], &[30, 31], &[90, 95]);
    assert_eq!(policy().price(&sound, &at(Speed::Slow)), dynamic(221, 21));
    assert_eq!(policy().price(&sound, &at(Speed::Normal)), dynamic(231, 31));
    assert_eq!(policy().price(&sound, &at(Speed::Fast)), dynamic(295, 95));
    // Zero tips are ignored, so few blocks can reverse the order.
    let odd = market(&[0, 0, 99], &[0, 40, 41], &[12, 13, 14]);
    assert_eq!(policy().price(&odd, &at(Speed::Slow)), dynamic(241, 41));
    assert_eq!(policy().price(&odd, &at(Speed::Normal)), dynamic(241, 41));
    assert_eq!(policy().price(&odd, &at(Speed::Fast)), dynamic(241, 41));
    let fast = Payload { kind: TxKind::Legacy, ..at(Speed::Fast) };
    assert_eq!(policy().price(&sound, &fast), one(295));
    assert_eq!(policy().price(&suggestion(100), &fast), one(125), "without history it is the multiplier");
}

#[test]
fn the_gas_price_is_what_the_node_suggests() {
    let policy = GasPricePolicy::new(config());
    assert_eq!(policy.price(&suggestion(100), &legacy()), one(100));
    assert_eq!(
        policy.price(&suggestion(100), &payload()),
        dynamic(100, 100),
        "no base fee: all of it is tip"
    );
    let market = Market { gas_price: Some(130.into()), ..history(100.into(), &[1]) };
    assert_eq!(policy.price(&market, &payload()), dynamic(230, 30), "the tip is what exceeds the base fee");
    assert_eq!(policy.price(&market, &at(Speed::Fast)), dynamic(263, 63));
    assert_eq!(policy.price(&market, &at(Speed::Slow)), dynamic(217, 17));
    let behind = Market { gas_price: Some(90.into()), ..history(100.into(), &[]) };
    assert_eq!(policy.price(&behind, &payload()), dynamic(210, 10), "the minimum applies");
    let capped = Payload { max_fee_per_gas: Some(50.into()), ..payload() };
    assert_eq!(policy.price(&market, &capped), dynamic(50, 30));
}

#[test]
fn the_largest_gas_price_saturates() {
    let policy = GasPricePolicy::new(config());
    let all = Fees::Eip1559 { max_fee_per_gas: U256::MAX, max_priority_fee_per_gas: U256::MAX };
    assert_eq!(policy.price(&suggestion(U256::MAX), &at(Speed::Fast)), all);
    let market = Market { gas_price: Some(U256::MAX), ..history(U256::MAX, &[]) };
    let fees = policy.price(&market, &at(Speed::Fast));
    assert_eq!(fees, Fees::Eip1559 { max_fee_per_gas: U256::MAX, max_priority_fee_per_gas: 10.into() });
    assert_eq!(policy.price(&suggestion(U256::MAX), &legacy()), Fees::Legacy { gas_price: U256::MAX });
}

fn fixed(gas_price: Option<U256>, cap: Option<U256>, tip: Option<U256>) -> FixedPolicy {
    let fixed = config::FixedFees { gas_price, max_fee_per_gas: cap, max_priority_fee_per_gas: tip };
    FixedPolicy::new(config::Fees { fixed, ..config() })
}

#[test]
fn fixed_fees_ignore_the_market() {
    let all = fixed(Some(50.into()), Some(80.into()), Some(4.into()));
    for market in [Market::default(), history(1000.into(), &[70]), suggestion(9)] {
        assert_eq!(all.price(&market, &payload()), dynamic(80, 4));
        assert_eq!(all.price(&market, &legacy()), one(50));
        assert_eq!(all.price(&market, &at(Speed::Fast)), dynamic(100, 5));
        assert_eq!(all.price(&market, &at(Speed::Slow)), dynamic(72, 4), "rounded up");
    }
    let nothing = Market::default();
    assert_eq!(fixed(Some(50.into()), None, None).price(&nothing, &payload()), dynamic(50, 10));
    assert_eq!(fixed(None, Some(80.into()), None).price(&nothing, &legacy()), one(80));
    assert_eq!(fixed(None, Some(7.into()), None).price(&nothing, &payload()), dynamic(7, 7));
    let most = fixed(None, Some(U256::MAX), Some(U256::MAX)).price(&nothing, &at(Speed::Fast));
    assert_eq!(most, Fees::Eip1559 { max_fee_per_gas: U256::MAX, max_priority_fee_per_gas: U256::MAX });
    let own = Payload { max_fee_per_gas: Some(3.into()), ..payload() };
    assert_eq!(all.price(&nothing, &own), dynamic(3, 3), "a client's price takes precedence");
}

fn station(tip: Option<u64>, cap: Option<u64>, gas_price: Option<u64>) -> Market {
    let price = StationPrice {
        tip: tip.map(U256::from),
        cap: cap.map(U256::from),
        gas_price: gas_price.map(U256::from),
    };
    Market { station: Some(BySpeed::each(|_| price)), ..history(100.into(), &[30]) }
}

#[test]
fn missing_gas_station_prices_come_from_the_history() {
    let policy = GasStationPolicy::new(config());
    let price = |market: &Market| policy.price(market, &payload());
    assert_eq!(price(&station(Some(20), Some(500), None)), dynamic(500, 20));
    assert_eq!(price(&station(Some(20), None, None)), dynamic(220, 20));
    assert_eq!(price(&station(None, Some(500), None)), dynamic(500, 30));
    assert_eq!(price(&station(None, None, Some(150))), dynamic(250, 50));
    assert_eq!(price(&station(Some(600), Some(500), None)), dynamic(500, 500), "the tip is capped");
    assert_eq!(price(&station(Some(0), Some(500), None)), dynamic(500, 10), "the minimum applies");
    assert_eq!(price(&history(100.into(), &[30])), dynamic(230, 30), "without station prices");
    assert_eq!(policy.price(&station(Some(20), Some(500), Some(150)), &legacy()), one(150));
    assert_eq!(policy.price(&station(Some(20), Some(500), None), &legacy()), one(500));
    assert_eq!(policy.price(&station(Some(20), None, None), &legacy()), one(220));
    assert_eq!(policy.price(&history(100.into(), &[30]), &legacy()), one(230));
    let no_base =
        Market { next_base_fee: None, gas_price: Some(40.into()), ..station(None, None, Some(150)) };
    assert_eq!(price(&no_base), dynamic(150, 150));
    let own = Payload { max_priority_fee_per_gas: Some(7.into()), ..payload() };
    assert_eq!(policy.price(&station(Some(20), None, None), &own), dynamic(207, 7));
}

#[test]
fn the_largest_station_price_saturates() {
    let policy = GasStationPolicy::new(config());
    let most = StationPrice { gas_price: Some(U256::MAX), ..StationPrice::default() };
    let market = Market { station: Some(BySpeed::each(|_| most)), ..history(U256::MAX, &[30]) };
    let fees = policy.price(&market, &payload());
    assert_eq!(fees, Fees::Eip1559 { max_fee_per_gas: U256::MAX, max_priority_fee_per_gas: 10.into() });
}

#[test]
fn a_limit_applies_to_every_component_of_a_price() {
    assert_eq!(limited(dynamic(500, 30), 100.into()), dynamic(100, 30));
    assert_eq!(limited(dynamic(500, 300), 100.into()), dynamic(100, 100));
    assert_eq!(limited(dynamic(50, 30), 100.into()), dynamic(50, 30));
    assert_eq!(limited(one(500), 100.into()), one(100));
    assert_eq!(limited(one(500), U256::MAX), one(500));
}

#[test]
fn scaling_is_exact_rounds_up_and_saturates() {
    assert_eq!(scale(21_000.into(), 1.2), 25_200.into());
    assert_eq!(scale(3.into(), 1.125), 4.into());
    assert_eq!(scale(U256::zero(), 9.0), U256::zero());
    assert_eq!(scale(U256::MAX, 1.0), U256::MAX);
    assert_eq!(scale(U256::MAX, 1.5), U256::MAX);
    assert_eq!(scale(U256::MAX - 1, 1.0), U256::MAX - 1);
    assert_eq!(scale(U256::MAX, 0.5), U256::MAX / 2 + 1);
    for odd in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
        assert_eq!(scale(7.into(), odd), 7.into());
    }
}
