//! Request bodies.

use std::borrow::Cow;

use chrono::{DateTime, Utc};
use gapless_domain::{InvalidIntent, Payload, RequestedAccess, RequestedTx, Speed, TxKind};
use poem_openapi::registry::{MetaSchemaRef, Registry};
use poem_openapi::types::{Any, Example, ParseFromJSON, ParseResult, ToJSON, Type};
use poem_openapi::{Enum, Object};
use serde::de::{Error, Unexpected};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::body::{parse, request_names, request_objects};
use super::tx::EXAMPLE_SUBMITTER;

request_objects!(CreateTx, TxPayload, AccessListEntry, BatchRequest);
request_names!(TxType, TxSpeed);

/// What a client must send, as the end of "must be …".
pub(crate) const TIME_FORMAT: &str = "a date and time such as 2026-01-31T12:00:00Z (RFC 3339)";

/// A transaction to send.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields, example)]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self", expecting = "an object")]
pub(crate) struct CreateTx {
    /// Optional if the server serves only one chain.
    pub(crate) chain_id: Option<u64>,
    pub(crate) submitter: String,
    /// Idempotency key: 1 to 200 visible characters, unique per submitter. May be sent in the `Idempotency-Key` header
    /// instead. The same key with the same payload always returns the same transaction.
    pub(crate) request_id: Option<String>,
    pub(crate) payload: TxPayload,
}

/// The transaction's content. Amounts are strings, decimal or 0x hex, because JSON numbers can lose digits.
#[derive(Clone, Debug, Default, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields, skip_serializing_if_is_none)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default, remote = "Self", expecting = "an object")]
pub(crate) struct TxPayload {
    /// Recipient or contract. Absent: deploys a contract with `data` as init code. A mixed-case address must have a
    /// valid checksum (EIP-55).
    pub(crate) to: Option<String>,
    /// Wei. Default: 0.
    pub(crate) value: Option<String>,
    /// Call data or init code, 0x hex. Not together with `method`.
    pub(crate) data: Option<String>,
    /// The function to call: a signature such as `transfer(address,uint256)`, or a function entry of an ABI as an
    /// object.
    pub(crate) method: Option<Any<Value>>,
    /// Arguments of `method`. Integers as decimal or 0x strings, or as JSON integers below 2^53; bytes as 0x hex;
    /// tuples as arrays, or as objects by component name.
    pub(crate) args: Option<Vec<Any<Value>>>,
    /// Custom errors of the contract, used to decode reverts: signatures such as `InsufficientBalance(uint256
    /// available, uint256 required)`, or error entries of an ABI as objects. At most 64. Not part of the idempotency
    /// check: a request with other errors is the same request.
    pub(crate) errors: Option<Vec<Any<Value>>>,
    /// Default: estimated.
    pub(crate) gas_limit: Option<String>,
    /// Default: `eip1559`, or `legacy` if `gasPrice` is given.
    #[oai(rename = "type")]
    #[serde(rename = "type")]
    pub(crate) kind: Option<TxType>,
    /// Wei per gas, `legacy` only. Default: chosen by the server.
    pub(crate) gas_price: Option<String>,
    /// Maximum wei per gas, `eip1559` only. Default: chosen by the server.
    pub(crate) max_fee_per_gas: Option<String>,
    /// Maximum priority fee in wei per gas, `eip1559` only. Default: chosen by the server.
    pub(crate) max_priority_fee_per_gas: Option<String>,
    /// How soon it should be mined. Default: `normal`. Not together with a price.
    pub(crate) speed: Option<TxSpeed>,
    /// EIP-2930 access list.
    pub(crate) access_list: Option<Vec<AccessListEntry>>,
    /// Not sent before this time. Does not delay later transactions in the queue.
    #[serde(deserialize_with = "time")]
    pub(crate) not_before: Option<DateTime<Utc>>,
    /// Cancelled if not mined by this time: directly while queued, with an empty replacement transaction after that.
    #[serde(deserialize_with = "time")]
    pub(crate) deadline: Option<DateTime<Utc>>,
}

/// Transaction type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum, Deserialize)]
#[oai(rename_all = "lowercase")]
#[serde(rename_all = "lowercase", remote = "Self")]
pub(crate) enum TxType {
    Legacy,
    Eip1559,
}

/// Urgency, evaluated by the server's fee policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum, Deserialize)]
#[oai(rename_all = "lowercase")]
#[serde(rename_all = "lowercase", remote = "Self")]
pub(crate) enum TxSpeed {
    Slow,
    Normal,
    Fast,
}

/// An entry of an EIP-2930 access list.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields)]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self", expecting = "an object")]
pub(crate) struct AccessListEntry {
    pub(crate) address: String,
    #[oai(default)]
    #[serde(default)]
    pub(crate) storage_keys: Vec<String>,
}

/// Several transactions to send. Each is accepted or refused separately.
#[derive(Clone, Debug, Object, Deserialize)]
#[oai(rename_all = "camelCase", deny_unknown_fields, example)]
#[serde(rename_all = "camelCase", deny_unknown_fields, remote = "Self", expecting = "an object")]
pub(crate) struct BatchRequest {
    /// Items of the same submitter are queued in this order.
    pub(crate) items: Vec<BatchItem>,
}

/// An item that may be malformed without affecting the other items.
#[derive(Clone, Debug)]
pub(crate) struct BatchItem(pub(crate) Result<CreateTx, InvalidIntent>);

impl Type for BatchItem {
    const IS_REQUIRED: bool = true;
    type RawValueType = Self;
    type RawElementValueType = Self;

    fn name() -> Cow<'static, str> {
        CreateTx::name()
    }

    fn schema_ref() -> MetaSchemaRef {
        CreateTx::schema_ref()
    }

    fn register(registry: &mut Registry) {
        CreateTx::register(registry);
    }

    fn as_raw_value(&self) -> Option<&Self> {
        Some(self)
    }

    fn raw_element_iter<'a>(&'a self) -> Box<dyn Iterator<Item = &'a Self> + 'a> {
        Box::new(std::iter::once(self))
    }
}

/// The parser's own messages do not show the format.
pub(super) fn time<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<DateTime<Utc>>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    let time = DateTime::parse_from_rfc3339(&text);
    let time = time.map_err(|_| D::Error::invalid_value(Unexpected::Str(&text), &TIME_FORMAT))?;
    Ok(Some(time.to_utc()))
}

impl<'de> Deserialize<'de> for BatchItem {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Parsed from its own text, as strictly as a single request.
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(BatchItem(parse(raw.get().as_bytes())))
    }
}

impl ParseFromJSON for BatchItem {
    fn parse_from_json(value: Option<Value>) -> ParseResult<Self> {
        Ok(BatchItem(parse(value.unwrap_or_default().to_string().as_bytes())))
    }
}

impl ToJSON for BatchItem {
    fn to_json(&self) -> Option<Value> {
        self.0.as_ref().ok().and_then(ToJSON::to_json)
    }
}

impl From<TxPayload> for RequestedTx {
    fn from(payload: TxPayload) -> Self {
        RequestedTx {
            to: payload.to,
            value: payload.value,
            data: payload.data,
            method: payload.method.map(|method| method.0),
            args: payload.args.map(|args| args.into_iter().map(|arg| arg.0).collect()),
            errors: payload.errors.map(|errors| errors.into_iter().map(|error| error.0).collect()),
            gas_limit: payload.gas_limit,
            kind: payload.kind.map(|kind| match kind {
                TxType::Legacy => TxKind::Legacy,
                TxType::Eip1559 => TxKind::Eip1559,
            }),
            gas_price: payload.gas_price,
            max_fee_per_gas: payload.max_fee_per_gas,
            max_priority_fee_per_gas: payload.max_priority_fee_per_gas,
            speed: payload.speed.map(|speed| match speed {
                TxSpeed::Slow => Speed::Slow,
                TxSpeed::Normal => Speed::Normal,
                TxSpeed::Fast => Speed::Fast,
            }),
            access_list: payload.access_list.map(|list| {
                let entry = |entry: AccessListEntry| RequestedAccess {
                    address: entry.address,
                    storage_keys: entry.storage_keys,
                };
                list.into_iter().map(entry).collect()
            }),
            not_before: payload.not_before,
            deadline: payload.deadline,
        }
    }
}

/// The canonical form of a validated payload: a request with it is the same request.
impl From<Payload> for TxPayload {
    fn from(payload: Payload) -> Self {
        let legacy = payload.kind == TxKind::Legacy;
        let price = payload.max_fee_per_gas.map(|price| price.to_string());
        let entries = payload.access_list.0.iter().map(|item| AccessListEntry {
            address: format!("{:#x}", item.address),
            storage_keys: item.storage_keys.iter().map(|key| format!("{key:#x}")).collect(),
        });
        TxPayload {
            to: payload.to.map(|to| format!("{to:#x}")),
            value: Some(payload.value.to_string()),
            data: Some(payload.data.to_string()),
            method: None,
            args: None,
            errors: Some(payload.errors.into_iter().map(|error| Any(error.into())).collect::<Vec<_>>())
                .filter(|errors| !errors.is_empty()),
            gas_limit: payload.gas_limit.map(|limit| limit.to_string()),
            kind: Some(if legacy { TxType::Legacy } else { TxType::Eip1559 }),
            gas_price: price.clone().filter(|_| legacy),
            max_fee_per_gas: price.filter(|_| !legacy),
            max_priority_fee_per_gas: payload.max_priority_fee_per_gas.map(|tip| tip.to_string()),
            // `normal` is the default, and a request with a price must not have a speed.
            speed: match payload.speed {
                Speed::Slow => Some(TxSpeed::Slow),
                Speed::Normal => None,
                Speed::Fast => Some(TxSpeed::Fast),
            },
            access_list: Some(entries.collect::<Vec<_>>()).filter(|list| !list.is_empty()),
            not_before: payload.not_before,
            deadline: payload.deadline,
        }
    }
}

impl Example for CreateTx {
    fn example() -> Self {
        CreateTx {
            chain_id: Some(31337),
            submitter: EXAMPLE_SUBMITTER.into(),
            request_id: Some("invoice-1042".into()),
            payload: TxPayload {
                to: Some("0x5FbDB2315678afecb367f032d93F642f64180aa3".into()),
                method: Some(Any(json!("transfer(address,uint256)"))),
                args: Some(vec![
                    Any(json!("0x70997970C51812dc3A010C7d01b50e0d17dc79C8")),
                    Any(json!("1000000000000000000")),
                ]),
                ..TxPayload::default()
            },
        }
    }
}

impl Example for BatchRequest {
    fn example() -> Self {
        let deploy = TxPayload { data: Some("0x6000600055".into()), ..TxPayload::default() };
        let second =
            CreateTx { request_id: Some("invoice-1043".into()), payload: deploy, ..CreateTx::example() };
        BatchRequest { items: [CreateTx::example(), second].map(|item| BatchItem(Ok(item))).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_is_a_valid_request() {
        let example = CreateTx::example();
        assert!(RequestedTx::from(example.payload).validate().is_ok());
    }

    #[test]
    fn the_canonical_form_is_the_same_payload() {
        for payload in [
            RequestedTx::from(CreateTx::example().payload),
            RequestedTx {
                data: Some("0x6000".into()),
                gas_price: Some("0x7".into()),
                ..RequestedTx::default()
            },
            RequestedTx { data: Some("0x6000".into()), speed: Some(Speed::Slow), ..RequestedTx::default() },
            RequestedTx {
                data: Some("0x6000".into()),
                errors: Some(vec![json!("error E(uint a)")]),
                ..RequestedTx::default()
            },
        ] {
            let payload = payload.validate().unwrap();
            let again = RequestedTx::from(TxPayload::from(payload.clone())).validate().unwrap();
            assert_eq!(payload, again);
        }
    }

    fn item(payload: Value) -> Value {
        json!({"submitter": "0x00", "requestId": "r", "payload": payload})
    }

    fn refusal(request: &str) -> String {
        parse::<CreateTx>(request.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn unknown_fields_and_wrong_types_are_refused_with_their_path() {
        for (request, message) in [
            (
                item(json!({"nonce": "5"})).to_string(),
                "payload.nonce: is not a known field; known fields: to,",
            ),
            (item(json!({"value": 5})).to_string(), "payload.value: must be a string, not the number 5"),
            (item(json!({"value": true})).to_string(), "payload.value: must be a string, not true"),
            (item(json!({"value": []})).to_string(), "payload.value: must be a string, not an array"),
            (item(json!({"type": "blob"})).to_string(), "payload.type: must be one of legacy, eip1559"),
            (
                item(json!({"type": {"legacy": null}})).to_string(),
                "payload.type: must be a string, not an object",
            ),
            (
                item(json!({"speed": "`, expected u64"})).to_string(),
                "payload.speed: must be one of slow, normal, fast",
            ),
            (item(json!({"accessList": [{}]})).to_string(), "payload.accessList[0].address: is required"),
            (
                item(json!({"accessList": [["0x00"]]})).to_string(),
                "payload.accessList[0]: must be an object, not an array",
            ),
            (
                item(json!({"accessList": {}})).to_string(),
                "payload.accessList: must be an array, not an object",
            ),
            (
                item(json!({"deadline": "soon"})).to_string(),
                "payload.deadline: must be a date and time such as",
            ),
            (item(json!([])).to_string(), "payload: must be an object, not an array"),
            (item(json!(null)).to_string(), "payload: must be an object, not null"),
            (r#"[1, "0x00", "r", {}]"#.into(), "body: must be an object, not an array"),
            (r#"{"chainId": "1"}"#.into(), "chainId: must be a whole number of at least 0, not this text"),
            (r#"{"chainId": -1}"#.into(), "chainId: must be a whole number of at least 0, not the number -1"),
            (r#"{"payload": {}}"#.into(), "submitter: is required"),
            (r#"{"submitter": "a", "submitter": "b"}"#.into(), "submitter: is given twice"),
            (format!("{} x", item(json!({}))), "body: is not valid: trailing characters (line 1, column "),
            (String::new(), "body: is not valid: EOF"),
        ] {
            let refusal = refusal(&request);
            assert!(refusal.starts_with(message), "{request}: {refusal}");
        }
    }

    #[test]
    fn a_malformed_item_does_not_affect_other_items() {
        let batch = json!({"items": [item(json!({"nonce": "5"})), item(json!({})), 7]}).to_string();
        let items = parse::<BatchRequest>(batch.as_bytes()).unwrap().items;
        assert!(items[0].0.as_ref().unwrap_err().field.contains("nonce"));
        assert!(items[1].0.is_ok());
        assert!(items[2].0.is_err());
    }
}
