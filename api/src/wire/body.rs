//! Strict JSON request bodies. The framework's own parser accepts a number for a string and the last of two duplicate
//! keys, which could change the meaning of a request. The derived parsers of `serde` accept an array in the place of an
//! object, and an object in the place of an enumeration's name; `request_objects!` and `request_names!` do not.

use gapless_domain::InvalidIntent;
use poem::{FromRequest, Request, RequestBody};
use poem_openapi::payload::{ParsePayload, Payload};
use poem_openapi::registry::{MetaSchemaRef, Registry};
use poem_openapi::types::Type;
use serde::de::{DeserializeOwned, Deserializer, Visitor};
use serde::forward_to_deserialize_any;

use crate::error::ApiError;

/// The `field` of an error in the body as a whole.
const FIELD_OF_BODY: &str = "body";
/// Longest problem, in characters: it may quote the input.
const MAX_PROBLEM: usize = 500;

#[derive(Clone, Debug)]
pub(crate) struct Body<T>(pub(crate) T);

/// `Err` has the path and the problem, for example `payload.value` and "must be a string, not the number 5".
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, InvalidIntent> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        invalid(if path == "." { "" } else { &path }, &error.into_inner().to_string())
    })?;
    reader.end().map_err(|error| invalid("", &error.to_string()))?;
    Ok(value)
}

/// Writes the parser's message for clients, who know JSON and not the types of this program.
fn invalid(path: &str, message: &str) -> InvalidIntent {
    let (message, position) = match message.rsplit_once(" at line ") {
        Some((message, position)) => {
            (message, format!(" (line {})", position.replace(" column", ", column")))
        }
        None => (message, String::new()),
    };
    let member = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    let quoted = |prefix: &str| message.strip_prefix(prefix).and_then(|rest| rest.split('`').next());
    let (field, problem) = if let Some(name) = quoted("missing field `") {
        (member(name), "is required".to_owned())
    } else if let Some(name) = quoted("duplicate field `") {
        let named = path == name || path.ends_with(&format!(".{name}"));
        (if named { path.to_owned() } else { member(name) }, "is given twice".to_owned())
    } else if let Some(rest) = message.strip_prefix("unknown field `") {
        let known = rest.split_once("`, expected ").map(|(_, known)| known.trim_start_matches("one of "));
        let known = known.map(|known| format!("; known fields: {}", known.replace('`', "")));
        (path.to_owned(), format!("is not a known field{}", known.unwrap_or_default()))
    } else if let Some(rest) = message.strip_prefix("unknown variant `") {
        // The expected names are ours and contain no such text; the given one may.
        let known = rest.rsplit_once("`, expected ").map_or("", |(_, known)| known);
        let known = known.trim_start_matches("one of ").replace('`', "").replace(" or ", ", ");
        (path.to_owned(), format!("must be one of {known}"))
    } else if let Some((found, expected)) = type_error(message) {
        (path.to_owned(), format!("must be {}, not {}", expected_text(expected), found_text(found)))
    } else {
        (path.to_owned(), format!("is not valid: {message}{position}"))
    };
    let field = if field.is_empty() { FIELD_OF_BODY.to_owned() } else { field };
    InvalidIntent::new(field, problem.chars().take(MAX_PROBLEM).collect::<String>())
}

/// What was found and what was expected.
fn type_error(message: &str) -> Option<(&str, &str)> {
    let rest = message.strip_prefix("invalid type: ").or_else(|| message.strip_prefix("invalid value: "))?;
    // The last one: the found text may quote the input.
    rest.rsplit_once(", expected ")
}

fn found_text(found: &str) -> String {
    let number = found.strip_prefix("integer `").or_else(|| found.strip_prefix("floating point `"));
    match found {
        "map" => "an object".to_owned(),
        "sequence" => "an array".to_owned(),
        "null" | "unit value" | "Option value" => "null".to_owned(),
        _ if found.starts_with("boolean") => found.trim_start_matches("boolean ").replace('`', ""),
        _ => match number {
            Some(number) => format!("the number {}", number.trim_end_matches('`')),
            None => found.strip_prefix("string ").map_or("this", |_| "this text").to_owned(),
        },
    }
}

fn expected_text(expected: &str) -> &str {
    match expected {
        "u64" | "u32" | "u16" | "u8" | "i64" => "a whole number of at least 0",
        "a sequence" => "an array",
        "a map" => "an object",
        other => other,
    }
}

/// Reads an object, where the derived parser of a struct would also read an array of its fields in order.
#[derive(Debug)]
pub(super) struct ObjectOnly<D>(pub(super) D);

impl<'de, D: Deserializer<'de>> Deserializer<'de> for ObjectOnly<D> {
    type Error = D::Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
        self.0.deserialize_map(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Implements `Deserialize` for structs that derive it with `#[serde(remote = "Self", expecting = "an object")]`.
macro_rules! request_objects {
    ($($name:ident),*) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $name::deserialize(super::body::ObjectOnly(deserializer))
            }
        }
    )*};
}
pub(super) use request_objects;

/// Implements `Deserialize` for enumerations that derive it with `#[serde(remote = "Self")]`: only a string is read.
macro_rules! request_names {
    ($($name:ident),*) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let name = <String as serde::Deserialize>::deserialize(deserializer)?;
                $name::deserialize(serde::de::IntoDeserializer::<D::Error>::into_deserializer(name))
            }
        }
    )*};
}
pub(super) use request_names;

impl<T: Type> Payload for Body<T> {
    const CONTENT_TYPE: &'static str = "application/json";

    fn check_content_type(content_type: &str) -> bool {
        let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"))
    }

    fn schema_ref() -> MetaSchemaRef {
        T::schema_ref()
    }

    fn register(registry: &mut Registry) {
        T::register(registry);
    }
}

impl<T: DeserializeOwned + Type> ParsePayload for Body<T> {
    const IS_REQUIRED: bool = true;

    async fn from_request(request: &Request, body: &mut RequestBody) -> poem::Result<Self> {
        let bytes = Vec::<u8>::from_request(request, body).await?;
        Ok(parse(&bytes).map(Body).map_err(ApiError::InvalidRequest)?)
    }
}

poem_openapi::impl_apirequest_for_payload!(Body<T>, T: DeserializeOwned + Type);
