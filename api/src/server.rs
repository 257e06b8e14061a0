//! Starts the server from a configuration and runs it until shutdown.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gapless_config::{Api, ApiTls, Config};
use gapless_events::{EventFeed, publisher};
use gapless_http::{BodyLimit, Limits, Tls, TlsFiles};
use gapless_store::notifier::{self, Notifier};
use gapless_store::{Channel, Store, Timeouts, database_warnings};
use gapless_telemetry::metrics::API_CONNECTIONS;
use gapless_telemetry::{Program, install_metrics};
use poem::endpoint::make_sync;
use poem::http::Method;
use poem::web::{Html, Redirect};
use poem::{Endpoint, EndpointExt, IntoEndpoint, IntoResponse, Request, Response, Route, get, post};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::app::{App, Chains, Policies, SharedApp};
use crate::auth::{AuthMiddleware, Authenticator};
use crate::document;
use crate::error::ApiError;
use crate::events::EventStreams;
use crate::intake::{self, Intake, QueueLimits};
use crate::json_rpc::{self, Outlooks};
use crate::long_poll::{Awaited, LongPolls};
use crate::middleware::RequestMiddleware;
use crate::nodes::Nodes;
use crate::query::QueryMiddleware;
use crate::routes;
use crate::webhooks::Webhooks;

/// Short: a client can retry a refused request sooner than a blocked one.
const TIMEOUTS: Timeouts = Timeouts { statement: Duration::from_secs(10), acquire: Duration::from_secs(2) };
/// Time to finish open requests on shutdown. Long polls end at once.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(10);
/// One connection: a key lookup query serves many requests.
const KEY_LOOKUP_CONNECTIONS: u32 = 1;
/// Pause before recording of events is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// Interval of metrics upkeep, which bounds the histograms even if nothing scrapes them.
const METRICS_UPKEEP: Duration = Duration::from_secs(5);

/// Serves until `shutdown`. Fails at once if the schema is older than this program, the address is in use, the
/// certificate or the key file of webhooks is unusable, or clients on other machines could connect without a key. Waits,
/// with a warning, if the database is unreachable.
pub async fn run(config: Config, shutdown: CancellationToken) -> anyhow::Result<()> {
    for warning in database_warnings(&config.database.url).into_iter().chain(config.security_warnings()) {
        tracing::warn!(warning, "not secure");
    }
    let webhooks = Webhooks::new(&config)?;
    let store = Store::new(&config.database.url, "gapless-api", config.database.max_connections, TIMEOUTS)?;
    // A pool of its own, so that creates never wait for connections used by reads.
    let intake_connections = intake::CONNECTIONS + KEY_LOOKUP_CONNECTIONS;
    let intake_store = Store::new(&config.database.url, "gapless-api-intake", intake_connections, TIMEOUTS)?;
    let authenticator = Authenticator::new(&config.api, &intake_store);
    match store.check_usable().await {
        Err(error) if error.needs_operator() => return Err(error.into()),
        Err(_) => {}
        // Before the server listens. If this fails, it is repeated once the database is back.
        Ok(()) => {
            if let Err(error) = authenticator.check_for_keys(&store).await {
                tracing::warn!(%error, "could not check whether API keys exist; retrying");
            }
            authenticator.check_bind_address()?;
        }
    }
    if config.events.mode.asks_for_recording() && !ask_for_events(&store).await {
        tokio::spawn(ask_again(store.clone(), shutdown.clone()));
    }
    // A pool of its own, so that NOTIFY never waits for a connection used by requests.
    let notify_store = Store::new(&config.database.url, "gapless-api-notify", 1, TIMEOUTS)?;
    let app =
        app(&config, authenticator, webhooks, store.clone(), &intake_store, notify_store, shutdown.clone());
    let stop = CancellationToken::new();
    let tls = match &config.api.tls {
        Some(tls) => Some(Tls::start(tls_files(tls), &stop).await?),
        None => None,
    };
    let listener = TcpListener::bind(config.api.bind)
        .await
        .with_context(|| format!("api.bind: cannot listen on {}", config.api.bind))?;
    tracing::info!(address = %listener.local_addr()?, tls = tls.is_some(), "the API is listening");
    let endpoint = endpoint(app.clone(), &config.api);
    let open_connections = metrics::gauge!(API_CONNECTIONS);
    let served = async {
        let limits = limits(&config.api);
        let unfinished = gapless_http::serve(listener, endpoint, limits, tls, open_connections, &stop).await;
        if unfinished > 0 {
            tracing::warn!(connections = unfinished, "closing connections with unfinished requests");
        }
    };
    let supervised = async {
        let outcome = supervise(&app.authenticator, &store, &shutdown).await;
        stop.cancel();
        outcome
    };
    let ((), outcome) = tokio::join!(served, supervised);
    store.close().await;
    intake_store.close().await;
    outcome
}

/// Enables the recording of events, which the configuration asks for. False: try again later.
async fn ask_for_events(store: &Store) -> bool {
    match store.ask_for_event_recording("configuration of an API").await {
        Ok(stored) => {
            if !stored.enabled {
                tracing::warn!(
                    by = stored.changed_by,
                    "events.mode asks for events, but an operator has disabled them"
                );
            }
            true
        }
        // Reported by whoever waits for the database.
        Err(error) if error.is_connection() => false,
        Err(error) => {
            tracing::warn!(%error, "events are not recorded; retrying");
            false
        }
    }
}

async fn ask_again(store: Store, shutdown: CancellationToken) {
    while tokio::time::timeout(ASK_AGAIN, shutdown.cancelled()).await.is_err() {
        if ask_for_events(&store).await {
            return;
        }
    }
}

fn limits(api: &Api) -> Limits {
    Limits {
        max_connections: api.max_connections,
        max_per_address: Some(api.max_connections_per_address),
        max_header_bytes: api.max_header_bytes,
        header_timeout: api.header_timeout,
        send_timeout: api.send_timeout,
        connection_timeout: None,
        keep_alive: true,
        shutdown_grace: SHUTDOWN_GRACE,
    }
}

fn tls_files(tls: &ApiTls) -> TlsFiles {
    TlsFiles { cert: tls.cert.clone(), key: tls.key.clone(), section: "api.tls", server: "API" }
}

/// Runs until `shutdown`. Fails if this process must not serve.
async fn supervise(
    authenticator: &Authenticator,
    store: &Store,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    if !store.wait_until_usable("requests are answered with 503", shutdown.cancelled()).await? {
        return Ok(());
    }
    authenticator.watch_for_keys(store, shutdown).await
}

fn app(
    config: &Config,
    authenticator: Authenticator,
    webhooks: Webhooks,
    store: Store,
    intake_store: &Store,
    notify_store: Store,
    shutdown: CancellationToken,
) -> SharedApp {
    let metrics = install_metrics(Program::Api);
    let notifier = Notifier::start(notify_store.clone(), Channel::Work);
    let completions = listen(notify_store);
    let intake =
        Intake::start(intake_store, &notifier, &publisher(config.events.mode), QueueLimits::new(config));
    let long_polls = LongPolls::start(store.clone(), completions.clone(), Awaited::Final);
    let starts = LongPolls::start(store.clone(), completions.clone(), Awaited::Hash);
    tokio::spawn({
        let (metrics, shutdown) = (metrics.clone(), shutdown.clone());
        async move {
            while tokio::time::timeout(METRICS_UPKEEP, shutdown.cancelled()).await.is_err() {
                metrics.upkeep();
            }
        }
    });
    Arc::new(App {
        intake,
        notifier,
        completions,
        long_polls,
        starts,
        outlooks: Outlooks::start(store.clone(), config.api.json_rpc.wait),
        json_rpc: config.api.json_rpc.clone(),
        events: EventStreams::new(
            EventFeed::start(store.clone(), shutdown.clone()),
            config.api.max_event_streams,
        ),
        chains: Chains::new(config),
        policies: Policies::new(config),
        nodes: Nodes::new(config),
        webhooks,
        authenticator,
        readiness: Default::default(),
        metrics,
        max_batch: config.api.max_batch,
        max_wait: config.api.max_wait,
        store,
        shutdown,
    })
}

/// Listens for NOTIFY from workers that finished something. The value is false while LISTEN is down.
fn listen(store: Store) -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    tokio::spawn(notifier::listen(store, Channel::Final, move |listening| {
        sender.send_replace(listening);
    }));
    receiver
}

/// Not a route of its own: the nested routes take precedence over one at `/`.
async fn root_leads_to_docs(routes: Arc<impl Endpoint>, request: Request) -> poem::Result<Response> {
    if request.uri().path() == "/" && matches!(*request.method(), Method::GET | Method::HEAD) {
        return Ok(Redirect::see_other("/docs").into_response());
    }
    routes.call(request).await.map(IntoResponse::into_response)
}

fn endpoint(app: SharedApp, api: &Api) -> impl Endpoint<Output = Response> + use<> {
    let (page, spec) = (document::page(), document::spec_yaml());
    let route = match api.json_rpc.enabled {
        true => Route::new().at("/rpc/:chain_id", post(json_rpc::endpoint)),
        false => Route::new(),
    };
    route
        .at("/docs", get(make_sync(move |_| Html(page.clone()))))
        .at("/openapi.yaml", get(make_sync(move |_| spec.clone().with_content_type("application/x-yaml"))))
        .nest("/", routes::service().into_endpoint().around(root_leads_to_docs))
        .data(app.clone())
        // Outermost last: authentication runs before the body is read.
        .with(BodyLimit {
            max_bytes: api.max_body_bytes,
            timeout: api.body_timeout,
            refuse: |error| ApiError::from(error).into(),
        })
        .with(QueryMiddleware::new())
        .with(AuthMiddleware { app })
        .with(RequestMiddleware::new(api.json_rpc.key_in_path))
}
