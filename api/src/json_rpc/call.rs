//! JSON-RPC 2.0: calls and batches of calls, and their answers.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::Answered;
use super::failure::{RpcFailure, code};

/// Longest part of a client's text that is repeated in an error, in characters.
const MAX_SHOWN: usize = 60;

#[derive(Debug)]
pub(super) struct Call {
    /// As the client wrote it: a number or a string.
    pub(super) id: Box<RawValue>,
    pub(super) method: String,
    pub(super) params: Option<Box<RawValue>>,
}

#[derive(Debug)]
pub(super) enum Parsed {
    Single(Result<Call, RpcFailure>),
    Batch(Vec<Result<Call, RpcFailure>>),
    Refused(RpcFailure),
}

#[derive(Deserialize)]
struct RawCall {
    #[serde(default)]
    id: Option<Box<RawValue>>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default)]
    params: Option<Box<RawValue>>,
}

#[derive(Serialize)]
struct Response<'a> {
    jsonrpc: &'static str,
    id: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a RpcFailure>,
}

pub(super) fn parse(body: &[u8], max_batch: usize) -> Parsed {
    let first = body.iter().find(|byte| !byte.is_ascii_whitespace());
    if first != Some(&b'[') {
        return match serde_json::from_slice::<Box<RawValue>>(body) {
            Ok(call) => Parsed::Single(read(&call)),
            Err(error) => Parsed::Refused(RpcFailure::new(code::PARSE, format!("not JSON: {error}"))),
        };
    }
    match serde_json::from_slice::<Vec<Box<RawValue>>>(body) {
        Ok(calls) if calls.is_empty() => Parsed::Refused(invalid("an empty batch")),
        Ok(calls) if calls.len() > max_batch => Parsed::Refused(RpcFailure::new(
            code::INVALID_REQUEST,
            format!("a batch of {} calls; the limit is {max_batch} (api.json_rpc.max_batch)", calls.len()),
        )),
        Ok(calls) => Parsed::Batch(calls.iter().map(|call| read(call)).collect()),
        Err(error) => Parsed::Refused(RpcFailure::new(code::PARSE, format!("not JSON: {error}"))),
    }
}

fn read(call: &RawValue) -> Result<Call, RpcFailure> {
    let raw: RawCall = serde_json::from_str(call.get())
        .map_err(|error| invalid(&format!("not a call of JSON-RPC 2.0: {error}")))?;
    // A notification has no answer. Nothing here is worth calling without one.
    let id = raw.id.filter(|id| !matches!(id.get().as_bytes().first(), Some(b'{' | b'[' | b't' | b'f')));
    let id = id.ok_or_else(|| invalid("`id` must be a number or a string"))?;
    let method = raw.method.ok_or_else(|| invalid("`method` is required"))?;
    // cast writes `null` where there are none.
    let params = raw.params.filter(|params| params.get() != "null");
    Ok(Call { id, method, params })
}

fn invalid(problem: &str) -> RpcFailure {
    RpcFailure::new(code::INVALID_REQUEST, problem)
}

impl Call {
    /// The positional parameters.
    pub(super) fn params<T: for<'de> Deserialize<'de>>(&self) -> Result<T, RpcFailure> {
        let text = self.params.as_ref().map_or("[]", |params| params.get());
        serde_json::from_str(text).map_err(|error| {
            RpcFailure::new(code::INVALID_PARAMS, format!("{}: {error}", shown(&self.method)))
        })
    }
}

/// A client's text, shortened and without control characters.
pub(super) fn shown(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(MAX_SHOWN).collect()
}

fn with_id((id, answer): &Answered) -> Response<'_> {
    let (result, error) = match answer {
        Ok(result) => (Some(&**result), None),
        Err(failure) => (None, Some(failure)),
    };
    Response { jsonrpc: "2.0", id: id.as_deref(), result, error }
}

pub(super) fn response(answer: &Answered) -> String {
    // Unwrap safety: plain data with string keys.
    serde_json::to_string(&with_id(answer)).expect("an answer serialises")
}

pub(super) fn batch_response(answers: &[Answered]) -> String {
    let responses: Vec<Response<'_>> = answers.iter().map(with_id).collect();
    // Unwrap safety: plain data with string keys.
    serde_json::to_string(&responses).expect("answers serialise")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(body: &str) -> i64 {
        match parse(body.as_bytes(), 2) {
            Parsed::Refused(failure) | Parsed::Single(Err(failure)) => failure.code,
            Parsed::Batch(calls) => calls.into_iter().find_map(Result::err).map_or(0, |failure| failure.code),
            Parsed::Single(Ok(_)) => 0,
        }
    }

    #[test]
    fn calls_and_batches_are_read_strictly() {
        for (body, code) in [
            (r#"{"jsonrpc":"2.0","id":1,"method":"eth_chainId"}"#, 0),
            (r#" [{"id":"a","method":"x","params":[]},{"id":2,"method":"y"}]"#, 0),
            ("", code::PARSE),
            ("{", code::PARSE),
            ("[]", code::INVALID_REQUEST),
            (r#"[{"id":1,"method":"x"},{"id":2,"method":"x"},{"id":3,"method":"x"}]"#, code::INVALID_REQUEST),
            ("7", code::INVALID_REQUEST),
            (r#"{"method":"x"}"#, code::INVALID_REQUEST),
            (r#"{"id":null,"method":"x"}"#, code::INVALID_REQUEST),
            (r#"{"id":{},"method":"x"}"#, code::INVALID_REQUEST),
            (r#"{"id":1}"#, code::INVALID_REQUEST),
            (r#"[{"id":1,"method":"x"},7]"#, code::INVALID_REQUEST),
        ] {
            assert_eq!(code_of(body), code, "{body}");
        }
    }

    #[test]
    fn an_answer_has_the_id_as_it_was_written() {
        let Parsed::Single(Ok(call)) = parse(br#"{"id":"7a","method":"x"}"#, 1) else { panic!() };
        let result = serde_json::value::to_raw_value("0x1").unwrap();
        assert_eq!(response(&(Some(call.id), Ok(result))), r#"{"jsonrpc":"2.0","id":"7a","result":"0x1"}"#);
        let failure = RpcFailure::new(code::METHOD_NOT_FOUND, "no");
        assert_eq!(
            response(&(None, Err(failure))),
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32601,"message":"no"}}"#
        );
    }
}
