//! Settings of a single submitter: `[submitter."0x…"]`, for every chain or in a chain's table.

use std::collections::BTreeMap;
use std::sync::Arc;

use ethers_core::types::Address;
use serde::Deserialize;

use super::policy::PolicySettings;
use gapless_domain::Policy;

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SubmitterSettings {
    pub nonce: SubmitterNonce,
    /// Absent: `api.queue_limit`.
    pub queue_limit: Option<u64>,
    /// Absent: no restrictions.
    pub policy: Option<PolicySettings>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SubmitterNonce {
    pub strict: OwnSwitch,
    pub low_level: OwnSwitch,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OwnSwitch {
    /// Absent: the chain's value.
    pub enabled: Option<bool>,
}

/// Settings by parsed address. An error is the invalid key and the problem.
pub(super) fn by_address(
    tables: BTreeMap<String, SubmitterSettings>,
) -> Result<BTreeMap<Address, SubmitterSettings>, (String, String)> {
    let mut settings = BTreeMap::new();
    for (text, own) in tables {
        let Ok(address) = text.parse::<Address>() else {
            return Err((format!("submitter.{text}"), "not an address".to_owned()));
        };
        // Two spellings of one address: it would be unclear which one applies.
        if settings.insert(address, own).is_some() {
            return Err((format!("submitter.{text}"), "this address has two tables".to_owned()));
        }
    }
    Ok(settings)
}

/// The policies of submitters that have one. An error is the invalid key and the problem.
pub(super) fn policies(
    submitters: &BTreeMap<Address, SubmitterSettings>,
) -> Result<BTreeMap<Address, Arc<Policy>>, (String, String)> {
    let mut policies = BTreeMap::new();
    for (address, own) in submitters {
        let Some(settings) = &own.policy else { continue };
        let table = format!("submitter.{address:#x}.policy");
        let policy = settings.check().map_err(|(key, problem)| match key.is_empty() {
            true => (table, problem),
            false => (format!("{table}.{key}"), problem),
        })?;
        policies.insert(*address, Arc::new(policy));
    }
    Ok(policies)
}
