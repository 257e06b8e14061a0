//! Why a transaction waits or how it ended, as clients see it; and what a contract returned when it reverted.

use gapless::domain::abi::Argument;
use gapless::domain::{self, RevertData};
use poem_openapi::types::Any;
use poem_openapi::{Enum, Object};
use serde_json::Value;

use super::redact_nonces;

/// Why a transaction waits or how it ended.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct TxError {
    /// Stable; decide by this. New codes may be added.
    pub(crate) code: String,
    /// For people.
    pub(crate) message: String,
    /// What the contract returned.
    pub(crate) revert: Option<Revert>,
}

/// What a contract returned when it reverted.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", skip_serializing_if_is_none)]
pub(crate) struct Revert {
    pub(crate) kind: RevertKind,
    /// The text of an `error`, the meaning of a `panic`.
    pub(crate) reason: Option<String>,
    /// Of a `panic`, 0x hex.
    pub(crate) panic_code: Option<String>,
    /// Of a `custom` error.
    pub(crate) name: Option<String>,
    /// Of a `custom` error, for example `InsufficientBalance(uint256,uint256)`.
    pub(crate) signature: Option<String>,
    /// Of a `custom` error.
    pub(crate) arguments: Option<Vec<ErrorArgument>>,
    /// The bytes themselves, 0x hex; at most the first 1024.
    pub(crate) data: String,
    /// How many bytes there were, where `data` does not have them all.
    pub(crate) size: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "snake_case")]
pub(crate) enum RevertKind {
    /// `Error(string)`: a text.
    Error,
    /// `Panic(uint256)`: a check of the compiler.
    Panic,
    /// One of the errors that came with the request.
    Custom,
    /// Nothing was returned.
    Empty,
    /// Bytes that are none of these.
    Unknown,
}

/// An argument of a custom error.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase")]
pub(crate) struct ErrorArgument {
    /// Empty where the signature has none.
    pub(crate) name: String,
    #[oai(rename = "type")]
    pub(crate) kind: String,
    /// As in `args`: integers are decimal strings, bytes 0x hex, tuples objects by name or arrays.
    pub(crate) value: Any<Value>,
}

impl TxError {
    /// `errors`: those of the contract, as the request gave them.
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
    use gapless::domain::ErrorCode;
    use poem_openapi::types::ToJSON;
    use serde_json::json;

    use super::*;

    #[test]
    fn an_error_has_the_shape_that_is_documented() {
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
                "data": gapless::domain::Bytes::from(data).to_string(),
            },
        });
        assert_eq!(TxError::new(&error, &[]).to_json(), Some(expected));
        let plain = domain::TxError::new(ErrorCode::NonceUsed, "nonce 7 is used");
        let expected = json!({ "code": "nonce_used", "message": "nonce … is used" });
        assert_eq!(TxError::new(&plain, &[]).to_json(), Some(expected));
    }

    #[test]
    fn arguments_keep_their_names_and_types_and_what_was_cut_says_so() {
        let errors = vec!["Short(uint256 have,(bool,int8)[1])".to_owned()];
        let selector = ethers_selector();
        let mut data = selector.to_vec();
        data.extend([[0; 31].as_slice(), &[7], &[0; 31], &[1], &[0xff; 32]].concat());
        data.resize(3_000, 0);
        let told = Revert::new(&RevertData::new(&data), &errors).to_json().unwrap();
        assert_eq!((&told["kind"], &told["name"]), (&json!("custom"), &json!("Short")));
        assert_eq!(told["signature"], "Short(uint256,(bool,int8)[1])");
        let expected = json!([
            { "name": "have", "type": "uint256", "value": "7" },
            { "name": "", "type": "(bool,int8)[1]", "value": [[true, "-1"]] },
        ]);
        assert_eq!(told["arguments"], expected);
        assert_eq!((told["data"].as_str().unwrap().len(), &told["size"]), (2 + 2 * 1024, &json!(3_000)));
    }

    /// Of `Short(uint256,(bool,int8)[1])`, by way of a call with the same signature.
    fn ethers_selector() -> [u8; 4] {
        let method = json!("Short(uint256,(bool,int8)[1])");
        let data = gapless::domain::abi::encode_call(&method, &[json!("7"), json!([[true, "-1"]])]).unwrap();
        data[..4].try_into().unwrap()
    }
}
