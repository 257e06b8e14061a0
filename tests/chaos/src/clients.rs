//! Clients that follow the documentation: they retry with the same `requestId` until they get a response.
//!
//! The data of each transaction is its `requestId`, so the chain alone shows how often a request had an effect.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use gapless_testkit::{ADMIN_TOKEN, Submitter};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use sqlx::types::chrono::{DateTime, Utc};

use super::ChaosRun;
use super::history::{Event, RequestTraits};

/// HTTP timeout of one try.
const TIMEOUT: Duration = Duration::from_secs(5);
const RETRY_INTERVAL: Duration = Duration::from_millis(150);
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Longest delay before a client cancels or speeds up: a few blocks.
const MAX_ACTION_DELAY: Duration = Duration::from_millis(2000);
/// Latest deadline, from now. Some pass while the request is queued, some after it has a nonce.
const MAX_DEADLINE: Duration = Duration::from_secs(6);
/// Number of unfinished requests at which a client waits.
const UNFINISHED: usize = 3;
/// Error code of a submitter in PROTECT, until an operator acts.
const PROTECTED: &str = "submitter_protected";
const WHILE_PROTECTED: Duration = Duration::from_millis(500);
const FINAL: [&str; 3] = ["CONFIRMED", "FAILED", "CANCELLED"];
/// Recipient of requests that succeed.
pub(crate) const SINK: &str = "0x00000000000000000000000000000000000051c0";
/// `max_value` of the policy, in wei.
pub(crate) const MOST_VALUE: u64 = 9;
/// Address of a contract that always reverts.
pub(crate) const TRAP: &str = "0x00000000000000000000000000000000000dead0";

/// Operations of `openapi.yaml`.
const CREATE: &str = "POST /api/v1/tx";
const GET: &str = "GET /api/v1/tx/{txId}";
const BY_REQUEST: &str = "GET /api/v1/tx/by-request";
const CANCEL: &str = "POST /api/v1/tx/{txId}/cancel";
const SPEED_UP: &str = "POST /api/v1/tx/{txId}/speed-up";
/// How often a client polls by `requestId` instead of by `txId`.
const BY_REQUEST_EVERY: u32 = 4;

/// Status, `txId` and error code of a response.
type Reply = (u16, Option<String>, Option<String>);

/// What a client does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Transfer,
    /// Calls a contract that reverts; fails without a nonce.
    Reverting,
    /// Is cancelled after it was accepted; may be mined first.
    Cancelled,
    /// Is sped up once or twice.
    SpedUp,
    /// Has a deadline, which may pass.
    WithDeadline,
    /// Exceeds `max_value` of its submitter's policy.
    Forbidden,
}

#[derive(Debug)]
struct Pending {
    request: String,
    tx_id: String,
}

/// One client of one submitter.
#[derive(Debug)]
pub(crate) struct Client<'a> {
    run: &'a ChaosRun,
    submitter: &'a Submitter,
    name: String,
    http: reqwest::Client,
    rng: StdRng,
    unfinished: VecDeque<Pending>,
    polls: u32,
    /// Whether its submitter has a policy.
    with_policy: bool,
}

impl<'a> Client<'a> {
    pub(crate) fn new(run: &'a ChaosRun, submitter: usize, number: usize) -> Client<'a> {
        let http = gapless_http_client::client_builder().timeout(TIMEOUT).build().expect("a client");
        let name = format!("s{submitter}c{number}");
        let seed = run.options.seed ^ ((submitter as u64 + 1) << 32) ^ ((number as u64 + 1) << 16);
        let with_policy = run.options.with_policy() == Some(submitter);
        let (submitter, rng) = (run.stack.submitter(submitter), StdRng::seed_from_u64(seed));
        Client { run, submitter, name, http, rng, unfinished: VecDeque::new(), polls: 0, with_policy }
    }

    /// Sends requests until `stop_requests`, then polls the unfinished ones.
    pub(crate) async fn work(mut self) {
        let mut number = 0;
        while !self.run.stop_requests.is_cancelled() {
            let request = format!("{}-{number}", self.name);
            number += 1;
            let purpose = self.purpose();
            let body = self.body(&request, purpose);
            let tx_id = if self.rng.random_bool(0.15) {
                // The same request twice at the same time, like a client that retries too early.
                let apis = (self.api(), self.api());
                let (one, two) = tokio::join!(
                    self.until_answered(&request, &body, apis.0),
                    self.until_answered(&request, &body, apis.1)
                );
                one.or(two)
            } else {
                let api = self.api();
                self.until_answered(&request, &body, api).await
            };
            // Rejected: the checker reports it if it was not justified.
            let Some(tx_id) = tx_id else { continue };
            if self.rng.random_bool(0.05) {
                self.reuse_id(&request, &body).await;
            }
            match purpose {
                Purpose::Cancelled => self.cancel(&request, &tx_id).await,
                Purpose::SpedUp => self.speed_up(&request, &tx_id).await,
                Purpose::Transfer | Purpose::Reverting | Purpose::WithDeadline | Purpose::Forbidden => {}
            }
            self.unfinished.push_back(Pending { request, tx_id });
            while self.unfinished.len() >= UNFINISHED && !self.run.stop_requests.is_cancelled() {
                self.look().await;
            }
            let pause = self.run.options.think.mul_f64(self.rng.random_range(0.0..2.0));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.run.stop_requests.cancelled() => {}
            }
        }
        // Poll until all are final or the run is abandoned.
        while !self.unfinished.is_empty() && !self.run.abandon.is_cancelled() {
            self.look().await;
        }
    }

    fn purpose(&mut self) -> Purpose {
        let throw = self.rng.random_range(0..100);
        match throw {
            _ if !self.run.options.varied => Purpose::Transfer,
            0..4 => Purpose::Reverting,
            4..9 => Purpose::Cancelled,
            9..14 => Purpose::SpedUp,
            14..18 => Purpose::WithDeadline,
            18..33 if self.with_policy => Purpose::Forbidden,
            _ => Purpose::Transfer,
        }
    }

    fn body(&mut self, request: &str, purpose: Purpose) -> Value {
        let to = if purpose == Purpose::Reverting { TRAP } else { SINK };
        let value = if purpose == Purpose::Forbidden { MOST_VALUE + 1 } else { 1 };
        let data = format!("0x{}", hex::encode(request));
        let mut payload = json!({ "to": to, "value": value.to_string(), "data": data });
        if purpose == Purpose::WithDeadline {
            // The machine's clock is also the database's.
            let at = DateTime::<Utc>::from(SystemTime::now() + MAX_DEADLINE.mul_f64(self.rng.random()));
            payload["deadline"] = json!(at.to_rfc3339());
        }
        json!({ "submitter": self.submitter.text(), "requestId": request, "payload": payload })
    }

    fn api(&mut self) -> usize {
        self.rng.random_range(0..self.run.apis.len())
    }

    /// Tries the APIs in turn. `None`: rejected.
    async fn until_answered(&self, request: &str, body: &Value, first: usize) -> Option<String> {
        let apis = self.run.apis.len();
        for api in (first..).map(|api| api % apis) {
            match self.once(request, body, api).await {
                Some((200 | 202, tx_id, _)) => return tx_id,
                // Retry until an operator has adopted or released the submitter.
                Some((409, _, Some(code))) if code == PROTECTED && !self.run.abandon.is_cancelled() => {
                    tokio::time::sleep(WHILE_PROTECTED).await;
                }
                Some((400..500, ..)) => return None,
                _ if self.run.abandon.is_cancelled() => return None,
                _ => tokio::time::sleep(RETRY_INTERVAL).await,
            }
        }
        None
    }

    /// One try. `None`: no response.
    async fn once(&self, request: &str, body: &Value, api: usize) -> Option<Reply> {
        let history = &self.run.history;
        let (op, request) = (history.next_op(), request.to_owned());
        let submitter = self.submitter.text();
        let payload = &body["payload"];
        let value: u64 = payload["value"].as_str().and_then(|value| value.parse().ok()).unwrap_or_default();
        let traits = RequestTraits {
            reverting: payload["to"] == TRAP,
            deadline: payload["deadline"].is_string(),
            forbidden: self.with_policy && (payload["to"] == TRAP || value > MOST_VALUE),
        };
        history.record(Event::Submit { op, request: request.clone(), submitter, api, traits });
        let url = format!("{}/api/v1/tx", self.run.apis[api].url());
        let answered = self.ask(CREATE, self.http.post(url).json(body));
        match answered.await {
            Ok((status, answer)) => {
                let text = |name: &str| answer[name].as_str().map(str::to_owned);
                let (tx_id, code) = (text("txId"), text("code"));
                history.record(Event::Answer {
                    op,
                    request,
                    status,
                    tx_id: tx_id.clone(),
                    code: code.clone(),
                });
                Some((status, tx_id, code))
            }
            Err(error) => {
                history.record(Event::NoAnswer { op, request, error: error.to_string() });
                None
            }
        }
    }

    async fn ask(&self, operation: &str, request: reqwest::RequestBuilder) -> reqwest::Result<(u16, Value)> {
        let response = request.send().await?;
        let status = response.status().as_u16();
        let body = response.bytes().await?;
        let answer = serde_json::from_slice(&body).unwrap_or(Value::Null);
        self.run.check_fields(operation, status, &answer);
        Ok((status, answer))
    }

    /// Sends another payload with a used `requestId`; the API must reject it.
    async fn reuse_id(&mut self, request: &str, body: &Value) {
        let mut other = body.clone();
        other["payload"]["value"] = json!("2");
        let url = format!("{}/api/v1/tx", self.run.apis[self.api()].url());
        if let Ok((status, _)) = self.ask(CREATE, self.http.post(url).json(&other)).await {
            self.run.history.record(Event::ReusedId { request: request.to_owned(), status });
        }
    }

    /// After a random delay, so that the request may be queued, in the mempool or mined.
    async fn cancel(&mut self, request: &str, tx_id: &str) {
        tokio::time::sleep(MAX_ACTION_DELAY.mul_f64(self.rng.random())).await;
        self.run.history.record(Event::CancelRequested { request: request.to_owned() });
        let url = format!("{}/api/v1/tx/{tx_id}/cancel?wait=1s", self.run.apis[self.api()].url());
        if let Ok((status, _)) = self.ask(CANCEL, self.http.post(url).json(&json!({}))).await {
            self.run.history.record(Event::Cancel { request: request.to_owned(), status });
        }
    }

    /// Once or twice, after random delays.
    async fn speed_up(&mut self, request: &str, tx_id: &str) {
        for _ in 0..self.rng.random_range(1..=2) {
            tokio::time::sleep(MAX_ACTION_DELAY.mul_f64(self.rng.random())).await;
            let url = format!("{}/api/v1/tx/{tx_id}/speed-up?wait=1s", self.run.apis[self.api()].url());
            let speed_up = self.http.post(url).bearer_auth(ADMIN_TOKEN).json(&json!({ "reason": "chaos" }));
            if let Ok((status, _)) = self.ask(SPEED_UP, speed_up).await {
                self.run.history.record(Event::SpeedUp { request: request.to_owned(), status });
            }
        }
    }

    /// Polls the oldest unfinished request and removes it if it is final.
    async fn look(&mut self) {
        let api = self.api();
        let Some(oldest) = self.unfinished.front() else { return };
        let url = format!("{}/api/v1/tx", self.run.apis[api].url());
        self.polls += 1;
        let answered = if self.polls.is_multiple_of(BY_REQUEST_EVERY) {
            let (submitter, request) = (self.submitter.text(), &oldest.request);
            let url = format!("{url}/by-request?submitter={submitter}&requestId={request}");
            self.ask(BY_REQUEST, self.http.get(url)).await
        } else {
            self.ask(GET, self.http.get(format!("{url}/{}", oldest.tx_id))).await
        };
        let request = oldest.request.clone();
        match answered {
            Ok((200, answer)) => {
                let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
                let (tx_id, state) = (text("txId"), text("state"));
                let is_final = FINAL.contains(&state.as_str());
                self.run.history.record(Event::StateSeen { request, tx_id, state });
                if is_final {
                    self.unfinished.pop_front();
                    return;
                }
            }
            Ok((404, _)) => self.run.history.record(Event::NotFound { request }),
            _ => {}
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
