//! State shared by all handlers.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use gapless_config::{ChainConfig, Config, JsonRpc};
use gapless_domain::hex_text::parse_address_any_case;
use gapless_domain::{ChainId, Finality, Payload, Policy, SubmitterKey};
use gapless_store::Store;
use gapless_store::notifier::Notifier;
use gapless_telemetry::MetricsHandle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::auth::Authenticator;
use crate::error::ApiError;
use crate::events::EventStreams;
use crate::intake::Intake;
use crate::json_rpc::Outlooks;
use crate::long_poll::LongPolls;
use crate::nodes::Nodes;
use crate::ready::Readiness;
use crate::webhooks::Webhooks;

pub(crate) type SharedApp = Arc<App>;

#[derive(Debug)]
pub(crate) struct App {
    pub(crate) store: Store,
    pub(crate) intake: Intake,
    /// Wakes workers.
    pub(crate) notifier: Notifier,
    /// Changes when a worker has finished something; false while LISTEN is down.
    pub(crate) completions: watch::Receiver<bool>,
    pub(crate) long_polls: LongPolls,
    /// Requests that wait for the first hash of a transaction.
    pub(crate) starts: LongPolls,
    pub(crate) outlooks: Outlooks,
    pub(crate) json_rpc: JsonRpc,
    pub(crate) events: EventStreams,
    pub(crate) chains: Chains,
    pub(crate) policies: Policies,
    pub(crate) nodes: Nodes,
    pub(crate) webhooks: Webhooks,
    pub(crate) authenticator: Authenticator,
    pub(crate) readiness: Readiness,
    pub(crate) metrics: MetricsHandle,
    pub(crate) max_batch: usize,
    pub(crate) max_wait: Duration,
    /// Ends long polls, so that shutdown does not wait for them.
    pub(crate) shutdown: CancellationToken,
}

/// The configured chains and their finality rules.
#[derive(Clone, Debug)]
pub(crate) struct Chains(BTreeMap<ChainId, Finality>);

impl Chains {
    pub(crate) fn new(config: &Config) -> Chains {
        Chains(config.chains.values().map(|chain| (chain.id, chain.confirmations.required)).collect())
    }

    /// The chain of a request. It may be omitted if only one is configured.
    pub(crate) fn pick(&self, chain_id: Option<u64>) -> Result<ChainId, ApiError> {
        match chain_id {
            Some(id) if self.0.contains_key(&ChainId(id)) => Ok(ChainId(id)),
            Some(id) => Err(ApiError::UnknownChain(id)),
            None => match self.0.first_key_value() {
                Some((only, _)) if self.0.len() == 1 => Ok(*only),
                _ => Err(ApiError::invalid("chainId", "is required because several chains are configured")),
            },
        }
    }

    /// A submitter by chain and address. The address may be in lower, upper or checksum case.
    pub(crate) fn submitter(&self, chain_id: Option<u64>, address: &str) -> Result<SubmitterKey, ApiError> {
        self.submitter_in("submitter", chain_id, address)
    }

    /// As `submitter`, for an address in the field or parameter of this name.
    pub(crate) fn submitter_in(
        &self,
        field: &str,
        chain_id: Option<u64>,
        address: &str,
    ) -> Result<SubmitterKey, ApiError> {
        let address = parse_address_any_case(address).map_err(|problem| ApiError::invalid(field, problem))?;
        Ok(SubmitterKey { chain_id: self.pick(chain_id)?, address })
    }

    /// `None` for a chain that is no longer configured: its final transactions can still be read.
    pub(crate) fn required_confirmations(&self, chain_id: ChainId) -> Option<Finality> {
        self.0.get(&chain_id).copied()
    }
}

/// The submitters' policies in this process's configuration. Checking them here only reports a violation earlier: the
/// worker checks again, and its configuration decides.
#[derive(Clone, Debug)]
pub(crate) struct Policies(BTreeMap<SubmitterKey, Arc<Policy>>);

impl Policies {
    pub(crate) fn new(config: &Config) -> Policies {
        let of = |chain: &ChainConfig| {
            let key = |address| SubmitterKey { chain_id: chain.id, address };
            chain.policies.iter().map(|(address, policy)| (key(*address), policy.clone())).collect::<Vec<_>>()
        };
        Policies(config.chains.values().flat_map(of).collect())
    }

    /// Does not check the daily cap: only the worker knows the day's total.
    pub(crate) fn check(&self, submitter: SubmitterKey, payload: &Payload) -> Result<(), ApiError> {
        let Some(policy) = self.0.get(&submitter) else { return Ok(()) };
        policy.check(submitter.address, payload).map_err(ApiError::PolicyBroken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chains(ids: &[u64]) -> Chains {
        Chains(ids.iter().map(|id| (ChainId(*id), Finality::Blocks(1))).collect())
    }

    #[test]
    fn chain_id_is_optional_with_one_chain() {
        assert_eq!(chains(&[7]).pick(None).unwrap(), ChainId(7));
        assert!(matches!(chains(&[7, 8]).pick(None), Err(ApiError::InvalidRequest(_))));
        assert_eq!(chains(&[7, 8]).pick(Some(8)).unwrap(), ChainId(8));
        assert!(matches!(chains(&[7]).pick(Some(8)), Err(ApiError::UnknownChain(8))));
    }

    #[test]
    fn the_case_of_an_address_does_not_matter() {
        let lower = "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed";
        let spelled =
            ["0x5aAeb6053F3E94C9b9A09f33669435E7Ef1BeAed", "0x5AAEB6053F3E94C9B9A09F33669435E7EF1BEAED"];
        for other in spelled {
            assert_eq!(
                chains(&[1]).submitter(None, lower).unwrap(),
                chains(&[1]).submitter(None, other).unwrap()
            );
        }
        assert!(chains(&[1]).submitter(None, "0x12").is_err());
    }
}
