//! JSON requests to remote signers and parsing of their responses. No network access.

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, Bytes};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::remote_signer::{SignFailure, sanitize};
use crate::transport::Reply;
use gapless_domain::{Fees, UnsignedTx};

/// All fields in the format of `eth_signTransaction`. The signer fills in nothing.
pub(super) fn transaction(tx: &UnsignedTx) -> Value {
    let payload = &tx.payload;
    let mut fields = json!({
        "from": tx.from,
        "to": payload.to,
        "value": payload.value,
        "data": payload.data,
        "nonce": format!("{:#x}", tx.nonce.0),
        "gas": tx.gas_limit,
        "chainId": format!("{:#x}", tx.chain_id.0),
    });
    let typed = tx.typed();
    match (&typed, tx.fees) {
        (TypedTransaction::Eip1559(_), Fees::Eip1559 { max_fee_per_gas, max_priority_fee_per_gas }) => {
            fields["type"] = json!("0x2");
            fields["maxFeePerGas"] = json!(max_fee_per_gas);
            fields["maxPriorityFeePerGas"] = json!(max_priority_fee_per_gas);
            fields["accessList"] = json!(payload.access_list);
        }
        (TypedTransaction::Eip2930(_), fees) => {
            fields["type"] = json!("0x1");
            fields["gasPrice"] = json!(fees.cap());
            fields["accessList"] = json!(payload.access_list);
        }
        (_, fees) => {
            fields["type"] = json!("0x0");
            fields["gasPrice"] = json!(fees.cap());
        }
    }
    fields
}

pub(super) fn call(id: u64, method: &str, params: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params })
}

#[derive(Deserialize)]
struct RpcReply {
    id: Value,
    result: Option<Value>,
    error: Option<RpcError>,
}

#[derive(Deserialize)]
struct RpcError {
    code: i64,
    message: String,
}

/// The result of a JSON-RPC call. Signers send errors with various HTTP statuses, so a valid body takes precedence.
pub(super) fn rpc_result(reply: &Reply, id: u64) -> Result<Value, SignFailure> {
    let Ok(answer) = serde_json::from_slice::<RpcReply>(&reply.body) else {
        return Err(SignFailure::Unavailable(unreadable(reply)));
    };
    // Errors about unparsable requests have no id.
    if answer.id != json!(id) && !(answer.id.is_null() && answer.error.is_some()) {
        return Err(SignFailure::Unavailable("the response id does not match the request".into()));
    }
    match (answer.result, answer.error) {
        (_, Some(error)) => Err(declined(&error)),
        (Some(result), None) => Ok(result),
        (None, None) => Err(SignFailure::Unavailable("neither a result nor an error".into())),
    }
}

/// Only an explicit denial by a user or a rule is permanent (Clef, EIP-1193 wallets). Other errors may be temporary,
/// such as a key that is not loaded yet or a sealed vault.
fn declined(error: &RpcError) -> SignFailure {
    let message = format!("{} ({})", sanitize(&error.message), error.code);
    if error.code == 4001 || error.message.to_lowercase().contains("request denied") {
        return SignFailure::Refused(message);
    }
    SignFailure::Unavailable(message)
}

/// The bytes, either as the result itself or in its field `raw`.
pub(super) fn raw_bytes(result: Value) -> Result<Bytes, SignFailure> {
    let text = match result {
        Value::Object(mut fields) => fields.remove("raw").unwrap_or_default(),
        other => other,
    };
    serde_json::from_value(text).map_err(|_| SignFailure::Unavailable("no signed bytes returned".into()))
}

pub(super) fn addresses(result: Value) -> Result<Vec<Address>, String> {
    serde_json::from_value(result).map_err(|_| "the response is not a list of addresses".into())
}

/// The response of a signing service. 422 is a refusal; other statuses except 200 are temporary failures.
pub(super) fn service_result(reply: &Reply) -> Result<Value, SignFailure> {
    let body = serde_json::from_slice::<Value>(&reply.body);
    match (reply.status, body) {
        (200, Ok(body)) => Ok(body),
        (422, Ok(body)) if body.get("error").is_some() => {
            let message = body["error"].as_str().unwrap_or("no reason given");
            Err(SignFailure::Refused(sanitize(message)))
        }
        _ => Err(SignFailure::Unavailable(unreadable(reply))),
    }
}

/// Without the body, which may be the page of a proxy.
fn unreadable(reply: &Reply) -> String {
    match reply.status {
        200 => "invalid response".into(),
        401 | 403 => format!("HTTP {}: token or client certificate not accepted", reply.status),
        status => format!("HTTP {status}"),
    }
}
