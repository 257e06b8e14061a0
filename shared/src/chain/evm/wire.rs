//! JSON-RPC 2.0 as it is on the wire: bodies out, replies in. Knows nothing of Ethereum.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// A node's text is stored and logged.
pub(super) use crate::domain::words::storable;

/// One question. The method name is static: it labels metrics and errors, and labels must be few.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) method: &'static str,
    pub(super) params: Box<RawValue>,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The parameters of a send are signed bytes: never in a log.
        f.write_str(self.method)
    }
}

impl Call {
    pub(super) fn new(method: &'static str, params: impl Serialize) -> Call {
        let params = serde_json::value::to_raw_value(&params).expect("parameters are plain JSON values");
        Call { method, params }
    }

    /// About as many bytes as the call takes in a body.
    pub(super) fn weight(&self) -> usize {
        self.params.get().len() + self.method.len() + 48
    }
}

/// The `error` member of a reply: the node answered, and this is what it said.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ErrorObject {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Value>,
}

impl ErrorObject {
    /// `data` as text to search in.
    pub(super) fn data_text(&self) -> Option<String> {
        self.data.as_ref().map(|data| data.as_str().map_or_else(|| data.to_string(), str::to_owned))
    }
}

/// What a node said to one call.
pub(super) type Reply = Result<Box<RawValue>, ErrorObject>;

/// What a body turned out to hold.
#[derive(Debug)]
pub(super) enum Replies {
    /// By id; `None` where the reply cannot be trusted: two to one id, or neither a result nor an error.
    ById(HashMap<u64, Option<Reply>>),
    /// One error for the request as a whole, without a usable id.
    Whole(ErrorObject),
}

#[derive(Serialize)]
struct Request<'a> {
    jsonrpc: &'static str,
    id: u64,
    method: &'static str,
    params: &'a RawValue,
}

/// The body for `calls` with ids from `first_id` on. A single call is a plain object: every node understands that.
pub(super) fn encode(calls: &[&Call], first_id: u64) -> Vec<u8> {
    let requests: Vec<Request<'_>> = calls
        .iter()
        .zip(first_id..)
        .map(|(call, id)| Request { jsonrpc: "2.0", id, method: call.method, params: &call.params })
        .collect();
    let body = match requests.as_slice() {
        [one] => serde_json::to_vec(one),
        many => serde_json::to_vec(many),
    };
    body.expect("a request is plain JSON")
}

#[derive(Deserialize)]
struct RawReply {
    #[serde(default)]
    id: Value,
    /// `null` is an answer (not found) and differs from no answer.
    #[serde(default, deserialize_with = "present")]
    result: Option<Box<RawValue>>,
    #[serde(default)]
    error: Option<RawError>,
}

#[derive(Deserialize)]
struct RawError {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
    #[serde(default)]
    data: Option<Value>,
}

fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// Reads a body, or says why it is no JSON-RPC.
pub(super) fn decode(body: &[u8]) -> Result<Replies, String> {
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'[') => {
            let replies: Vec<RawReply> = serde_json::from_slice(body).map_err(|e| e.to_string())?;
            let mut by_id = HashMap::with_capacity(replies.len());
            for raw in replies {
                let Some(id) = raw.id.as_u64() else { continue };
                by_id.entry(id).and_modify(|twice| *twice = None).or_insert(reply(raw).ok());
            }
            Ok(Replies::ById(by_id))
        }
        Some(b'{') => {
            let raw: RawReply = serde_json::from_slice(body).map_err(|e| e.to_string())?;
            match (raw.id.as_u64(), reply(raw)?) {
                (Some(id), reply) => Ok(Replies::ById(HashMap::from([(id, Some(reply))]))),
                (None, Err(error)) => Ok(Replies::Whole(error)),
                (None, Ok(_)) => Err("a result without an id".into()),
            }
        }
        Some(_) => Err("neither an object nor an array".into()),
        None => Err("an empty body".into()),
    }
}

fn reply(raw: RawReply) -> Result<Reply, String> {
    match (raw.error, raw.result) {
        // Some nodes send `"result": null` beside the error.
        (Some(error), _) => {
            Ok(Err(ErrorObject { code: error.code, message: storable(&error.message), data: error.data }))
        }
        (None, Some(result)) => Ok(Ok(result)),
        (None, None) => Err("a reply with neither result nor error".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_id(body: &str) -> HashMap<u64, Option<Reply>> {
        match decode(body.as_bytes()).unwrap() {
            Replies::ById(map) => map,
            Replies::Whole(error) => panic!("a whole error: {error:?}"),
        }
    }

    #[test]
    fn one_call_is_an_object_and_several_are_an_array() {
        let call = Call::new("eth_chainId", ());
        let one: Value = serde_json::from_slice(&encode(&[&call], 7)).unwrap();
        assert_eq!(one["id"], 7);
        let two: Value = serde_json::from_slice(&encode(&[&call, &call], 7)).unwrap();
        assert_eq!((&two[0]["id"], &two[1]["id"]), (&7.into(), &8.into()));
    }

    #[test]
    fn a_null_result_is_an_answer() {
        let replies = by_id(r#"{"jsonrpc":"2.0","id":1,"result":null}"#);
        assert_eq!(replies[&1].as_ref().unwrap().as_ref().unwrap().get(), "null");
    }

    #[test]
    fn an_error_beside_a_null_result_is_an_error() {
        let replies =
            by_id(r#"[{"id":1,"result":null,"error":{"code":-32000,"message":"no\u0000pe","data":"0x"}}]"#);
        let error = replies[&1].as_ref().unwrap().as_ref().unwrap_err();
        assert_eq!((error.code, error.message.as_str()), (-32000, "no pe"));
        assert_eq!(error.data_text().as_deref(), Some("0x"));
    }

    #[test]
    fn an_id_answered_twice_is_not_answered() {
        assert!(
            by_id(r#"[{"id":1,"result":"0x1"},{"id":1,"result":"0x2"},{"id":2,"result":"0x3"}]"#)[&1]
                .is_none()
        );
    }

    #[test]
    fn an_error_without_an_id_is_about_the_whole_request() {
        for body in [
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"batch too large"}}"#,
            r#"{"error":{"message":"batch too large"}}"#,
        ] {
            assert!(
                matches!(decode(body.as_bytes()).unwrap(), Replies::Whole(e) if e.message == "batch too large")
            );
        }
    }

    #[test]
    fn what_is_not_json_rpc_is_refused() {
        for body in
            ["", "  ", "<html>", "[{\"id\":1,\"resu", "{\"id\":1}", "{\"result\":\"0x\"}", "true", "[1]"]
        {
            assert!(decode(body.as_bytes()).is_err(), "{body}");
        }
    }
}
