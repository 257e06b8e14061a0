//! Everything that can go wrong with a request, and how it is told: `application/problem+json` with a stable `code`.
//!
//! Any 4xx stored nothing. Any 5xx may be sent again with the same request id.

use std::marker::PhantomData;

use gapless::domain::{InvalidIntent, SubmitterKey, TxId, TxState};
use gapless::store::StoreError;
use poem::http::{StatusCode, header};
use poem::{IntoResponse, Response};
use poem_openapi::ApiResponse;
use poem_openapi::registry::{MetaMediaType, MetaResponse, MetaResponses, Registry};
use poem_openapi::types::{ToJSON, Type};

use crate::intake::IntakeError;
use crate::wire::{Problem, redact_nonces};

pub(crate) const PROBLEM_JSON: &str = "application/problem+json";
/// The database is usually back, and the queue drained, before a client could do anything else.
const RETRY_AFTER_SECONDS: &str = "1";

#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("{0}")]
    InvalidRequest(String),
    #[error("{0}")]
    InvalidPayload(InvalidIntent),
    #[error("the admin token is missing or wrong")]
    Unauthorized,
    #[error("admin routes are off: set api.admin_token, or api.admin_on_loopback on a loopback address")]
    AdminDisabled,
    #[error("no such route")]
    UnknownRoute,
    #[error("chain {0} is not configured")]
    UnknownChain(u64),
    #[error("no worker has announced a signer for {0}")]
    UnknownSubmitter(SubmitterKey),
    #[error("there is no such transaction")]
    UnknownTx,
    #[error("this route has no such method")]
    MethodNotAllowed,
    #[error("this requestId was used for another payload")]
    RequestIdConflict { tx_id: TxId },
    #[error("the submitter waits for an operator: {reason}")]
    SubmitterProtected { reason: String },
    #[error("the submitter's nonces are given by the low-level hook alone: it takes no requests")]
    SubmitterLowLevel,
    #[error("the submitter is not in PROTECT: there is nothing to release or adopt")]
    NotProtected,
    #[error("{0}")]
    ActionRefused(String),
    #[error("the transaction is {state}: nothing can be changed any more")]
    TxFinal { tx_id: TxId, state: TxState },
    #[error("nothing can be simulated: this server has no node of that chain (rpc.urls)")]
    SimulationDisabled,
    #[error("the chain's node cannot be asked")]
    NodeUnavailable,
    #[error("the body is larger than api.max_body_bytes")]
    BodyTooLarge,
    #[error("the body must be application/json")]
    UnsupportedMediaType,
    #[error("too many requests are waiting to be stored")]
    Overloaded,
    #[error("the database cannot be reached")]
    DatabaseUnavailable,
    #[error("not ready: {}", missing.join("; "))]
    NotReady { missing: Vec<String> },
    #[error("an error of ours; the log has the cause")]
    Internal,
}

impl ApiError {
    /// The one place where errors get their status and their code. Codes are part of the API: never rename one.
    fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            ApiError::InvalidRequest(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
            ApiError::InvalidPayload(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_payload"),
            ApiError::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized"),
            ApiError::AdminDisabled => (StatusCode::FORBIDDEN, "admin_disabled"),
            ApiError::UnknownRoute => (StatusCode::NOT_FOUND, "unknown_route"),
            ApiError::UnknownChain(_) => (StatusCode::NOT_FOUND, "unknown_chain"),
            ApiError::UnknownSubmitter(_) => (StatusCode::NOT_FOUND, "unknown_submitter"),
            ApiError::UnknownTx => (StatusCode::NOT_FOUND, "unknown_tx"),
            ApiError::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            ApiError::RequestIdConflict { .. } => (StatusCode::CONFLICT, "request_id_conflict"),
            ApiError::SubmitterProtected { .. } => (StatusCode::CONFLICT, "submitter_protected"),
            ApiError::SubmitterLowLevel => (StatusCode::CONFLICT, "submitter_low_level"),
            ApiError::NotProtected => (StatusCode::CONFLICT, "not_protected"),
            ApiError::TxFinal { .. } => (StatusCode::CONFLICT, "tx_final"),
            ApiError::ActionRefused(_) => (StatusCode::CONFLICT, "action_refused"),
            ApiError::SimulationDisabled => (StatusCode::CONFLICT, "simulation_disabled"),
            ApiError::NodeUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "node_unavailable"),
            ApiError::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            ApiError::UnsupportedMediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            ApiError::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
            ApiError::DatabaseUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "database_unavailable"),
            ApiError::NotReady { .. } => (StatusCode::SERVICE_UNAVAILABLE, "not_ready"),
            ApiError::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
        }
    }

    pub(crate) fn code(&self) -> &'static str {
        self.status_and_code().1
    }

    /// An error response that our own code did not make: unknown routes, parse errors of the framework.
    pub(crate) fn from_foreign(status: StatusCode, text: String) -> ApiError {
        match status {
            StatusCode::NOT_FOUND => ApiError::UnknownRoute,
            StatusCode::METHOD_NOT_ALLOWED => ApiError::MethodNotAllowed,
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::BodyTooLarge,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => ApiError::UnsupportedMediaType,
            _ if status.is_client_error() => ApiError::InvalidRequest(text),
            _ => ApiError::Internal,
        }
    }

    pub(crate) fn problem(&self) -> Problem {
        let (status, code) = self.status_and_code();
        let detail = match self {
            // Reasons are written for operators; clients see them without nonces.
            ApiError::SubmitterProtected { .. } => redact_nonces(&self.to_string()),
            _ => self.to_string(),
        };
        Problem {
            kind: format!("urn:gapless:problem:{code}"),
            title: status.canonical_reason().unwrap_or_default().to_owned(),
            status: status.as_u16(),
            detail,
            code: code.to_owned(),
            field: match self {
                ApiError::InvalidPayload(invalid) => Some(invalid.field.clone()),
                _ => None,
            },
            tx_id: match self {
                ApiError::RequestIdConflict { tx_id } | ApiError::TxFinal { tx_id, .. } => Some(tx_id.0),
                _ => None,
            },
            missing: match self {
                ApiError::NotReady { missing } => Some(missing.clone()),
                _ => None,
            },
        }
    }
}

/// Logs what the client is not told. Called once, where the error leaves our code.
impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        if error.is_connection() {
            tracing::warn!(%error, "a request was refused: the database is away");
            ApiError::DatabaseUnavailable
        } else {
            tracing::error!(%error, "a request failed");
            ApiError::Internal
        }
    }
}

impl From<IntakeError> for ApiError {
    fn from(error: IntakeError) -> Self {
        match error {
            IntakeError::Overloaded => ApiError::Overloaded,
            IntakeError::Unavailable => ApiError::DatabaseUnavailable,
            IntakeError::Failed => ApiError::Internal,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, _) = self.status_and_code();
        let mut response = Response::builder().status(status).content_type(PROBLEM_JSON);
        match status {
            StatusCode::SERVICE_UNAVAILABLE => {
                response = response.header(header::RETRY_AFTER, RETRY_AFTER_SECONDS)
            }
            StatusCode::UNAUTHORIZED => response = response.header(header::WWW_AUTHENTICATE, "Bearer"),
            // The rest of the body was not read, so the connection ends here; a client must not send another request on it.
            StatusCode::PAYLOAD_TOO_LARGE => response = response.header(header::CONNECTION, "close"),
            _ => {}
        }
        response.body(self.problem().to_json_string())
    }
}

impl From<ApiError> for poem::Error {
    fn from(error: ApiError) -> Self {
        poem::Error::from_response(error.into_response())
    }
}

/// Which error statuses a route documents, beside those that every route has.
pub(crate) trait Statuses: Send + Sync + 'static {
    const LIST: &'static [u16];
}

macro_rules! statuses {
    ($($(#[$doc:meta])* $name:ident: $list:expr;)*) => {
        $($(#[$doc])* #[derive(Debug)] pub(crate) enum $name {}
        impl Statuses for $name { const LIST: &'static [u16] = &$list; })*
    };
}

statuses! {
    OnCreate: [400, 404, 409, 413, 415, 422, 500, 503];
    OnSimulate: [400, 404, 409, 413, 415, 422, 500, 503];
    OnBatch: [400, 413, 415, 500, 503];
    OnAsk: [400, 404, 409, 413, 415, 500, 503];
    OnRead: [400, 404, 500, 503];
    OnAdmin: [400, 401, 403, 404, 409, 500, 503];
    OnReady: [503];
}

/// An `ApiError` with the documentation of the route it leaves through.
#[derive(Debug)]
pub(crate) struct Failure<S>(ApiError, PhantomData<S>);

impl<S, E: Into<ApiError>> From<E> for Failure<S>
where
    E: IsCause,
{
    fn from(error: E) -> Self {
        Failure(error.into(), PhantomData)
    }
}

/// What `?` may turn into a `Failure`; named, because a blanket rule would collide with `From<T> for T`.
pub(crate) trait IsCause {}
impl IsCause for ApiError {}
impl IsCause for StoreError {}
impl IsCause for IntakeError {}

impl<S> From<Failure<S>> for poem::Error {
    fn from(failure: Failure<S>) -> Self {
        failure.0.into()
    }
}

impl<S: Statuses> ApiResponse for Failure<S> {
    fn meta() -> MetaResponses {
        let response = |status: &u16| MetaResponse {
            description: describe(*status),
            status: Some(*status),
            status_range: None,
            content: vec![MetaMediaType { content_type: PROBLEM_JSON, schema: Problem::schema_ref() }],
            headers: vec![],
        };
        MetaResponses { responses: S::LIST.iter().map(response).collect() }
    }

    fn register(registry: &mut Registry) {
        Problem::register(registry);
    }
}

fn describe(status: u16) -> &'static str {
    match status {
        400 => "`invalid_request`: malformed JSON, an unknown field, a bad parameter. Nothing was stored.",
        401 => "`unauthorized`: the admin token is missing or wrong.",
        403 => "`admin_disabled`: admin routes are off on this server.",
        404 => "`unknown_chain`, `unknown_submitter`, `unknown_tx`: there is no such thing.",
        409 => {
            "`request_id_conflict`: this requestId was used for another payload. `submitter_protected`: the submitter \
             waits for an operator. `submitter_low_level`: the submitter's nonces are given by the low-level hook alone. `not_protected`: there is nothing to release or adopt. `action_refused`: the worker looked into it \
             and changed nothing. `tx_final`: the transaction is final. \
             `simulation_disabled`: this server has no node to ask."
        }
        413 => "`body_too_large`: the body is larger than `api.max_body_bytes`.",
        415 => "`unsupported_media_type`: the body must be `application/json`.",
        422 => {
            "`invalid_payload`: the payload can never become a transaction; `field` says where. Nothing was stored."
        }
        503 => {
            "`database_unavailable`, `node_unavailable`, `overloaded`, `not_ready`: try again, with the same requestId, after `Retry-After`."
        }
        _ => "`internal_error`: an error of ours. Safe to try again with the same requestId.",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use gapless::domain::{Address, ChainId};

    use super::*;

    fn every_error() -> Vec<ApiError> {
        vec![
            ApiError::InvalidRequest("x".into()),
            ApiError::InvalidPayload(InvalidIntent::new("payload.to", "is bad")),
            ApiError::Unauthorized,
            ApiError::AdminDisabled,
            ApiError::UnknownRoute,
            ApiError::UnknownChain(1),
            ApiError::UnknownSubmitter(SubmitterKey { chain_id: ChainId(1), address: Address::zero() }),
            ApiError::UnknownTx,
            ApiError::MethodNotAllowed,
            ApiError::RequestIdConflict { tx_id: TxId::new() },
            ApiError::SubmitterProtected { reason: "x".into() },
            ApiError::SubmitterLowLevel,
            ApiError::NotProtected,
            ApiError::ActionRefused("why".into()),
            ApiError::TxFinal { tx_id: TxId::new(), state: TxState::Confirmed },
            ApiError::SimulationDisabled,
            ApiError::NodeUnavailable,
            ApiError::BodyTooLarge,
            ApiError::UnsupportedMediaType,
            ApiError::Overloaded,
            ApiError::DatabaseUnavailable,
            ApiError::NotReady { missing: vec!["database".into()] },
            ApiError::Internal,
        ]
    }

    #[tokio::test]
    async fn every_error_is_a_problem_document_with_its_own_code() {
        let mut codes = HashSet::new();
        for error in every_error() {
            let (status, code) = error.status_and_code();
            assert!(codes.insert(code), "{code} is used twice");
            let response = error.into_response();
            assert_eq!(response.status(), status);
            assert_eq!(response.content_type(), Some(PROBLEM_JSON));
            assert_eq!(
                response.headers().contains_key(header::RETRY_AFTER),
                status.as_u16() == 503,
                "{code}"
            );
            let body: serde_json::Value = response.into_body().into_json().await.unwrap();
            assert_eq!(body["code"], code);
            assert_eq!(body["status"], status.as_u16());
            assert!(!body["detail"].as_str().unwrap().is_empty());
        }
    }

    #[test]
    fn a_problem_names_the_field_and_hides_nonces() {
        let invalid = ApiError::InvalidPayload(InvalidIntent::new("payload.args[1]", "is bad"));
        assert_eq!(invalid.problem().field.as_deref(), Some("payload.args[1]"));
        let protected = ApiError::SubmitterProtected { reason: "nonce 41 was used elsewhere".into() };
        assert!(!protected.problem().detail.contains("41"));
    }
}
