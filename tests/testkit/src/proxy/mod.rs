//! A JSON-RPC proxy between worker and node that injects faults on demand and forwards everything else.
//!
//! Rules apply to single calls, also within a batch; a connection fault affects the whole batch.

mod blind;
mod disagree;
mod fault;
mod http;
mod lag;
mod pool;
mod upstream;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use ethers_core::types::Address;
use parking_lot::{Mutex, MutexGuard};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

pub use self::disagree::Refused;
pub use self::fault::{Fault, SendsOf, Sent};
use self::fault::{Rule, SEND, flip};
use self::http::Reply;
use self::upstream::Upstream;

#[derive(Debug, Default)]
struct State {
    upstream: String,
    rules: VecDeque<Rule>,
    /// Shows no newer block than this.
    frozen_at: Option<u64>,
    /// A second backend that answers every other request.
    other: Option<disagree::Backend>,
    use_other: bool,
    refused: Vec<Refused>,
    /// Which data of mined transactions is hidden.
    hidden: blind::Hidden,
    /// Number of newest blocks whose state is available; `None`: all.
    keeps_states: Option<u64>,
    /// Whether it supports `txpool_contentFrom`, as geth does.
    shows_pool: bool,
    /// Answers every batch with one error.
    refuses_batches: bool,
    calls: HashMap<String, u64>,
    sent: Vec<String>,
    /// Cache of decoded raw transactions.
    read: HashMap<String, Option<Sent>>,
}

impl State {
    /// The fault of the first matching rule, in the order of their definition.
    fn pick(&mut self, method: &str, raw: Option<&str>) -> Option<Fault> {
        // Decoded only if a rule depends on the sender.
        let wanted = self.rules.iter().any(|rule| rule.of.is_some());
        let sent = raw.filter(|_| wanted).and_then(|raw| self.read(raw));
        let index = self.rules.iter().position(|rule| rule.catches(method, sent.as_ref()))?;
        let rule = &mut self.rules[index];
        let fault = rule.fault.clone();
        if let Some(left) = &mut rule.left {
            *left -= 1;
            if *left == 0 {
                self.rules.remove(index);
            }
        }
        Some(fault)
    }

    /// Decodes a raw transaction. Cached, because recovering the sender is slow and the same bytes are resent often.
    fn read(&mut self, raw: &str) -> Option<Sent> {
        if let Some(known) = self.read.get(raw) {
            return known.clone();
        }
        let sent = Sent::read(raw);
        self.read.insert(raw.to_owned(), sent.clone());
        sent
    }
}

/// Pseudo method name of `eth_getTransactionCount` with `pending`, for rules and call counts.
pub const PENDING_COUNT: &str = "eth_getTransactionCount of pending";

#[derive(Debug)]
pub struct Proxy {
    url: String,
    state: Arc<Mutex<State>>,
    serving: JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Proxy {
    pub async fn start(upstream: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(State { upstream: upstream.to_owned(), ..State::default() }));
        let shared = Arc::clone(&state);
        let serving = tokio::spawn(async move {
            let client = gapless_http_client::client_builder().build().expect("a client");
            // Dropped with this task, which closes all connections.
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (state, client) = (Arc::clone(&shared), client.clone());
                let each = move |body| {
                    let (state, client) = (Arc::clone(&state), client.clone());
                    async move { handle(&state, &client, body).await }
                };
                connections.spawn(http::serve(stream, each));
                while connections.try_join_next().is_some() {}
            }
        });
        Proxy { url, state, serving }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// Injects `fault` into every call of `method` (`*`: any), until `clear`.
    pub fn always(&self, method: &str, fault: Fault) {
        self.state().rules.push_back(Rule { method: method.into(), of: None, fault, left: None });
    }

    /// Injects `fault` into every matching send, until `clear`.
    pub fn always_to(&self, of: SendsOf, fault: Fault) {
        self.state().rules.push_back(Rule { method: SEND.into(), of: Some(of), fault, left: None });
    }

    /// Injects `fault` into the next matching send.
    pub fn next_to(&self, of: SendsOf, fault: Fault) {
        self.state().rules.push_back(Rule { method: SEND.into(), of: Some(of), fault, left: Some(1) });
    }

    /// Injects `fault` into the next `times` calls of `method` (`*`: any). Rules for the same method apply one after
    /// another.
    pub fn next(&self, times: u32, method: &str, fault: Fault) {
        assert!(times > 0, "a rule for no call");
        self.state().rules.push_back(Rule { method: method.into(), of: None, fault, left: Some(times) });
    }

    /// Removes all rules.
    pub fn clear(&self) {
        self.state().rules.clear();
    }

    /// Number of rules with remaining calls.
    pub fn rules_left(&self) -> usize {
        self.state().rules.len()
    }

    /// Shows the chain as of `block`. Sends are forwarded.
    pub fn freeze_at(&self, block: u64) {
        self.state().frozen_at = Some(block);
    }

    pub fn thaw(&self) {
        self.state().frozen_at = None;
    }

    /// Hides receipts, transactions, and blocks with their transactions. Transaction counts stay correct.
    pub fn hide_transactions(&self) {
        self.state().hidden = blind::Hidden::Everything;
    }

    /// Shows blocks and their receipts, but no transactions and receipts by hash.
    pub fn show_blocks(&self) {
        self.state().hidden = blind::Hidden::Index;
    }

    /// Ends `hide_transactions` and `show_blocks`.
    pub fn show_transactions(&self) {
        self.state().hidden = blind::Hidden::Nothing;
    }

    /// Only the states of the newest `blocks` blocks are available.
    pub fn keep_states(&self, blocks: u64) {
        self.state().keeps_states = Some(blocks);
    }

    /// The states of all blocks are available again.
    pub fn keep_all_states(&self) {
        self.state().keeps_states = None;
    }

    /// Supports `txpool_contentFrom`, which anvil lacks.
    pub fn show_pool(&self) {
        self.state().shows_pool = true;
    }

    /// Whether to accept batches, as most nodes do.
    pub fn accept_batches(&self, accept: bool) {
        self.state().refuses_batches = !accept;
    }

    /// Forwards to another node from now on.
    pub fn point_at(&self, upstream: &str) {
        self.state().upstream = upstream.to_owned();
    }

    /// Number of calls of a method so far, including failed ones.
    pub fn calls(&self, method: &str) -> u64 {
        self.state().calls.get(method).copied().unwrap_or(0)
    }

    /// Number of calls of all methods so far.
    pub fn all_calls(&self) -> u64 {
        // `PENDING_COUNT` calls are also counted under their method.
        self.state().calls.iter().filter(|(method, _)| *method != PENDING_COUNT).map(|(_, calls)| calls).sum()
    }

    /// The raw transactions of all sends so far, including resends.
    pub fn sent(&self) -> Vec<String> {
        self.state().sent.clone()
    }

    /// Sends of one address, in order.
    pub fn sent_by(&self, from: Address) -> Vec<Sent> {
        let mut state = self.state();
        let sent = state.sent.clone();
        sent.iter().filter_map(|raw| state.read(raw)).filter(|sent| sent.from == from).collect()
    }
}

/// A call and its fault.
struct Planned {
    call: Value,
    fault: Option<Fault>,
}

impl Planned {
    fn is_passed_on(&self) -> bool {
        self.fault.as_ref().is_none_or(Fault::is_passed_on)
    }
}

async fn handle(state: &Mutex<State>, client: &reqwest::Client, body: Value) -> Reply {
    let (batch, calls) = match body {
        Value::Array(calls) => (true, calls),
        single => (false, vec![single]),
    };
    let (planned, upstream) = {
        let mut state = state.lock();
        if batch && state.refuses_batches {
            let error = json!({ "code": -32600, "message": "batch requests are not supported" });
            let refusal = json!({ "jsonrpc": "2.0", "id": null, "error": error });
            return Reply::Whole(200, refusal.to_string());
        }
        let planned: Vec<Planned> = calls.into_iter().map(|call| plan(&mut state, call)).collect();
        let upstream = Upstream::next(&mut state);
        (planned, upstream)
    };
    if let Some(broken) =
        planned.iter().find_map(|planned| broken_before(planned.fault.as_ref()?, &planned.call["id"]))
    {
        return broken;
    }
    let passed: Vec<&Value> = planned.iter().filter(|one| one.is_passed_on()).map(|one| &one.call).collect();
    let Some(mut answers) = upstream.ask(client, &passed).await else { return Reply::Close };
    let again = planned.iter().filter(|planned| matches!(planned.fault, Some(Fault::Twice)));
    let again: Vec<&Value> = again.map(|planned| &planned.call).collect();
    let Some(second) = upstream.ask(client, &again).await else { return Reply::Close };
    answers.extend(second);
    let delay = planned.iter().filter_map(|planned| match planned.fault {
        Some(Fault::Delay(delay)) => Some(delay),
        _ => None,
    });
    tokio::time::sleep(delay.max().unwrap_or_default()).await;
    let answers: Vec<Value> = planned.iter().map(|planned| answer(planned, &answers)).collect();
    let text = if batch { Value::Array(answers).to_string() } else { answers[0].to_string() };
    let faults = || planned.iter().filter_map(|planned| planned.fault.as_ref());
    if faults().any(|fault| matches!(fault, Fault::DropAnswer)) {
        Reply::Close
    } else if faults().any(|fault| matches!(fault, Fault::Truncate)) {
        Reply::Truncated(text)
    } else if faults().any(|fault| matches!(fault, Fault::Corrupt)) {
        Reply::Corrupted(text)
    } else {
        Reply::Whole(200, text)
    }
}

fn plan(state: &mut State, call: Value) -> Planned {
    let method = call["method"].as_str().unwrap_or_default().to_owned();
    *state.calls.entry(method.clone()).or_default() += 1;
    let raw = call["params"][0].as_str().filter(|_| method == SEND).map(str::to_owned);
    state.sent.extend(raw.clone());
    let pending = method == "eth_getTransactionCount" && call["params"][1] == "pending";
    if pending {
        *state.calls.entry(PENDING_COUNT.to_owned()).or_default() += 1;
    }
    let fault = match state.hidden.hides(&call) {
        true => Some(Fault::Result(Value::Null)),
        false => {
            let special = if pending { state.pick(PENDING_COUNT, None) } else { None };
            special.or_else(|| state.pick(&method, raw.as_deref()))
        }
    };
    if let Some(Fault::Error { message, .. } | Fault::ErrorAfter { message, .. }) = &fault {
        let (params, message) = (call["params"].clone(), message.clone());
        state.refused.push(Refused { method, params, message });
    }
    Planned { fault, call }
}

/// The response of faults that are not forwarded and affect the whole batch.
fn broken_before(fault: &Fault, id: &Value) -> Option<Reply> {
    let with_id = |text: &str| text.replace("$id", &id.to_string());
    match fault {
        Fault::Status(status, text) => Some(Reply::Whole(*status, text.clone())),
        Fault::Html(text) => Some(Reply::Whole(200, text.clone())),
        Fault::Body(text) => Some(Reply::Whole(200, with_id(text))),
        Fault::Flood { bytes, announced } => {
            let begin = with_id(r#"{"jsonrpc":"2.0","id":$id,"error":{"code":3,"message":"no","data":["#);
            Some(Reply::Flood { begin, bytes: *bytes, announced: *announced })
        }
        Fault::Gzip(body) => Some(Reply::Gzip(body.clone())),
        Fault::Drip => Some(Reply::Drip),
        Fault::Redirect(to) => Some(Reply::Redirect(to.clone())),
        Fault::Close => Some(Reply::Close),
        Fault::Hang => Some(Reply::Never),
        _ => None,
    }
}

fn answer(planned: &Planned, answers: &HashMap<String, Value>) -> Value {
    let id = &planned.call["id"];
    let error = |code: i64, message: &str| json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } });
    match &planned.fault {
        Some(Fault::Error { code, message } | Fault::ErrorAfter { code, message }) => error(*code, message),
        Some(Fault::Result(result)) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        fault => {
            let found = answers.get(&id.to_string()).cloned();
            let mut found = found.unwrap_or_else(|| error(-32603, "the node did not respond to this call"));
            match fault {
                Some(Fault::WrongId) => found["id"] = json!("wrong-id"),
                Some(Fault::Flip) => flip(&mut found["result"]),
                _ => {}
            }
            found
        }
    }
}
