//! From a configuration to a listening server, and back.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gapless::config::{Api, Config};
use gapless::events::publisher;
use gapless::notifier::{self, Notifier};
use gapless::observe::install_metrics;
use gapless::store::{Channel, Store, Timeouts, database_remarks};
use poem::endpoint::make_sync;
use poem::web::Html;
use poem::{Endpoint, EndpointExt, IntoResponse, Response, Route, get};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::app::{App, Chains, Policies, SharedApp};
use crate::auth::{AuthMiddleware, Authenticator};
use crate::body_limit::BodyLimit;
use crate::connections::{self, Limits};
use crate::document;
use crate::intake::{self, Intake, QueueLimits};
use crate::long_poll::LongPolls;
use crate::middleware::RequestMiddleware;
use crate::nodes::Nodes;
use crate::ready::{self, wait_for_database};
use crate::routes;
use crate::tls::Tls;

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
    for log_security_warnings in
        database_remarks(&config.database.url).into_iter().chain(config.security_warnings())
    {
        tracing::warn!(log_security_warnings, "not secure");
    }
    let store = Store::new(&config.database.url, "gapless-api", config.database.max_connections, TIMEOUTS)?;
    // Apart from those who read: however many lists are asked for, what is to be sent does not wait for them.
    let intake_store =
        Store::new(&config.database.url, "gapless-api-intake", intake::MOST_AT_ONCE + KEY_LOOKS, TIMEOUTS)?;
    let authenticator = Authenticator::new(&config.api, &intake_store);
    match ready::check(&store).await {
        Err(error) if error.is_for_people() => return Err(error.into()),
        Err(_) => {}
        // Before anybody can come in. What cannot be asked now is asked once the database is back.
        Ok(()) => {
            if let Err(error) = authenticator.look(&store).await {
                tracing::warn!(%error, "whether there are API keys is not known yet");
            }
            authenticator.check()?;
        }
    }
    // Apart from the requests, so that no word waits for a connection: one to tell workers, one to hear them.
    let notify_store = Store::new(&config.database.url, "gapless-api-notify", 1, TIMEOUTS)?;
    let app = app(&config, authenticator, store.clone(), &intake_store, notify_store, shutdown.clone());
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
        let outcome = supervise(&app.authenticator, &store, &shutdown).await;
        stop.cancel();
        outcome
    };
    let ((), outcome) = tokio::join!(served, supervised);
    store.close().await;
    intake_store.close().await;
    outcome
}

/// Until `shutdown`, or until it turns out that this process must not serve.
async fn supervise(
    authenticator: &Authenticator,
    store: &Store,
    shutdown: &CancellationToken,
) -> anyhow::Result<()> {
    wait_for_database(store, shutdown).await?;
    authenticator.guard(store, shutdown).await
}

fn app(
    config: &Config,
    authenticator: Authenticator,
    store: Store,
    intake_store: &Store,
    notify_store: Store,
    shutdown: CancellationToken,
) -> SharedApp {
    let metrics = install_metrics();
    let notifier = Notifier::start(notify_store.clone(), Channel::Work);
    let endings = listen(notify_store);
    let intake =
        Intake::start(intake_store, &notifier, &publisher(config.events.mode), QueueLimits::new(config));
    let long_polls = LongPolls::start(store.clone(), endings.clone());
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
        notifier,
        endings,
        long_polls,
        chains: Chains::new(config),
        policies: Policies::new(config),
        nodes: Nodes::new(config),
        authenticator,
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
    tokio::spawn(notifier::listen(store, Channel::Final, move |listening| {
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
        .with(BodyLimit { max_bytes: api.max_body_bytes, timeout: api.body_timeout })
        .with(AuthMiddleware { app })
        .with(RequestMiddleware::new())
}
