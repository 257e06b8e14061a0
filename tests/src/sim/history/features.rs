//! What a history has besides requests, workers and blocks. Few have everything: each kind gets room in some.

use std::collections::{BTreeMap, BTreeSet};

use gapless::domain::policy::Calls;
use gapless::domain::{Address, Policy, U256};

use crate::sim::Sabotage;
use crate::sim::dice::Dice;

/// Where requests go to.
pub(super) const RECIPIENT: Address = Address::repeat_byte(0x77);
/// The policy does not allow this one.
pub(super) const FORBIDDEN_RECIPIENT: Address = Address::repeat_byte(0x66);
/// Requests of this value and above are refused by the policy.
pub(super) const FORBIDDEN_VALUE: u64 = 80;
/// What the policy lets pass in one day: a few requests.
pub(in crate::sim) const VALUE_OF_A_DAY: u64 = 120;

#[derive(Clone, Copy, Debug, Default)]
pub(in crate::sim) struct Features {
    /// Requests may have deadlines and gas limits of their own.
    pub(super) is_varied: bool,
    /// Others use the key as well, and the submitter knows it.
    pub(in crate::sim) is_shared: bool,
    pub(in crate::sim) has_policy: bool,
    /// Requests may revert, and estimates fail.
    pub(super) has_contract: bool,
    /// Callers ask for nonces.
    pub(super) has_callers: bool,
    /// Two backends may disagree.
    pub(super) has_backends: bool,
    /// Somebody else uses the key more often than rarely, and operators are busy with it.
    pub(super) has_strangers: bool,
}

impl Features {
    pub(super) fn choose(dice: &mut Dice, sabotage: Sabotage) -> Features {
        // A placeholder that is sent while its nonce is held makes a history that never ends.
        let may_have_callers = sabotage != Sabotage::SendBeforeCommit;
        Features {
            is_varied: true,
            is_shared: dice.one_in(5) || sabotage == Sabotage::UnrecordedStrangers,
            has_policy: dice.one_in(5) || sabotage == Sabotage::NoPolicy,
            has_contract: dice.one_in(3) || sabotage == Sabotage::FalseReverts,
            has_callers: (dice.one_in(3) && may_have_callers) || sabotage == Sabotage::LostAnswers,
            has_backends: dice.one_in(3) || sabotage == Sabotage::DeepFork,
            has_strangers: dice.one_in(4),
        }
    }

    /// How many.
    pub(super) fn count(&self) -> u64 {
        let all = [
            self.is_shared,
            self.has_policy,
            self.has_contract,
            self.has_callers,
            self.has_backends,
            self.has_strangers,
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
        max_value_per_day: Some(U256::from(VALUE_OF_A_DAY)),
    }
}
