//! A REST client that returns raw responses.

use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::submitter::Submitter;

/// Longer than the server's own timeouts, so that the server times out first.
const TIMEOUT: Duration = Duration::from_secs(90);

#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    base: String,
    admin_token: &'static str,
    /// API key of client requests, if any.
    key: Option<String>,
}

/// A response.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    /// Null if the body is not JSON.
    pub body: Value,
    pub headers: reqwest::header::HeaderMap,
}

impl Answer {
    /// `code` of a problem response, or an empty string.
    pub fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    pub fn tx_id(&self) -> &str {
        self.body["txId"].as_str().unwrap_or_else(|| panic!("no txId in {self:?}"))
    }
}

impl Client {
    pub(crate) fn new(base: String, admin_token: &'static str) -> Client {
        let http = gapless_http_client::client_builder().timeout(TIMEOUT).build().expect("a client");
        Client { http, base, admin_token, key: None }
    }

    /// The same client with an API key.
    pub fn with_key(&self, key: &str) -> Client {
        Client { key: Some(key.to_owned()), ..self.clone() }
    }

    pub async fn post(&self, submitter: &Submitter, request_id: &str, payload: &Value) -> Answer {
        let body = json!({ "submitter": submitter.text(), "requestId": request_id, "payload": payload });
        self.post_raw(&body).await
    }

    /// `POST /api/v1/tx` with any body.
    pub async fn post_raw(&self, body: &Value) -> Answer {
        self.try_post(body).await.expect("the API answers")
    }

    /// Like `post_raw`, for an API that may crash meanwhile.
    pub async fn try_post(&self, body: &Value) -> Result<Answer, reqwest::Error> {
        answer(self.request(Method::POST, "/api/v1/tx").json(body)).await
    }

    /// Any route: `/api/v1/tx?limit=10`.
    pub async fn get(&self, path: &str) -> Answer {
        answer(self.request(Method::GET, path)).await.expect("the API answers")
    }

    /// Any route, with the admin token.
    pub async fn admin_get(&self, path: &str) -> Answer {
        let request = self.http.get(format!("{}{path}", self.base)).bearer_auth(self.admin_token);
        answer(request).await.expect("the API answers")
    }

    /// Any route, with a body.
    pub async fn post_to(&self, path: &str, body: &Value) -> Answer {
        answer(self.request(Method::POST, path).json(body)).await.expect("the API answers")
    }

    /// Any route with a body, with the admin token.
    pub async fn admin_post(&self, path: &str, body: &Value) -> Answer {
        let request = self.http.post(format!("{}{path}", self.base)).bearer_auth(self.admin_token).json(body);
        answer(request).await.expect("the API answers")
    }

    pub fn admin_token(&self) -> &str {
        self.admin_token
    }

    /// A request to any route, to be completed by the caller; `ask` sends it.
    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.base));
        match &self.key {
            Some(key) => request.bearer_auth(key),
            None => request,
        }
    }

    pub async fn ask(&self, request: RequestBuilder) -> Answer {
        answer(request).await.expect("the API answers")
    }

    /// `action`: pause, resume, release or adopt, with the API key.
    pub async fn submitter_action_with_key(&self, submitter: &Submitter, action: &str) -> Answer {
        let path = format!("/api/v1/submitters/{}/{action}", submitter.text());
        self.post_to(&path, &json!({ "reason": "because" })).await
    }

    /// `action`: pause, resume, release or adopt, with the admin token.
    pub async fn submitter_action(&self, submitter: &Submitter, action: &str, reason: &str) -> Answer {
        let url = format!("{}/api/v1/submitters/{}/{action}", self.base, submitter.text());
        let request = self.http.post(url).bearer_auth(self.admin_token).json(&json!({ "reason": reason }));
        answer(request).await.expect("the API answers")
    }
}

async fn answer(request: RequestBuilder) -> Result<Answer, reqwest::Error> {
    let response = request.send().await?;
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let body = response.bytes().await?;
    Ok(Answer { status, headers, body: serde_json::from_slice(&body).unwrap_or(Value::Null) })
}
