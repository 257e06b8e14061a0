//! Errors of transactions and decoded revert data.

use gapless_domain::abi::Argument;
use gapless_domain::{self as domain, RevertData};
use poem_openapi::types::Any;
use poem_openapi::{Enum, Object};
use serde_json::Value;

use gapless_domain::redact_nonces;

/// Why a transaction waits, failed or was cancelled.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct TxError {
    /// Stable error code. New codes may be added.
    pub(crate) code: String,
    /// Error message.
    pub(crate) message: String,
    /// The revert data, if a contract reverted.
    pub(crate) revert: Option<Revert>,
}

/// Revert data of a contract.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct Revert {
    pub(crate) kind: RevertKind,
    /// Text of an `error`, or meaning of a `panic`.
    pub(crate) reason: Option<String>,
    /// Code of a `panic`, 0x hex.
    pub(crate) panic_code: Option<String>,
    /// Name of a `custom` error.
    pub(crate) name: Option<String>,
    /// Signature of a `custom` error, for example `InsufficientBalance(uint256,uint256)`.
    pub(crate) signature: Option<String>,
    /// Arguments of a `custom` error.
    pub(crate) arguments: Option<Vec<ErrorArgument>>,
    /// The returned bytes, 0x hex; at most the first 1024.
    pub(crate) data: String,
    /// Number of returned bytes, if `data` is truncated.
    pub(crate) size: Option<u64>,
}

/// The kind of revert data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "snake_case")]
pub(crate) enum RevertKind {
    /// `Error(string)`: a message.
    Error,
    /// `Panic(uint256)`: a check inserted by the Solidity compiler failed.
    Panic,
    /// One of the `errors` in the request.
    Custom,
    /// No data was returned.
    Empty,
    /// Unrecognised data.
    Unknown,
}

/// An argument of a custom error.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase")]
pub(crate) struct ErrorArgument {
    /// Empty if the signature has no name.
    pub(crate) name: String,
    #[oai(rename = "type")]
    pub(crate) kind: String,
    /// As in `args`: integers as decimal strings, bytes as 0x hex, tuples as objects by component name or as arrays.
    pub(crate) value: Any<Value>,
}

impl TxError {
    /// `errors`: the contract's custom errors, from the request.
    pub(crate) fn new(error: &domain::TxError, errors: &[String]) -> TxError {
        TxError {
            code: error.code.to_string(),
            message: redact_nonces(&error.message),
            revert: error.revert.as_ref().map(|revert| Revert::new(revert, errors)),
        }
    }
}

impl Revert {
    pub(crate) fn new(data: &RevertData, errors: &[String]) -> Revert {
        let revert = data.decode(errors);
        let custom = revert.kind == domain::RevertKind::Custom;
        Revert {
            kind: revert.kind.into(),
            reason: revert.reason,
            panic_code: revert.panic_code.map(|code| format!("{code:#x}")),
            name: revert.name,
            signature: revert.signature,
            arguments: custom.then(|| revert.arguments.into_iter().map(ErrorArgument::from).collect()),
            data: data.data.to_string(),
            size: data.is_cut().then_some(data.size as u64),
        }
    }
}

impl From<Argument> for ErrorArgument {
    fn from(argument: Argument) -> Self {
        ErrorArgument { name: argument.name, kind: argument.kind, value: Any(argument.value) }
    }
}

impl From<domain::RevertKind> for RevertKind {
    fn from(kind: domain::RevertKind) -> Self {
        match kind {
            domain::RevertKind::Error => RevertKind::Error,
            domain::RevertKind::Panic => RevertKind::Panic,
            domain::RevertKind::Custom => RevertKind::Custom,
            domain::RevertKind::Empty => RevertKind::Empty,
            domain::RevertKind::Unknown => RevertKind::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use gapless_domain::ErrorCode;
    use poem_openapi::types::ToJSON;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_error_has_the_documented_json_form() {
        let mut data = vec![0x4e, 0x48, 0x7b, 0x71];
        data.extend([[0; 31].as_slice(), &[0x12]].concat());
        let error = domain::TxError {
            code: ErrorCode::Reverted,
            message: "reverted: panic: division by zero (0x12)".into(),
            revert: Some(RevertData::new(&data)),
        };
        let expected = json!({
            "code": "reverted", "message": "reverted: panic: division by zero (0x12)",
            "revert": {
                "kind": "panic", "reason": "division by zero", "panicCode": "0x12",
                "data": gapless_domain::Bytes::from(data).to_string(),
            },
        });
        assert_eq!(TxError::new(&error, &[]).to_json(), Some(expected));
        let plain = domain::TxError::new(ErrorCode::NonceUsed, "nonce 7 is used");
        let expected = json!({ "code": "nonce_used", "message": "nonce … is used" });
        assert_eq!(TxError::new(&plain, &[]).to_json(), Some(expected));
    }

    #[test]
    fn arguments_have_names_and_types_and_truncated_data_has_its_size() {
        let errors = vec!["Short(uint256 have,(bool,int8)[1])".to_owned()];
        let selector = short_selector();
        let mut data = selector.to_vec();
        data.extend([[0; 31].as_slice(), &[7], &[0; 31], &[1], &[0xff; 32]].concat());
        data.resize(3_000, 0);
        let revert = Revert::new(&RevertData::new(&data), &errors).to_json().unwrap();
        assert_eq!((&revert["kind"], &revert["name"]), (&json!("custom"), &json!("Short")));
        assert_eq!(revert["signature"], "Short(uint256,(bool,int8)[1])");
        let expected = json!([
            { "name": "have", "type": "uint256", "value": "7" },
            { "name": "", "type": "(bool,int8)[1]", "value": [[true, "-1"]] },
        ]);
        assert_eq!(revert["arguments"], expected);
        assert_eq!((revert["data"].as_str().unwrap().len(), &revert["size"]), (2 + 2 * 1024, &json!(3_000)));
    }

    /// Selector of `Short(uint256,(bool,int8)[1])`, taken from an encoded call with the same signature.
    fn short_selector() -> [u8; 4] {
        let method = json!("Short(uint256,(bool,int8)[1])");
        let data = gapless_domain::abi::encode_call(&method, &[json!("7"), json!([[true, "-1"]])]).unwrap();
        data[..4].try_into().unwrap()
    }
}
