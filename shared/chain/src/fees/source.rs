//! Prices for one chain. All lanes at one head share one lookup; gas station prices are cached longer.

use std::sync::Arc;
use std::time::Duration;

use ethers_core::types::U256;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::station::Station;
use super::{
    BySpeed, FeeHistoryPolicy, FeePolicy, FixedPolicy, GasPricePolicy, GasStationPolicy, Market,
    StationPrice, limited,
};
use crate::port::{ChainConnector, FeeHistory, RpcError};
use gapless_config::{self as config, FeePolicyKind};
use gapless_domain::{ChainId, Fees, Payload};

/// A lane may be behind the head the price was read at; up to this many blocks it uses the newer price. Further behind
/// means a chain reset, and the price is read again.
const HEADS_SHARED: u64 = 16;

/// On a chain with very frequent blocks a price stays valid for this long, unless the base fee has risen above it. A
/// slow node's answer can be equally old.
const VALID_FOR: Duration = Duration::from_millis(250);

/// JSON-RPC: method not found.
const METHOD_NOT_FOUND: i64 = -32601;

/// The block for which a price is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub number: u64,
    /// Its own base fee. `None`: none or unknown.
    pub base_fee: Option<U256>,
}

impl From<u64> for Head {
    fn from(number: u64) -> Self {
        Head { number, base_fee: None }
    }
}

#[derive(Debug)]
pub struct FeeSource {
    policy: Arc<dyn FeePolicy>,
    kind: FeePolicyKind,
    limit: Option<U256>,
    history_blocks: u64,
    /// Ascending and without duplicates, as nodes require.
    percentiles: Vec<f64>,
    /// Index of each speed's percentile in `percentiles`.
    columns: BySpeed<usize>,
    station: Option<Station>,
    /// How long a price stays valid for newer heads.
    valid_for: Duration,
    last: Mutex<Lookups>,
}

#[derive(Debug, Default)]
struct Lookups {
    market: Option<Known>,
    /// Time and error of the last failed lookup: lanes that waited for it share the failure instead of repeating it.
    failure: Option<(Instant, RpcError)>,
    /// The node does not support `eth_feeHistory`; it is not called again.
    no_history: bool,
    /// The last gas station prices and when they were read. Inner `None`: no usable prices.
    station: Option<(Instant, Option<BySpeed<StationPrice>>)>,
}

/// The last price data, its head, and when it was requested.
#[derive(Debug)]
struct Known {
    at: u64,
    asked: Instant,
    market: Arc<Market>,
}

impl Known {
    fn is_valid_for(&self, head: Head, now: Instant, valid_for: Duration) -> bool {
        let reach = head.number.saturating_add(HEADS_SHARED);
        if (head.number..=reach).contains(&self.at) {
            return true;
        }
        let risen = match (head.base_fee, self.market.next_base_fee) {
            (Some(now), Some(known)) => now > known,
            _ => true,
        };
        self.at < head.number && !risen && now.duration_since(self.asked) < valid_for
    }
}

impl FeeSource {
    pub fn new(config: &config::Fees) -> Self {
        let own = config.clone();
        let policy: Arc<dyn FeePolicy> = match config.policy {
            FeePolicyKind::History => Arc::new(FeeHistoryPolicy::new(own)),
            FeePolicyKind::GasPrice => Arc::new(GasPricePolicy::new(own)),
            FeePolicyKind::Fixed => Arc::new(FixedPolicy::new(own)),
            FeePolicyKind::GasStation => Arc::new(GasStationPolicy::new(own)),
        };
        FeeSource::with_policy(config, policy)
    }

    /// With a custom policy; `config.policy` still decides which price data is read.
    pub fn with_policy(config: &config::Fees, policy: Arc<dyn FeePolicy>) -> Self {
        let wanted = BySpeed::each(|speed| config.percentile_of(speed));
        let mut percentiles = vec![wanted.slow, wanted.normal, wanted.fast];
        percentiles.sort_by(f64::total_cmp);
        percentiles.dedup();
        let column = |speed| percentiles.iter().position(|one| one == wanted.of(speed)).unwrap_or_default();
        let columns = BySpeed::each(column);
        let station = (config.policy == FeePolicyKind::GasStation)
            .then(|| Station::new(&config.gas_station, &config.multipliers));
        if station.is_some() && config.max_fee_per_gas.is_none() {
            tracing::warn!("gas station prices are not limited: fees.max_fee_per_gas is not set");
        }
        FeeSource {
            policy,
            kind: config.policy,
            limit: config.max_fee_per_gas,
            history_blocks: config.history_blocks.max(1),
            percentiles,
            columns,
            // Gas station prices are never used longer than the configured cache time.
            valid_for: station.as_ref().map_or(VALID_FOR, |station| VALID_FOR.min(station.config.cache)),
            station,
            last: Mutex::default(),
        }
    }

    /// The price of `payload` at block `head`; never above the chain's limit.
    pub async fn quote(
        &self,
        connector: &dyn ChainConnector,
        head: impl Into<Head>,
        payload: &Payload,
    ) -> Result<Fees, RpcError> {
        let market = self.market(connector, head.into()).await?;
        let fees = self.policy.price(&market, payload);
        Ok(self.limit.map_or(fees, |limit| limited(fees, limit)))
    }

    /// The base fee of the block after `head`, if the chain has one.
    pub async fn next_base_fee(
        &self,
        connector: &dyn ChainConnector,
        head: impl Into<Head>,
    ) -> Result<Option<U256>, RpcError> {
        Ok(self.market(connector, head.into()).await?.next_base_fee)
    }

    async fn market(&self, connector: &dyn ChainConnector, head: Head) -> Result<Arc<Market>, RpcError> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        let is_valid = |known: &&Known| known.is_valid_for(head, asked, self.valid_for);
        if let Some(known) = last.market.as_ref().filter(is_valid) {
            return Ok(Arc::clone(&known.market));
        }
        if let Some((failed, error)) = &last.failure
            && *failed >= asked
        {
            return Err(error.clone());
        }
        let asked = Instant::now();
        match self.lookup(connector, &mut last).await {
            Ok(market) => {
                let market = Arc::new(market);
                last.market = Some(Known { at: head.number, asked, market: Arc::clone(&market) });
                Ok(market)
            }
            Err(error) => {
                last.failure = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    /// The fee history is read for every policy: it has the base fee, which no cap may be below, and it is the
    /// fallback for a gas station without prices.
    async fn lookup(&self, connector: &dyn ChainConnector, last: &mut Lookups) -> Result<Market, RpcError> {
        let Lookups { no_history, station, .. } = last;
        let suggestion = async {
            match self.kind {
                FeePolicyKind::GasPrice => connector.gas_price().await.map(Some),
                _ => Ok(None),
            }
        };
        let (history, suggested, station) = tokio::join!(
            self.history(connector, no_history),
            suggestion,
            self.station_prices(connector.chain_id(), station)
        );
        let (history, mut gas_price) = (history?, suggested?);
        if history.is_none() && gas_price.is_none() && self.kind != FeePolicyKind::Fixed {
            gas_price = Some(connector.gas_price().await?);
        }
        let tips = |rewards: &[Vec<U256>], column: usize| -> Vec<U256> {
            rewards.iter().filter_map(|block| block.get(column)).copied().collect()
        };
        let rewards = history.as_ref().map(|history| history.rewards.as_slice()).unwrap_or_default();
        Ok(Market {
            next_base_fee: history.as_ref().map(|history| history.next_base_fee),
            tips: BySpeed::each(|speed| tips(rewards, *self.columns.of(speed))),
            gas_price,
            station,
        })
    }

    /// `None`: the node has no usable fee history.
    async fn history(
        &self,
        connector: &dyn ChainConnector,
        no_history: &mut bool,
    ) -> Result<Option<FeeHistory>, RpcError> {
        if *no_history {
            return Ok(None);
        }
        match connector.fee_history(self.history_blocks, &self.percentiles).await {
            Ok(history) => Ok(Some(history)),
            Err(RpcError::Refused { code, .. }) => {
                *no_history = code == METHOD_NOT_FOUND;
                Ok(None)
            }
            Err(RpcError::Malformed { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// `None`: no gas station, or no usable prices.
    async fn station_prices(
        &self,
        chain: ChainId,
        last: &mut Option<(Instant, Option<BySpeed<StationPrice>>)>,
    ) -> Option<BySpeed<StationPrice>> {
        let station = self.station.as_ref()?;
        if let Some((asked, prices)) = last
            && asked.elapsed() < station.config.cache
        {
            return *prices;
        }
        let prices = match station.fetch().await {
            Ok(prices) => Some(prices),
            Err(error) => {
                tracing::warn!(chain.id = chain.0, %error, retry_in = ?station.config.cache,
                    "gas station returned no usable prices; using the fee history");
                None
            }
        };
        *last = Some((Instant::now(), prices));
        prices
    }
}

#[cfg(test)]
#[path = "source_tests.rs"]
pub(super) mod tests;
