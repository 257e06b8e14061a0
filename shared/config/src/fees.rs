//! `[fees]`: fee policy and limits.

use std::time::Duration;

use ethers_core::types::U256;
use serde::{Deserialize, Deserializer};

use super::secret::Secret;
use gapless_domain::Speed;
use gapless_domain::amount::parse_amount;

/// Source of gas prices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeePolicyKind {
    /// Fees of recent blocks (`eth_feeHistory`).
    #[default]
    History,
    /// The node's suggestion (`eth_gasPrice`).
    GasPrice,
    /// Constant, from `fees.fixed`.
    Fixed,
    /// An HTTP service; falls back to `history`.
    GasStation,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Fees {
    pub policy: FeePolicyKind,
    /// Wei per gas. Upper limit for every policy and client. Absent: no limit.
    #[serde(deserialize_with = "wei")]
    pub max_fee_per_gas: Option<U256>,
    /// Number of blocks used for the priority fee.
    pub history_blocks: u64,
    /// Percentile of each block, for requests without a speed.
    pub percentile: f64,
    pub percentiles: Percentiles,
    /// Price factor of each speed, for policies without percentiles.
    pub multipliers: Multipliers,
    /// Wei. Chains without a fee market report a priority fee of 0, but mempools require at least 1 wei.
    pub min_priority_fee: u64,
    /// The maximum fee is this factor times the next base fee, plus the priority fee: room for a rising base fee.
    pub base_fee_multiplier: f64,
    /// Factor on the estimated gas, because state can change between estimate and execution.
    pub gas_limit_multiplier: f64,
    pub fixed: FixedFees,
    pub gas_station: GasStation,
}

impl Default for Fees {
    fn default() -> Self {
        Fees {
            policy: FeePolicyKind::History,
            max_fee_per_gas: None,
            history_blocks: 10,
            percentile: 50.0,
            percentiles: Percentiles::default(),
            multipliers: Multipliers::default(),
            min_priority_fee: 1_000_000,
            base_fee_multiplier: 2.0,
            gas_limit_multiplier: 1.2,
            fixed: FixedFees::default(),
            gas_station: GasStation::default(),
        }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Percentiles {
    pub slow: f64,
    /// Absent: `fees.percentile`.
    pub normal: Option<f64>,
    pub fast: f64,
}

impl Default for Percentiles {
    fn default() -> Self {
        Percentiles { slow: 25.0, normal: None, fast: 90.0 }
    }
}

#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Multipliers {
    pub slow: f64,
    pub normal: f64,
    pub fast: f64,
}

impl Default for Multipliers {
    fn default() -> Self {
        // A price far below the node's suggestion may wait for long; prices vary by about a tenth between blocks.
        Multipliers { slow: 0.9, normal: 1.0, fast: 1.25 }
    }
}

impl Multipliers {
    pub fn of(&self, speed: Speed) -> f64 {
        match speed {
            Speed::Slow => self.slow,
            Speed::Normal => self.normal,
            Speed::Fast => self.fast,
        }
    }
}

/// Wei per gas, for `policy = "fixed"`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct FixedFees {
    /// For legacy transactions. Absent: `max_fee_per_gas`.
    #[serde(deserialize_with = "wei")]
    pub gas_price: Option<U256>,
    /// Absent: `gas_price`.
    #[serde(deserialize_with = "wei")]
    pub max_fee_per_gas: Option<U256>,
    /// Absent: `fees.min_priority_fee`.
    #[serde(deserialize_with = "wei")]
    pub max_priority_fee_per_gas: Option<U256>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PriceUnit {
    Wei,
    #[default]
    Gwei,
}

/// A service that returns prices as JSON for a GET request, for `policy = "gas_station"`.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GasStation {
    /// A secret, because it may contain an API key.
    pub url: Option<Secret>,
    pub unit: PriceUnit,
    #[serde(with = "humantime_serde")]
    pub timeout: Duration,
    /// A response is used for this long; after a failure the next request is made only after this time.
    #[serde(with = "humantime_serde")]
    pub cache: Duration,
    pub slow: PricePaths,
    pub normal: PricePaths,
    pub fast: PricePaths,
}

impl Default for GasStation {
    fn default() -> Self {
        GasStation {
            url: None,
            unit: PriceUnit::Gwei,
            timeout: Duration::from_secs(2),
            cache: Duration::from_secs(10),
            slow: PricePaths::default(),
            normal: PricePaths::default(),
            fast: PricePaths::default(),
        }
    }
}

/// Path of a price in the response: `standard.maxFee`, `blocks.0.price`, or a JSON pointer (`/a.b/c`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PricePaths {
    pub tip: Option<String>,
    pub cap: Option<String>,
    pub gas_price: Option<String>,
}

impl PricePaths {
    pub fn is_empty(&self) -> bool {
        *self == PricePaths::default()
    }
}

impl Fees {
    /// Percentile of a speed. Slow is never above normal, fast never below.
    pub fn percentile_of(&self, speed: Speed) -> f64 {
        let normal = self.percentiles.normal.unwrap_or(self.percentile);
        match speed {
            Speed::Slow => self.percentiles.slow.min(normal),
            Speed::Normal => normal,
            Speed::Fast => self.percentiles.fast.max(normal),
        }
    }

    /// An error is the invalid key and the problem.
    pub(super) fn check(&self) -> Result<(), (&'static str, String)> {
        let percentiles = &self.percentiles;
        for (key, percentile) in [
            ("fees.percentile", self.percentile),
            ("fees.percentiles.slow", percentiles.slow),
            ("fees.percentiles.normal", percentiles.normal.unwrap_or(self.percentile)),
            ("fees.percentiles.fast", percentiles.fast),
        ] {
            if !(0.0..=100.0).contains(&percentile) {
                return Err((key, "must be between 0 and 100".into()));
            }
        }
        let Multipliers { slow, normal, fast } = self.multipliers;
        let sound = |multiplier: f64| multiplier > 0.0 && multiplier <= 1000.0;
        if !(sound(slow) && sound(fast) && slow <= normal && normal <= fast) {
            return Err((
                "fees.multipliers",
                "must be above 0, at most 1000, and slow ≤ normal ≤ fast".into(),
            ));
        }
        if self.max_fee_per_gas.is_some_and(|limit| limit.is_zero()) {
            return Err(("fees.max_fee_per_gas", "must be above 0; omit it for no limit".into()));
        }
        match self.policy {
            FeePolicyKind::History | FeePolicyKind::GasPrice => Ok(()),
            FeePolicyKind::Fixed => self.fixed.check(),
            FeePolicyKind::GasStation => self.gas_station.check(),
        }
    }
}

impl FixedFees {
    fn check(&self) -> Result<(), (&'static str, String)> {
        if self.gas_price.or(self.max_fee_per_gas).is_none() {
            return Err(("fees.fixed", "needs max_fee_per_gas or gas_price".into()));
        }
        if let (Some(tip), Some(cap)) = (self.max_priority_fee_per_gas, self.max_fee_per_gas)
            && tip > cap
        {
            return Err(("fees.fixed.max_priority_fee_per_gas", "must not be above max_fee_per_gas".into()));
        }
        Ok(())
    }
}

impl GasStation {
    fn check(&self) -> Result<(), (&'static str, String)> {
        let url = self.url.as_ref().and_then(|url| url::Url::parse(url.expose()).ok());
        if !url.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
            return Err(("fees.gas_station.url", "must be an http or https URL".into()));
        }
        if self.timeout.is_zero() {
            return Err(("fees.gas_station.timeout", "must be greater than 0".into()));
        }
        if self.normal.is_empty() {
            return Err(("fees.gas_station.normal", "needs a path: tip, cap or gas_price".into()));
        }
        for paths in [&self.slow, &self.normal, &self.fast] {
            let all = [&paths.tip, &paths.cap, &paths.gas_price];
            if let Some(bad) = all.into_iter().flatten().find(|path| !is_path(path)) {
                return Err(("fees.gas_station", format!("`{bad}` is not a path")));
            }
        }
        Ok(())
    }
}

fn is_path(path: &str) -> bool {
    path.starts_with('/') || path.split('.').all(|part| !part.is_empty())
}

/// Wei as a decimal or 0x string, or as a TOML integer.
pub(super) fn wei<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<U256>, D::Error> {
    let text = super::text::text_or_number(deserializer)?;
    parse_amount(&text).map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(toml: &str) -> Result<(), (&'static str, String)> {
        toml::from_str::<Fees>(toml).unwrap().check()
    }

    fn refused_key(toml: &str) -> &'static str {
        check(toml).expect_err(toml).0
    }

    #[test]
    fn wei_may_be_numbers_or_texts_and_nothing_else() {
        let limit = |text: &str| {
            toml::from_str::<Fees>(&format!("max_fee_per_gas = {text}")).map(|fees| fees.max_fee_per_gas)
        };
        assert_eq!(limit("7").unwrap(), Some(7.into()));
        assert_eq!(limit("\"0x7\"").unwrap(), Some(7.into()));
        assert_eq!(limit(&format!("\"{}\"", U256::MAX)).unwrap(), Some(U256::MAX));
        for bad in ["-1", "1.5", "\"1 gwei\"", "\"\"", "true"] {
            assert!(limit(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_policy_needs_what_it_prices_by() {
        assert_eq!(check(""), Ok(()));
        assert_eq!(check("policy = \"gas_price\""), Ok(()));
        assert_eq!(refused_key("policy = \"fixed\""), "fees.fixed");
        assert_eq!(check("policy = \"fixed\"\nfixed.gas_price = 7"), Ok(()));
        let odd = "policy = \"fixed\"\nfixed.max_fee_per_gas = 7\nfixed.max_priority_fee_per_gas = 8";
        assert_eq!(refused_key(odd), "fees.fixed.max_priority_fee_per_gas");
        let station = |rest: &str| format!("policy = \"gas_station\"\n{rest}");
        let url = "gas_station.url = \"https://prices.example.org/v2?key=1\"\n";
        assert_eq!(refused_key(&station("")), "fees.gas_station.url");
        assert_eq!(refused_key(&station("gas_station.url = \"ftp://x/\"")), "fees.gas_station.url");
        assert_eq!(refused_key(&station(url)), "fees.gas_station.normal");
        assert_eq!(check(&station(&format!("{url}gas_station.normal.cap = \"a.b\""))), Ok(()));
        assert_eq!(
            refused_key(&station(&format!("{url}gas_station.normal.cap = \"a..b\""))),
            "fees.gas_station"
        );
        assert_eq!(
            refused_key(&station(&format!("{url}gas_station.timeout = \"0s\""))),
            "fees.gas_station.timeout"
        );
    }

    #[test]
    fn percentiles_and_multipliers_follow_the_order_of_the_speeds() {
        for bad in ["percentile = 101.0", "percentile = nan", "percentiles.fast = -1.0"] {
            assert!(refused_key(bad).starts_with("fees.percentile"), "{bad}");
        }
        for bad in ["slow = 0.0", "slow = nan", "slow = 1.1", "fast = 0.95", "fast = inf"] {
            assert_eq!(refused_key(&format!("multipliers.{bad}")), "fees.multipliers");
        }
        assert_eq!(refused_key("max_fee_per_gas = 0"), "fees.max_fee_per_gas");
        let high = Fees { percentile: 95.0, ..Fees::default() };
        let of = |speed| high.percentile_of(speed);
        assert_eq!((of(Speed::Slow), of(Speed::Normal), of(Speed::Fast)), (25.0, 95.0, 95.0));
    }

    #[test]
    fn the_url_of_a_station_is_not_printed() {
        let fees: Fees = toml::from_str("gas_station.url = \"https://x/?key=hunter2\"").unwrap();
        assert!(!format!("{fees:?}").contains("hunter2"));
    }
}
