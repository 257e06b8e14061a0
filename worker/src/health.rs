//! /healthz, /readyz and /metrics of the worker.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use gapless_http::Limits;
use gapless_signer::SignerSet;
use gapless_store::Store;
use gapless_telemetry::{MetricsHandle, Program, install_metrics};
use metrics::Gauge;
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
}

impl Health {
    pub(crate) fn new(store: Store) -> Self {
        let metrics = install_metrics(Program::Worker);
        initial_counters::register();
        Health { inner: Arc::default(), metrics, store }
    }

    fn with<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        act(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
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

    async fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if let Err(error) = self.store.check_schema().await {
            missing.push(format!("database: unavailable ({error})"));
        }
        for chain in self.with(|state| state.chains.clone()) {
            if let Some(problem) = chain.problem() {
                missing.push(format!("chain {}: {problem}", chain.config.name));
            }
        }
        if !self.with(|state| state.announced) {
            missing.push("submitters: not announced yet".to_owned());
        }
        missing
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
    let missing = health.missing().await;
    let signers = health.with(|state| state.signers.clone());
    let signer_problems: Vec<String> =
        signers.problems().iter().map(|problem| format!("{}: {}", problem.source, problem.reason)).collect();
    let status = if missing.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = serde_json::json!({ "ready": missing.is_empty(), "missing": missing, "signerProblems": signer_problems });
    (status, Json(body))
}

#[handler]
fn render_metrics(Data(health): Data<&Health>) -> String {
    health.metrics.render()
}
