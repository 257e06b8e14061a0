//! The words of remote signers: requests as JSON, and what their answers mean. No network here.

use ethers_core::types::transaction::eip2718::TypedTransaction;
use ethers_core::types::{Address, Bytes};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::domain::{Fees, UnsignedTx};
use crate::signer::remote_signer::{NoAnswer, cut};
use crate::signer::transport::Reply;

/// All fields, in the form of `eth_signTransaction`. Nothing is left for the signer to fill in.
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

/// The result of a JSON-RPC call. Signers send errors with all kinds of statuses: the body decides, if it is one.
pub(super) fn rpc_result(reply: &Reply, id: u64) -> Result<Value, NoAnswer> {
    let Ok(answer) = serde_json::from_slice::<RpcReply>(&reply.body) else {
        return Err(NoAnswer::Unavailable(unreadable(reply)));
    };
    // Errors about requests that could not be read have no id.
    if answer.id != json!(id) && !(answer.id.is_null() && answer.error.is_some()) {
        return Err(NoAnswer::Unavailable("it answers another request".into()));
    }
    match (answer.result, answer.error) {
        (_, Some(error)) => Err(declined(&error)),
        (Some(result), None) => Ok(result),
        (None, None) => Err(NoAnswer::Unavailable("neither a result nor an error".into())),
    }
}

/// Only a person's or a rule's no is final (Clef, and wallets with EIP-1193). Every other error may pass: a key that is
/// not loaded yet, a vault that is sealed.
fn declined(error: &RpcError) -> NoAnswer {
    let said = format!("{} ({})", cut(&error.message), error.code);
    if error.code == 4001 || error.message.to_lowercase().contains("request denied") {
        return NoAnswer::Refused(said);
    }
    NoAnswer::Unavailable(said)
}

/// The bytes alone, or in `raw` beside a transaction in words, which is ignored.
pub(super) fn raw_bytes(result: Value) -> Result<Bytes, NoAnswer> {
    let text = match result {
        Value::Object(mut fields) => fields.remove("raw").unwrap_or_default(),
        other => other,
    };
    serde_json::from_value(text).map_err(|_| NoAnswer::Unavailable("its answer holds no signed bytes".into()))
}

pub(super) fn addresses(result: Value) -> Result<Vec<Address>, String> {
    serde_json::from_value(result).map_err(|_| "its answer is no list of addresses".into())
}

/// An answer of a signing service. 422 is a refusal; every other status but 200 is a fault that may pass.
pub(super) fn service_result(reply: &Reply) -> Result<Value, NoAnswer> {
    let body = serde_json::from_slice::<Value>(&reply.body);
    match (reply.status, body) {
        (200, Ok(body)) => Ok(body),
        (422, Ok(body)) if body.get("error").is_some() => {
            let said = body["error"].as_str().unwrap_or("no reason was given");
            Err(NoAnswer::Refused(cut(said)))
        }
        _ => Err(NoAnswer::Unavailable(unreadable(reply))),
    }
}

/// The body may be a proxy's page or worse: it is not repeated.
fn unreadable(reply: &Reply) -> String {
    match reply.status {
        200 => "its answer cannot be read".into(),
        401 | 403 => format!("HTTP {}: it does not accept our token or certificate", reply.status),
        status => format!("HTTP {status}"),
    }
}
