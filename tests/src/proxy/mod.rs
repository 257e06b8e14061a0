//! A node that misbehaves on demand: it stands between worker and chain, and passes on what no rule catches.
//!
//! Rules apply to single calls, also inside a batch; a fault of the connection takes the whole batch with it, as it
//! would in life.

mod http;
mod lag;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use self::http::Reply;

/// What happens to a call.
#[derive(Clone, Debug)]
pub enum Fault {
    /// Passed on; the answer comes so much later.
    Delay(Duration),
    /// Passed on; the connection breaks before the answer.
    DropAnswer,
    /// Passed on; the connection breaks in the middle of the answer.
    Truncate,
    /// Passed on; the answer is to another question.
    WrongId,
    /// Passed on; answered with this error all the same.
    ErrorAfter { code: i64, message: String },
    /// Not passed on; answered with this error.
    Error { code: i64, message: String },
    /// Not passed on; answered with this result.
    Result(Value),
    /// Not passed on; an HTTP status with a text.
    Status(u16, String),
    /// Not passed on; 200 and something that is no JSON.
    Html(String),
    /// Not passed on; the connection breaks.
    Close,
    /// Not passed on; no answer, ever.
    Hang,
}

impl Fault {
    pub fn error(message: &str) -> Fault {
        Fault::Error { code: -32000, message: message.into() }
    }

    fn is_passed_on(&self) -> bool {
        use Fault::*;
        matches!(self, Delay(_) | DropAnswer | Truncate | WrongId | ErrorAfter { .. })
    }
}

#[derive(Debug)]
struct Rule {
    method: String,
    fault: Fault,
    /// `None`: for ever.
    left: Option<u32>,
}

#[derive(Debug, Default)]
struct State {
    upstream: String,
    rules: VecDeque<Rule>,
    /// The newest block it shows.
    frozen_at: Option<u64>,
    calls: HashMap<String, u64>,
    sent: Vec<String>,
}

impl State {
    /// The first rule for this method, in the order they were given.
    fn pick(&mut self, method: &str) -> Option<Fault> {
        let index = self.rules.iter().position(|rule| rule.method == method || rule.method == "*")?;
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
}

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
            let client = reqwest::Client::new();
            // Dropped with this task, and every connection with it.
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
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// From now on every call of `method` (`*`: any) meets `fault`, until `clear`.
    pub fn always(&self, method: &str, fault: Fault) {
        self.state().rules.push_back(Rule { method: method.into(), fault, left: None });
    }

    /// The next `times` calls of `method` (`*`: any) meet `fault`. Rules for the same method follow one another.
    pub fn next(&self, times: u32, method: &str, fault: Fault) {
        assert!(times > 0, "a rule for no call");
        self.state().rules.push_back(Rule { method: method.into(), fault, left: Some(times) });
    }

    /// Behaves again.
    pub fn clear(&self) {
        self.state().rules.clear();
    }

    /// Rules with a number of calls that have not met them all yet.
    pub fn rules_left(&self) -> usize {
        self.state().rules.len()
    }

    /// Shows the chain as it was when `block` was its newest. Sends are passed on.
    pub fn freeze_at(&self, block: u64) {
        self.state().frozen_at = Some(block);
    }

    pub fn thaw(&self) {
        self.state().frozen_at = None;
    }

    /// Passes on to another node from now on.
    pub fn point_at(&self, upstream: &str) {
        self.state().upstream = upstream.to_owned();
    }

    /// Calls of a method so far, whatever became of them.
    pub fn calls(&self, method: &str) -> u64 {
        self.state().calls.get(method).copied().unwrap_or(0)
    }

    /// The raw transactions of every send so far, repeated ones repeatedly.
    pub fn sent(&self) -> Vec<String> {
        self.state().sent.clone()
    }
}

/// A call with the fault it meets.
struct Planned {
    call: Value,
    fault: Option<Fault>,
}

async fn handle(state: &Mutex<State>, client: &reqwest::Client, body: Value) -> Reply {
    let (batch, calls) = match body {
        Value::Array(calls) => (true, calls),
        single => (false, vec![single]),
    };
    let (planned, upstream, frozen_at) = {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        let planned: Vec<Planned> = calls.into_iter().map(|call| plan(&mut state, call)).collect();
        (planned, state.upstream.clone(), state.frozen_at)
    };
    if let Some(broken) = planned.iter().find_map(|planned| broken_before(planned.fault.as_ref()?)) {
        return broken;
    }
    let Some(answers) = pass_on(client, &upstream, frozen_at, &planned).await else { return Reply::Close };
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
    } else {
        Reply::Whole(200, text)
    }
}

fn plan(state: &mut State, call: Value) -> Planned {
    let method = call["method"].as_str().unwrap_or_default().to_owned();
    *state.calls.entry(method.clone()).or_default() += 1;
    if method == "eth_sendRawTransaction"
        && let Some(raw) = call["params"][0].as_str()
    {
        state.sent.push(raw.to_owned());
    }
    Planned { fault: state.pick(&method), call }
}

/// Faults that end the whole exchange before anything is passed on.
fn broken_before(fault: &Fault) -> Option<Reply> {
    match fault {
        Fault::Status(status, text) => Some(Reply::Whole(*status, text.clone())),
        Fault::Html(text) => Some(Reply::Whole(200, text.clone())),
        Fault::Close => Some(Reply::Close),
        Fault::Hang => Some(Reply::Never),
        _ => None,
    }
}

/// Answers by the text of their id; `None`: the node did not answer.
async fn pass_on(
    client: &reqwest::Client,
    upstream: &str,
    frozen_at: Option<u64>,
    planned: &[Planned],
) -> Option<HashMap<String, Value>> {
    let passed = planned.iter().filter(|planned| planned.fault.as_ref().is_none_or(Fault::is_passed_on));
    let calls: Vec<Value> = passed
        .map(|planned| match frozen_at {
            Some(block) => lag::question(planned.call.clone(), block),
            None => planned.call.clone(),
        })
        .collect();
    if calls.is_empty() {
        return Some(HashMap::new());
    }
    let answers = client.post(upstream).json(&calls).send().await.ok()?.json::<Vec<Value>>().await.ok()?;
    let mut by_id: HashMap<String, Value> =
        answers.into_iter().map(|answer| (answer["id"].to_string(), answer)).collect();
    if let Some(block) = frozen_at {
        for call in &calls {
            if let Some(answer) = by_id.get_mut(&call["id"].to_string()) {
                lag::hide(call, answer, block);
            }
        }
    }
    Some(by_id)
}

fn answer(planned: &Planned, answers: &HashMap<String, Value>) -> Value {
    let id = &planned.call["id"];
    let error = |code: i64, message: &str| json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } });
    match &planned.fault {
        Some(Fault::Error { code, message } | Fault::ErrorAfter { code, message }) => error(*code, message),
        Some(Fault::Result(result)) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        fault => {
            let found = answers.get(&id.to_string()).cloned();
            let mut found = found.unwrap_or_else(|| error(-32603, "the node did not answer this call"));
            if matches!(fault, Some(Fault::WrongId)) {
                found["id"] = json!("somebody else's");
            }
            found
        }
    }
}
