//! Why an intent waits or how it ended: a stable code, a readable message, and the revert data.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::revert::{Failure, RevertData};
use super::state::TxState;
use super::sub_state::SubState;

/// The stable codes that clients branch on. Codes are added, never renamed; docs/reference/api.md lists them, and a test
/// compares the two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorCode {
    WouldRevert,
    Reverted,
    OutOfGas,
    Invalid,
    EstimateRefused,
    SignerRefused,
    CallNotAllowed,
    DeployNotAllowed,
    ValueCapExceeded,
    DayCapExceeded,
    Unmineable,
    HandlerFailed,
    DeadlinePassed,
    NonceMismatch,
    Cancelled,
    InsufficientFunds,
    Underpriced,
    SignerUnavailable,
    NodeUnavailable,
    PoolFull,
    DelegatedLimit,
    FeeCapExceeded,
    LowerNonceMissing,
    NonceUsed,
    NonceTaken,
    Displaced,
    Stuck,
    Unknown,
}

impl ErrorCode {
    pub const ALL: [ErrorCode; 28] = [
        ErrorCode::WouldRevert,
        ErrorCode::Reverted,
        ErrorCode::OutOfGas,
        ErrorCode::Invalid,
        ErrorCode::EstimateRefused,
        ErrorCode::SignerRefused,
        ErrorCode::CallNotAllowed,
        ErrorCode::DeployNotAllowed,
        ErrorCode::ValueCapExceeded,
        ErrorCode::DayCapExceeded,
        ErrorCode::Unmineable,
        ErrorCode::HandlerFailed,
        ErrorCode::DeadlinePassed,
        ErrorCode::NonceMismatch,
        ErrorCode::Cancelled,
        ErrorCode::InsufficientFunds,
        ErrorCode::Underpriced,
        ErrorCode::SignerUnavailable,
        ErrorCode::NodeUnavailable,
        ErrorCode::PoolFull,
        ErrorCode::DelegatedLimit,
        ErrorCode::FeeCapExceeded,
        ErrorCode::LowerNonceMissing,
        ErrorCode::NonceUsed,
        ErrorCode::NonceTaken,
        ErrorCode::Displaced,
        ErrorCode::Stuck,
        ErrorCode::Unknown,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            ErrorCode::WouldRevert => "would_revert",
            ErrorCode::Reverted => "reverted",
            ErrorCode::OutOfGas => "out_of_gas",
            ErrorCode::Invalid => "invalid",
            ErrorCode::EstimateRefused => "estimate_refused",
            ErrorCode::SignerRefused => "signer_refused",
            ErrorCode::CallNotAllowed => "call_not_allowed",
            ErrorCode::DeployNotAllowed => "deploy_not_allowed",
            ErrorCode::ValueCapExceeded => "value_cap_exceeded",
            ErrorCode::DayCapExceeded => "day_cap_exceeded",
            ErrorCode::Unmineable => "unmineable",
            ErrorCode::HandlerFailed => "handler_failed",
            ErrorCode::DeadlinePassed => "deadline_passed",
            ErrorCode::NonceMismatch => "nonce_mismatch",
            ErrorCode::Cancelled => "cancelled",
            ErrorCode::InsufficientFunds => "insufficient_funds",
            ErrorCode::Underpriced => "underpriced",
            ErrorCode::SignerUnavailable => "signer_unavailable",
            ErrorCode::NodeUnavailable => "node_unavailable",
            ErrorCode::PoolFull => "pool_full",
            ErrorCode::DelegatedLimit => "delegated_limit",
            ErrorCode::FeeCapExceeded => "fee_cap_exceeded",
            ErrorCode::LowerNonceMissing => "lower_nonce_missing",
            ErrorCode::NonceUsed => "nonce_used",
            ErrorCode::NonceTaken => "nonce_taken",
            ErrorCode::Displaced => "displaced",
            ErrorCode::Stuck => "stuck",
            ErrorCode::Unknown => "unknown",
        }
    }

    /// For rows with a message and no known code, written by another version.
    fn of_row(state: TxState, sub_state: Option<SubState>) -> ErrorCode {
        match sub_state {
            Some(SubState::WouldRevert | SubState::WaitingEarlier) => ErrorCode::WouldRevert,
            Some(SubState::Reverted) => ErrorCode::Reverted,
            Some(SubState::Invalid) => ErrorCode::Invalid,
            Some(SubState::SignerRefused) => ErrorCode::SignerRefused,
            Some(SubState::Rejected) => ErrorCode::Unmineable,
            Some(SubState::Deadline) => ErrorCode::DeadlinePassed,
            Some(SubState::WaitingFunds) => ErrorCode::InsufficientFunds,
            Some(SubState::WaitingFee) => ErrorCode::Underpriced,
            Some(SubState::WaitingSigner) => ErrorCode::SignerUnavailable,
            Some(SubState::WaitingNode) => ErrorCode::NodeUnavailable,
            Some(SubState::LowerNonceMissing) => ErrorCode::LowerNonceMissing,
            Some(SubState::NonceUsed) => ErrorCode::NonceUsed,
            Some(SubState::NonceTaken) => ErrorCode::NonceTaken,
            Some(SubState::Displaced) => ErrorCode::Displaced,
            Some(SubState::Unmined) => ErrorCode::Stuck,
            _ => ErrorCode::of_ending(state).unwrap_or(ErrorCode::Unknown),
        }
    }

    /// For intents that ended before codes existed.
    pub fn of_ending(state: TxState) -> Option<ErrorCode> {
        match state {
            TxState::Cancelled => Some(ErrorCode::Cancelled),
            TxState::Failed => Some(ErrorCode::Unmineable),
            _ => None,
        }
    }
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{0}` is not an error code")]
pub struct UnknownCode(pub String);

impl FromStr for ErrorCode {
    type Err = UnknownCode;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        ErrorCode::ALL
            .into_iter()
            .find(|code| code.as_str() == text)
            .ok_or_else(|| UnknownCode(text.to_owned()))
    }
}

impl Serialize for ErrorCode {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TxError {
    pub code: ErrorCode,
    /// Human-readable; the wording may change.
    pub message: String,
    pub revert: Option<RevertData>,
}

/// The JSON stored next to the message.
#[derive(Serialize, Deserialize)]
struct Detail {
    code: String,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    revert: Option<RevertData>,
}

impl TxError {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> TxError {
        TxError { code, message: message.into(), revert: None }
    }

    /// The estimate failed; no nonce was used. `errors`: the contract's error signatures.
    pub fn would_revert(failure: Failure, errors: &[String]) -> TxError {
        TxError::of_failure(ErrorCode::WouldRevert, "would revert", failure, errors)
    }

    /// It failed on chain, and a repeated execution failed in the same way.
    pub fn reverted(failure: Failure, errors: &[String]) -> TxError {
        TxError::of_failure(ErrorCode::Reverted, "reverted", failure, errors)
    }

    fn of_failure(code: ErrorCode, verb: &str, failure: Failure, errors: &[String]) -> TxError {
        let message = format!("{verb}: {}", failure.describe(errors));
        let code = if failure.out_of_gas { ErrorCode::OutOfGas } else { code };
        TxError { code, message, revert: failure.revert }
    }

    /// The JSON stored next to the message.
    pub fn detail(&self) -> Value {
        let detail = Detail { code: self.code.as_str().to_owned(), revert: self.revert.clone() };
        // Unwrap safety: plain data with string keys.
        serde_json::to_value(detail).expect("an error serialises")
    }

    /// From a row. Never fails: rows of older and newer versions stay readable, even with an unknown code.
    pub fn from_row(
        message: Option<String>,
        detail: Option<Value>,
        state: TxState,
        sub_state: Option<SubState>,
    ) -> Option<TxError> {
        let message = message?;
        let detail = detail.and_then(|detail| serde_json::from_value::<Detail>(detail).ok());
        let (code, revert) = match detail {
            Some(detail) => (detail.code.parse().ok(), detail.revert),
            None => (None, None),
        };
        let code = code.unwrap_or_else(|| ErrorCode::of_row(state, sub_state));
        Some(TxError { code, message, revert })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;

    #[test]
    fn every_code_round_trips_and_is_listed_once() {
        for code in ErrorCode::ALL {
            assert_eq!(code.as_str().parse(), Ok(code));
        }
        let names: BTreeSet<&str> = ErrorCode::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), ErrorCode::ALL.len());
    }

    /// The first column of the table under this heading.
    fn documented() -> BTreeSet<String> {
        let document = include_str!("../../../docs/reference/api.md");
        let section = document.split("### Codes of a transaction").nth(1).expect("the heading");
        let section = section.split("\n#").next().unwrap_or_default();
        let cells = section.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next());
        cells.map(str::to_owned).collect()
    }

    #[test]
    fn code_and_documentation_have_the_same_codes() {
        let codes: BTreeSet<String> = ErrorCode::ALL.iter().map(ToString::to_string).collect();
        assert_eq!(documented(), codes);
    }

    #[test]
    fn an_error_is_read_as_it_was_stored() {
        let error = TxError {
            code: ErrorCode::Reverted,
            message: "reverted: no".into(),
            revert: Some(RevertData::new(&[1, 2, 3])),
        };
        let detail = error.detail();
        assert_eq!(detail, json!({"code": "reverted", "revert": {"data": "0x010203", "size": 3}}));
        let read = TxError::from_row(
            Some("reverted: no".into()),
            Some(detail),
            TxState::Failed,
            Some(SubState::Reverted),
        );
        assert_eq!(read, Some(error));
        assert_eq!(TxError::from_row(None, Some(json!({"code": "reverted"})), TxState::Failed, None), None);
    }

    #[test]
    fn rows_of_other_versions_are_readable() {
        let read = |detail: Option<Value>, state, sub_state| {
            TxError::from_row(Some("message".into()), detail, state, sub_state).unwrap().code
        };
        assert_eq!(read(None, TxState::Failed, Some(SubState::Reverted)), ErrorCode::Reverted);
        assert_eq!(read(None, TxState::Queued, Some(SubState::WaitingFunds)), ErrorCode::InsufficientFunds);
        assert_eq!(read(None, TxState::Failed, Some(SubState::Placeholder)), ErrorCode::Unmineable);
        assert_eq!(read(None, TxState::Cancelled, None), ErrorCode::Cancelled);
        assert_eq!(read(None, TxState::Submitted, None), ErrorCode::Unknown);
        let newer = json!({"code": "future_code", "more": 1});
        assert_eq!(read(Some(newer), TxState::Failed, Some(SubState::Reverted)), ErrorCode::Reverted);
        assert_eq!(
            read(Some(json!("nonsense")), TxState::Failed, Some(SubState::Invalid)),
            ErrorCode::Invalid
        );
    }

    #[test]
    fn out_of_gas_has_its_own_code() {
        let failure = |out_of_gas| Failure { revert: None, message: "message".into(), out_of_gas };
        assert_eq!(TxError::reverted(failure(true), &[]).code, ErrorCode::OutOfGas);
        let error = TxError::would_revert(failure(false), &[]);
        assert_eq!((error.code, error.message.as_str()), (ErrorCode::WouldRevert, "would revert: message"));
    }
}
