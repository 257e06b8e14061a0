//! The validated intent: what will be sent on chain, with every option the client may set.

use chrono::{DateTime, Utc};
use ethers_core::types::transaction::eip2930::AccessList;
use ethers_core::types::{Address, Bytes, H256, U256};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use sha2::{Digest, Sha256};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TxKind {
    Legacy,
    #[default]
    Eip1559,
}

/// How soon the transaction should be mined; the fee policy maps it to a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Speed {
    Slow,
    #[default]
    Normal,
    Fast,
}

impl Speed {
    fn is_normal(&self) -> bool {
        *self == Speed::Normal
    }
}

/// Stored in `managed_tx.payload`. Requests with the same effect and the same limits have the same payload, regardless
/// of their notation (`data` or `method` and `args`, decimal or hex).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Payload {
    /// Absent: a deployment; `data` is the init code.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub to: Option<Address>,
    pub value: U256,
    pub data: Bytes,
    /// Absent: estimated when prepared.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gas_limit: Option<U256>,
    #[serde(rename = "type")]
    pub kind: TxKind,
    /// Upper bound of the gas price (legacy: the gas price itself). Absent: the fee policy decides.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_fee_per_gas: Option<U256>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub max_priority_fee_per_gas: Option<U256>,
    /// `normal` is not serialised, so that it has the same hash as a request without `speed`.
    #[serde(skip_serializing_if = "Speed::is_normal", default)]
    pub speed: Speed,
    #[serde(skip_serializing_if = "access_list_is_empty", default)]
    pub access_list: AccessList,
    /// Not prepared before this time; does not block others in the queue.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub not_before: Option<DateTime<Utc>>,
    /// Cancelled if it has no nonce by then.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub deadline: Option<DateTime<Utc>>,
    /// Signatures of the contract's custom errors. Used only to decode reverts, so the hash excludes them.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub errors: Vec<String>,
}

fn access_list_is_empty(list: &AccessList) -> bool {
    list.0.is_empty()
}

impl Payload {
    /// A plain transfer, as used by placeholders and tests.
    pub fn transfer(to: Address, value: U256) -> Self {
        Payload {
            to: Some(to),
            value,
            data: Bytes::new(),
            gas_limit: None,
            kind: TxKind::Eip1559,
            max_fee_per_gas: None,
            max_priority_fee_per_gas: None,
            speed: Speed::Normal,
            access_list: AccessList::default(),
            not_before: None,
            deadline: None,
            errors: Vec::new(),
        }
    }

    /// Distinguishes a repeated request from a different one with the same request id.
    pub fn hash(&self) -> H256 {
        self.canonical().1
    }

    /// The stored JSON and the hash. Without custom errors the hash is that of the JSON, so it is serialised once.
    pub fn canonical(&self) -> (Box<RawValue>, H256) {
        // Unwrap safety: every field serialises; the field order is fixed by the struct.
        let text = to_raw_value(self).expect("a payload serialises");
        let hash = if self.errors.is_empty() {
            H256::from_slice(&Sha256::digest(text.get()))
        } else {
            Payload { errors: Vec::new(), ..self.clone() }.hash()
        };
        (text, hash)
    }
}

/// A request that can never become a transaction. `field` is the path in the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct InvalidIntent {
    pub field: String,
    pub problem: String,
}

impl InvalidIntent {
    pub fn new(field: impl Into<String>, problem: impl Into<String>) -> Self {
        InvalidIntent { field: field.into(), problem: problem.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Written before `speed` existed; databases contain such rows and hashes.
    const STORED: &str =
        r#"{"to":"0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed","value":"0x1","data":"0x","type":"eip1559"}"#;

    #[test]
    fn a_payload_without_a_speed_keeps_its_old_json_and_hash() {
        let stored: Payload = serde_json::from_str(STORED).unwrap();
        assert_eq!(stored.speed, Speed::Normal);
        assert_eq!(serde_json::to_string(&stored).unwrap(), STORED);
        assert_eq!(stored.hash(), H256::from_slice(&Sha256::digest(STORED)));
        let fast = Payload { speed: Speed::Fast, ..stored.clone() };
        assert_ne!(fast.hash(), stored.hash());
        assert_eq!(serde_json::from_str::<Payload>(&serde_json::to_string(&fast).unwrap()).unwrap(), fast);
    }

    #[test]
    fn custom_errors_are_stored_and_do_not_change_the_hash() {
        let stored: Payload = serde_json::from_str(STORED).unwrap();
        let explained = Payload { errors: vec!["Short(uint256 have)".into()], ..stored.clone() };
        assert_eq!(explained.hash(), stored.hash());
        let text = serde_json::to_string(&explained).unwrap();
        assert_eq!(serde_json::from_str::<Payload>(&text).unwrap(), explained);
    }
}
