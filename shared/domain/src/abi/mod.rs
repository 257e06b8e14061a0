//! ABI encoding: a signature or an ABI fragment and JSON arguments become call data. ABI decoding of custom errors.
//!
//! The conversion from JSON is our own because it must be strict: an inexact JSON number, a value out of range or a
//! short `bytes4` is refused with the path of the argument, never padded or truncated.

mod argument;
mod custom_error;
mod decode;
mod signature;
mod types;

use ethers_core::types::Bytes;
use serde_json::Value;

use super::payload::InvalidIntent;
use types::Function;

pub use custom_error::{Argument, CustomError, MAX_ERROR_CHARS, MAX_ERRORS, canonical_errors, decode_error};

const METHOD: &str = "payload.method";
const ARGS: &str = "payload.args";

/// Call data for `method` (a signature such as `transfer(address,uint256)`, or an ABI fragment object) and `args`.
pub fn encode_call(method: &Value, args: &[Value]) -> Result<Bytes, InvalidIntent> {
    let function = match method {
        Value::String(text) => {
            signature::parse(text).map_err(|problem| InvalidIntent::new(METHOD, problem))?
        }
        Value::Object(_) => Function::from_fragment(method, METHOD, "function")?,
        _ => return Err(InvalidIntent::new(METHOD, "must be a signature or an ABI fragment object")),
    };
    let tokens = argument::tokens(&function.inputs, args, ARGS)?;
    let mut data = function.selector().to_vec();
    data.extend(ethers_core::abi::encode(&tokens));
    Ok(data.into())
}

/// The selector of a signature such as `transfer(address,uint256)`. `Err` describes the problem.
pub fn selector(signature: &str) -> Result<[u8; 4], String> {
    signature::parse(signature).map(|function| function.selector())
}

#[cfg(test)]
mod tests;
