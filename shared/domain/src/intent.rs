//! Validates a client's request into a `Payload`: every rule that needs neither the database nor the chain.

use chrono::{DateTime, Datelike, Utc};
use ethers_core::types::transaction::eip2930::{AccessList, AccessListItem};
use ethers_core::types::{Address, Bytes, U256};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::abi::{canonical_errors, encode_call};
use super::amount::parse_amount;
use super::gas::intrinsic_gas;
use super::hex_text::{parse_address, parse_bytes, parse_word};
use super::payload::{InvalidIntent, Payload, Speed, TxKind};

/// EIP-3860: longer init code is invalid.
pub const MAX_INIT_CODE_BYTES: usize = 49_152;
/// Mempools reject transactions above 128 KiB.
pub const MAX_DATA_BYTES: usize = 128 * 1024;
pub const MAX_REQUEST_ID_CHARS: usize = 200;

/// `payload` of a request as the client sent it. Amounts are strings because JSON numbers lose digits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RequestedTx {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
    /// A signature, or an ABI fragment object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub args: Option<Vec<Value>>,
    /// Signatures or ABI fragment objects of the contract's custom errors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub errors: Option<Vec<Value>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gas_limit: Option<String>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<TxKind>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gas_price: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_fee_per_gas: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_priority_fee_per_gas: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speed: Option<Speed>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_list: Option<Vec<RequestedAccess>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_before: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline: Option<DateTime<Utc>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestedAccess {
    pub address: String,
    #[serde(default)]
    pub storage_keys: Vec<String>,
}

impl RequestedTx {
    pub fn validate(self) -> Result<Payload, InvalidIntent> {
        let to = self.to.as_deref().map(|text| address("payload.to", text)).transpose()?;
        let data = call_data(to, self.data.as_deref(), self.method.as_ref(), self.args.as_deref())?;
        let gas_limit = amount("payload.gasLimit", self.gas_limit.as_deref())?;
        if gas_limit.is_some_and(|limit| limit.is_zero() || limit.bits() > 64) {
            return Err(InvalidIntent::new("payload.gasLimit", "must be above 0 and below 2^64"));
        }
        let price = self.price()?;
        check_time("payload.notBefore", self.not_before)?;
        check_time("payload.deadline", self.deadline)?;
        if let (Some(not_before), Some(deadline)) = (self.not_before, self.deadline)
            && not_before >= deadline
        {
            return Err(InvalidIntent::new("payload.deadline", "must be after notBefore"));
        }
        let payload = Payload {
            to,
            value: amount("payload.value", self.value.as_deref())?.unwrap_or_default(),
            data,
            gas_limit,
            kind: price.kind,
            max_fee_per_gas: price.cap,
            max_priority_fee_per_gas: price.tip,
            speed: self.speed.unwrap_or_default(),
            access_list: access_list(self.access_list.unwrap_or_default())?,
            not_before: self.not_before,
            deadline: self.deadline,
            errors: canonical_errors(self.errors.as_deref().unwrap_or_default())?,
        };
        let needed = intrinsic_gas(&payload);
        if payload.gas_limit.is_some_and(|limit| limit < needed) {
            let problem = format!("must be at least {needed}, the intrinsic gas of this transaction");
            return Err(InvalidIntent::new("payload.gasLimit", problem));
        }
        Ok(payload)
    }

    /// `gasPrice` is for legacy transactions, the two caps are for EIP-1559; mixing them is an error.
    fn price(&self) -> Result<Price, InvalidIntent> {
        let gas_price = amount("payload.gasPrice", self.gas_price.as_deref())?;
        let cap = amount("payload.maxFeePerGas", self.max_fee_per_gas.as_deref())?;
        let tip = amount("payload.maxPriorityFeePerGas", self.max_priority_fee_per_gas.as_deref())?;
        // With an explicit price, `speed` would be ignored or contradict it.
        let priced = gas_price.is_some() || (cap.is_some() && tip.is_some());
        if priced && self.speed.is_some() {
            return Err(InvalidIntent::new("payload.speed", "cannot be combined with an explicit price"));
        }
        let implied = if gas_price.is_some() { TxKind::Legacy } else { TxKind::Eip1559 };
        let kind = self.kind.unwrap_or(implied);
        match kind {
            TxKind::Legacy if cap.is_some() => Err(InvalidIntent::new(
                "payload.maxFeePerGas",
                "cannot be used in a legacy transaction; use gasPrice",
            )),
            TxKind::Legacy if tip.is_some() => Err(InvalidIntent::new(
                "payload.maxPriorityFeePerGas",
                "cannot be used in a legacy transaction; use gasPrice",
            )),
            TxKind::Legacy => Ok(Price { kind, cap: gas_price, tip: None }),
            TxKind::Eip1559 if gas_price.is_some() => Err(InvalidIntent::new(
                "payload.gasPrice",
                "is only for legacy transactions; use maxFeePerGas and maxPriorityFeePerGas",
            )),
            TxKind::Eip1559 if matches!((tip, cap), (Some(tip), Some(cap)) if tip > cap) => {
                Err(InvalidIntent::new("payload.maxPriorityFeePerGas", "must not exceed maxFeePerGas"))
            }
            TxKind::Eip1559 => Ok(Price { kind, cap, tip }),
        }
    }
}

struct Price {
    kind: TxKind,
    cap: Option<U256>,
    tip: Option<U256>,
}

/// The client's idempotency key: 1 to 200 visible characters, so that it can appear in logs and URLs unchanged.
pub fn check_request_id(request_id: &str) -> Result<(), InvalidIntent> {
    let visible = |c: char| c.is_ascii_graphic() || (!c.is_ascii() && c.is_alphanumeric());
    let length = request_id.chars().count();
    if (1..=MAX_REQUEST_ID_CHARS).contains(&length) && request_id.chars().all(visible) {
        return Ok(());
    }
    let problem = format!("must be 1 to {MAX_REQUEST_ID_CHARS} visible characters without spaces");
    Err(InvalidIntent::new("requestId", problem))
}

fn address(field: &str, text: &str) -> Result<Address, InvalidIntent> {
    parse_address(text).map_err(|problem| InvalidIntent::new(field, problem))
}

/// Limits the year to four digits, which every database, client and log supports.
pub fn check_time(field: &str, at: Option<DateTime<Utc>>) -> Result<(), InvalidIntent> {
    match at {
        Some(at) if !(1..=9999).contains(&at.year()) => {
            Err(InvalidIntent::new(field, "must be between the years 1 and 9999"))
        }
        _ => Ok(()),
    }
}

fn amount(field: &str, text: Option<&str>) -> Result<Option<U256>, InvalidIntent> {
    text.map(|text| parse_amount(text).map_err(|error| InvalidIntent::new(field, error.to_string())))
        .transpose()
}

fn call_data(
    to: Option<Address>,
    data: Option<&str>,
    method: Option<&Value>,
    args: Option<&[Value]>,
) -> Result<Bytes, InvalidIntent> {
    let bytes: Bytes = match (data, method) {
        (Some(_), Some(_)) => {
            return Err(InvalidIntent::new("payload.data", "data and method are mutually exclusive"));
        }
        (_, None) if args.is_some() => return Err(InvalidIntent::new("payload.args", "requires method")),
        (None, Some(_)) if to.is_none() => {
            return Err(InvalidIntent::new(
                "payload.method",
                "requires `to`; for a deployment, put the init code into data",
            ));
        }
        (None, Some(method)) => encode_call(method, args.unwrap_or_default())?,
        (Some(text), None) => {
            parse_bytes(text).map_err(|problem| InvalidIntent::new("payload.data", problem))?.into()
        }
        (None, None) => Bytes::new(),
    };
    if to.is_none() && bytes.is_empty() {
        return Err(InvalidIntent::new(
            "payload.to",
            "is missing; a deployment omits it and requires init code in data",
        ));
    }
    let limit = if to.is_none() { MAX_INIT_CODE_BYTES } else { MAX_DATA_BYTES };
    if bytes.len() > limit {
        let field = if method.is_some() { "payload.args" } else { "payload.data" };
        return Err(InvalidIntent::new(
            field,
            format!("is {} bytes long; the limit is {limit}", bytes.len()),
        ));
    }
    Ok(bytes)
}

fn access_list(entries: Vec<RequestedAccess>) -> Result<AccessList, InvalidIntent> {
    let entry = |(index, entry): (usize, RequestedAccess)| {
        let field = format!("payload.accessList[{index}]");
        let key = |(index, text): (usize, &String)| {
            let field = || format!("{field}.storageKeys[{index}]");
            parse_word(text).map_err(|problem| InvalidIntent::new(field(), problem))
        };
        Ok(AccessListItem {
            address: address(&format!("{field}.address"), &entry.address)?,
            storage_keys: entry.storage_keys.iter().enumerate().map(key).collect::<Result<_, _>>()?,
        })
    };
    entries.into_iter().enumerate().map(entry).collect::<Result<Vec<_>, InvalidIntent>>().map(AccessList)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const TO: &str = "0x5aaeb6053f3e94c9b9a09f33669435e7ef1beaed";

    fn validate(payload: Value) -> Result<Payload, InvalidIntent> {
        serde_json::from_value::<RequestedTx>(payload).unwrap().validate()
    }

    fn refused_field(payload: Value) -> String {
        let json = payload.to_string();
        validate(payload).expect_err(&json).field
    }

    #[test]
    fn equivalent_requests_have_the_same_payload() {
        let by_name =
            validate(json!({"to": TO, "method": "transfer(address,uint256)", "args": [TO, "1000"]})).unwrap();
        let data = format!("0xa9059cbb{:0>64}{:0>64}", &TO[2..], "3e8");
        let by_bytes = validate(json!({"to": TO, "value": "0x0", "data": data, "type": "eip1559"})).unwrap();
        assert_eq!(by_name, by_bytes);
        assert_eq!(by_name.hash(), by_bytes.hash());
    }

    #[test]
    fn a_different_value_is_a_different_payload() {
        let one = validate(json!({"to": TO, "value": "1"})).unwrap();
        let two = validate(json!({"to": TO, "value": "2"})).unwrap();
        assert_ne!(one.hash(), two.hash());
    }

    #[test]
    fn a_deployment_needs_init_code_and_cannot_call_a_method() {
        assert!(validate(json!({"data": "0x6000"})).unwrap().to.is_none());
        assert_eq!(refused_field(json!({})), "payload.to");
        assert_eq!(refused_field(json!({"data": "0x"})), "payload.to");
        assert_eq!(refused_field(json!({"method": "f()"})), "payload.method");
    }

    #[test]
    fn data_and_method_exclude_each_other() {
        assert_eq!(refused_field(json!({"to": TO, "data": "0x", "method": "f()"})), "payload.data");
        assert_eq!(refused_field(json!({"to": TO, "args": []})), "payload.args");
        assert_eq!(refused_field(json!({"to": TO, "data": "0x", "args": []})), "payload.args");
    }

    #[test]
    fn custom_errors_are_stored_in_canonical_form_and_do_not_change_the_hash() {
        let plain = validate(json!({"to": TO})).unwrap();
        let explained = validate(json!({"to": TO, "errors": ["error Short( uint have )"]})).unwrap();
        assert_eq!(explained.errors, ["Short(uint256 have)"]);
        assert_eq!(explained.hash(), plain.hash());
        assert_eq!(refused_field(json!({"to": TO, "errors": ["Short("]})), "payload.errors[0]");
    }

    #[test]
    fn sizes_are_limited() {
        let hex = |bytes: usize| format!("0x{}", "00".repeat(bytes));
        assert!(validate(json!({"data": hex(MAX_INIT_CODE_BYTES)})).is_ok());
        assert_eq!(refused_field(json!({"data": hex(MAX_INIT_CODE_BYTES + 1)})), "payload.data");
        assert!(validate(json!({"to": TO, "data": hex(MAX_DATA_BYTES)})).is_ok());
        assert_eq!(refused_field(json!({"to": TO, "data": hex(MAX_DATA_BYTES + 1)})), "payload.data");
    }

    #[test]
    fn prices_belong_to_their_kind() {
        let legacy = validate(json!({"to": TO, "gasPrice": "7"})).unwrap();
        assert_eq!((legacy.kind, legacy.max_fee_per_gas), (TxKind::Legacy, Some(7.into())));
        assert!(validate(json!({"to": TO, "maxFeePerGas": "7", "maxPriorityFeePerGas": "7"})).is_ok());
        assert_eq!(refused_field(json!({"to": TO, "type": "eip1559", "gasPrice": "7"})), "payload.gasPrice");
        assert_eq!(
            refused_field(json!({"to": TO, "type": "legacy", "maxFeePerGas": "7"})),
            "payload.maxFeePerGas"
        );
        assert_eq!(
            refused_field(json!({"to": TO, "gasPrice": "7", "maxFeePerGas": "7"})),
            "payload.maxFeePerGas"
        );
        assert_eq!(
            refused_field(json!({"to": TO, "maxFeePerGas": "6", "maxPriorityFeePerGas": "7"})),
            "payload.maxPriorityFeePerGas"
        );
    }

    #[test]
    fn normal_is_the_default_speed() {
        let none = validate(json!({"to": TO})).unwrap();
        let normal = validate(json!({"to": TO, "speed": "normal"})).unwrap();
        let fast = validate(json!({"to": TO, "speed": "fast"})).unwrap();
        assert_eq!(none.hash(), normal.hash());
        assert_eq!(fast.speed, Speed::Fast);
        assert_ne!(none.hash(), fast.hash());
        assert!(
            validate(json!({"to": TO, "speed": "slow", "maxFeePerGas": "7"})).is_ok(),
            "a limit, not a price"
        );
        assert_eq!(refused_field(json!({"to": TO, "speed": "slow", "gasPrice": "7"})), "payload.speed");
        let priced = json!({"to": TO, "speed": "slow", "maxFeePerGas": "7", "maxPriorityFeePerGas": "7"});
        assert_eq!(refused_field(priced), "payload.speed");
        assert!(serde_json::from_value::<RequestedTx>(json!({"to": TO, "speed": "warp"})).is_err());
    }

    #[test]
    fn bad_values_name_their_field() {
        for (payload, field) in [
            (json!({"to": "0x12"}), "payload.to"),
            (json!({"to": TO, "value": "-1"}), "payload.value"),
            (json!({"to": TO, "value": "1.5"}), "payload.value"),
            (json!({"to": TO, "data": "0xzz"}), "payload.data"),
            (json!({"to": TO, "gasLimit": "0"}), "payload.gasLimit"),
            (json!({"to": TO, "gasLimit": "18446744073709551616"}), "payload.gasLimit"),
            (json!({"to": TO, "accessList": [{"address": "0x1"}]}), "payload.accessList[0].address"),
            (
                json!({"to": TO, "accessList": [{"address": TO, "storageKeys": ["0x1"]}]}),
                "payload.accessList[0].storageKeys[0]",
            ),
            (
                json!({"to": TO, "notBefore": "2030-01-02T00:00:00Z", "deadline": "2030-01-01T00:00:00Z"}),
                "payload.deadline",
            ),
        ] {
            assert_eq!(refused_field(payload), field);
        }
    }

    #[test]
    fn years_outside_1_to_9999_are_refused() {
        for year in ["-262143", "-4800", "0000", "+10000", "+262142"] {
            for field in ["notBefore", "deadline"] {
                let payload = json!({ "to": TO, field: format!("{year}-01-01T00:00:00Z") });
                assert_eq!(refused_field(payload), format!("payload.{field}"));
            }
        }
        for year in ["0001", "1970", "9999"] {
            validate(json!({ "to": TO, "deadline": format!("{year}-01-01T00:00:00Z") })).unwrap();
        }
    }

    #[test]
    fn an_unknown_field_is_refused() {
        assert!(serde_json::from_value::<RequestedTx>(json!({"to": TO, "nonce": "5"})).is_err());
    }

    #[test]
    fn request_ids_are_short_and_visible() {
        for good in ["1", "order-17/ä", &"x".repeat(200)] {
            assert_eq!(check_request_id(good), Ok(()), "{good}");
        }
        for bad in ["", "a b", "a\u{0}", "a\u{200b}", "\t", &"x".repeat(201)] {
            assert!(check_request_id(bad).is_err(), "{bad:?}");
        }
    }
}
