//! A fake node for unit tests: a socket and a closure that decides the response, including failures.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::client::EvmClient;
use gapless_config::{
    ChainConfig, Confirmations, Fees, GasBump, Mempool, Nonce, Resubmit, Rpc, Secret, Stuck,
};
use gapless_domain::ChainId;

/// What the node does with a request.
pub(super) enum Act {
    Answer(u16, String),
    /// Closes the connection in the middle of this body.
    Truncate(String),
    Reset,
    Hang,
}

pub(super) struct Node {
    pub(super) url: String,
    seen: Arc<Mutex<Vec<Value>>>,
    gate: Arc<Semaphore>,
}

impl Node {
    pub(super) async fn start(act: impl Fn(&Value) -> Act + Send + Sync + 'static) -> Node {
        Node::with_gate(act, Semaphore::MAX_PERMITS).await
    }

    /// Answers nothing until released.
    pub(super) async fn gated(act: impl Fn(&Value) -> Act + Send + Sync + 'static) -> Node {
        Node::with_gate(act, 0).await
    }

    async fn with_gate(act: impl Fn(&Value) -> Act + Send + Sync + 'static, open: usize) -> Node {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/key-in-path", listener.local_addr().unwrap());
        let (seen, gate) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Semaphore::new(open)));
        let (act, node) = (Arc::new(act), Node { url, seen: Arc::clone(&seen), gate: Arc::clone(&gate) });
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (act, seen, gate) = (Arc::clone(&act), Arc::clone(&seen), Arc::clone(&gate));
                tokio::spawn(async move { serve(stream, &*act, &seen, &gate).await });
            }
        });
        node
    }

    pub(super) fn release(&self) {
        self.gate.add_permits(1_000_000);
    }

    /// Every body so far.
    pub(super) fn bodies(&self) -> Vec<Value> {
        self.seen.lock().unwrap().clone()
    }

    /// Number of calls in each request so far.
    pub(super) fn batches(&self) -> Vec<usize> {
        self.bodies().iter().map(|body| body.as_array().map_or(1, Vec::len)).collect()
    }

    pub(super) async fn until_seen(&self, requests: usize) {
        let waited = tokio::time::timeout(Duration::from_secs(10), async {
            while self.bodies().len() < requests {
                tokio::task::yield_now().await;
            }
        });
        waited.await.unwrap_or_else(|_| panic!("received {} of {requests} requests", self.bodies().len()));
    }
}

async fn serve(
    stream: TcpStream,
    act: &(impl Fn(&Value) -> Act + Send + Sync),
    seen: &Mutex<Vec<Value>>,
    gate: &Semaphore,
) -> Option<()> {
    let mut stream = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            let line = line.trim().to_lowercase();
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.ok()?;
        let body: Value = serde_json::from_slice(&body).ok()?;
        seen.lock().unwrap().push(body.clone());
        gate.acquire().await.ok()?.forget();
        match act(&body) {
            Act::Answer(status, text) => {
                let head = format!("HTTP/1.1 {status} Said\r\nContent-Length: {}\r\n\r\n", text.len());
                stream.write_all((head + &text).as_bytes()).await.ok()?;
            }
            Act::Truncate(text) => {
                let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", text.len());
                stream.write_all((head + &text[..text.len() / 2]).as_bytes()).await.ok()?;
                return None;
            }
            Act::Reset => return None,
            Act::Hang => std::future::pending().await,
        }
    }
}

/// Answers each call of a body with `result`: `Ok` is a result, `Err` an error object.
pub(super) fn answer(body: &Value, result: impl Fn(&Value) -> Result<Value, Value>) -> Act {
    Act::Answer(200, replies(body, result).to_string())
}

pub(super) fn replies(body: &Value, result: impl Fn(&Value) -> Result<Value, Value>) -> Value {
    let one = |call: &Value| match result(call) {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": call["id"], "result": result }),
        Err(error) => json!({ "jsonrpc": "2.0", "id": call["id"], "error": error }),
    };
    match body.as_array() {
        // Reversed: replies must be matched by id, not by position.
        Some(calls) => calls.iter().rev().map(one).collect(),
        None => one(body),
    }
}

pub(super) fn config(nodes: &[&Node]) -> ChainConfig {
    ChainConfig {
        name: "test".into(),
        id: ChainId(31337),
        urls: nodes.iter().map(|node| Secret::new(node.url.clone())).collect(),
        rpc: Rpc::default(),
        nonce: Nonce::default(),
        fees: Fees::default(),
        gasbump: GasBump::default(),
        mempool: Mempool::default(),
        resubmit: Resubmit::default(),
        queue: Default::default(),
        stuck: Stuck::default(),
        confirmations: Confirmations::default(),
        adapters: Default::default(),
        low_balance: None,
        submitters: Default::default(),
        policies: Default::default(),
    }
}

pub(super) fn client(nodes: &[&Node]) -> EvmClient {
    EvmClient::new(&config(nodes)).unwrap()
}

/// For nodes that hang: a timeout that is short enough for a test.
pub(super) fn short_timeout_client(nodes: &[&Node]) -> EvmClient {
    let mut config = config(nodes);
    config.rpc.timeout = Duration::from_millis(300);
    EvmClient::new(&config).unwrap()
}
