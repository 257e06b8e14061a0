//! /healthz, /readyz and /metrics of the worker.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use gapless_http::Limits;
use gapless_signer::SignerSet;
use gapless_store::Store;
use gapless_telemetry::{MetricsHandle, Program, install_metrics};
use metrics::Gauge;
use parking_lot::Mutex;
use poem::http::StatusCode;
use poem::web::{Data, Json};
use poem::{EndpointExt, Route, get, handler};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::chains::Chain;
use crate::initial_counters;

/// Time limit of a connection. Readiness queries the database, which answers or fails well within it.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);

/// Probes and scrapers retry anyway, so the listener has none of the API's limits that answer a client with an error.
const LIMITS: Limits = Limits {
    max_connections: 32,
    // The connection timeout frees the slots.
    max_per_address: None,
    max_header_bytes: 16 << 10,
    // Both end with the connection at the latest.
    header_timeout: CONNECTION_TIMEOUT,
    send_timeout: CONNECTION_TIMEOUT,
    connection_timeout: Some(CONNECTION_TIMEOUT),
    keep_alive: false,
    shutdown_grace: Duration::from_secs(1),
};

/// Why a worker is not ready, or has a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum UnreadyReason {
    Database,
    Schema,
    ChainHalted,
    /// No node of a chain answers.
    Node,
    /// The submitters are not announced yet.
    NotAnnounced,
    /// A key cannot be read, or a remote signer does not answer. The worker is ready: it serves the other keys.
    Signer,
}

impl UnreadyReason {
    fn as_str(self) -> &'static str {
        match self {
            UnreadyReason::Database => "database",
            UnreadyReason::Schema => "schema",
            UnreadyReason::ChainHalted => "chain_halted",
            UnreadyReason::Node => "node",
            UnreadyReason::NotAnnounced => "not_announced",
            UnreadyReason::Signer => "signer",
        }
    }
}

/// Readiness of this process.
#[derive(Clone, Debug)]
pub(crate) struct Health {
    inner: Arc<Mutex<State>>,
    metrics: MetricsHandle,
    /// Checked on every readiness request: the database may have become unreachable.
    store: Store,
}

#[derive(Debug, Default)]
struct State {
    signers: Arc<SignerSet>,
    chains: Vec<Arc<Chain>>,
    /// The API answers 404 for submitters that are not announced.
    announced: bool,
    /// The last error of the database check, which was logged.
    database_error: Option<String>,
}

impl Health {
    pub(crate) fn new(store: Store) -> Self {
        let metrics = install_metrics(Program::Worker);
        initial_counters::register();
        Health { inner: Arc::default(), metrics, store }
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.inner.lock())
    }

    pub(crate) fn watch_signers(&self, signers: Arc<SignerSet>) {
        self.with(|state| state.signers = signers);
    }

    pub(crate) fn watch_chains(&self, chains: Vec<Arc<Chain>>) {
        self.with(|state| state.chains = chains);
    }

    pub(crate) fn set_announced(&self) {
        self.with(|state| state.announced = true);
    }

    /// How often each reason applies. Counts only: the page needs no authentication, so it names no submitter, node, key
    /// or file. The log has the details.
    async fn reasons(&self) -> BTreeMap<UnreadyReason, usize> {
        let mut reasons = BTreeMap::new();
        let mut add = |reason, count: usize| {
            if count > 0 {
                *reasons.entry(reason).or_default() += count;
            }
        };
        let database = self.store.check_schema().await.err();
        if let Some(error) = &database {
            add(if error.is_schema() { UnreadyReason::Schema } else { UnreadyReason::Database }, 1);
        }
        self.log_database(database.map(|error| error.to_string()));
        let (chains, signers, announced) =
            self.with(|state| (state.chains.clone(), state.signers.clone(), state.announced));
        for reason in chains.iter().filter_map(|chain| chain.unready()) {
            add(reason, 1);
        }
        add(UnreadyReason::NotAnnounced, usize::from(!announced));
        add(UnreadyReason::Signer, signers.problems().len());
        reasons
    }

    /// Once for each error, not for each request.
    fn log_database(&self, error: Option<String>) {
        let is_new = self.with(|state| std::mem::replace(&mut state.database_error, error.clone()) != error);
        if let Some(error) = error.filter(|_| is_new) {
            tracing::info!(error, "not ready");
        }
    }

    /// Serves until `stop`; returns immediately if no address is configured.
    pub(crate) fn serve(self, bind: Option<SocketAddr>, stop: CancellationToken) -> JoinHandle<()> {
        tokio::spawn(async move {
            let Some(bind) = bind else { return };
            let app = Route::new()
                .at("/healthz", get(healthz))
                .at("/readyz", get(readyz))
                .at("/metrics", get(render_metrics))
                .data(self);
            match TcpListener::bind(bind).await {
                Ok(listener) => {
                    gapless_http::serve(listener, app, LIMITS, None, Gauge::noop(), &stop).await;
                }
                Err(error) => tracing::error!(error = %error, %bind, "could not bind worker.metrics_bind"),
            }
        })
    }
}

#[handler]
fn healthz() -> &'static str {
    "ok"
}

#[handler]
async fn readyz(Data(health): Data<&Health>) -> (StatusCode, Json<serde_json::Value>) {
    let reasons = health.reasons().await;
    let ready = reasons.keys().all(|reason| *reason == UnreadyReason::Signer);
    let status = if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let counts: BTreeMap<&str, usize> =
        reasons.iter().map(|(reason, count)| (reason.as_str(), *count)).collect();
    (status, Json(serde_json::json!({ "ready": ready, "reasons": counts })))
}

#[handler]
fn render_metrics(Data(health): Data<&Health>) -> String {
    health.metrics.render()
}
