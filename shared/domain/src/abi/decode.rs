//! Decodes returned bytes to JSON values, in the format that `argument` accepts.
//!
//! The bytes come from a contract and are untrusted: every length is checked against the available bytes before
//! allocation, and a budget limits values that point to the same bytes repeatedly. A value that does not match its
//! type exactly is an error.

use ethers_core::types::{Address, U256};
use serde_json::Value;

use super::types::{AbiType, Param};

/// Maximum number of values plus words of text and bytes. Far above what valid data of the stored size contains.
const BUDGET: usize = 512;
const WORD: usize = 32;

/// One value per parameter, or `None` if `data` does not contain them. Trailing bytes are ignored.
pub(super) fn decode(params: &[Param], data: &[u8]) -> Option<Vec<Value>> {
    let mut budget = BUDGET;
    fields(params.iter().map(|param| &param.kind), data, &mut budget)
}

/// Consecutive values of a frame. Dynamic values are stored elsewhere in the frame, at an offset from its start.
fn fields<'t>(
    kinds: impl Iterator<Item = &'t AbiType>,
    frame: &[u8],
    budget: &mut usize,
) -> Option<Vec<Value>> {
    let mut at = 0_usize;
    let mut values = Vec::new();
    for kind in kinds {
        let (place, next) = match static_size(kind) {
            Some(size) => (at, at.checked_add(size)?),
            None => (small(frame, at)?, at.checked_add(WORD)?),
        };
        values.push(value(kind, frame.get(place..)?, budget)?);
        at = next;
    }
    Some(values)
}

/// The value at the start of `place`.
fn value(kind: &AbiType, place: &[u8], budget: &mut usize) -> Option<Value> {
    spend(budget, 1)?;
    Some(match kind {
        AbiType::Address => {
            let word = word(place, 0)?;
            let (padding, address) = word.split_at(12);
            zero(padding)?;
            format!("{:#x}", Address::from_slice(address)).into()
        }
        AbiType::Bool => match number(place, 0)? {
            bit if bit <= U256::one() => Value::Bool(!bit.is_zero()),
            _ => return None,
        },
        AbiType::Uint(bits) => number(place, 0).filter(|number| number.bits() <= *bits)?.to_string().into(),
        AbiType::Int(bits) => signed(number(place, 0)?, *bits)?.into(),
        AbiType::FixedBytes(length) => {
            let (bytes, padding) = word(place, 0)?.split_at(*length);
            zero(padding)?;
            hex_text(bytes)
        }
        AbiType::Bytes => hex_text(counted(place, budget)?),
        AbiType::String => std::str::from_utf8(counted(place, budget)?).ok()?.into(),
        AbiType::Tuple(parts) => tuple(parts, fields(parts.iter().map(|part| &part.kind), place, budget)?),
        AbiType::FixedArray(item, length) => items(item, *length, place, budget)?,
        AbiType::Array(item) => items(item, small(place, 0)?, place.get(WORD..)?, budget)?,
    })
}

fn items(kind: &AbiType, length: usize, frame: &[u8], budget: &mut usize) -> Option<Value> {
    // Every item occupies at least one word, so a greater length is invalid.
    if length > frame.len() / WORD {
        return None;
    }
    fields(std::iter::repeat_n(kind, length), frame, budget).map(Value::Array)
}

/// An object if every component has a name, otherwise an array; `argument` accepts both.
fn tuple(parts: &[Param], values: Vec<Value>) -> Value {
    if parts.iter().any(|part| part.name.is_empty()) {
        return Value::Array(values);
    }
    parts.iter().map(|part| part.name.clone()).zip(values).collect::<serde_json::Map<_, _>>().into()
}

/// Size of a static type in bytes; `None` for a dynamic type.
fn static_size(kind: &AbiType) -> Option<usize> {
    match kind {
        AbiType::String | AbiType::Bytes | AbiType::Array(_) => None,
        AbiType::Tuple(parts) => {
            parts.iter().try_fold(0_usize, |sum, part| Some(sum.saturating_add(static_size(&part.kind)?)))
        }
        // A saturated size fails the bounds check later.
        AbiType::FixedArray(item, length) => Some(static_size(item)?.saturating_mul(*length)),
        _ => Some(WORD),
    }
}

fn spend(budget: &mut usize, cost: usize) -> Option<()> {
    *budget = budget.checked_sub(cost)?;
    Some(())
}

fn word(data: &[u8], at: usize) -> Option<&[u8]> {
    data.get(at..at.checked_add(WORD)?)
}

fn number(data: &[u8], at: usize) -> Option<U256> {
    word(data, at).map(U256::from_big_endian)
}

/// An offset or a length. Values above 32 bits are invalid.
fn small(data: &[u8], at: usize) -> Option<usize> {
    let number = number(data, at).filter(|number| number.bits() <= 32)?;
    usize::try_from(number.low_u64()).ok()
}

/// A length and that many bytes. The padding is not required, because hand-written code often omits it.
fn counted<'d>(place: &'d [u8], budget: &mut usize) -> Option<&'d [u8]> {
    let length = small(place, 0)?;
    let bytes = place.get(WORD..WORD.checked_add(length)?)?;
    spend(budget, length / WORD)?;
    Some(bytes)
}

fn zero(bytes: &[u8]) -> Option<()> {
    bytes.iter().all(|byte| *byte == 0).then_some(())
}

/// 256-bit two's complement, for any width.
fn signed(word: U256, bits: usize) -> Option<String> {
    let first_outside = U256::one() << (bits - 1);
    let magnitude = word.overflowing_neg().0;
    if word < first_outside {
        Some(word.to_string())
    } else if word.bit(255) && magnitude <= first_outside {
        Some(format!("-{magnitude}"))
    } else {
        None
    }
}

fn hex_text(bytes: &[u8]) -> Value {
    format!("0x{}", hex::encode(bytes)).into()
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
