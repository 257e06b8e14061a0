//! Prices for one chain. However many lanes ask at one head, the node is asked once, and the gas station less often.

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
use crate::chain::port::{ChainConnector, FeeHistory, RpcError};
use crate::config::{self, FeePolicyKind};
use crate::domain::{ChainId, Fees, Payload};

/// A lane may still hold the head before the one the price was read at; that far back it takes the newer price.
/// Further back it is another chain (a reset), and the price is read again.
const HEADS_SHARED: u64 = 16;

/// On a chain that makes a block for every transaction a price serves for this long, if no base fee has risen above it.
/// An answer of a node that is slow is as old.
const SERVES_FOR: Duration = Duration::from_millis(250);

/// JSON-RPC: the node has no such method.
const METHOD_NOT_FOUND: i64 = -32601;

/// The block a price is asked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    pub number: u64,
    /// Its own base fee. `None`: there is none, or it is not known.
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
    /// Ascending and each once, as nodes want them.
    percentiles: Vec<f64>,
    /// Where the percentile of a speed stands among them.
    columns: BySpeed<usize>,
    station: Option<Station>,
    /// How long a price serves beyond its head.
    serves_for: Duration,
    last: Mutex<LookUps>,
}

#[derive(Debug, Default)]
struct LookUps {
    market: Option<Known>,
    /// When the last look-up failed, and how: whoever was waiting for it shares the failure instead of repeating it.
    failure: Option<(Instant, RpcError)>,
    /// The node said that it has no fee history; it is not asked for one again.
    no_history: bool,
    /// What the gas station said, and when. `None` inside: nothing that can be used.
    station: Option<(Instant, Option<BySpeed<StationPrice>>)>,
}

/// What was last read, at which head, and when it was asked for.
#[derive(Debug)]
struct Known {
    at: u64,
    asked: Instant,
    market: Arc<Market>,
}

impl Known {
    fn serves(&self, head: Head, now: Instant, serves_for: Duration) -> bool {
        let reach = head.number.saturating_add(HEADS_SHARED);
        if (head.number..=reach).contains(&self.at) {
            return true;
        }
        let risen = match (head.base_fee, self.market.next_base_fee) {
            (Some(now), Some(known)) => now > known,
            _ => true,
        };
        self.at < head.number && !risen && now.duration_since(self.asked) < serves_for
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

    /// `policy` prices; `config.policy` still says what is read for it.
    pub fn with_policy(config: &config::Fees, policy: Arc<dyn FeePolicy>) -> Self {
        let asked = BySpeed::each(|speed| config.percentile_of(speed));
        let mut percentiles = vec![asked.slow, asked.normal, asked.fast];
        percentiles.sort_by(f64::total_cmp);
        percentiles.dedup();
        let column = |speed| percentiles.iter().position(|one| one == asked.of(speed)).unwrap_or_default();
        let columns = BySpeed::each(column);
        let station = (config.policy == FeePolicyKind::GasStation)
            .then(|| Station::new(&config.gas_station, &config.multipliers));
        if station.is_some() && config.max_fee_per_gas.is_none() {
            tracing::warn!("a gas station sets prices and fees.max_fee_per_gas does not limit them");
        }
        FeeSource {
            policy,
            kind: config.policy,
            limit: config.max_fee_per_gas,
            history_blocks: config.history_blocks.max(1),
            percentiles,
            columns,
            // A gas station's prices serve as long as was set, and not a moment longer.
            serves_for: station.as_ref().map_or(SERVES_FOR, |station| SERVES_FOR.min(station.config.cache)),
            station,
            last: Mutex::default(),
        }
    }

    /// The price of `payload` as of block `head`; never above the chain's limit.
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

    /// The base fee of the block after `head`, where the chain has one.
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
        if let Some(known) = last.market.as_ref().filter(|known| known.serves(head, asked, self.serves_for)) {
            return Ok(Arc::clone(&known.market));
        }
        if let Some((failed, error)) = &last.failure
            && *failed >= asked
        {
            return Err(error.clone());
        }
        let asked = Instant::now();
        match self.look_up(connector, &mut last).await {
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

    /// The history is read whatever the policy: it has the base fee that no cap may be below, and it is what remains
    /// when a gas station is silent.
    async fn look_up(&self, connector: &dyn ChainConnector, last: &mut LookUps) -> Result<Market, RpcError> {
        let LookUps { no_history, station, .. } = last;
        let suggestion = async {
            match self.kind {
                FeePolicyKind::GasPrice => connector.gas_price().await.map(Some),
                _ => Ok(None),
            }
        };
        let (history, suggested, station) = tokio::join!(
            self.history(connector, no_history),
            suggestion,
            self.ask_station(connector.chain_id(), station)
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

    /// `None`: the node keeps no fee history.
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

    /// `None`: there is no station, or nothing it says can be used.
    async fn ask_station(
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
        let prices = match station.ask().await {
            Ok(prices) => Some(prices),
            Err(error) => {
                tracing::warn!(chain.id = chain.0, %error, retry_in = ?station.config.cache,
                    "the gas station gives no prices; the fee history does");
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
