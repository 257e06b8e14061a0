//! Optional features of a history besides requests, workers and blocks. Each history has a random subset.

use std::collections::{BTreeMap, BTreeSet};

use gapless_domain::policy::Calls;
use gapless_domain::{Address, Policy, U256};

use crate::Sabotage;
use crate::rng::SeededRng;

/// Recipient of requests.
pub(super) const RECIPIENT: Address = Address::repeat_byte(0x77);
/// A recipient that the policy forbids.
pub(super) const FORBIDDEN_RECIPIENT: Address = Address::repeat_byte(0x66);
/// The policy forbids this value and above.
pub(super) const FORBIDDEN_VALUE: u64 = 80;
/// `max_value_per_day` of the policy: a few requests.
pub(crate) const DAILY_LIMIT: u64 = 120;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Features {
    /// Requests may have deadlines and gas limits.
    pub(super) is_varied: bool,
    /// The submitter is configured as a shared key, and there are external transactions.
    pub(crate) is_shared: bool,
    pub(crate) has_policy: bool,
    /// Requests may revert, and estimates fail.
    pub(super) has_contract: bool,
    /// Clients reserve nonces.
    pub(super) has_reservations: bool,
    /// Two backends may disagree.
    pub(super) has_backends: bool,
    /// Frequent external transactions, and operator actions.
    pub(super) has_external_use: bool,
}

impl Features {
    pub(super) fn choose(rng: &mut SeededRng, sabotage: Sabotage) -> Features {
        // A placeholder that is sent while its nonce is reserved would keep the history from ending.
        let may_have_reservations = sabotage != Sabotage::SendBeforeCommit;
        Features {
            is_varied: true,
            is_shared: rng.one_in(5) || sabotage == Sabotage::UnrecordedExternal,
            has_policy: rng.one_in(5) || sabotage == Sabotage::NoPolicy,
            has_contract: rng.one_in(3) || sabotage == Sabotage::FalseReverts,
            has_reservations: (rng.one_in(3) && may_have_reservations) || sabotage == Sabotage::LostAnswers,
            has_backends: rng.one_in(3) || sabotage == Sabotage::DeepFork,
            has_external_use: rng.one_in(4),
        }
    }

    /// Number of features.
    pub(super) fn count(&self) -> u64 {
        let all = [
            self.is_shared,
            self.has_policy,
            self.has_contract,
            self.has_reservations,
            self.has_backends,
            self.has_external_use,
        ];
        all.into_iter().map(u64::from).sum()
    }
}

pub(super) fn policy() -> Policy {
    let plain = Calls::Only { selectors: BTreeSet::new(), plain: true };
    Policy {
        allow: Some(BTreeMap::from([(RECIPIENT, plain)])),
        deploy: false,
        max_value: Some(U256::from(FORBIDDEN_VALUE - 1)),
        max_value_per_day: Some(U256::from(DAILY_LIMIT)),
    }
}
