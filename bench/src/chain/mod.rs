//! An in-process chain: real JSON-RPC over loopback, real signatures, no execution. It accepts every
//! transaction with the next nonce and mines instantly, so that the worker is what is measured.

mod ledger;
mod rpc;
mod transaction;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use ethers_core::types::{Address, Bytes, H256};
use parking_lot::{Mutex, MutexGuard};
use poem::http::header;
use poem::listener::{Acceptor, Listener, TcpListener};
use poem::web::Data;
use poem::{EndpointExt, Response, Route, Server, handler, post};
use tokio::task::JoinHandle;

use ledger::Ledger;

/// When blocks are mined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mining {
    /// After every request with transactions.
    AtOnce,
    /// At an interval, also empty blocks.
    Every(Duration),
}

#[derive(Debug)]
struct Shared {
    ledger: Mutex<Ledger>,
    mining: Mining,
    /// Number of JSON-RPC calls by method; each call of a batch counts.
    calls: Mutex<Calls>,
}

/// Number of calls by method.
pub(crate) type Calls = BTreeMap<String, u64>;

impl Shared {
    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock()
    }
}

/// A running chain. Stops when dropped.
#[derive(Debug)]
pub(crate) struct Chain {
    shared: Arc<Shared>,
    url: String,
    tasks: Vec<JoinHandle<()>>,
}

impl Chain {
    pub(crate) async fn start(chain_id: u64, mining: Mining) -> Result<Chain> {
        let ledger = Mutex::new(Ledger::new(chain_id));
        let shared = Arc::new(Shared { ledger, mining, calls: Mutex::default() });
        let acceptor = TcpListener::bind("127.0.0.1:0").into_acceptor().await?;
        let address = acceptor.local_addr().into_iter().find_map(|found| found.as_socket_addr().copied());
        let url = format!("http://{}", address.context("the chain has no listening address")?);
        let app = Route::new().at("/", post(answer)).data(shared.clone());
        let serving = tokio::spawn(async move {
            // Ends with the task; errors are ignored.
            let _ = Server::new_with_acceptor(acceptor).run(app).await;
        });
        let mut tasks = vec![serving];
        if let Mining::Every(interval) = mining {
            let shared = shared.clone();
            tasks.push(tokio::spawn(async move {
                loop {
                    tokio::time::sleep(interval).await;
                    shared.ledger().mine();
                }
            }));
        }
        Ok(Chain { shared, url, tasks })
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    pub(crate) fn calls(&self) -> f64 {
        self.calls_by_method().values().sum::<u64>() as f64
    }

    pub(crate) fn calls_by_method(&self) -> Calls {
        self.shared.calls.lock().clone()
    }

    /// Waits until `count` transactions are mined, without database queries.
    pub(crate) async fn wait_mined(&self, count: usize, limit: Duration) -> Result<()> {
        let deadline = Instant::now() + limit;
        loop {
            let (mined, refused) = {
                let ledger = self.shared.ledger();
                (ledger.mined(), ledger.refused().cloned())
            };
            if let Some(refused) = refused {
                bail!("the chain refused a transaction: {refused}");
            }
            if mined >= count {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("{mined} of {count} transactions are mined after {limit:?}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub(crate) fn mined(&self) -> usize {
        self.shared.ledger().mined()
    }

    /// Mines signed transactions in one block without RPC. Returns its number and hash.
    pub(crate) fn plant(&self, raws: &[Bytes]) -> Result<(u64, H256)> {
        let mut ledger = self.shared.ledger();
        for raw in raws {
            let planted = transaction::decode(raw, ledger.chain_id).map_err(anyhow::Error::msg)?;
            ledger.take(planted).map_err(anyhow::Error::msg)?;
        }
        ledger.mine();
        Ok((ledger.head().number, ledger.head().hash))
    }

    /// By sender, the time from `since` to its first transaction.
    pub(crate) fn next_sends(&self, senders: &[Address], since: Instant) -> HashMap<Address, Duration> {
        let ledger = self.shared.ledger();
        let mut first: HashMap<Address, Duration> = HashMap::new();
        for (at, sender) in ledger.sends().iter().filter(|(at, _)| *at > since) {
            if senders.contains(sender) {
                first.entry(*sender).or_insert(at.duration_since(since));
            }
        }
        first
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

#[handler]
fn answer(shared: Data<&Arc<Shared>>, body: Vec<u8>) -> Response {
    let text = rpc::answer(&shared.0.ledger, &shared.0.calls, shared.0.mining, &body);
    Response::builder().header(header::CONTENT_TYPE, "application/json").body(text)
}
