//! Request middleware for all routes: trace context, panics, problem documents, metrics.
//! Every response with an error status is `application/problem+json`.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Instant;

use futures::FutureExt;
use gapless_telemetry::TraceContext;
use gapless_telemetry::metrics::HTTP_REQUEST_SECONDS;
use poem::http::{StatusCode, header};
use poem::{Endpoint, IntoResponse, Middleware, Request, Response};
use poem_openapi::OperationId;
use tracing::Instrument;
use tracing::field::Empty;

use crate::document::Methods;
use crate::error::{ApiError, PROBLEM_JSON};
use crate::json_rpc::{self, PathKey};

/// Longest framework error text, in characters, that is copied into `detail`.
const MAX_FRAMEWORK_TEXT: usize = 2_000;

/// Adds the `Allow` header to a 405, which the framework does not.
#[derive(Clone, Debug)]
pub(crate) struct RequestMiddleware {
    methods: Arc<Methods>,
    /// `api.json_rpc.key_in_path`
    key_in_path: bool,
}

impl RequestMiddleware {
    pub(crate) fn new(key_in_path: bool) -> RequestMiddleware {
        RequestMiddleware { methods: Arc::new(Methods::new()), key_in_path }
    }
}

impl<E: Endpoint> Middleware<E> for RequestMiddleware {
    type Output = RequestEndpoint<E>;

    fn transform(&self, inner: E) -> Self::Output {
        RequestEndpoint { inner, methods: self.methods.clone(), key_in_path: self.key_in_path }
    }
}

pub(crate) struct RequestEndpoint<E> {
    inner: E,
    methods: Arc<Methods>,
    key_in_path: bool,
}

impl<E: Endpoint> Endpoint for RequestEndpoint<E> {
    type Output = Response;

    async fn call(&self, mut request: Request) -> poem::Result<Response> {
        let started = Instant::now();
        // Before anything sees the path.
        PathKey::take(&mut request);
        // As named by OpenTelemetry's conventions.
        let span = tracing::info_span!(
            "request",
            http.request.method = request.method().as_str(),
            url.path = request.uri().path(),
            http.route = Empty,
            http.response.status_code = Empty,
            trace.id = Empty,
            otel.kind = Empty
        );
        let trace = TraceContext::of_request(&span, request.header("traceparent"));
        span.record("trace.id", trace.trace_id());
        request.set_data(trace);
        let response = self.respond(request).instrument(span.clone()).await;
        let route = response.data::<OperationId>().map_or("other", |operation| operation.0);
        let status = response.status().as_u16();
        metrics::histogram!(HTTP_REQUEST_SECONDS, "route" => route, "status" => status.to_string())
            .record(started.elapsed());
        gapless_telemetry::name_request(&span, route);
        span.record("http.route", route);
        span.record("http.response.status_code", status);
        span.in_scope(|| tracing::debug!(elapsed = ?started.elapsed(), "request completed"));
        Ok(response)
    }
}

impl<E: Endpoint> RequestEndpoint<E> {
    async fn respond(&self, request: Request) -> Response {
        let path = request.uri().path().to_owned();
        let response = match AssertUnwindSafe(self.inner.call(request)).catch_unwind().await {
            Ok(Ok(response)) => response.into_response(),
            Ok(Err(error)) => error.into_response(),
            Err(_) => {
                // The panic hook has printed message and location.
                tracing::error!("a handler panicked");
                ApiError::Internal.into_response()
            }
        };
        let mut response = as_problem(response).await;
        if json_rpc::is_rpc(&path) && response.content_type() == Some(PROBLEM_JSON) {
            response = json_rpc::as_rpc_response(response, self.key_in_path).await;
        }
        json_rpc::allow_post(&path, &mut response);
        if response.status() == StatusCode::METHOD_NOT_ALLOWED
            && let Some(allow) = self.methods.allow_header(&path)
        {
            response.headers_mut().insert(header::ALLOW, allow);
        }
        response
    }
}

/// Turns the framework's error responses into problem documents. Those of `ApiError` pass unchanged.
async fn as_problem(response: Response) -> Response {
    let status = response.status();
    let is_error = status.is_client_error() || status.is_server_error();
    if !is_error || response.content_type() == Some(PROBLEM_JSON) {
        return response;
    }
    let operation = response.data::<OperationId>().copied();
    let text = response.into_body().into_string().await.unwrap_or_default();
    let text = text.strip_prefix("parse request payload error: ").unwrap_or(&text);
    let mut problem =
        ApiError::from_framework(status, text.chars().take(MAX_FRAMEWORK_TEXT).collect()).into_response();
    if let Some(operation) = operation {
        problem.set_data(operation);
    }
    problem
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use gapless_http::BodyLimit;
    use poem::http::Method;
    use poem::{EndpointExt, Route, get, handler};

    use super::*;

    #[handler]
    fn fine() -> &'static str {
        "fine"
    }

    #[handler]
    fn panics() {
        panic!("on purpose");
    }

    async fn answer(method: Method, path: &str, body: usize) -> (StatusCode, String) {
        let app = Route::new()
            .at("/fine", get(fine).post(fine))
            .at("/panics", get(panics))
            .with(BodyLimit {
                max_bytes: 10,
                timeout: Duration::from_secs(60),
                refuse: |error| ApiError::from(error).into(),
            })
            .with(RequestMiddleware::new(true));
        let request = Request::builder().method(method).uri(path.parse().unwrap()).body(vec![b'x'; body]);
        let response = app.get_response(request).await;
        let status = response.status();
        if status.is_success() {
            return (status, response.into_body().into_string().await.unwrap());
        }
        assert_eq!(response.content_type(), Some(PROBLEM_JSON));
        let body: serde_json::Value = response.into_body().into_json().await.unwrap();
        (status, body["code"].as_str().unwrap().to_owned())
    }

    #[tokio::test]
    async fn every_error_response_is_a_problem_document() {
        for (method, path, body, status, code) in [
            (Method::GET, "/fine", 0, StatusCode::OK, "fine"),
            (Method::POST, "/fine", 10, StatusCode::OK, "fine"),
            (Method::POST, "/fine", 11, StatusCode::PAYLOAD_TOO_LARGE, "body_too_large"),
            (Method::DELETE, "/fine", 0, StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed"),
            (Method::GET, "/nowhere", 0, StatusCode::NOT_FOUND, "unknown_route"),
            (Method::GET, "/panics", 0, StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
        ] {
            assert_eq!(answer(method, path, body).await, (status, code.to_owned()), "{path}");
        }
    }
}
