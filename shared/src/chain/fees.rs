//! What a transaction offers for its gas: the policy, and one look-up per chain and head that all lanes share.
//!
//! A policy prices a transaction once, before it is signed. It never looks at a signed one: replacing an attempt is
//! another decision.

use std::time::Instant;

use ethers_core::types::U256;
use tokio::sync::Mutex;

use super::port::{ChainConnector, FeeHistory, RpcError};
use crate::config;
use crate::domain::{Fees, Payload, TxKind};

/// A lane may still hold the head before the one the price was read at; that far back it takes the newer price.
/// Further back it is another chain (a reset), and the price is read again.
const HEADS_SHARED: u64 = 16;

/// JSON-RPC: the node has no such method.
const METHOD_NOT_FOUND: i64 = -32601;

/// What the chain says about prices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Market {
    History(FeeHistory),
    /// The node keeps no fee history: all it offers is one price.
    GasPrice(U256),
}

/// Prices a payload. Must respect the payload's own limits.
pub trait FeePolicy: Send + Sync + std::fmt::Debug {
    fn price(&self, market: &Market, payload: &Payload) -> Fees;
}

/// The default: cap = next base fee × multiplier + tip, tip = the median of what recent blocks paid.
#[derive(Clone, Debug)]
pub struct FeeHistoryPolicy {
    config: config::Fees,
}

impl FeeHistoryPolicy {
    pub fn new(config: config::Fees) -> Self {
        FeeHistoryPolicy { config }
    }

    /// Empty blocks report a tip of zero, which says nothing about the price of getting into a full one.
    fn tip(&self, market: &Market) -> U256 {
        let floor = U256::from(self.config.min_priority_fee);
        let Market::History(history) = market else { return floor };
        let mut paid: Vec<U256> = history.rewards.iter().copied().filter(|tip| !tip.is_zero()).collect();
        paid.sort_unstable();
        paid.get(paid.len() / 2).copied().unwrap_or_default().max(floor)
    }

    fn cap(&self, market: &Market, tip: U256) -> U256 {
        match market {
            Market::History(history) => {
                scale(history.next_base_fee, self.config.base_fee_multiplier).saturating_add(tip)
            }
            Market::GasPrice(price) => scale(*price, self.config.base_fee_multiplier).max(tip),
        }
    }
}

impl FeePolicy for FeeHistoryPolicy {
    fn price(&self, market: &Market, payload: &Payload) -> Fees {
        let tip = payload.max_priority_fee_per_gas.unwrap_or_else(|| self.tip(market));
        match payload.kind {
            TxKind::Eip1559 => {
                let cap = payload.max_fee_per_gas.unwrap_or_else(|| self.cap(market, tip));
                Fees::Eip1559 { max_fee_per_gas: cap, max_priority_fee_per_gas: tip.min(cap) }
            }
            // A legacy transaction pays its price in full. Where there is a fee market it still gets the room of the
            // multiplier: its bytes are never re-priced, and one that falls behind the base fee stops its sequence.
            TxKind::Legacy => Fees::Legacy {
                gas_price: payload.max_fee_per_gas.unwrap_or_else(|| match market {
                    Market::History(_) => self.cap(market, tip),
                    Market::GasPrice(price) => *price,
                }),
            },
        }
    }
}

/// `value × multiplier`, rounded up, at most `U256::MAX`. The multiplier counts to six decimal places; one that is
/// no positive number counts as 1.
pub fn scale(value: U256, multiplier: f64) -> U256 {
    const MILLION: u64 = 1_000_000;
    let ppm = if multiplier.is_finite() && multiplier > 0.0 {
        (multiplier * MILLION as f64).round() as u64
    } else {
        MILLION
    };
    let (whole, rest) = value.div_mod(U256::from(MILLION));
    // `rest` and `ppm` are below 2^20 and 2^64: their product and the sum cannot leave 256 bits.
    let rest = (rest * U256::from(ppm) + U256::from(MILLION - 1)) / U256::from(MILLION);
    whole.checked_mul(U256::from(ppm)).and_then(|whole| whole.checked_add(rest)).unwrap_or(U256::MAX)
}

/// Prices for one chain. However many lanes ask at one head, the node is asked once.
#[derive(Debug)]
pub struct FeeSource {
    policy: Box<dyn FeePolicy>,
    history_blocks: u64,
    percentile: f64,
    last: Mutex<LookUps>,
}

#[derive(Debug, Default)]
struct LookUps {
    market: Option<(u64, Market)>,
    /// When the last look-up failed, and how: whoever was waiting for it shares the failure instead of repeating it.
    failure: Option<(Instant, RpcError)>,
    /// The node said that it has no fee history; it is not asked for one again.
    no_history: bool,
}

impl FeeSource {
    pub fn new(config: &config::Fees) -> Self {
        FeeSource::with_policy(config, Box::new(FeeHistoryPolicy::new(config.clone())))
    }

    pub fn with_policy(config: &config::Fees, policy: Box<dyn FeePolicy>) -> Self {
        FeeSource {
            policy,
            history_blocks: config.history_blocks.max(1),
            percentile: config.percentile,
            last: Mutex::default(),
        }
    }

    /// The price of `payload` as of block `head`.
    pub async fn quote(
        &self,
        connector: &dyn ChainConnector,
        head: u64,
        payload: &Payload,
    ) -> Result<Fees, RpcError> {
        let market = self.market(connector, head).await?;
        Ok(self.policy.price(&market, payload))
    }

    /// The base fee of the block after `head`, where the chain has one.
    pub async fn next_base_fee(
        &self,
        connector: &dyn ChainConnector,
        head: u64,
    ) -> Result<Option<U256>, RpcError> {
        Ok(match self.market(connector, head).await? {
            Market::History(history) => Some(history.next_base_fee),
            Market::GasPrice(_) => None,
        })
    }

    async fn market(&self, connector: &dyn ChainConnector, head: u64) -> Result<Market, RpcError> {
        let asked = Instant::now();
        let mut last = self.last.lock().await;
        if let Some((at, market)) = &last.market
            && (head..=head.saturating_add(HEADS_SHARED)).contains(at)
        {
            return Ok(market.clone());
        }
        if let Some((failed, error)) = &last.failure
            && *failed >= asked
        {
            return Err(error.clone());
        }
        match self.look_up(connector, &mut last.no_history).await {
            Ok(market) => {
                last.market = Some((head, market.clone()));
                Ok(market)
            }
            Err(error) => {
                last.failure = Some((Instant::now(), error.clone()));
                Err(error)
            }
        }
    }

    async fn look_up(
        &self,
        connector: &dyn ChainConnector,
        no_history: &mut bool,
    ) -> Result<Market, RpcError> {
        if !*no_history {
            match connector.fee_history(self.history_blocks, self.percentile).await {
                Ok(history) => return Ok(Market::History(history)),
                Err(RpcError::Refused { code, .. }) => *no_history = code == METHOD_NOT_FOUND,
                Err(RpcError::Malformed { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        connector.gas_price().await.map(Market::GasPrice)
    }
}

#[cfg(test)]
#[path = "fees_tests.rs"]
mod tests;
