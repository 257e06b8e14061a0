//! HTTP client of the public API: JSON in, JSON out, `application/problem+json` as errors.

mod webhooks;

use std::fmt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use gapless_config::Secret;
use gapless_http_client::client_builder;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url, header};
use serde::Deserialize;
use serde_json::Value;

use crate::authorities::trust;

/// Of a whole request. Streams have no such limit.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Longest silence of a stream: the API sends a comment every 15 s.
pub(crate) const STREAM_READ_TIMEOUT: Duration = Duration::from_secs(45);
const EVENT_STREAM: &str = "text/event-stream";

#[derive(Clone)]
pub struct Api {
    http: reqwest::Client,
    base: Url,
    token: Option<Secret>,
    /// Appended to the error if the API is unreachable.
    remedy: String,
}

impl fmt::Debug for Api {
    /// Without the token.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Api").field("base", &shown(&self.base)).finish_non_exhaustive()
    }
}

/// Scheme, host and port. User name, password and path may be secret and are left out.
fn shown(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{}{port}", url.scheme(), url.host_str().unwrap_or_default())
}

/// An error response (`application/problem+json`).
#[derive(Clone, Debug, Deserialize)]
pub struct Problem {
    #[serde(default)]
    pub status: u16,
    #[serde(default)]
    pub title: String,
    #[serde(default)]
    pub detail: Option<String>,
    #[serde(default)]
    pub code: Option<String>,
    /// Where reading events can go on.
    #[serde(default)]
    pub cursor: Option<String>,
}

/// A 4xx other than 429 is permanent; retrying does not help.
pub(crate) fn is_refusal(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<Problem>()
        .is_some_and(|problem| (400..500).contains(&problem.status) && problem.status != 429)
}

impl std::error::Error for Problem {}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.status, self.detail.as_deref().unwrap_or(&self.title))?;
        self.code.as_ref().map_or(Ok(()), |code| write!(f, " ({code})"))?;
        self.cursor.as_ref().map_or(Ok(()), |cursor| write!(f, "; to go on, use --after {cursor}"))
    }
}

impl Api {
    /// `token` is an API key or the admin token; `ca_file` contains extra CA certificates.
    pub fn new(base: &str, token: Option<Secret>, ca_file: Option<&Path>) -> Result<Api> {
        let mut base: Url = base.parse().context("the API address (--api) is not a valid URL")?;
        // `Url::join` keeps a path prefix only if it ends with a slash.
        if !base.path().ends_with('/') {
            base.set_path(&format!("{}/", base.path()));
        }
        let http = trust(client_builder().read_timeout(STREAM_READ_TIMEOUT), ca_file)?.build()?;
        Ok(Api { http, base, token, remedy: String::new() })
    }

    pub(crate) fn with_remedy(self, remedy: String) -> Api {
        Api { remedy, ..self }
    }

    pub async fn submit(&self, request: &Value) -> Result<Value> {
        self.answer(self.request(Method::POST, "api/v1/tx", &[])?.json(request)).await
    }

    pub async fn simulate(&self, request: &Value) -> Result<Value> {
        self.answer(self.request(Method::POST, "api/v1/tx/simulate", &[])?.json(request)).await
    }

    pub async fn transaction(&self, tx_id: &str) -> Result<Value> {
        self.answer(self.request(Method::GET, &format!("api/v1/tx/{tx_id}"), &[])?).await
    }

    /// Attempts and state changes of a transaction.
    pub async fn attempts(&self, tx_id: &str) -> Result<Value> {
        self.answer(self.request(Method::GET, &format!("api/v1/tx/{tx_id}/attempts"), &[])?).await
    }

    pub async fn transaction_by_request(
        &self,
        submitter: &str,
        request_id: &str,
        chain: Option<u64>,
    ) -> Result<Value> {
        let query = [
            ("submitter", Some(submitter.to_owned())),
            ("requestId", Some(request_id.to_owned())),
            by_chain(chain),
        ];
        self.answer(self.request(Method::GET, "api/v1/tx/by-request", &query)?).await
    }

    pub async fn submitters(&self) -> Result<Vec<Value>> {
        let mut all = Vec::new();
        let mut cursor: Option<String> = None;
        loop {
            let page = [("limit", Some("200".to_owned())), ("cursor", cursor)];
            let answer = self.answer(self.request(Method::GET, "api/v1/submitters", &page)?).await?;
            all.extend(
                answer["items"].as_array().context("the response has no list of submitters")?.iter().cloned(),
            );
            cursor = answer["nextCursor"].as_str().map(str::to_owned);
            if cursor.is_none() {
                return Ok(all);
            }
        }
    }

    /// `action` is cancel or speed-up.
    pub async fn tx_action(&self, tx_id: &str, action: &str, reason: Option<&str>) -> Result<Value> {
        let path = format!("api/v1/tx/{tx_id}/{action}");
        let body = reason.map_or(serde_json::json!({}), |reason| serde_json::json!({ "reason": reason }));
        self.answer(self.request(Method::POST, &path, &[])?.json(&body)).await
    }

    /// `action` is one of pause, resume, release, adopt.
    pub async fn administer(
        &self,
        address: &str,
        action: &str,
        chain: Option<u64>,
        body: &Value,
    ) -> Result<Value> {
        let path = format!("api/v1/submitters/{address}/{action}");
        self.answer(self.request(Method::POST, &path, &[by_chain(chain)])?.json(body)).await
    }

    /// A page of events after a cursor, `start` or `end`.
    pub async fn events(&self, filter: &EventFilter, after: &str, limit: u32) -> Result<Value> {
        let query = [filter.query(), vec![after_cursor(Some(after)), ("limit", Some(limit.to_string()))]];
        self.answer(self.request(Method::GET, EVENTS, &query.concat())?).await
    }

    /// Opens a stream of events: after `last_id` if given, otherwise after `after`, or with the next event.
    pub async fn event_stream(
        &self,
        filter: &EventFilter,
        after: Option<&str>,
        last_id: Option<&str>,
    ) -> Result<Response> {
        let query = [filter.query(), vec![after_cursor(after)]].concat();
        let mut request =
            self.endless_request(Method::GET, EVENTS, &query)?.header(header::ACCEPT, EVENT_STREAM);
        if let Some(id) = last_id {
            request = request.header("Last-Event-ID", id);
        }
        let response = self.send(request).await?;
        let status = response.status();
        if !status.is_success() {
            return Err(problem(status, &body(response).await?).into());
        }
        let media_type = response.headers().get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or("no content type");
        anyhow::ensure!(
            media_type.starts_with(EVENT_STREAM),
            "the API at {} did not return an event stream but {media_type}: is there a proxy in front of it?",
            shown(&self.base)
        );
        Ok(response)
    }

    /// `/readyz`; the error is the response body or the connection error.
    pub async fn ready(&self) -> Result<(), String> {
        let request = self.request(Method::GET, "readyz", &[]).map_err(|error| error.to_string())?;
        match request.send().await {
            Ok(response) if response.status().is_success() => Ok(()),
            Ok(response) => Err(response.text().await.unwrap_or_default()),
            Err(error) => Err(error.without_url().to_string()),
        }
    }

    fn request(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, Option<String>)],
    ) -> Result<RequestBuilder> {
        Ok(self.endless_request(method, path, query)?.timeout(TIMEOUT))
    }

    /// Without a limit for the whole response.
    fn endless_request(
        &self,
        method: Method,
        path: &str,
        query: &[(&str, Option<String>)],
    ) -> Result<RequestBuilder> {
        let mut url = self.base.join(path).with_context(|| format!("invalid request path {path}"))?;
        for (name, value) in query {
            if let Some(value) = value {
                url.query_pairs_mut().append_pair(name, value);
            }
        }
        let request = self.http.request(method, url);
        Ok(match &self.token {
            Some(token) => request.bearer_auth(token.expose()),
            None => request,
        })
    }

    async fn send(&self, request: RequestBuilder) -> Result<Response> {
        let sent = request.send().await.map_err(reqwest::Error::without_url);
        sent.with_context(|| format!("cannot reach the API at {}{}", shown(&self.base), self.remedy))
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Value> {
        let response = self.send(request).await?;
        let status = response.status();
        let body = body(response).await?;
        if !status.is_success() {
            return Err(problem(status, &body).into());
        }
        if body.is_empty() {
            return Ok(Value::Null);
        }
        serde_json::from_slice(&body).with_context(|| format!("the API returned {status} without JSON"))
    }
}

const EVENTS: &str = "api/v1/events";

/// Which events; all if nothing is set.
#[derive(Clone, Debug, Default)]
pub struct EventFilter {
    /// Any of these; `tx.confirmed` for example.
    pub kinds: Vec<String>,
    pub submitter: Option<String>,
    pub chain: Option<u64>,
    pub tx_id: Option<String>,
}

impl EventFilter {
    fn query(&self) -> Vec<(&'static str, Option<String>)> {
        vec![
            ("type", (!self.kinds.is_empty()).then(|| self.kinds.join(","))),
            ("submitter", self.submitter.clone()),
            ("txId", self.tx_id.clone()),
            by_chain(self.chain),
        ]
    }
}

fn after_cursor(after: Option<&str>) -> (&'static str, Option<String>) {
    ("after", after.map(str::to_owned))
}

async fn body(response: Response) -> Result<Vec<u8>> {
    let body = response.bytes().await.map_err(reqwest::Error::without_url);
    Ok(body.context("the API closed the connection within the response")?.into())
}

fn by_chain(chain: Option<u64>) -> (&'static str, Option<String>) {
    ("chainId", chain.map(|id| id.to_string()))
}

/// A proxy in front of the API may respond with a body in another format.
fn problem(status: StatusCode, body: &[u8]) -> Problem {
    let stated = serde_json::from_slice::<Problem>(body).ok();
    let title = status.canonical_reason().unwrap_or("refused").to_owned();
    let mut problem = stated.unwrap_or(Problem { status: 0, title, detail: None, code: None, cursor: None });
    problem.status = status.as_u16();
    problem
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_shows_detail_and_code() {
        let body = br#"{"type":"about:blank","title":"Conflict","status":409,"detail":"other payload","code":"request_conflict"}"#;
        assert_eq!(problem(StatusCode::CONFLICT, body).to_string(), "409 other payload (request_conflict)");
        assert_eq!(problem(StatusCode::BAD_GATEWAY, b"<html>").to_string(), "502 Bad Gateway");
        let body =
            br#"{"title":"Gone","detail":"events were deleted","code":"events_reset","cursor":"5f3a9c21.7"}"#;
        assert_eq!(
            problem(StatusCode::GONE, body).to_string(),
            "410 events were deleted (events_reset); to go on, use --after 5f3a9c21.7"
        );
    }

    #[test]
    fn the_base_path_prefix_is_preserved_and_the_query_is_encoded() {
        let api = Api::new("http://h/gapless", Some(Secret::new("t0ken")), None).unwrap();
        let request =
            api.request(Method::GET, "api/v1/tx", &[("requestId", Some("a b".into())), ("chainId", None)]);
        assert_eq!(
            request.unwrap().build().unwrap().url().as_str(),
            "http://h/gapless/api/v1/tx?requestId=a+b"
        );
        assert!(!format!("{api:?}").contains("t0ken"));
    }

    #[test]
    fn only_streams_have_no_time_limit() {
        let api = Api::new("http://h", None, None).unwrap();
        let request = api.request(Method::GET, "a", &[]).unwrap().build().unwrap();
        assert_eq!(request.timeout(), Some(&TIMEOUT));
        let request = api.endless_request(Method::GET, "a", &[]).unwrap().build().unwrap();
        assert_eq!(request.timeout(), None);
    }

    #[test]
    fn only_a_refusal_is_permanent() {
        let problem =
            |status| Problem { status, title: String::new(), detail: None, code: None, cursor: None };
        assert!(is_refusal(&problem(404).into()));
        assert!(!is_refusal(&problem(503).into()));
        assert!(!is_refusal(&problem(429).into()));
        assert!(!is_refusal(&anyhow::anyhow!("connection refused")));
    }

    #[tokio::test]
    async fn errors_name_the_api_without_secrets_of_the_url() {
        // Port 9 (discard) is normally unused; whatever listens there is not the API.
        let api = Api::new("http://user:hunter2@127.0.0.1:9/prefix-of-hunter2", None, None).unwrap();
        let text = format!("{:#} {api:?}", api.transaction("x").await.unwrap_err());
        assert!(text.contains("http://127.0.0.1:9") && !text.contains("hunter2"), "{text}");
        let text = format!("{:#}", Api::new("hunter2", None, None).unwrap_err());
        assert!(text.contains("--api") && !text.contains("hunter2"), "{text}");
    }
}
