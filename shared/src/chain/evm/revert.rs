//! Why an execution failed, in words: from the node's error to a reason a person can read.

use ethers_core::abi::{ParamType, Token, decode};
use serde_json::Value;

use super::wire::{ErrorObject, storable};

/// Selector of `Error(string)`: `require` and `revert` with a text.
const ERROR_STRING: [u8; 4] = [0x08, 0xc3, 0x79, 0xa0];
/// Selector of `Panic(uint256)`: a check the compiler put in.
const PANIC: [u8; 4] = [0x4e, 0x48, 0x7b, 0x71];

/// The reason of a failed execution, or `None` when the error is about something else than execution.
pub(super) fn reason(error: &ErrorObject) -> Option<String> {
    let returned = error.data.as_ref().and_then(|data| returned_bytes(data, 0));
    // Geth's code for a revert, and the code of nodes that follow Parity.
    let by_code = matches!(error.code, 3 | -32015);
    if !by_code && !is_execution_failure(&error.message) {
        return None;
    }
    Some(match returned.as_deref().and_then(in_words) {
        Some(words) => words,
        None => storable(&error.message),
    })
}

fn is_execution_failure(message: &str) -> bool {
    let text = message.to_lowercase();
    [
        "revert",
        "vm execution error",
        "evm error",
        "invalid opcode",
        "out of gas",
        "stack underflow",
        "stack limit reached",
        "bad jump",
        "invalid jump destination",
        "max code size exceeded",
        "invalid code: must not begin with",
        "contract address collision",
        "write protection",
        "return data out of bounds",
        "max call depth exceeded",
    ]
    .iter()
    .any(|wording| text.contains(wording))
}

/// Nodes put the returned bytes into `data` as hex, after a word (`Reverted 0x…`), or a level or two deeper.
fn returned_bytes(data: &Value, depth: usize) -> Option<Vec<u8>> {
    match data {
        Value::String(text) => {
            let digits = &text[text.rfind("0x")? + 2..];
            hex::decode(digits).ok()
        }
        Value::Object(members) if depth < 3 => ["data", "originalError", "result", "output"]
            .iter()
            .filter_map(|name| members.get(*name))
            .find_map(|inner| returned_bytes(inner, depth + 1)),
        _ => None,
    }
}

fn in_words(returned: &[u8]) -> Option<String> {
    let (selector, arguments) = returned.split_first_chunk::<4>()?;
    let decoded = |kind: ParamType| decode(&[kind], arguments).ok()?.into_iter().next();
    let words = match *selector {
        ERROR_STRING => match decoded(ParamType::String) {
            Some(Token::String(text)) => Some(storable(&text)),
            _ => None,
        },
        PANIC => match decoded(ParamType::Uint(256)) {
            Some(Token::Uint(code)) => Some(format!("panic: {} ({code:#x})", panic_name(code.low_u64()))),
            _ => None,
        },
        _ => None,
    };
    Some(words.unwrap_or_else(|| storable(&format!("custom error 0x{}", hex::encode(returned)))))
}

/// Solidity's panic codes.
fn panic_name(code: u64) -> &'static str {
    match code {
        0x01 => "assertion failed",
        0x11 => "arithmetic overflow",
        0x12 => "division by zero",
        0x21 => "invalid enum value",
        0x22 => "badly encoded storage",
        0x31 => "pop from an empty array",
        0x32 => "index out of bounds",
        0x41 => "too much memory",
        0x51 => "call of an empty function",
        _ => "unknown code",
    }
}

#[cfg(test)]
mod tests {
    use ethers_core::abi::encode;

    use super::*;

    fn said(code: i64, message: &str, data: Option<Value>) -> Option<String> {
        reason(&ErrorObject { code, message: message.into(), data })
    }

    fn returned(selector: [u8; 4], token: Token) -> String {
        format!("0x{}{}", hex::encode(selector), hex::encode(encode(&[token])))
    }

    #[test]
    fn a_text_is_found_wherever_the_node_put_it() {
        let hex = returned(ERROR_STRING, Token::String("insufficient funds".into()));
        let places = [
            Value::from(hex.clone()),
            Value::from(format!("Reverted {hex}")),
            serde_json::json!({ "data": hex }),
            serde_json::json!({ "originalError": { "code": 3, "data": hex } }),
        ];
        for data in places {
            assert_eq!(said(3, "execution reverted", Some(data)).as_deref(), Some("insufficient funds"));
        }
    }

    #[test]
    fn a_panic_and_a_custom_error_are_named() {
        let panic = returned(PANIC, Token::Uint(0x11.into()));
        assert_eq!(said(3, "x", Some(panic.into())).as_deref(), Some("panic: arithmetic overflow (0x11)"));
        assert_eq!(said(3, "x", Some("0xdeadbeef01".into())).as_deref(), Some("custom error 0xdeadbeef01"));
        let cut = &returned(ERROR_STRING, Token::String("hello".into()))[..20];
        assert!(said(3, "x", Some(cut.into())).unwrap().starts_with("custom error 0x08c379a0"));
    }

    #[test]
    fn without_bytes_the_message_is_the_reason() {
        assert_eq!(said(3, "execution reverted", Some("0x".into())).as_deref(), Some("execution reverted"));
        let foreign = "VM Exception while processing transaction: revert not the owner";
        assert_eq!(said(-32000, foreign, None).as_deref(), Some(foreign));
        assert_eq!(said(-32015, "VM execution error.", None).as_deref(), Some("VM execution error."));
    }

    #[test]
    fn an_error_that_is_not_about_execution_has_no_reason() {
        for message in
            ["insufficient funds for transfer", "header not found", "gas required exceeds allowance (1)"]
        {
            assert_eq!(said(-32000, message, None), None);
        }
        assert_eq!(said(-32602, "invalid argument", Some("0xdeadbeef".into())), None);
    }

    #[test]
    fn a_reason_cannot_carry_what_a_database_refuses() {
        let hex = returned(ERROR_STRING, Token::String("a\0b".into()));
        assert_eq!(said(3, "execution reverted", Some(hex.into())).as_deref(), Some("a b"));
    }
}
