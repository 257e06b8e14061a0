//! Clients as the documentation wants them: they send again with the same id until they are answered, and believe the answer.
//!
//! Each request carries its id as the data of its transaction, so that the chain alone says how often it happened.

use std::collections::VecDeque;
use std::time::{Duration, SystemTime};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use sqlx::types::chrono::{DateTime, Utc};

use super::Arena;
use super::history::{Asked, Event};
use crate::service::ADMIN_TOKEN;
use crate::submitter::Submitter;

/// A client gives up on one try after this, and tries again.
const PATIENCE: Duration = Duration::from_secs(5);
const BETWEEN_TRIES: Duration = Duration::from_millis(150);
const BETWEEN_LOOKS: Duration = Duration::from_millis(250);
/// Until a client changes its mind, at most: a few blocks.
const LONGEST_REGRET: Duration = Duration::from_millis(2000);
/// Until a deadline, at most. Some pass while the request waits for its nonce, some while it is on its way.
const LONGEST_LIMIT: Duration = Duration::from_secs(6);
/// Requests that a client leaves unfinished before it waits.
const UNFINISHED: usize = 3;
/// The code of a refusal that ends when an operator has decided.
const PROTECTED: &str = "submitter_protected";
const WHILE_PROTECTED: Duration = Duration::from_millis(500);
const FINAL: [&str; 3] = ["CONFIRMED", "FAILED", "CANCELLED"];
/// Where requests go that have an effect.
pub(super) const SINK: &str = "0x00000000000000000000000000000000000051c0";
/// Wei that the submitter with a policy may send in one transaction.
pub(super) const MOST_VALUE: u64 = 9;
/// Where a contract refuses everything.
pub(super) const TRAP: &str = "0x00000000000000000000000000000000000dead0";

/// Status, id and code of an answer.
type Said = (u16, Option<String>, Option<String>);

/// What becomes of a request, as far as its client decides that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    Transfer,
    /// To a contract that refuses it: fails without a nonce.
    Doomed,
    /// Cancelled right after it was accepted; who wins is open.
    Cancelled,
    /// A higher price is asked for, once or twice.
    Hurried,
    /// Has a deadline for its nonce, and may miss it.
    Limited,
    /// The policy of its submitter does not allow so much.
    Forbidden,
}

#[derive(Debug)]
struct Pending {
    request: String,
    tx_id: String,
}

/// One client of one submitter.
#[derive(Debug)]
pub(super) struct Client<'a> {
    arena: &'a Arena,
    submitter: &'a Submitter,
    name: String,
    http: reqwest::Client,
    dice: StdRng,
    unfinished: VecDeque<Pending>,
    /// Its submitter has a policy.
    policed: bool,
}

impl<'a> Client<'a> {
    pub(super) fn new(arena: &'a Arena, submitter: usize, number: usize) -> Client<'a> {
        let http = reqwest::Client::builder().timeout(PATIENCE).build().expect("a client");
        let name = format!("s{submitter}c{number}");
        let seed = arena.options.seed ^ ((submitter as u64 + 1) << 32) ^ ((number as u64 + 1) << 16);
        let policed = arena.options.policed() == Some(submitter);
        let (submitter, dice) = (arena.stack.submitter(submitter), StdRng::seed_from_u64(seed));
        Client { arena, submitter, name, http, dice, unfinished: VecDeque::new(), policed }
    }

    /// Until told to stop; what was begun is brought to an answer.
    pub(super) async fn work(mut self) {
        let mut number = 0;
        while !self.arena.quiet.is_cancelled() {
            let request = format!("{}-{number}", self.name);
            number += 1;
            let purpose = self.purpose();
            let body = self.body(&request, purpose);
            let tx_id = if self.dice.random_bool(0.15) {
                // Twice at once: a client whose first try was slow.
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
            // Refused for good: the checker has something to say about that.
            let Some(tx_id) = tx_id else { continue };
            if self.dice.random_bool(0.05) {
                self.pretend(&request, &body).await;
            }
            match purpose {
                Purpose::Cancelled => self.cancel(&request, &tx_id).await,
                Purpose::Hurried => self.speed_up(&request, &tx_id).await,
                Purpose::Transfer | Purpose::Doomed | Purpose::Limited | Purpose::Forbidden => {}
            }
            self.unfinished.push_back(Pending { request, tx_id });
            while self.unfinished.len() >= UNFINISHED && !self.arena.quiet.is_cancelled() {
                self.look().await;
            }
            let pause = self.arena.options.think.mul_f64(self.dice.random_range(0.0..2.0));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = self.arena.quiet.cancelled() => {}
            }
        }
        // Told to the end, as far as there is one.
        while !self.unfinished.is_empty() && !self.arena.closing.is_cancelled() {
            self.look().await;
        }
    }

    fn purpose(&mut self) -> Purpose {
        let throw = self.dice.random_range(0..100);
        match throw {
            _ if !self.arena.options.varied => Purpose::Transfer,
            0..4 => Purpose::Doomed,
            4..9 => Purpose::Cancelled,
            9..14 => Purpose::Hurried,
            14..18 => Purpose::Limited,
            18..33 if self.policed => Purpose::Forbidden,
            _ => Purpose::Transfer,
        }
    }

    fn body(&mut self, request: &str, purpose: Purpose) -> Value {
        let to = if purpose == Purpose::Doomed { TRAP } else { SINK };
        let value = if purpose == Purpose::Forbidden { MOST_VALUE + 1 } else { 1 };
        let data = format!("0x{}", hex::encode(request));
        let mut payload = json!({ "to": to, "value": value.to_string(), "data": data });
        if purpose == Purpose::Limited {
            // By the machine's clock, which is the database's.
            let at = DateTime::<Utc>::from(SystemTime::now() + LONGEST_LIMIT.mul_f64(self.dice.random()));
            payload["deadline"] = json!(at.to_rfc3339());
        }
        json!({ "submitter": self.submitter.text(), "requestId": request, "payload": payload })
    }

    fn api(&mut self) -> usize {
        self.dice.random_range(0..self.arena.apis.len())
    }

    /// Tries one API after the other. `None`: refused for good.
    async fn until_answered(&self, request: &str, body: &Value, first: usize) -> Option<String> {
        let apis = self.arena.apis.len();
        for api in (first..).map(|api| api % apis) {
            match self.once(request, body, api).await {
                Some((200 | 202, tx_id, _)) => return tx_id,
                // An operator will see to it; the request is as good as before.
                Some((409, _, Some(code))) if code == PROTECTED && !self.arena.closing.is_cancelled() => {
                    tokio::time::sleep(WHILE_PROTECTED).await;
                }
                Some((400..500, ..)) => return None,
                _ if self.arena.closing.is_cancelled() => return None,
                _ => tokio::time::sleep(BETWEEN_TRIES).await,
            }
        }
        None
    }

    /// One try: status, id and code; `None`: no answer.
    async fn once(&self, request: &str, body: &Value, api: usize) -> Option<Said> {
        let history = &self.arena.history;
        let (op, request) = (history.next_op(), request.to_owned());
        let submitter = self.submitter.text();
        let payload = &body["payload"];
        let value: u64 = payload["value"].as_str().and_then(|value| value.parse().ok()).unwrap_or_default();
        let asked = Asked {
            doomed: payload["to"] == TRAP,
            deadline: payload["deadline"].is_string(),
            forbidden: self.policed && (payload["to"] == TRAP || value > MOST_VALUE),
        };
        history.note(Event::Submit { op, request: request.clone(), submitter, api, asked });
        let answered =
            self.ask(self.http.post(format!("{}/api/v1/tx", self.arena.apis[api].url())).json(body));
        match answered.await {
            Ok((status, answer)) => {
                let text = |name: &str| answer[name].as_str().map(str::to_owned);
                let (tx_id, code) = (text("txId"), text("code"));
                history.note(Event::Answer { op, request, status, tx_id: tx_id.clone(), code: code.clone() });
                Some((status, tx_id, code))
            }
            Err(error) => {
                history.note(Event::NoAnswer { op, request, error: error.to_string() });
                None
            }
        }
    }

    async fn ask(&self, request: reqwest::RequestBuilder) -> reqwest::Result<(u16, Value)> {
        let response = request.send().await?;
        let status = response.status().as_u16();
        let body = response.bytes().await?;
        Ok((status, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }

    /// The same id for something else: must be refused.
    async fn pretend(&mut self, request: &str, body: &Value) {
        let mut other = body.clone();
        other["payload"]["value"] = json!("2");
        let url = format!("{}/api/v1/tx", self.arena.apis[self.api()].url());
        if let Ok((status, _)) = self.ask(self.http.post(url).json(&other)).await {
            self.arena.history.note(Event::Impostor { request: request.to_owned(), status });
        }
    }

    /// At once, while it waits for its nonce, or a little later, when it may be on its way or mined.
    async fn cancel(&mut self, request: &str, tx_id: &str) {
        tokio::time::sleep(LONGEST_REGRET.mul_f64(self.dice.random())).await;
        self.arena.history.note(Event::CancelAsked { request: request.to_owned() });
        let url = format!("{}/api/v1/tx/{tx_id}/cancel?wait=1s", self.arena.apis[self.api()].url());
        if let Ok((status, _)) = self.ask(self.http.post(url).json(&json!({}))).await {
            self.arena.history.note(Event::Cancel { request: request.to_owned(), status });
        }
    }

    /// Once or twice, while it waits, while it is on its way or when it is mined.
    async fn speed_up(&mut self, request: &str, tx_id: &str) {
        for _ in 0..self.dice.random_range(1..=2) {
            tokio::time::sleep(LONGEST_REGRET.mul_f64(self.dice.random())).await;
            let url = format!("{}/api/v1/tx/{tx_id}/speed-up?wait=1s", self.arena.apis[self.api()].url());
            let asked = self.http.post(url).bearer_auth(ADMIN_TOKEN).json(&json!({ "reason": "chaos" }));
            if let Ok((status, _)) = self.ask(asked).await {
                self.arena.history.note(Event::SpeedUp { request: request.to_owned(), status });
            }
        }
    }

    /// Asks after the oldest unfinished one, which is done with once it is final.
    async fn look(&mut self) {
        let api = self.api();
        let Some(oldest) = self.unfinished.front() else { return };
        let url = format!("{}/api/v1/tx/{}", self.arena.apis[api].url(), oldest.tx_id);
        if let Ok((200, answer)) = self.ask(self.http.get(url)).await
            && let Some(state) = answer["state"].as_str()
        {
            let (request, tx_id) = (oldest.request.clone(), oldest.tx_id.clone());
            self.arena.history.note(Event::Told { request, tx_id, state: state.to_owned() });
            if FINAL.contains(&state) {
                self.unfinished.pop_front();
                return;
            }
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    }
}
