//! From a configuration to a listening server, and back.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gapless::bell::{Bell, hear};
use gapless::config::{Api, Config};
use gapless::events::publisher;
use gapless::observe::install_metrics;
use gapless::store::{Channel, Store, Timeouts, database_remarks};
use poem::endpoint::make_sync;
use poem::web::Html;
use poem::{Endpoint, EndpointExt, IntoResponse, Response, Route, get};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::app::{App, Chains, Policies, SharedApp};
use crate::auth::{Door, Gate};
use crate::connections::{self, Limits};
use crate::document;
use crate::edge::Edge;
use crate::intake::{self, Intake, QueueLimits};
use crate::nodes::Nodes;
use crate::ready::{self, wait_for_database};
use crate::routes;
use crate::settled::Settled;
use crate::tls::Tls;
use crate::whole_body::WholeBody;

/// A request is better refused soon and sent again than kept waiting for a connection.
const TIMEOUTS: Timeouts = Timeouts { statement: Duration::from_secs(10), acquire: Duration::from_secs(2) };
/// Long polls end at once on shutdown; everything else is done well within this.
const GRACE: Duration = Duration::from_secs(10);
/// Keys are looked up for many requests at a time.
const KEY_LOOKS: u32 = 1;
/// Keeps the histograms small in a process that nobody scrapes.
const UPKEEP: Duration = Duration::from_secs(5);

/// Serves until `shutdown`. Fails at once if the schema is older than this program, the address is taken, the certificate cannot
/// be used, or others than
/// this machine's users could come in without a key; waits, and says so, if the database is away.
pub async fn run(config: Config, shutdown: CancellationToken) -> anyhow::Result<()> {
    for remark in database_remarks(&config.database.url).into_iter().chain(config.remarks()) {
        tracing::warn!(remark, "not secure");
    }
    let store = Store::new(&config.database.url, "gapless-api", config.database.max_connections, TIMEOUTS)?;
    // Apart from those who read: however many lists are asked for, what is to be sent does not wait for them.
    let intake_store =
        Store::new(&config.database.url, "gapless-api-intake", intake::MOST_AT_ONCE + KEY_LOOKS, TIMEOUTS)?;
    let door = Door::new(&config.api, &intake_store);
    match ready::check(&store).await {
        Err(error) if error.is_for_people() => return Err(error.into()),
        Err(_) => {}
        // Before anybody can come in. What cannot be asked now is asked once the database is back.
        Ok(()) => {
            if let Err(error) = door.look(&store).await {
                tracing::warn!(%error, "whether there are API keys is not known yet");
            }
            door.check()?;
        }
    }
    // Apart from the requests, so that no word waits for a connection: one to tell workers, one to hear them.
    let notify_store = Store::new(&config.database.url, "gapless-api-notify", 1, TIMEOUTS)?;
    let app = app(&config, door, store.clone(), &intake_store, notify_store, shutdown.clone());
    let stop = CancellationToken::new();
    let tls = match &config.api.tls {
        Some(tls) => Some(Tls::start(tls, &stop).await?),
        None => None,
    };
    let listener = TcpListener::bind(config.api.bind)
        .await
        .with_context(|| format!("api.bind: cannot listen on {}", config.api.bind))?;
    tracing::info!(address = %listener.local_addr()?, tls = tls.is_some(), "the API is listening");
    let endpoint = endpoint(app.clone(), &config.api);
    let served = connections::serve(listener, endpoint, Limits::new(&config.api), tls, &stop, GRACE);
    let supervised = async {
        let outcome = supervise(&app.door, &store, &shutdown).await;
        stop.cancel();
        outcome
    };
    let ((), outcome) = tokio::join!(served, supervised);
    store.close().await;
    intake_store.close().await;
    outcome
}

/// Until `shutdown`, or until it turns out that this process must not serve.
async fn supervise(door: &Door, store: &Store, shutdown: &CancellationToken) -> anyhow::Result<()> {
    wait_for_database(store, shutdown).await?;
    door.guard(store, shutdown).await
}

fn app(
    config: &Config,
    door: Door,
    store: Store,
    intake_store: &Store,
    notify_store: Store,
    shutdown: CancellationToken,
) -> SharedApp {
    let metrics = install_metrics();
    let bell = Bell::start(notify_store.clone(), Channel::Work);
    let endings = listen(notify_store);
    let intake = Intake::start(intake_store, &bell, &publisher(config.events.mode), QueueLimits::new(config));
    let settled = Settled::start(store.clone(), endings.clone());
    tokio::spawn({
        let (metrics, shutdown) = (metrics.clone(), shutdown.clone());
        async move {
            while tokio::time::timeout(UPKEEP, shutdown.cancelled()).await.is_err() {
                metrics.upkeep();
            }
        }
    });
    Arc::new(App {
        intake,
        bell,
        endings,
        settled,
        chains: Chains::new(config),
        policies: Policies::new(config),
        nodes: Nodes::new(config),
        door,
        metrics,
        max_batch: config.api.max_batch,
        max_wait: config.api.max_wait,
        store,
        shutdown,
    })
}

/// Hears when workers finish something.
fn listen(store: Store) -> watch::Receiver<bool> {
    let (said, heard) = watch::channel(false);
    tokio::spawn(hear(store, Channel::Final, move |listening| {
        said.send_replace(listening);
    }));
    heard
}

fn endpoint(app: SharedApp, api: &Api) -> impl Endpoint<Output = Response> + use<> {
    let (page, spec) = (document::page(), document::spec_yaml());
    Route::new()
        .at("/docs", get(make_sync(move |_| Html(page.clone()))))
        .at("/openapi.yaml", get(make_sync(move |_| spec.clone().with_content_type("application/x-yaml"))))
        .nest("/", routes::service())
        .data(app.clone())
        // From here on outwards: the key comes before the body.
        .with(WholeBody { max_bytes: api.max_body_bytes, timeout: api.body_timeout })
        .with(Gate { app })
        .with(Edge::new())
}
