//! Startup and shutdown of the worker: from the first database check to the release of the last lease.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gapless_config::Config;
use gapless_domain::{Address, ChainId, SubmitterKey, WorkerId};
use gapless_events::EventFeed;
use gapless_remote_signer::RemoteSigners;
use gapless_signer::SignerSet;
use gapless_store::notifier::{self, Notifier};
use gapless_store::{Announced, Channel, Store, StoreError, Timeouts, database_warnings};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::builder::Ports;
use crate::chains::Chain;
use crate::fleet::Fleet;
use crate::lane::WorkerContext;
use crate::outlets::{self, Outlets};
use crate::reader::Reader;
use crate::sequencer::{EventsWritten, RecordingHint, Sequencer};
use crate::writer::Writer;

/// Time limit for releasing leases at shutdown. Leases that are not released by then expire.
const HAND_OVER_LIMIT: Duration = Duration::from_secs(5);
/// One for the sequencer, one for NOTIFY.
const EVENT_CONNECTIONS: u32 = 2;

/// For cursors and results of webhooks, and for the reader of the event log.
const OUTLET_CONNECTIONS: u32 = 3;

/// Runs until `stop`, then releases every lease.
pub(crate) async fn run(config: Config, ports: Ports, stop: CancellationToken) -> anyhow::Result<()> {
    let config = Arc::new(config);
    log_security_warnings(&config);
    let worker_id = chosen_worker_id(&config);
    let timeouts =
        Timeouts { statement: config.lease.database_timeout(), acquire: config.lease.database_timeout() };
    let open = |role: &str, connections: u32| -> Result<Store, StoreError> {
        Store::new(&config.database.url, &format!("gapless-worker {role}"), connections, timeouts)
    };
    // Separate pools: a burst of reads must not delay the writers or the lease renewal.
    let webhooks = outlets::Settings::load(&config)?;
    let writers = config.worker.writers;
    let write_store = open("writer", u32::try_from(writers)?)?;
    let read_store = open("reader", 2)?;
    let fleet_store = open("fleet", 3)?;

    let health = crate::health::Health::new(fleet_store.clone());
    let served = health.clone().serve(config.worker.metrics_bind, stop.clone());
    if !fleet_store.wait_until_usable("nothing is sent", stop.cancelled()).await? {
        return Ok(());
    }
    let signers = Arc::new(SignerSet::load(&config.signer).await);
    let remote_signers = RemoteSigners::load(&config.signer, signers.clone());
    for signer in ports.signers {
        signers.add(signer);
    }
    health.watch_signers(signers.clone());
    anyhow::ensure!(
        !signers.is_empty() || remote_signers.may_grow(),
        "no key could be loaded: set signer.keystore, signer.raw_key_env or a remote signer"
    );
    let mut chains = HashMap::new();
    for (name, ports) in ports.chains {
        let chain = &config.chains[&name];
        let started = Chain::start(chain, ports, &fleet_store, &worker_id, config.lease.duration, &stop);
        chains.insert(chain.id, started);
    }
    health.watch_chains(chains.values().cloned().collect());
    if !announce_all(&fleet_store, &chains, &signers, &stop).await.context("announcing submitters")? {
        return Ok(());
    }
    health.set_announced();

    let recording = RecordingHint::default();
    let events_store = open("events", EVENT_CONNECTIONS)?;
    let events_written =
        EventsWritten::new(recording.clone(), Some(Notifier::start(events_store.clone(), Channel::Outbox)));
    let sequencer = Sequencer::new(
        &config,
        events_store.clone(),
        worker_id.clone(),
        recording.clone(),
        events_written.clone(),
    );
    tokio::spawn(sequencer.run(stop.clone()));
    tokio::spawn(listen_for_events(events_written.clone(), events_store, stop.clone()));
    let delivering = match webhooks {
        Some(settings) => {
            let outlet_store = open("outlets", OUTLET_CONNECTIONS)?;
            let feed = EventFeed::start(outlet_store.clone(), stop.clone());
            let lease_store = open("outlet leases", 1)?;
            let outlets =
                Outlets::new(config.clone(), lease_store, outlet_store, feed, worker_id.clone(), settings);
            tokio::spawn(outlets.run(stop.clone()))
        }
        None => tokio::spawn(outlets::warn_of_undelivered(fleet_store.clone(), stop.clone())),
    };
    let context = Arc::new(WorkerContext {
        worker_id: worker_id.clone(),
        writer: Writer::start(
            Arc::new(write_store),
            writers,
            Notifier::start(fleet_store.clone(), Channel::Final),
            events_written.clone(),
            worker_id.clone(),
        ),
        reader: Reader::start(read_store),
        events: ports.events,
        recording,
        linger: config.worker.linger,
    });
    let (fleet, endings) = Fleet::new(
        config.clone(),
        fleet_store.clone(),
        open("lease", 1)?,
        context,
        chains.clone(),
        signers.clone(),
    );
    let renewing = CancellationToken::new();
    tokio::spawn(fleet.clone().collect(endings));
    tokio::spawn(fleet.clone().renew(renewing.clone()));
    tokio::spawn(listen(fleet.clone(), events_written, fleet_store.clone(), stop.clone()));
    tokio::spawn(discover(
        fleet.clone(),
        fleet_store.clone(),
        chains.clone(),
        signers.clone(),
        remote_signers,
        stop.clone(),
    ));
    crate::duties::start(&config, &fleet_store, &worker_id, &fleet, chains, &stop);
    tracing::info!(worker.id = %worker_id, signers = signers.len(), "worker started");

    fleet.clone().run(stop.clone()).await;
    tracing::info!(worker.id = %worker_id, "worker stopping: releasing leases");
    // Deregister before releasing the leases: workers that claim them must not reserve a share for this one.
    if let Err(error) = remove_worker(&fleet_store, &worker_id).await {
        tracing::warn!(error = %error, "could not remove this worker's heartbeat row; it will expire");
    }
    fleet.hand_over(HAND_OVER_LIMIT).await;
    renewing.cancel();
    // Has a time limit of its own.
    let _ = delivering.await;
    let _ = served.await;
    tracing::info!(worker.id = %worker_id, "worker stopped");
    Ok(())
}

/// Warns about insecure connections to the database, nodes and signers, and about readable secrets.
fn log_security_warnings(config: &Config) {
    for warning in database_warnings(&config.database.url).into_iter().chain(config.security_warnings()) {
        tracing::warn!(warning, "not secure");
    }
}

async fn remove_worker(store: &Store, worker_id: &WorkerId) -> Result<(), StoreError> {
    store.drop_duties(worker_id).await?;
    store.deregister(worker_id).await
}

fn chosen_worker_id(config: &Config) -> WorkerId {
    if !config.worker.id.is_empty() {
        return WorkerId(config.worker.id.clone());
    }
    let host = nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_default();
    // The random part distinguishes a restarted container, which has the same host name and process id.
    WorkerId(format!("{host}-{}-{:08x}", std::process::id(), rand::random::<u32>()))
}

/// Announces every key that is known at start; retries while the database is unreachable. False: stopped before that.
async fn announce_all(
    store: &Store,
    chains: &HashMap<ChainId, Arc<Chain>>,
    signers: &SignerSet,
    stop: &CancellationToken,
) -> Result<bool, StoreError> {
    let mut reported = None;
    while let Err(error) = announce(store, chains, signers, &signers.addresses()).await {
        if !error.is_connection() {
            return Err(error);
        }
        let reason = Some(error.to_string());
        if reported != reason {
            tracing::warn!(error = reason, "could not announce submitters; retrying");
            reported = reason;
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(false),
            () = tokio::time::sleep(Duration::from_millis(500)) => {}
        }
    }
    Ok(true)
}

async fn announce(
    store: &Store,
    chains: &HashMap<ChainId, Arc<Chain>>,
    signers: &SignerSet,
    addresses: &[Address],
) -> Result<(), StoreError> {
    let mut announced = Vec::new();
    for (chain_id, chain) in chains {
        for address in addresses {
            announced.push(Announced {
                key: SubmitterKey { chain_id: *chain_id, address: *address },
                signer: signers.get(address).map_or("unknown", |signer| signer.kind()),
                shared: chain.config.is_shared(address),
                low_level: chain.config.is_low_level(address),
            });
        }
    }
    for (key, shared) in store.announce(&announced).await? {
        tracing::info!(chain.id = key.chain_id.0, submitter = %key.address_text(), shared,
            "shared-key setting of the submitter changed");
    }
    Ok(())
}

/// Announces the addresses of remote signers when they respond; retries while the database is unreachable.
async fn discover(
    fleet: Arc<Fleet>,
    store: Store,
    chains: HashMap<ChainId, Arc<Chain>>,
    signers: Arc<SignerSet>,
    remote_signers: RemoteSigners,
    stop: CancellationToken,
) {
    let (found, mut addresses) = mpsc::unbounded_channel::<Vec<Address>>();
    let announcing = async {
        while let Some(new) = addresses.recv().await {
            while let Err(error) = announce(&store, &chains, &signers, &new).await {
                tracing::warn!(error = %error, "could not announce addresses of a remote signer; retrying");
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            tracing::info!(signers = signers.len(), "announced addresses of a remote signer");
            fleet.wake.notify_one();
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        ((), ()) = async { tokio::join!(remote_signers.discover(found), announcing) } => {}
    }
}

/// Wakes the fleet when NOTIFY announces new work. Notifications only shorten the wait: a lost one is made up by the
/// next poll.
async fn listen(fleet: Arc<Fleet>, events: EventsWritten, store: Store, stop: CancellationToken) {
    let announced = |_| {
        fleet.work_announced();
        // Accepted requests have an event.
        events.maybe_written();
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = notifier::listen(store, Channel::Work, announced) => {}
    }
}

/// Wakes the sequencer when another worker has written events.
async fn listen_for_events(events: EventsWritten, store: Store, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = notifier::listen(store, Channel::Outbox, |_| events.maybe_written()) => {}
    }
}
