//! What others write and this crate reads, as functions that take any bytes: they must neither panic, nor take long, nor
//! hold much memory, whatever they are given. In no product build: for `fuzz/` and the tests that run the same.

use serde_json::Value;

pub use crate::evm::fuzz_entry::read_answer;
use crate::{ErrorPatterns, classify};
use gapless_domain::RequestedTx;
use gapless_domain::abi::{canonical_errors, decode_error, encode_call};

/// `payload` of a request: read, checked, and hashed twice with the same outcome.
pub fn read_payload(bytes: &[u8]) {
    let Ok(requested) = serde_json::from_slice::<RequestedTx>(bytes) else { return };
    if let Ok(payload) = requested.clone().validate() {
        let again = requested.validate().expect("what was valid is valid");
        assert_eq!(payload.hash(), again.hash());
    }
}

/// A call by name, `[method, arg, …]`; and the errors of a contract, `{"errors": […], "returned": "0x…"}`.
pub fn read_abi(bytes: &[u8]) {
    match serde_json::from_slice::<Value>(bytes) {
        Ok(Value::Array(call)) => {
            let Some((method, args)) = call.split_first() else { return };
            if let Ok(data) = encode_call(method, args) {
                assert_eq!(data.len() % 32, 4, "a selector and whole words");
            }
        }
        Ok(Value::Object(given)) => {
            let errors = given.get("errors").and_then(Value::as_array).cloned().unwrap_or_default();
            let Ok(spelled) = canonical_errors(&errors) else { return };
            let values: Vec<Value> = spelled.iter().map(|text| Value::from(text.as_str())).collect();
            assert_eq!(canonical_errors(&values).as_ref(), Ok(&spelled), "it reads what it wrote");
            let returned = given.get("returned").and_then(Value::as_str).unwrap_or_default();
            let returned = hex::decode(returned.trim_start_matches("0x")).unwrap_or_default();
            let _ = decode_error(&spelled, &returned);
        }
        _ => {}
    }
}

/// What a node says to a send: a line with the code, a line with the message, and data.
pub fn read_words(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut lines = text.splitn(3, '\n');
    let code = lines.next().and_then(|code| code.parse().ok()).unwrap_or(-32000);
    let (message, data) = (lines.next().unwrap_or_default(), lines.next());
    let class = classify(code, message, data, &ErrorPatterns::default());
    let loud = classify(code, &message.to_ascii_uppercase(), data, &ErrorPatterns::default());
    assert_eq!(class, loud, "upper case says the same");
}
