//! The contract ABI types, with component names, so that a struct can be given as a JSON object.

use std::fmt;

use ethers_core::utils::keccak256;
use serde_json::Value;

use crate::payload::InvalidIntent;

/// Limits the recursion that a malicious signature can cause.
pub(super) const MAX_DEPTH: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AbiType {
    Address,
    Bool,
    String,
    Bytes,
    FixedBytes(usize),
    Uint(usize),
    Int(usize),
    Tuple(Vec<Param>),
    Array(Box<AbiType>),
    FixedArray(Box<AbiType>, usize),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Param {
    /// Empty if the signature has none.
    pub(super) name: String,
    pub(super) kind: AbiType,
}

/// A function or an error: a name and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) name: String,
    pub(super) inputs: Vec<Param>,
}

impl AbiType {
    /// A type without components. `Err` describes the problem.
    pub(super) fn elementary(word: &str) -> Result<AbiType, String> {
        let width = |digits: &str, max: usize, step: usize| -> Result<usize, String> {
            let width = match digits {
                "" => max,
                // `uint08` would parse as a number, but is not a type.
                _ if digits.starts_with('0') || !digits.bytes().all(|byte| byte.is_ascii_digit()) => 0,
                _ => digits.parse().unwrap_or(0),
            };
            if width == 0 || width > max || width % step != 0 {
                return Err(format!("`{word}` is not an ABI type"));
            }
            Ok(width)
        };
        match word {
            "address" => Ok(AbiType::Address),
            "bool" => Ok(AbiType::Bool),
            "string" => Ok(AbiType::String),
            "bytes" => Ok(AbiType::Bytes),
            _ => {
                if let Some(digits) = word.strip_prefix("uint") {
                    width(digits, 256, 8).map(AbiType::Uint)
                } else if let Some(digits) = word.strip_prefix("int") {
                    width(digits, 256, 8).map(AbiType::Int)
                } else if let Some(digits) = word.strip_prefix("bytes") {
                    width(digits, 32, 1).map(AbiType::FixedBytes)
                } else {
                    Err(format!("`{word}` is not an ABI type"))
                }
            }
        }
    }

    /// `self` with an array suffix: `[]` or `[n]`.
    pub(super) fn array(self, length: Option<&str>) -> Result<AbiType, String> {
        let Some(digits) = length else { return Ok(AbiType::Array(Box::new(self))) };
        let plain = !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
        match digits.parse() {
            Ok(length) if plain && length > 0 => Ok(AbiType::FixedArray(Box::new(self), length)),
            _ => Err(format!("`[{digits}]` is not an array length")),
        }
    }
}

/// The canonical form: no names, no spaces, no aliases. The selector is its hash.
impl fmt::Display for AbiType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AbiType::Address => f.write_str("address"),
            AbiType::Bool => f.write_str("bool"),
            AbiType::String => f.write_str("string"),
            AbiType::Bytes => f.write_str("bytes"),
            AbiType::FixedBytes(length) => write!(f, "bytes{length}"),
            AbiType::Uint(bits) => write!(f, "uint{bits}"),
            AbiType::Int(bits) => write!(f, "int{bits}"),
            AbiType::Tuple(parts) => write_params(f, parts),
            AbiType::Array(item) => write!(f, "{item}[]"),
            AbiType::FixedArray(item, length) => write!(f, "{item}[{length}]"),
        }
    }
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        write_params(f, &self.inputs)
    }
}

fn write_params(f: &mut fmt::Formatter<'_>, params: &[Param]) -> fmt::Result {
    f.write_str("(")?;
    for (index, param) in params.iter().enumerate() {
        if index > 0 {
            f.write_str(",")?;
        }
        write!(f, "{}", param.kind)?;
    }
    f.write_str(")")
}

fn write_named_params(text: &mut String, params: &[Param]) {
    text.push('(');
    for (index, param) in params.iter().enumerate() {
        if index > 0 {
            text.push(',');
        }
        write_named(text, &param.kind);
        if !param.name.is_empty() {
            text.push(' ');
            text.push_str(&param.name);
        }
    }
    text.push(')');
}

fn write_named(text: &mut String, kind: &AbiType) {
    match kind {
        AbiType::Tuple(parts) => write_named_params(text, parts),
        AbiType::Array(item) => {
            write_named(text, item);
            text.push_str("[]");
        }
        AbiType::FixedArray(item, length) => {
            write_named(text, item);
            text.push_str(&format!("[{length}]"));
        }
        plain => text.push_str(&plain.to_string()),
    }
}

impl Function {
    pub(super) fn selector(&self) -> [u8; 4] {
        let hash = keccak256(self.to_string());
        [hash[0], hash[1], hash[2], hash[3]]
    }

    /// With the names of the parameters: `transfer(address to,uint256 amount)`.
    pub(super) fn with_names(&self) -> String {
        let mut text = self.name.clone();
        write_named_params(&mut text, &self.inputs);
        text
    }

    /// From a compiler's ABI: `{"type":"function","name":…,"inputs":[…]}`, or `"error"`. Only the name and the inputs
    /// affect the encoding; other members are ignored.
    pub(super) fn from_fragment(
        fragment: &Value,
        field: &str,
        wanted: &str,
    ) -> Result<Function, InvalidIntent> {
        match fragment.get("type") {
            None => {}
            Some(Value::String(kind)) if kind == wanted => {}
            Some(_) => {
                return Err(InvalidIntent::new(format!("{field}.type"), format!("must be \"{wanted}\"")));
            }
        }
        let name = match fragment.get("name") {
            Some(Value::String(name)) if is_identifier(name) => name.clone(),
            _ => return Err(InvalidIntent::new(format!("{field}.name"), "must be an identifier")),
        };
        let inputs = fragment_params(fragment.get("inputs"), &format!("{field}.inputs"), 0)?;
        Ok(Function { name, inputs })
    }
}

fn fragment_params(list: Option<&Value>, field: &str, depth: usize) -> Result<Vec<Param>, InvalidIntent> {
    let Some(Value::Array(items)) = list else {
        return Err(InvalidIntent::new(field, "must be an array of parameters"));
    };
    items
        .iter()
        .enumerate()
        .map(|(index, item)| fragment_param(item, &format!("{field}[{index}]"), depth))
        .collect()
}

fn fragment_param(item: &Value, field: &str, depth: usize) -> Result<Param, InvalidIntent> {
    let bad = |problem: String| InvalidIntent::new(format!("{field}.type"), problem);
    let name = match item.get("name") {
        None => String::new(),
        Some(Value::String(name)) => name.clone(),
        Some(_) => return Err(InvalidIntent::new(format!("{field}.name"), "must be a string")),
    };
    let Some(Value::String(text)) = item.get("type") else {
        return Err(bad("must be an ABI type".into()));
    };
    let (word, mut suffixes) = text.split_at(text.find('[').unwrap_or(text.len()));
    if depth + suffixes.matches('[').count() > MAX_DEPTH {
        return Err(bad("is nested too deeply".into()));
    }
    let mut kind = if word == "tuple" {
        let parts = fragment_params(item.get("components"), &format!("{field}.components"), depth + 1)?;
        if parts.is_empty() {
            return Err(bad("a tuple needs components".into()));
        }
        AbiType::Tuple(parts)
    } else {
        AbiType::elementary(word).map_err(bad)?
    };
    while let Some(rest) = suffixes.strip_prefix('[') {
        let (digits, rest) =
            rest.split_once(']').ok_or_else(|| bad(format!("`{text}` is not an ABI type")))?;
        kind = kind.array(Some(digits).filter(|digits| !digits.is_empty())).map_err(bad)?;
        suffixes = rest;
    }
    if !suffixes.is_empty() {
        return Err(bad(format!("`{text}` is not an ABI type")));
    }
    Ok(Param { name, kind })
}

pub(super) fn is_identifier(word: &str) -> bool {
    !word.starts_with(|first: char| first.is_ascii_digit())
        && !word.is_empty()
        && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$')
}
