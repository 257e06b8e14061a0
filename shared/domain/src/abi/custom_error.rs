//! Custom errors of a contract: given with a request as signatures or ABI fragments, stored as signatures, and used to
//! decode revert data.

use serde_json::Value;

use super::types::Function;
use super::{decode, signature};
use crate::payload::InvalidIntent;

pub const MAX_ERRORS: usize = 64;
/// Length limit of one canonical signature.
pub const MAX_ERROR_CHARS: usize = 512;

/// A decoded custom error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CustomError {
    pub name: String,
    /// Without argument names: the selector is its hash.
    pub signature: String,
    pub arguments: Vec<Argument>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Argument {
    /// Empty if the signature has none.
    pub name: String,
    pub kind: String,
    /// In the format of request arguments: integers are decimal strings.
    pub value: Value,
}

/// The errors in canonical form, with argument names.
pub fn canonical_errors(errors: &[Value]) -> Result<Vec<String>, InvalidIntent> {
    const FIELD: &str = "payload.errors";
    if errors.len() > MAX_ERRORS {
        return Err(InvalidIntent::new(
            FIELD,
            format!("has {} entries; the limit is {MAX_ERRORS}", errors.len()),
        ));
    }
    let mut selectors = Vec::with_capacity(errors.len());
    let one = |(index, error): (usize, &Value)| {
        let field = format!("{FIELD}[{index}]");
        let error = match error {
            Value::String(text) => {
                signature::parse_error(text).map_err(|problem| InvalidIntent::new(&field, problem))?
            }
            Value::Object(_) => Function::from_fragment(error, &field, "error")?,
            _ => return Err(InvalidIntent::new(field, "must be a signature or an ABI fragment object")),
        };
        let canonical = error.with_names();
        if canonical.len() > MAX_ERROR_CHARS {
            let problem = format!("is {} characters long; the limit is {MAX_ERROR_CHARS}", canonical.len());
            return Err(InvalidIntent::new(field, problem));
        }
        // Names in a fragment can be arbitrary strings.
        if signature::parse_error(&canonical).as_ref() != Ok(&error) {
            return Err(InvalidIntent::new(field, "has an argument name that is not an identifier"));
        }
        if selectors.contains(&error.selector()) {
            return Err(InvalidIntent::new(field, "has the same selector as an earlier error"));
        }
        selectors.push(error.selector());
        Ok(canonical)
    };
    errors.iter().enumerate().map(one).collect()
}

/// Decodes `returned` if it is one of `errors` with valid arguments. `None` otherwise.
pub fn decode_error(errors: &[String], returned: &[u8]) -> Option<CustomError> {
    let (selector, data) = returned.split_first_chunk::<4>()?;
    let known = errors.iter().filter_map(|text| signature::parse_error(text).ok());
    let error = known.into_iter().find(|error| error.selector() == *selector)?;
    let values = decode::decode(&error.inputs, data)?;
    let argument = |(param, value): (&super::types::Param, Value)| Argument {
        name: param.name.clone(),
        kind: param.kind.to_string(),
        value,
    };
    Some(CustomError {
        signature: error.to_string(),
        arguments: error.inputs.iter().zip(values).map(argument).collect(),
        name: error.name,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(errors: Value) -> (String, String) {
        let error = canonical_errors(errors.as_array().unwrap()).expect_err(&errors.to_string());
        (error.field, error.problem)
    }

    #[test]
    fn a_signature_and_a_fragment_have_the_same_canonical_form() {
        let fragment = json!({"type": "error", "name": "Bad", "inputs": [
            {"name": "who", "type": "address", "internalType": "address"},
            {"name": "orders", "type": "tuple[2]", "components": [{"name": "id", "type": "uint256"}, {"name": "", "type": "bytes"}]}]});
        let canonical = "Bad(address who,(uint256 id,bytes)[2] orders)";
        let given = [
            json!(" error Bad( address who, tuple(uint id, bytes)[2] orders ) ; "),
            json!("Bad(address who,(uint256 id,bytes)[2] orders)"),
            fragment,
        ];
        for error in given {
            assert_eq!(canonical_errors(&[error]).unwrap(), [canonical]);
        }
        assert_eq!(canonical_errors(&[json!(canonical)]).unwrap(), [canonical], "it round-trips");
    }

    #[test]
    fn invalid_errors_are_refused_with_their_index() {
        assert_eq!(refusal(json!(["A()", "B(uint7)"])).0, "payload.errors[1]");
        assert_eq!(refusal(json!([1])).0, "payload.errors[0]");
        assert_eq!(
            refusal(json!([{"type": "function", "name": "f", "inputs": []}])).0,
            "payload.errors[0].type"
        );
        assert_eq!(
            refusal(json!([{"type": "error", "name": "E", "inputs": [{"name": "a b", "type": "bool"}]}])).0,
            "payload.errors[0]"
        );
        for no_error in ["function f()", "E() view", "E() returns (bool)", "error", "E", "E(bool) x"] {
            assert_eq!(refusal(json!([no_error])).0, "payload.errors[0]", "{no_error}");
        }
        assert!(refusal(json!(["A(uint256 a)", "A(uint b)"])).1.contains("selector"));
        let long = format!("E(uint256 {})", "x".repeat(MAX_ERROR_CHARS));
        assert!(refusal(json!([long])).1.contains("characters"));
        let many: Vec<Value> = (0..=MAX_ERRORS).map(|n| json!(format!("E{n}()"))).collect();
        assert_eq!(refusal(Value::Array(many)).0, "payload.errors");
    }

    #[test]
    fn only_a_matching_error_is_decoded() {
        let errors =
            canonical_errors(&[json!("Other()"), json!("Short(uint256 have, uint256 need)")]).unwrap();
        let selector = Function {
            name: "Short".into(),
            inputs: signature::parse_error("Short(uint256,uint256)").unwrap().inputs,
        }
        .selector();
        let mut returned = selector.to_vec();
        returned.extend([[0; 31].as_slice(), &[7], &[0; 31], &[9]].concat());
        let found = decode_error(&errors, &returned).unwrap();
        assert_eq!((found.name.as_str(), found.signature.as_str()), ("Short", "Short(uint256,uint256)"));
        let arguments: Vec<_> =
            found.arguments.iter().map(|a| (a.name.as_str(), a.kind.as_str(), a.value.clone())).collect();
        assert_eq!(arguments, [("have", "uint256", json!("7")), ("need", "uint256", json!("9"))]);
        assert_eq!(decode_error(&errors, &returned[..67]), None, "a byte is missing");
        assert_eq!(decode_error(&errors[..1], &returned), None, "another error");
        assert_eq!(decode_error(&errors, &returned[..3]), None);
        assert_eq!(decode_error(&["nonsense".into()], &returned), None);
    }
}
