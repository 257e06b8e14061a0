//! The four built-in fee policies: pure functions of the `Market` and the payload.

use ethers_core::types::U256;

use super::station::StationPrice;
use super::{FeePolicy, Market, scale};
use gapless_config as config;
use gapless_domain::{Fees, Payload, Speed, TxKind};

/// The components of a price, used where the client sets none.
trait Parts {
    fn tip(&self, market: &Market, speed: Speed) -> U256;
    fn cap(&self, market: &Market, speed: Speed, tip: U256) -> U256;
    fn gas_price(&self, market: &Market, speed: Speed) -> U256;
}

/// The client's values take precedence over the policy's; a tip never exceeds its cap.
fn assemble(parts: &impl Parts, market: &Market, payload: &Payload) -> Fees {
    let speed = payload.speed;
    match payload.kind {
        TxKind::Eip1559 => {
            let tip = payload.max_priority_fee_per_gas.unwrap_or_else(|| parts.tip(market, speed));
            let cap = payload.max_fee_per_gas.unwrap_or_else(|| parts.cap(market, speed, tip));
            Fees::Eip1559 { max_fee_per_gas: cap, max_priority_fee_per_gas: tip.min(cap) }
        }
        TxKind::Legacy => Fees::Legacy {
            gas_price: payload.max_fee_per_gas.unwrap_or_else(|| parts.gas_price(market, speed)),
        },
    }
}

/// The default: cap = next base fee × multiplier + tip, tip = median tip of recent blocks.
#[derive(Clone, Debug)]
pub struct FeeHistoryPolicy {
    config: config::Fees,
}

impl FeeHistoryPolicy {
    pub fn new(config: config::Fees) -> Self {
        FeeHistoryPolicy { config }
    }

    fn floor(&self) -> U256 {
        U256::from(self.config.min_priority_fee)
    }

    /// Ignores the zero tips of empty blocks, which do not indicate the price in a full block.
    fn median(&self, tips: &[U256]) -> U256 {
        let mut paid: Vec<U256> = tips.iter().copied().filter(|tip| !tip.is_zero()).collect();
        paid.sort_unstable();
        paid.get(paid.len() / 2).copied().unwrap_or_default().max(self.floor())
    }

    /// The node's `eth_gasPrice`, for nodes without a fee history.
    fn suggested(&self, market: &Market, speed: Speed) -> U256 {
        scale(market.gas_price.unwrap_or_default(), self.config.multipliers.of(speed))
    }
}

impl Parts for FeeHistoryPolicy {
    /// With few blocks, the medians may not be ordered by speed; the result always is.
    fn tip(&self, market: &Market, speed: Speed) -> U256 {
        let normal = self.median(&market.tips.normal);
        match speed {
            Speed::Slow => self.median(&market.tips.slow).min(normal),
            Speed::Normal => normal,
            Speed::Fast => self.median(&market.tips.fast).max(normal),
        }
    }

    fn cap(&self, market: &Market, speed: Speed, tip: U256) -> U256 {
        match market.next_base_fee {
            Some(base) => scale(base, self.config.base_fee_multiplier).saturating_add(tip),
            None => scale(self.suggested(market, speed), self.config.base_fee_multiplier).max(tip),
        }
    }

    /// A legacy transaction pays its full price. On an EIP-1559 chain it still includes the multiplier, because its
    /// bytes are not re-priced by default, and a price below the base fee blocks the sequence.
    fn gas_price(&self, market: &Market, speed: Speed) -> U256 {
        match market.next_base_fee {
            Some(_) => self.cap(market, speed, self.tip(market, speed)),
            None => self.suggested(market, speed),
        }
    }
}

impl FeePolicy for FeeHistoryPolicy {
    fn price(&self, market: &Market, payload: &Payload) -> Fees {
        assemble(self, market, payload)
    }
}

/// The tip for a gas price on an EIP-1559 chain: what exceeds the base fee.
fn tip_within(price: U256, market: &Market, floor: U256) -> U256 {
    price.saturating_sub(market.next_base_fee.unwrap_or_default()).max(floor)
}

/// Base fee times `multiplier`, plus the tip.
fn cap_over(tip: U256, market: &Market, multiplier: f64) -> U256 {
    scale(market.next_base_fee.unwrap_or_default(), multiplier).saturating_add(tip)
}

/// The node's `eth_gasPrice` times the multiplier of the speed.
#[derive(Clone, Debug)]
pub struct GasPricePolicy {
    config: config::Fees,
}

impl GasPricePolicy {
    pub fn new(config: config::Fees) -> Self {
        GasPricePolicy { config }
    }
}

impl Parts for GasPricePolicy {
    fn tip(&self, market: &Market, speed: Speed) -> U256 {
        tip_within(self.gas_price(market, speed), market, U256::from(self.config.min_priority_fee))
    }

    fn cap(&self, market: &Market, _: Speed, tip: U256) -> U256 {
        cap_over(tip, market, self.config.base_fee_multiplier)
    }

    fn gas_price(&self, market: &Market, speed: Speed) -> U256 {
        scale(market.gas_price.unwrap_or_default(), self.config.multipliers.of(speed))
    }
}

impl FeePolicy for GasPricePolicy {
    fn price(&self, market: &Market, payload: &Payload) -> Fees {
        assemble(self, market, payload)
    }
}

/// The configured price times the multiplier of the speed, independent of the market.
#[derive(Clone, Debug)]
pub struct FixedPolicy {
    config: config::Fees,
}

impl FixedPolicy {
    pub fn new(config: config::Fees) -> Self {
        FixedPolicy { config }
    }

    fn scaled(&self, first: Option<U256>, second: Option<U256>, speed: Speed) -> U256 {
        scale(first.or(second).unwrap_or_default(), self.config.multipliers.of(speed))
    }
}

impl Parts for FixedPolicy {
    fn tip(&self, _: &Market, speed: Speed) -> U256 {
        let least = U256::from(self.config.min_priority_fee);
        self.scaled(self.config.fixed.max_priority_fee_per_gas, Some(least), speed)
    }

    fn cap(&self, _: &Market, speed: Speed, _: U256) -> U256 {
        let fixed = &self.config.fixed;
        self.scaled(fixed.max_fee_per_gas, fixed.gas_price, speed)
    }

    fn gas_price(&self, _: &Market, speed: Speed) -> U256 {
        let fixed = &self.config.fixed;
        self.scaled(fixed.gas_price, fixed.max_fee_per_gas, speed)
    }
}

impl FeePolicy for FixedPolicy {
    fn price(&self, market: &Market, payload: &Payload) -> Fees {
        assemble(self, market, payload)
    }
}

/// Gas station prices; missing components, or all without a usable answer, come from the fee history.
#[derive(Clone, Debug)]
pub struct GasStationPolicy {
    history: FeeHistoryPolicy,
}

impl GasStationPolicy {
    pub fn new(config: config::Fees) -> Self {
        GasStationPolicy { history: FeeHistoryPolicy::new(config) }
    }

    fn station_price(&self, market: &Market, speed: Speed) -> StationPrice {
        market.station.as_ref().map(|prices| *prices.of(speed)).unwrap_or_default()
    }
}

impl Parts for GasStationPolicy {
    fn tip(&self, market: &Market, speed: Speed) -> U256 {
        match self.station_price(market, speed) {
            StationPrice { tip: Some(tip), .. } => tip.max(self.history.floor()),
            StationPrice { gas_price: Some(price), .. } => tip_within(price, market, self.history.floor()),
            _ => self.history.tip(market, speed),
        }
    }

    fn cap(&self, market: &Market, speed: Speed, tip: U256) -> U256 {
        match self.station_price(market, speed) {
            StationPrice { cap: Some(cap), .. } => cap,
            StationPrice { gas_price: Some(_), .. } => {
                cap_over(tip, market, self.history.config.base_fee_multiplier)
            }
            _ => self.history.cap(market, speed, tip),
        }
    }

    fn gas_price(&self, market: &Market, speed: Speed) -> U256 {
        let station = self.station_price(market, speed);
        match (station.gas_price.or(station.cap), station.tip) {
            (Some(price), _) => price,
            (None, Some(tip)) => self.history.cap(market, speed, tip.max(self.history.floor())),
            (None, None) => self.history.gas_price(market, speed),
        }
    }
}

impl FeePolicy for GasStationPolicy {
    fn price(&self, market: &Market, payload: &Payload) -> Fees {
        assemble(self, market, payload)
    }
}
