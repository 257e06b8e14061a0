//! Settings of one chain: the common sections, overridden by the chain's own keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use ethers_core::types::{Address, U256};
use serde::Deserialize;

use super::ChainTable;
use super::adapters::Adapters;
use super::fees::Fees;
use super::load::ConfigError;
use super::secret::Secret;
use super::sections::{Confirmations, GasBump, Mempool, Nonce, Profile, Queue, Resubmit, Rpc, Stuck};
use super::submitter::{SubmitterSettings, by_address, policies};
use gapless_domain::{ChainId, Finality, Policy};

/// When an intent stops counting against the window of its submitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReleaseAt {
    Confirmed,
    Mined,
}

#[derive(Clone, Debug)]
pub struct ChainConfig {
    pub name: String,
    pub id: ChainId,
    /// At least one, unless this process does not connect to the chain.
    pub urls: Vec<Secret>,
    pub rpc: Rpc,
    pub nonce: Nonce,
    pub fees: Fees,
    pub resubmit: Resubmit,
    pub queue: Queue,
    pub stuck: Stuck,
    pub gasbump: GasBump,
    pub mempool: Mempool,
    pub confirmations: Confirmations,
    pub adapters: Adapters,
    /// Wei. The balance duty warns below it.
    pub low_balance: Option<U256>,
    /// Settings of single submitters.
    pub submitters: BTreeMap<Address, SubmitterSettings>,
    /// Policies of submitters; the others are unrestricted.
    pub policies: BTreeMap<Address, Arc<Policy>>,
}

impl ChainConfig {
    /// Whether the submitter's key is also used outside Gapless (its nonce sequence is not strict).
    pub fn is_shared(&self, submitter: &Address) -> bool {
        let own = self.submitters.get(submitter).and_then(|settings| settings.nonce.strict.enabled);
        !own.unwrap_or(self.nonce.strict.enabled)
    }

    /// Whether the low-level API assigns the nonces of this submitter.
    pub fn is_low_level(&self, submitter: &Address) -> bool {
        let own = self.submitters.get(submitter).and_then(|settings| settings.nonce.low_level.enabled);
        own.unwrap_or(self.nonce.low_level.enabled)
    }

    /// The submitter's own queue limit, if set.
    pub fn queue_limit(&self, submitter: &Address) -> Option<u64> {
        self.submitters.get(submitter).and_then(|settings| settings.queue_limit)
    }

    pub(super) fn from_table(name: String, table: ChainTable) -> Result<ChainConfig, ConfigError> {
        let bad = |key: &str, problem: String| {
            Err(ConfigError::Invalid { key: format!("chain.{name}.{key}"), problem })
        };
        if table.id == 0 || i64::try_from(table.id).is_err() {
            return bad("id", format!("{} is not a chain id", table.id));
        }
        if table.confirmations.required == Finality::Blocks(0) {
            return bad("confirmations.required", "must be at least 1: the block of the transaction".into());
        }
        for (key, interval) in [
            ("resubmit.interval", table.resubmit.interval),
            ("confirmations.stale_receipt_timeout", table.confirmations.stale_receipt_timeout),
            ("rpc.poll_interval", table.rpc.poll_interval),
            ("rpc.timeout", table.rpc.timeout),
            ("mempool.diagnose.interval", table.mempool.diagnose.interval),
            ("nonce.max_reservation", table.nonce.max_reservation),
        ] {
            if interval.is_zero() {
                return bad(key, "must be greater than 0".into());
            }
        }
        if let Err((key, problem)) = table.fees.check() {
            return bad(key, problem);
        }
        if table.confirmations.receipt_workers == 0 {
            return bad("confirmations.receipt_workers", "must be at least 1".into());
        }
        if table.nonce.max_in_flight == 0 {
            return bad("nonce.max_in_flight", "must be at least 1".into());
        }
        if table.nonce.profile == Profile::StabilityFirst && table.gasbump.enabled {
            return bad("gasbump.enabled", "nonce.profile = \"stability_first\" forbids replacement".into());
        }
        if table.gasbump.multiplier < 1.1 {
            return bad(
                "gasbump.multiplier",
                "must be at least 1.1: mempools reject replacements with a smaller increase".into(),
            );
        }
        if table.rpc.max_in_flight == 0 || table.rpc.max_batch == 0 {
            return bad("rpc", "max_in_flight and max_batch must be at least 1".into());
        }
        let low_balance = match table.balance.low.as_str() {
            "" => None,
            text => match U256::from_dec_str(text) {
                Ok(wei) => Some(wei),
                Err(_) => return bad("balance.low", format!("`{text}` is not a decimal number of wei")),
            },
        };
        let submitters = match by_address(table.submitter) {
            Ok(submitters) => submitters,
            Err((key, problem)) => return bad(&key, problem),
        };
        let policies = match policies(&submitters) {
            Ok(policies) => policies,
            Err((key, problem)) => return bad(&key, problem),
        };
        let low_level = table.nonce.low_level.enabled
            || submitters.values().any(|own| own.nonce.low_level.enabled == Some(true));
        if table.nonce.profile == Profile::StabilityFirst && low_level {
            return bad(
                "nonce.low_level.enabled",
                "nonce.profile = \"stability_first\" forbids placeholders, which reserved nonces need".into(),
            );
        }
        let urls = if table.rpc.urls.is_empty() {
            table.rpc.url.clone().into_iter().collect()
        } else {
            table.rpc.urls.clone()
        };
        Ok(ChainConfig {
            name,
            id: ChainId(table.id),
            urls,
            rpc: table.rpc,
            nonce: table.nonce,
            fees: table.fees,
            resubmit: table.resubmit,
            queue: table.queue,
            stuck: table.stuck,
            gasbump: table.gasbump,
            mempool: table.mempool,
            confirmations: table.confirmations,
            adapters: table.adapters,
            low_balance,
            submitters,
            policies,
        })
    }
}
