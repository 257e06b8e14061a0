//! Fee policies, and one price lookup per chain and head that all lanes share.
//!
//! A policy prices a transaction once, before signing. Prices of replacements are set elsewhere (`domain::bump`).

mod policy;
mod source;
mod station;

pub use policy::{FeeHistoryPolicy, FixedPolicy, GasPricePolicy, GasStationPolicy};
pub use source::{FeeSource, Head};
pub use station::StationPrice;

use ethers_core::types::U256;

use gapless_domain::{Fees, Payload, Speed};

/// One value for each speed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BySpeed<T> {
    pub slow: T,
    pub normal: T,
    pub fast: T,
}

impl<T> BySpeed<T> {
    pub fn of(&self, speed: Speed) -> &T {
        match speed {
            Speed::Slow => &self.slow,
            Speed::Normal => &self.normal,
            Speed::Fast => &self.fast,
        }
    }

    pub fn each(mut make: impl FnMut(Speed) -> T) -> Self {
        BySpeed { slow: make(Speed::Slow), normal: make(Speed::Normal), fast: make(Speed::Fast) }
    }
}

/// Price data at one head.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Market {
    /// Base fee of the next block. `None`: the node has no fee history.
    pub next_base_fee: Option<U256>,
    /// Priority fees of recent blocks, one per block. Empty blocks report zero.
    pub tips: BySpeed<Vec<U256>>,
    /// The node's `eth_gasPrice`. Read only if the policy needs it or there is no fee history.
    pub gas_price: Option<U256>,
    /// Gas station prices. `None`: not configured, or no usable answer.
    pub station: Option<BySpeed<StationPrice>>,
}

/// Prices a payload. Must respect the payload's own limits; the chain's limit is applied to the result.
pub trait FeePolicy: Send + Sync + std::fmt::Debug {
    fn price(&self, market: &Market, payload: &Payload) -> Fees;
}

/// The fees, capped at `limit`.
pub fn limited(fees: Fees, limit: U256) -> Fees {
    match fees {
        Fees::Legacy { gas_price } => Fees::Legacy { gas_price: gas_price.min(limit) },
        Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas } => Fees::Eip1559 {
            max_fee_per_gas: max_fee_per_gas.min(limit),
            max_priority_fee_per_gas: max_priority_fee_per_gas.min(limit),
        },
    }
}

/// `value × multiplier`, rounded up, saturating. The multiplier has a precision of six decimal places; one that is not
/// a positive number is treated as 1.
pub fn scale(value: U256, multiplier: f64) -> U256 {
    const MILLION: u64 = 1_000_000;
    let ppm = if multiplier.is_finite() && multiplier > 0.0 {
        (multiplier * MILLION as f64).round() as u64
    } else {
        MILLION
    };
    let (whole, rest) = value.div_mod(U256::from(MILLION));
    // `rest` and `ppm` are below 2^20 and 2^64, so product and sum cannot overflow 256 bits.
    let rest = (rest * U256::from(ppm) + U256::from(MILLION - 1)) / U256::from(MILLION);
    whole.checked_mul(U256::from(ppm)).and_then(|whole| whole.checked_add(rest)).unwrap_or(U256::MAX)
}

#[cfg(test)]
mod tests;
