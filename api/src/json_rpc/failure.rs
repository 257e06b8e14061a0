//! Errors. What a library does after one depends on its code alone:
//!
//! - viem's `sendTransaction` repeats the call as `wallet_sendTransaction` after -32000, -32004, -32601 and -32602.
//! - viem's `request` repeats it after -1, 429, -32005, -32007, -32603 and HTTP 403, 408, 413, 429 and 5xx.
//!
//! So none of these follows the acceptance of a transaction: then it is always `REJECTED`.

use gapless_domain::TxId;
use poem::http::StatusCode;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::error::ApiError;
use crate::wire::TxError;

pub(super) mod code {
    pub(in super::super) const PARSE: i64 = -32700;
    pub(in super::super) const INVALID_REQUEST: i64 = -32600;
    pub(in super::super) const METHOD_NOT_FOUND: i64 = -32601;
    pub(in super::super) const INVALID_PARAMS: i64 = -32602;
    /// Nothing was stored, or the call only reads: it may be repeated.
    pub(in super::super) const INTERNAL: i64 = -32603;
    /// Nothing was stored; later it may be accepted.
    pub(in super::super) const LIMIT_EXCEEDED: i64 = -32005;
    /// Transaction rejected. Libraries do not repeat it.
    pub(in super::super) const REJECTED: i64 = -32003;
    /// The key may not do this (EIP-1193).
    pub(in super::super) const UNAUTHORIZED: i64 = 4100;
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct RpcFailure {
    pub(super) code: i64,
    pub(super) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) data: Option<Value>,
}

impl RpcFailure {
    pub(super) fn new(code: i64, message: impl Into<String>) -> RpcFailure {
        RpcFailure { code, message: message.into(), data: None }
    }

    /// An accepted transaction of which nothing will be sent. `data.data` has the returned bytes of a revert, where
    /// libraries look for them.
    pub(super) fn ended(tx_id: TxId, error: Option<&TxError>, state: &str) -> RpcFailure {
        let text = error.map(|error| error.message.clone());
        let mut failure = RpcFailure::rejected(
            error.map_or("unknown", |error| error.code.as_str()),
            format!("transaction {state}: {}", text.unwrap_or_else(|| "no reason is stored".to_owned())),
            Some(tx_id),
        );
        let revert = error.and_then(|error| error.revert.as_ref());
        if let (Some(Value::Object(data)), Some(revert)) = (&mut failure.data, revert) {
            data.insert("message".into(), "execution reverted".into());
            data.insert("data".into(), revert.data.clone().into());
        }
        failure
    }

    /// Whether it was accepted, or what became of it, could not be found out in time.
    pub(super) fn unknown(tx_id: TxId, request_id: Option<&str>, why: &str) -> RpcFailure {
        let message = format!(
            "outcome unknown: {why}. Do not send it again before gapless_getTransaction has answered for its txId, {tx_id}"
        );
        let mut failure = RpcFailure::rejected("outcome_unknown", message, Some(tx_id));
        if let (Some(Value::Object(data)), Some(request_id)) = (&mut failure.data, request_id) {
            data.insert("requestId".into(), request_id.into());
        }
        failure
    }

    fn rejected(reason: &str, message: String, tx_id: Option<TxId>) -> RpcFailure {
        let mut data = Map::new();
        data.insert("code".into(), reason.into());
        if let Some(tx_id) = tx_id {
            data.insert("txId".into(), tx_id.to_string().into());
        }
        RpcFailure { code: code::REJECTED, message, data: Some(Value::Object(data)) }
    }
}

/// Before a transaction is accepted: nothing was stored.
impl From<&ApiError> for RpcFailure {
    fn from(error: &ApiError) -> RpcFailure {
        let problem = error.problem();
        let code = match error {
            ApiError::InvalidRequest(_) | ApiError::InvalidPayload(_) => code::INVALID_PARAMS,
            ApiError::ScopeMissing(_)
            | ApiError::SubmitterNotAllowed(_)
            | ApiError::UnknownSubmitter(_)
            | ApiError::Unauthorized
            | ApiError::AdminDisabled => code::UNAUTHORIZED,
            ApiError::QueueFull { .. } | ApiError::RateLimited { .. } | ApiError::Overloaded => {
                code::LIMIT_EXCEEDED
            }
            ApiError::DatabaseUnavailable | ApiError::Internal | ApiError::NodeUnavailable => code::INTERNAL,
            _ => code::REJECTED,
        };
        let mut data = Map::new();
        data.insert("code".into(), problem.code.into());
        if let Some(tx_id) = problem.tx_id {
            data.insert("txId".into(), tx_id.to_string().into());
        }
        RpcFailure { code, message: problem.detail, data: Some(Value::Object(data)) }
    }
}

impl From<ApiError> for RpcFailure {
    fn from(error: ApiError) -> RpcFailure {
        RpcFailure::from(&error)
    }
}

/// The error of JSON-RPC for a problem document.
pub(super) fn as_rpc_error(status: StatusCode, problem: &[u8], key_in_path: bool) -> RpcFailure {
    let problem: Value = serde_json::from_slice(problem).unwrap_or_default();
    let text = |member: &str| problem[member].as_str().unwrap_or_default().to_owned();
    let code = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => code::UNAUTHORIZED,
        StatusCode::TOO_MANY_REQUESTS => code::LIMIT_EXCEEDED,
        _ if status.is_server_error() => code::INTERNAL,
        _ => code::INVALID_REQUEST,
    };
    let mut message = text("detail");
    if status == StatusCode::UNAUTHORIZED {
        message.push_str(". Send a key as `Authorization: Bearer gpl_…`");
        message.push_str(match key_in_path {
            true => ", or as the last segment of the URL",
            false => "; keys in the URL are disabled (api.json_rpc.key_in_path)",
        });
    }
    RpcFailure { code, message, data: Some(serde_json::json!({ "code": text("code") })) }
}
