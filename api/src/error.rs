//! Errors of the API, returned as `application/problem+json` with a stable `code`.
//!
//! After a 4xx nothing was stored. After a 5xx the request may be retried with the same request id.

mod examples;

use std::marker::PhantomData;
use std::time::Duration;

use gapless_domain::policy::Breach;
use gapless_domain::{InvalidIntent, Scope, SubmitterKey, TxId, TxState};
use gapless_http::BodyError;
use gapless_store::StoreError;
use gapless_store::events::{EventCursor, ResetReason};
use poem::http::{StatusCode, header};
use poem::{IntoResponse, Response};
use poem_openapi::ApiResponse;
use poem_openapi::registry::{MetaHeader, MetaMediaType, MetaResponse, MetaResponses, Registry};
use poem_openapi::types::{ToJSON, Type};

pub(crate) use self::examples::examples;
use crate::intake::IntakeError;
use crate::wire::Problem;
use gapless_domain::redact_nonces;

pub(crate) const PROBLEM_JSON: &str = "application/problem+json";
/// `Retry-After` of a 503. The database is usually back, and the intake queue drained, within a second.
const RETRY_SECONDS: u64 = 1;
/// `Retry-After` of `queue_full`: a queue shrinks as blocks are mined.
const QUEUE_RETRY_SECONDS: u64 = 10;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiError {
    #[error("{0}")]
    InvalidRequest(InvalidIntent),
    #[error("{0}")]
    InvalidPayload(InvalidIntent),
    #[error("the API key is missing, invalid, expired or revoked, or the admin token is wrong")]
    Unauthorized,
    #[error("this API key lacks the scope {0}")]
    ScopeMissing(Scope),
    #[error("this API key is not allowed to use the submitter {0}")]
    SubmitterNotAllowed(SubmitterKey),
    #[error("{0}")]
    PolicyBroken(Box<Breach>),
    #[error("admin routes are disabled: create an API key with the scope admin, or set api.admin_token")]
    AdminDisabled,
    #[error(
        "the Host header must be localhost or a loopback address, because this API accepts requests without a key: \
         other names could be a web page's attempt to use it (DNS rebinding). With an API key any name is accepted"
    )]
    HostNotLocal,
    #[error(
        "the Origin header must be that of a page on localhost or a loopback address, because this API accepts \
         requests without a key: another web page must not use it (cross-site requests, DNS rebinding). With an API \
         key any origin is accepted"
    )]
    OriginNotLocal,
    #[error("route not found")]
    UnknownRoute,
    #[error("chain {0} is not configured")]
    UnknownChain(u64),
    #[error(
        "unknown submitter: no worker has announced the key of {0}; if a worker is starting, retry when its /readyz is 200"
    )]
    UnknownSubmitter(SubmitterKey),
    #[error("transaction not found")]
    UnknownTx,
    #[error("webhook not found")]
    WebhookNotFound,
    #[error("method not allowed")]
    MethodNotAllowed,
    #[error("this requestId was already used with a different payload")]
    RequestIdConflict { tx_id: TxId },
    #[error("the submitter is in PROTECT until an operator acts: {reason}")]
    SubmitterProtected { reason: String },
    #[error("this submitter accepts no requests: its nonces are reserved through the low-level hook only")]
    SubmitterLowLevel,
    #[error("the submitter is not in PROTECT: there is nothing to release or adopt")]
    NotProtected,
    #[error("{0}")]
    ActionRefused(String),
    #[error("the transaction is {state}, which is final, and can no longer be changed")]
    TxFinal { tx_id: TxId, state: TxState },
    #[error("simulation is disabled: no node is configured for this chain (rpc.urls)")]
    SimulationDisabled,
    #[error("the webhook is disabled; enable it first")]
    WebhookDisabled,
    #[error("there are already {limit} webhooks (api.max_webhooks)")]
    TooManyWebhooks { limit: u32 },
    #[error("more than {limit} events; split the request")]
    TooManyEvents { limit: u32 },
    #[error("webhooks are not configured on this server (events.webhook.key_file)")]
    WebhooksNotConfigured,
    #[error("no node of this chain is available")]
    NodeUnavailable,
    #[error("the request body was not received within api.body_timeout")]
    BodyTooSlow,
    #[error("the request body is larger than api.max_body_bytes")]
    BodyTooLarge,
    #[error("the content type must be application/json")]
    UnsupportedMediaType,
    #[error("rate limit exceeded")]
    RateLimited { retry_after: Duration },
    #[error("the submitter's queue is full (limit: {limit} transactions)")]
    QueueFull { limit: u64 },
    #[error("too many event streams are open (api.max_event_streams)")]
    TooManyStreams,
    #[error("{}", reset_text(*.reason))]
    EventsReset { reason: ResetReason, cursor: EventCursor },
    #[error("too many requests are waiting to be stored")]
    Overloaded,
    #[error("the database is unavailable")]
    DatabaseUnavailable,
    #[error("not ready: {}", missing.join("; "))]
    NotReady { missing: Vec<String> },
    #[error("internal error")]
    Internal,
}

impl ApiError {
    /// Status and code of every error. Codes are part of the API: never rename one.
    pub(crate) fn status_and_code(&self) -> (StatusCode, &'static str) {
        match self {
            ApiError::InvalidRequest(_) => (StatusCode::BAD_REQUEST, "invalid_request"),
            ApiError::InvalidPayload(_) => (StatusCode::UNPROCESSABLE_ENTITY, "invalid_payload"),
            ApiError::Unauthorized => (StatusCode::UNAUTHORIZED, "unauthorized"),
            ApiError::AdminDisabled => (StatusCode::FORBIDDEN, "admin_disabled"),
            ApiError::ScopeMissing(_) => (StatusCode::FORBIDDEN, "scope_missing"),
            ApiError::SubmitterNotAllowed(_) => (StatusCode::FORBIDDEN, "submitter_not_allowed"),
            ApiError::PolicyBroken(breach) => (StatusCode::FORBIDDEN, breach.rule.code().as_str()),
            ApiError::HostNotLocal => (StatusCode::FORBIDDEN, "host_not_local"),
            ApiError::OriginNotLocal => (StatusCode::FORBIDDEN, "origin_not_local"),
            ApiError::UnknownRoute => (StatusCode::NOT_FOUND, "unknown_route"),
            ApiError::UnknownChain(_) => (StatusCode::NOT_FOUND, "unknown_chain"),
            ApiError::UnknownSubmitter(_) => (StatusCode::NOT_FOUND, "unknown_submitter"),
            ApiError::UnknownTx => (StatusCode::NOT_FOUND, "unknown_tx"),
            ApiError::WebhookNotFound => (StatusCode::NOT_FOUND, "webhook_not_found"),
            ApiError::MethodNotAllowed => (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            ApiError::RequestIdConflict { .. } => (StatusCode::CONFLICT, "request_id_conflict"),
            ApiError::SubmitterProtected { .. } => (StatusCode::CONFLICT, "submitter_protected"),
            ApiError::SubmitterLowLevel => (StatusCode::CONFLICT, "submitter_low_level"),
            ApiError::NotProtected => (StatusCode::CONFLICT, "not_protected"),
            ApiError::TxFinal { .. } => (StatusCode::CONFLICT, "tx_final"),
            ApiError::ActionRefused(_) => (StatusCode::CONFLICT, "action_refused"),
            ApiError::SimulationDisabled => (StatusCode::CONFLICT, "simulation_disabled"),
            ApiError::WebhookDisabled => (StatusCode::CONFLICT, "webhook_disabled"),
            ApiError::TooManyWebhooks { .. } => (StatusCode::CONFLICT, "too_many_webhooks"),
            ApiError::TooManyEvents { .. } => (StatusCode::UNPROCESSABLE_ENTITY, "too_many_events"),
            ApiError::WebhooksNotConfigured => (StatusCode::SERVICE_UNAVAILABLE, "webhooks_not_configured"),
            ApiError::NodeUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "node_unavailable"),
            ApiError::BodyTooSlow => (StatusCode::REQUEST_TIMEOUT, "body_too_slow"),
            ApiError::BodyTooLarge => (StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            ApiError::UnsupportedMediaType => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type"),
            ApiError::RateLimited { .. } => (StatusCode::TOO_MANY_REQUESTS, "rate_limited"),
            ApiError::QueueFull { .. } => (StatusCode::TOO_MANY_REQUESTS, "queue_full"),
            ApiError::TooManyStreams => (StatusCode::SERVICE_UNAVAILABLE, "too_many_streams"),
            ApiError::EventsReset { .. } => (StatusCode::GONE, "events_reset"),
            ApiError::Overloaded => (StatusCode::SERVICE_UNAVAILABLE, "overloaded"),
            ApiError::DatabaseUnavailable => (StatusCode::SERVICE_UNAVAILABLE, "database_unavailable"),
            ApiError::NotReady { .. } => (StatusCode::SERVICE_UNAVAILABLE, "not_ready"),
            ApiError::Internal => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
        }
    }

    /// `field` is the path in the body, or the name of the parameter or header.
    pub(crate) fn invalid(field: &str, problem: impl Into<String>) -> ApiError {
        ApiError::InvalidRequest(InvalidIntent::new(field, problem))
    }

    pub(crate) fn code(&self) -> &'static str {
        self.status_and_code().1
    }

    /// Converts an error response of the framework: unknown route, parse error.
    pub(crate) fn from_framework(status: StatusCode, text: String) -> ApiError {
        match status {
            StatusCode::NOT_FOUND => ApiError::UnknownRoute,
            StatusCode::METHOD_NOT_ALLOWED => ApiError::MethodNotAllowed,
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::BodyTooLarge,
            StatusCode::UNSUPPORTED_MEDIA_TYPE => ApiError::UnsupportedMediaType,
            _ if status.is_client_error() => ApiError::invalid("request", text),
            _ => ApiError::Internal,
        }
    }

    /// Value of `Retry-After`, for errors that a retry can resolve.
    fn retry_after_seconds(&self) -> Option<u64> {
        match self {
            ApiError::RateLimited { retry_after } => Some(retry_after.as_secs_f64().ceil().max(1.0) as u64),
            ApiError::QueueFull { .. } => Some(QUEUE_RETRY_SECONDS),
            _ => (self.status_and_code().0 == StatusCode::SERVICE_UNAVAILABLE).then_some(RETRY_SECONDS),
        }
    }

    pub(crate) fn problem(&self) -> Problem {
        let (status, code) = self.status_and_code();
        let detail = match self {
            // The reason is written for operators. Clients must not see nonces.
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
                ApiError::InvalidRequest(invalid) | ApiError::InvalidPayload(invalid) => {
                    Some(invalid.field.clone())
                }
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
            cursor: match self {
                ApiError::EventsReset { cursor, .. } => Some(cursor.to_string()),
                _ => None,
            },
        }
    }
}

fn reset_text(reason: ResetReason) -> &'static str {
    match reason {
        ResetReason::Epoch => {
            "the database was restored or failed over since this cursor: events may be missing"
        }
        ResetReason::Retention => "events after this cursor are older than events.retention and were deleted",
    }
}

/// Logs the cause, which the response does not contain.
impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> Self {
        if error.is_connection() {
            tracing::warn!(%error, "request refused: the database is unavailable");
            ApiError::DatabaseUnavailable
        } else {
            tracing::error!(%error, "request failed");
            ApiError::Internal
        }
    }
}

impl From<IntakeError> for ApiError {
    fn from(error: IntakeError) -> Self {
        match error {
            IntakeError::QueueFull { limit } => ApiError::QueueFull { limit },
            IntakeError::Overloaded => ApiError::Overloaded,
            IntakeError::Unavailable => ApiError::DatabaseUnavailable,
            IntakeError::Failed => ApiError::Internal,
        }
    }
}

impl From<BodyError> for ApiError {
    fn from(error: BodyError) -> Self {
        match error {
            BodyError::TooLarge => ApiError::BodyTooLarge,
            BodyError::TooSlow => ApiError::BodyTooSlow,
            BodyError::Unreadable(error) => ApiError::invalid("body", format!("could not be read: {error}")),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let (status, _) = self.status_and_code();
        let mut response = Response::builder().status(status).content_type(PROBLEM_JSON);
        if let Some(seconds) = self.retry_after_seconds() {
            response = response.header(header::RETRY_AFTER, seconds);
        }
        match status {
            StatusCode::UNAUTHORIZED => response = response.header(header::WWW_AUTHENTICATE, "Bearer"),
            // The rest of the body was not read, so the connection cannot be reused.
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT => {
                response = response.header(header::CONNECTION, "close");
            }
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

/// The error statuses that a route documents.
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
    OnCreate: [400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503];
    OnSimulate: [400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503];
    OnBatch: [400, 401, 403, 408, 413, 415, 429, 500, 503];
    OnTxAction: [400, 401, 403, 404, 408, 409, 413, 415, 429, 500, 503];
    OnEvents: [400, 401, 403, 404, 410, 429, 500, 503];
    OnWebhookChange: [400, 401, 403, 404, 408, 409, 413, 415, 429, 500, 503];
    OnWebhookTest: [400, 401, 403, 404, 409, 429, 500, 503];
    OnReplay: [400, 401, 403, 404, 408, 413, 415, 422, 429, 500, 503];
    OnRead: [400, 401, 403, 404, 429, 500, 503];
    OnAdmin: [400, 401, 403, 404, 408, 409, 413, 415, 429, 500, 503];
    OnReady: [400, 403, 503];
    /// Only the checks that come before the route: query parameters, `Host` and `Origin`.
    OnHealth: [400, 403];
}

/// An `ApiError` with the documented statuses of its route.
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

/// Errors that `?` converts into a `Failure`. A blanket impl would conflict with `From<T> for T`.
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
            description: description_of(*status),
            status: Some(*status),
            status_range: None,
            content: vec![MetaMediaType { content_type: PROBLEM_JSON, schema: Problem::schema_ref() }],
            headers: headers(*status),
        };
        MetaResponses { responses: S::LIST.iter().map(response).collect() }
    }

    fn register(registry: &mut Registry) {
        Problem::register(registry);
    }
}

fn headers(status: u16) -> Vec<MetaHeader> {
    let header = |name: &str, description: &str, schema| MetaHeader {
        name: name.to_owned(),
        description: Some(description.to_owned()),
        required: true,
        deprecated: false,
        schema,
    };
    match status {
        401 => vec![header("WWW-Authenticate", "`Bearer`.", String::schema_ref())],
        429 | 503 => vec![header("Retry-After", "Seconds to wait before retrying.", u64::schema_ref())],
        _ => vec![],
    }
}

fn description_of(status: u16) -> &'static str {
    match status {
        400 => {
            "`invalid_request`: malformed JSON, unknown field or parameter, or invalid value; `field` names it. \
             Nothing was stored."
        }
        401 => "`unauthorized`: the API key is missing, invalid, expired or revoked.",
        403 => {
            "`scope_missing`: the key lacks the required scope. `submitter_not_allowed`: the key is limited \
             to other submitters. `call_not_allowed`, `deploy_not_allowed`, `value_cap_exceeded`, \
             `day_cap_exceeded`: the submitter's policy forbids the transaction; nothing was stored. \
             `admin_disabled`: admin routes are disabled on this server. `host_not_local`, `origin_not_local`: the \
             server accepts requests without a key, and only from this machine, so `Host` and `Origin` must be \
             loopback names or addresses."
        }
        404 => "`unknown_chain`, `unknown_submitter`, `unknown_tx`, `webhook_not_found`: not found.",
        409 => {
            "`request_id_conflict`: this requestId was already used with a different payload. \
             `submitter_protected`: the submitter is in PROTECT until an operator acts. \
             `submitter_low_level`: the submitter's nonces are reserved through the low-level hook only. \
             `not_protected`: there is nothing to release or adopt. `action_refused`: the worker refused the \
             action and changed nothing. `tx_final`: the transaction is final. `simulation_disabled`: no \
             node is configured for this chain. `webhook_disabled`: enable the webhook first. \
             `too_many_webhooks`: the server has `api.max_webhooks` of them."
        }
        408 => "`body_too_slow`: the body was not received within `api.body_timeout`. Nothing was stored.",
        410 => {
            "`events_reset`: events after the cursor are missing, because they are older than `events.retention`, or \
             because the database was restored or failed over. Read the state of your transactions, then go on with \
             the `cursor` of the response."
        }
        413 => "`body_too_large`: the body is larger than `api.max_body_bytes`.",
        415 => "`unsupported_media_type`: the content type must be `application/json`.",
        422 => {
            "`invalid_payload`: the payload is not a valid transaction; `field` names the invalid field. \
             `too_many_events`: more events than one replay may have. Nothing was stored."
        }
        429 => {
            "`rate_limited`: too many requests. `queue_full`: the submitter's queue is at its limit. Nothing \
             was stored; retry after `Retry-After`."
        }
        503 => {
            "`database_unavailable`, `node_unavailable`, `overloaded`, `not_ready`, `too_many_streams`: retry with the same \
             requestId after `Retry-After`. `webhooks_not_configured`: the operator has not set \
             `events.webhook.key_file`."
        }
        _ => "`internal_error`. Safe to retry with the same requestId.",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[tokio::test]
    async fn every_error_is_a_problem_document_with_its_own_code() {
        let mut codes = HashSet::new();
        for error in examples() {
            let (status, code) = error.status_and_code();
            assert!(codes.insert(code), "{code} is used twice");
            let response = error.into_response();
            assert_eq!(response.status(), status);
            assert_eq!(response.content_type(), Some(PROBLEM_JSON));
            assert_eq!(
                response.headers().contains_key(header::RETRY_AFTER),
                matches!(status.as_u16(), 429 | 503),
                "{code}"
            );
            let body: serde_json::Value = response.into_body().into_json().await.unwrap();
            assert_eq!(body["code"], code);
            assert_eq!(body["status"], status.as_u16());
            assert!(!body["detail"].as_str().unwrap().is_empty());
        }
    }

    /// The codes in the source of `status_and_code`, and those of policies.
    #[test]
    fn every_code_has_an_example() {
        let source = include_str!("error.rs");
        let function =
            source.split("fn status_and_code").nth(1).and_then(|rest| rest.split("\n    }\n").next());
        let mut written: Vec<&str> = function.unwrap().split('"').skip(1).step_by(2).collect();
        let policies = ["call_not_allowed", "deploy_not_allowed", "value_cap_exceeded", "day_cap_exceeded"];
        written.extend(policies);
        written.sort_unstable();
        let mut listed: Vec<&str> = examples().iter().map(ApiError::code).collect();
        listed.sort_unstable();
        assert_eq!(written, listed);
    }

    #[test]
    fn retry_after_is_in_whole_seconds_rounded_up() {
        for (wait, seconds) in [(1, 1), (1_000, 1), (1_001, 2), (90_500, 91)] {
            let limited = ApiError::RateLimited { retry_after: Duration::from_millis(wait) };
            assert_eq!(limited.retry_after_seconds(), Some(seconds), "{wait} ms");
        }
    }

    #[test]
    fn a_problem_names_the_field_and_redacts_nonces() {
        let invalid = ApiError::InvalidPayload(InvalidIntent::new("payload.args[1]", "is bad"));
        assert_eq!(invalid.problem().field.as_deref(), Some("payload.args[1]"));
        assert_eq!(ApiError::invalid("limit", "is bad").problem().field.as_deref(), Some("limit"));
        let protected = ApiError::SubmitterProtected { reason: "nonce 41 was used elsewhere".into() };
        assert!(!protected.problem().detail.contains("41"));
    }
}
