//! Strict JSON request bodies. The framework's own parser accepts a number for a string and the last of two duplicate
//! keys, which could change the meaning of a request.

use poem::{FromRequest, Request, RequestBody};
use poem_openapi::payload::{ParsePayload, Payload};
use poem_openapi::registry::{MetaSchemaRef, Registry};
use poem_openapi::types::Type;
use serde::de::DeserializeOwned;

use crate::error::ApiError;

#[derive(Clone, Debug)]
pub(crate) struct Body<T>(pub(crate) T);

/// `Err` contains the path and the problem, for example ``payload.value: invalid type: integer `5`, expected a
/// string``.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        if path == "." { inner.to_string() } else { format!("{path}: {inner}") }
    })?;
    reader.end().map_err(|error| error.to_string())?;
    Ok(value)
}

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
