//! Strict conversion of JSON values to ABI tokens.

use std::fmt;

use ethers_core::abi::Token;
use ethers_core::types::U256;
use serde_json::{Number, Value};

use super::types::{AbiType, Param};
use crate::amount::parse_amount;
use crate::hex_text::{parse_address, parse_bytes};
use crate::payload::InvalidIntent;

/// From this value on, JSON numbers may have lost digits in the client's encoder.
const FIRST_INEXACT: u64 = 1 << 53;

/// One token per parameter. Errors contain the path of the argument, for example `payload.args[1][0]`.
pub(super) fn tokens(params: &[Param], args: &[Value], root: &str) -> Result<Vec<Token>, InvalidIntent> {
    let root = At::Root(root);
    expect_count(params.len(), args.len(), &root)?;
    params
        .iter()
        .zip(args)
        .enumerate()
        .map(|(index, (param, arg))| token(&param.kind, arg, &At::Item(&root, index)))
        .collect()
}

/// The path of the current argument; formatted only for errors.
enum At<'a> {
    Root(&'a str),
    Item(&'a At<'a>, usize),
    Field(&'a At<'a>, &'a str),
}

impl fmt::Display for At<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            At::Root(name) => f.write_str(name),
            At::Item(parent, index) => write!(f, "{parent}[{index}]"),
            At::Field(parent, name) => write!(f, "{parent}.{name}"),
        }
    }
}

impl At<'_> {
    fn bad(&self, problem: impl Into<String>) -> InvalidIntent {
        InvalidIntent::new(self.to_string(), problem)
    }
}

fn token(kind: &AbiType, value: &Value, at: &At<'_>) -> Result<Token, InvalidIntent> {
    match kind {
        AbiType::Address => {
            parse_address(text(value, at, "an address")?).map(Token::Address).map_err(|e| at.bad(e))
        }
        AbiType::Bool => value.as_bool().map(Token::Bool).ok_or_else(|| at.bad("must be true or false")),
        AbiType::String => Ok(Token::String(text(value, at, "a string")?.to_owned())),
        AbiType::Bytes => bytes(value, at).map(Token::Bytes),
        AbiType::FixedBytes(length) => fixed_bytes(*length, value, at),
        AbiType::Uint(bits) => uint(*bits, value, at),
        AbiType::Int(bits) => int(*bits, value, at),
        AbiType::Tuple(parts) => tuple(parts, value, at).map(Token::Tuple),
        AbiType::Array(item) => items(item, array(value, at)?, at).map(Token::Array),
        AbiType::FixedArray(item, length) => {
            let values = array(value, at)?;
            expect_count(*length, values.len(), at)?;
            items(item, values, at).map(Token::FixedArray)
        }
    }
}

fn expect_count(expected: usize, found: usize, at: &At<'_>) -> Result<(), InvalidIntent> {
    if expected == found { Ok(()) } else { Err(at.bad(format!("expected {expected} values, got {found}"))) }
}

fn text<'a>(value: &'a Value, at: &At<'_>, wanted: &str) -> Result<&'a str, InvalidIntent> {
    value.as_str().ok_or_else(|| at.bad(format!("must be {wanted}, as a JSON string")))
}

fn array<'a>(value: &'a Value, at: &At<'_>) -> Result<&'a [Value], InvalidIntent> {
    value.as_array().map(Vec::as_slice).ok_or_else(|| at.bad("must be an array"))
}

fn items(kind: &AbiType, values: &[Value], at: &At<'_>) -> Result<Vec<Token>, InvalidIntent> {
    values.iter().enumerate().map(|(index, value)| token(kind, value, &At::Item(at, index))).collect()
}

fn bytes(value: &Value, at: &At<'_>) -> Result<Vec<u8>, InvalidIntent> {
    parse_bytes(text(value, at, "0x hex")?).map_err(|error| at.bad(error))
}

fn fixed_bytes(length: usize, value: &Value, at: &At<'_>) -> Result<Token, InvalidIntent> {
    let bytes = bytes(value, at)?;
    if bytes.len() != length {
        return Err(at.bad(format!("must be exactly {length} bytes, got {}", bytes.len())));
    }
    Ok(Token::FixedBytes(bytes))
}

/// By position, or by name when every component has one.
fn tuple(parts: &[Param], value: &Value, at: &At<'_>) -> Result<Vec<Token>, InvalidIntent> {
    match value {
        Value::Array(values) => {
            expect_count(parts.len(), values.len(), at)?;
            let pairs = parts.iter().zip(values).enumerate();
            pairs.map(|(index, (part, value))| token(&part.kind, value, &At::Item(at, index))).collect()
        }
        Value::Object(fields) => {
            if let Some(unknown) = fields.keys().find(|name| !parts.iter().any(|part| part.name == **name)) {
                return Err(At::Field(at, unknown).bad("is not a component of this tuple"));
            }
            let named = |part: &Param| {
                if part.name.is_empty() {
                    return Err(at.bad("must be an array: the components of this tuple have no names"));
                }
                let at = At::Field(at, &part.name);
                let value = fields.get(&part.name).ok_or_else(|| at.bad("is missing"))?;
                token(&part.kind, value, &at)
            };
            parts.iter().map(named).collect()
        }
        _ => Err(at.bad("must be an array, or an object by component name")),
    }
}

fn uint(bits: usize, value: &Value, at: &At<'_>) -> Result<Token, InvalidIntent> {
    let (negative, magnitude) = integer(value, at)?;
    if negative || magnitude.bits() > bits {
        return Err(at.bad(format!("is out of range for uint{bits}")));
    }
    Ok(Token::Uint(magnitude))
}

fn int(bits: usize, value: &Value, at: &At<'_>) -> Result<Token, InvalidIntent> {
    let (negative, magnitude) = integer(value, at)?;
    let first_outside = U256::one() << (bits - 1);
    let fits = magnitude < first_outside || (negative && magnitude == first_outside);
    if !fits {
        return Err(at.bad(format!("is out of range for int{bits}")));
    }
    // The ABI encodes negative numbers of any width as 256-bit two's complement.
    Ok(Token::Int(if negative { magnitude.overflowing_neg().0 } else { magnitude }))
}

/// Sign and magnitude. Strings are exact; JSON numbers only below 2^53.
fn integer(value: &Value, at: &At<'_>) -> Result<(bool, U256), InvalidIntent> {
    match value {
        Value::String(text) => {
            let (negative, digits) = match text.strip_prefix('-') {
                Some(digits) if !digits.starts_with("0x") => (true, digits),
                Some(_) => return Err(at.bad("a negative number must be decimal")),
                None => (false, text.as_str()),
            };
            let magnitude = parse_amount(digits).map_err(|error| at.bad(error.to_string()))?;
            Ok((negative && !magnitude.is_zero(), magnitude))
        }
        Value::Number(number) => exact(number).ok_or_else(|| {
            at.bad("a JSON number must be an integer below 2^53; use a decimal or 0x string instead")
        }),
        _ => Err(at.bad("must be an integer, as a decimal or 0x string")),
    }
}

fn exact(number: &Number) -> Option<(bool, U256)> {
    let (negative, magnitude) = match (number.as_u64(), number.as_i64()) {
        (Some(magnitude), _) => (false, magnitude),
        (None, Some(signed)) => (true, signed.unsigned_abs()),
        (None, None) => return None,
    };
    (magnitude < FIRST_INEXACT).then(|| (negative, U256::from(magnitude)))
}
