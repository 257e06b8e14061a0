//! JSON-RPC 2.0 encoding: request bodies and replies. Independent of Ethereum.

use std::collections::HashMap;
use std::ops::Range;

use serde::de::{DeserializeSeed, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

/// Messages of nodes are sanitized, because they are stored and logged.
pub(super) use gapless_domain::sanitize::storable;

/// One call. The method name is static, because it is a metric label and labels must be bounded.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) method: &'static str,
    pub(super) params: Box<RawValue>,
}

impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The parameters of a send are signed bytes, which must not be logged.
        f.write_str(self.method)
    }
}

impl Call {
    pub(super) fn new(method: &'static str, params: impl Serialize) -> Call {
        let params = serde_json::value::to_raw_value(&params).expect("parameters are plain JSON values");
        Call { method, params }
    }

    /// Approximate size of the call in a body, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.params.get().len() + self.method.len() + 48
    }
}

/// The `error` member of a reply.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ErrorObject {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Value>,
}

impl ErrorObject {
    /// `data` as searchable text.
    pub(super) fn data_text(&self) -> Option<String> {
        self.data.as_ref().map(|data| data.as_str().map_or_else(|| data.to_string(), str::to_owned))
    }
}

/// A node's reply to one call.
pub(super) type Reply = Result<Box<RawValue>, ErrorObject>;

/// Longer `data` is ignored; revert data is far shorter.
const MAX_ERROR_DATA_BYTES: usize = 1 << 20;

/// A decoded body.
#[derive(Debug)]
pub(super) enum Replies {
    /// By id; `None` for an invalid reply: two for one id, or neither a result nor an error.
    ById(HashMap<u64, Option<Reply>>),
    /// One error for the whole request, without a usable id.
    Whole(ErrorObject),
}

#[derive(Serialize)]
struct Request<'a> {
    jsonrpc: &'static str,
    id: u64,
    method: &'static str,
    params: &'a RawValue,
}

/// The body for `calls` with ids from `first_id` on. A single call is a plain object, which every node accepts.
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

/// The members stay unparsed text, because parsed values would take many times their length in memory.
#[derive(Deserialize)]
struct RawReply<'a> {
    #[serde(borrow, default)]
    id: Option<&'a RawValue>,
    /// `null` is a valid result (not found), unlike an absent member.
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default)]
    error: Option<RawError<'a>>,
}

#[derive(Deserialize)]
struct RawError<'a> {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl RawReply<'_> {
    fn id(&self) -> Option<u64> {
        serde_json::from_str(self.id?.get()).ok()
    }
}

/// Collects the replies to the requested ids and drops all others while parsing: a body may contain millions.
struct Asked(Range<u64>);

impl<'de> DeserializeSeed<'de> for Asked {
    type Value = HashMap<u64, Option<Reply>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Asked {
    type Value = HashMap<u64, Option<Reply>>;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an array of replies")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut replies: A) -> Result<Self::Value, A::Error> {
        let mut by_id = HashMap::new();
        while let Some(raw) = replies.next_element::<RawReply<'_>>()? {
            let Some(id) = raw.id().filter(|id| self.0.contains(id)) else { continue };
            by_id.entry(id).and_modify(|twice| *twice = None).or_insert_with(|| reply(raw).ok());
        }
        Ok(by_id)
    }
}

/// Decodes a body with replies to these ids. `Err` describes why it is not valid JSON-RPC.
pub(super) fn decode(body: &[u8], asked: Range<u64>) -> Result<Replies, String> {
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'[') => {
            let mut reader = serde_json::Deserializer::from_slice(body);
            let by_id = Asked(asked).deserialize(&mut reader).map_err(|e| e.to_string())?;
            reader.end().map_err(|e| e.to_string())?;
            Ok(Replies::ById(by_id))
        }
        Some(b'{') => {
            let raw: RawReply<'_> = serde_json::from_slice(body).map_err(|e| e.to_string())?;
            match (raw.id(), reply(raw)?) {
                (Some(id), reply) => Ok(Replies::ById(HashMap::from([(id, Some(reply))]))),
                (None, Err(error)) => Ok(Replies::Whole(error)),
                (None, Ok(_)) => Err("result without an id".into()),
            }
        }
        Some(_) => Err("neither an object nor an array".into()),
        None => Err("empty body".into()),
    }
}

fn reply(raw: RawReply<'_>) -> Result<Reply, String> {
    match (raw.error, raw.result) {
        // Some nodes send `"result": null` together with an error.
        (Some(error), _) => {
            let data = error.data.filter(|data| data.get().len() <= MAX_ERROR_DATA_BYTES);
            let data = data
                .and_then(|data| serde_json::from_str(data.get()).ok())
                .filter(|data| *data != Value::Null);
            Ok(Err(ErrorObject { code: error.code, message: storable(&error.message), data }))
        }
        (None, Some(result)) => Ok(Ok(result.to_owned())),
        (None, None) => Err("reply with neither result nor error".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_id(body: &str) -> HashMap<u64, Option<Reply>> {
        match decode(body.as_bytes(), 0..100).unwrap() {
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
    fn a_null_result_is_a_result() {
        let replies = by_id(r#"{"jsonrpc":"2.0","id":1,"result":null}"#);
        assert_eq!(replies[&1].as_ref().unwrap().as_ref().unwrap().get(), "null");
    }

    #[test]
    fn an_error_with_a_null_result_is_an_error() {
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
                matches!(decode(body.as_bytes(), 0..100).unwrap(), Replies::Whole(e) if e.message == "batch too large")
            );
        }
    }

    #[test]
    fn replies_to_other_ids_are_dropped() {
        let flood = r#"{"id":7000,"result":[0,0,0]},{"id":[1,2,3],"result":0},{"result":0},"#.repeat(1_000);
        let replies = by_id(&format!(r#"[{flood}{{"id":5,"result":"0x1"}}]"#));
        assert_eq!(replies.keys().collect::<Vec<_>>(), [&5]);
    }

    #[test]
    fn oversized_error_data_is_dropped() {
        let data = "0,".repeat(MAX_ERROR_DATA_BYTES);
        let replies = by_id(&format!(r#"[{{"id":1,"error":{{"code":3,"message":"no","data":[{data}0]}}}}]"#));
        let error = replies[&1].as_ref().unwrap().as_ref().unwrap_err();
        assert_eq!((error.message.as_str(), &error.data), ("no", &None));
    }

    #[test]
    fn invalid_json_rpc_is_refused() {
        for body in
            ["", "  ", "<html>", "[{\"id\":1,\"resu", "{\"id\":1}", "{\"result\":\"0x\"}", "true", "[1]"]
        {
            assert!(decode(body.as_bytes(), 0..100).is_err(), "{body}");
        }
    }
}
