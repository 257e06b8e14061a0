//! Delivery of events to webhooks. Each webhook has one owner in the fleet, by lease; all of its writes are fenced.
//!
//! It runs apart from the lanes, on connections of its own: a slow receiver, or a slow database, delays deliveries and
//! no transaction. Receivers do not delay each other either: each webhook has its own tasks and limits.

mod notices;
mod outlet;
mod owned;
mod progress;
mod results;
mod runner;
mod webhook;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use gapless_config::Config;
use gapless_domain::WorkerId;
use gapless_events::EventFeed;
use gapless_store::outlets::{OutletLease, OutletState, OutletTag};
use gapless_store::{Store, StoreError};
use gapless_telemetry::metrics as m;
use gapless_webhook::{AddressPolicy, KeyRing, RetrySchedule, Sender, Timeouts};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use self::owned::OwnedOutlet;

/// How often changes of webhooks are read, and leases claimed.
const TICK: Duration = Duration::from_secs(1);
const EXPORT_HEALTH: Duration = Duration::from_secs(5);
const PRUNE: Duration = Duration::from_secs(60);
/// Each second if there is so much.
const PRUNED_AT_ONCE: u32 = 5_000;
/// Time limit for what is under way when the worker stops.
const HAND_OVER: Duration = Duration::from_secs(4);
/// Time limit for giving the leases back.
const RELEASE: Duration = Duration::from_secs(1);
/// How long a webhook whose secret this worker cannot decrypt is left to others.
const UNUSABLE: Duration = Duration::from_secs(30);
/// Connection, TLS and lookup of a receiver.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// A webhook that nobody delivers for so long is reported.
const UNDELIVERED: Duration = Duration::from_secs(30);

/// What all webhooks have in common.
#[derive(Debug)]
pub(crate) struct Settings {
    ring: KeyRing,
    sender: Sender,
    schedule: RetrySchedule,
    max_in_flight: usize,
    disable_after: Duration,
}

impl Settings {
    /// `None`: webhooks are off, because there is no key file.
    pub(crate) fn load(config: &Config) -> anyhow::Result<Option<Settings>> {
        let webhook = &config.events.webhook;
        let Some(text) = webhook.read_keys()? else { return Ok(None) };
        let ring = KeyRing::parse(text.expose()).context("events.webhook.key_file")?;
        let policy = AddressPolicy::parse(&webhook.allow).context("events.webhook.allow")?;
        let timeouts = Timeouts { connect: CONNECT_TIMEOUT.min(webhook.timeout), total: webhook.timeout };
        Ok(Some(Settings {
            ring,
            sender: Sender::new(policy, timeouts)?,
            schedule: RetrySchedule::new(webhook.retry.clone()).context("events.webhook.retry")?,
            max_in_flight: webhook.max_in_flight,
            disable_after: webhook.disable_after,
        }))
    }
}

/// The outlets of this worker.
#[derive(Debug)]
pub(crate) struct Outlets {
    config: Arc<Config>,
    /// For leases: deliveries must not delay their renewal.
    lease_store: Store,
    store: Store,
    feed: EventFeed,
    worker_id: WorkerId,
    settings: Arc<Settings>,
    owned: HashMap<Uuid, Owned>,
    /// Not claimed until then: this worker cannot decrypt their secrets.
    unusable: HashMap<Uuid, Instant>,
    renewed_at: Instant,
    exported_at: Option<Instant>,
    pruned_at: Option<Instant>,
}

#[derive(Debug)]
struct Owned {
    tag: OutletTag,
    state: watch::Sender<Option<OutletState>>,
    stop: CancellationToken,
    task: JoinHandle<bool>,
}

impl Outlets {
    pub(crate) fn new(
        config: Arc<Config>,
        lease_store: Store,
        store: Store,
        feed: EventFeed,
        worker_id: WorkerId,
        settings: Settings,
    ) -> Outlets {
        Outlets {
            config,
            lease_store,
            store,
            feed,
            worker_id,
            settings: Arc::new(settings),
            owned: HashMap::new(),
            unusable: HashMap::new(),
            renewed_at: Instant::now(),
            exported_at: None,
            pruned_at: None,
        }
    }

    /// Runs until `stop`, then gives the leases back.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut reported = None;
        while !stop.is_cancelled() {
            let ticked = tokio::select! {
                ticked = self.tick() => ticked,
                () = stop.cancelled() => break,
            };
            match ticked {
                Ok(()) if reported.take().is_some() => tracing::info!("webhooks are delivered again"),
                Ok(()) => {}
                Err(error) => {
                    let text = Some(error.to_string());
                    if reported != text {
                        tracing::warn!(%error, "leases of webhooks cannot be renewed or claimed; retrying");
                        reported = text;
                    }
                }
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = tokio::time::sleep(TICK) => {}
            }
        }
        self.hand_over().await;
    }

    async fn tick(&mut self) -> Result<(), StoreError> {
        self.release_ended().await?;
        if !self.owned.is_empty() {
            let tags: Vec<OutletTag> = self.owned.values().map(|owned| owned.tag.clone()).collect();
            if self.renewed_at.elapsed() >= self.config.lease.renew_interval {
                self.lease_store.renew_outlets(&tags, &self.config.lease).await?;
                self.renewed_at = Instant::now();
            }
            let states = self.lease_store.outlet_states(&tags).await?;
            self.follow(states);
        }
        self.unusable.retain(|_, until| Instant::now() < *until);
        let unusable: Vec<Uuid> = self.unusable.keys().copied().collect();
        let (owned, lease) = (self.owned.len(), &self.config.lease);
        let claimed = self.lease_store.claim_outlets(&self.worker_id, owned, &unusable, lease).await?;
        for lease in claimed {
            self.start(lease);
        }
        self.export_health().await?;
        self.prune().await
    }

    fn start(&mut self, lease: OutletLease) {
        let (id, tag, stop) = (lease.outlet_id(), lease.tag(), CancellationToken::new());
        tracing::info!(outlet = %id, worker.id = %self.worker_id, "this worker delivers to the outlet");
        let (state, receiver) = watch::channel(None);
        let owned = OwnedOutlet {
            store: self.store.clone(),
            feed: self.feed.clone(),
            lease: Arc::new(lease),
            settings: self.settings.clone(),
            state: receiver,
            stop: stop.clone(),
        };
        let task = tokio::spawn(owned.run());
        self.owned.insert(id, Owned { tag, state, stop, task });
    }

    fn follow(&mut self, states: Vec<OutletState>) {
        let mut states: HashMap<Uuid, OutletState> =
            states.into_iter().map(|state| (state.outlet_id, state)).collect();
        self.owned.retain(|id, owned| match states.remove(id) {
            Some(state) => {
                owned.state.send_if_modified(|known| {
                    let is_new = known.as_ref() != Some(&state);
                    *known = Some(state);
                    is_new
                });
                true
            }
            // Another worker has the lease, or the webhook was deleted: its writes are refused already.
            None => {
                owned.stop.cancel();
                owned.task.abort();
                forget_health(*id);
                false
            }
        });
    }

    async fn release_ended(&mut self) -> Result<(), StoreError> {
        let ended: Vec<Uuid> =
            self.owned.iter().filter(|(_, owned)| owned.task.is_finished()).map(|(id, _)| *id).collect();
        for id in &ended {
            let Some(owned) = self.owned.get_mut(id) else { continue };
            // It has ended: this does not wait.
            if (&mut owned.task).await.unwrap_or(false) {
                self.unusable.insert(*id, Instant::now() + UNUSABLE);
            }
        }
        let tags: Vec<OutletTag> =
            ended.iter().filter_map(|id| self.owned.remove(id)).map(|owned| owned.tag).collect();
        if tags.is_empty() {
            return Ok(());
        }
        ended.into_iter().for_each(forget_health);
        self.lease_store.release_outlets(&tags).await
    }

    async fn export_health(&mut self) -> Result<(), StoreError> {
        if self.owned.is_empty() || self.exported_at.is_some_and(|at| at.elapsed() < EXPORT_HEALTH) {
            return Ok(());
        }
        self.exported_at = Some(Instant::now());
        for outlet in self.store.outlets().await? {
            if !self.owned.contains_key(&outlet.id) {
                continue;
            }
            let failing = if outlet.health.failing_since.is_some() { 1.0 } else { 0.0 };
            set_health(outlet.id, outlet.health.lag_events as f64, outlet.health.lag_seconds, failing);
        }
        Ok(())
    }

    /// Deletes old rows of the list of deliveries.
    async fn prune(&mut self) -> Result<(), StoreError> {
        if self.pruned_at.is_some_and(|at| at.elapsed() < PRUNE) {
            return Ok(());
        }
        self.pruned_at = Some(Instant::now());
        let events = &self.config.events;
        let delivered = events.webhook.delivered_retention;
        if self.store.prune_webhook_deliveries(delivered, events.retention, PRUNED_AT_ONCE).await? {
            self.pruned_at = None;
        }
        Ok(())
    }

    async fn hand_over(mut self) {
        for owned in self.owned.values() {
            owned.stop.cancel();
        }
        let until = Instant::now() + HAND_OVER;
        for owned in self.owned.values_mut() {
            // A task that does not end in time loses its last results: they are delivered again.
            if tokio::time::timeout_at(until, &mut owned.task).await.is_err() {
                owned.task.abort();
            }
        }
        let tags: Vec<OutletTag> = self.owned.into_values().map(|owned| owned.tag).collect();
        if tags.is_empty() {
            return;
        }
        let release = self.lease_store.release_outlets(&tags);
        if !matches!(tokio::time::timeout(RELEASE, release).await, Ok(Ok(()))) {
            tracing::warn!("could not release the leases of webhooks; they expire");
        }
    }
}

/// In a worker without a key file: reports webhooks that nobody delivers.
pub(crate) async fn warn_of_undelivered(store: Store, stop: CancellationToken) {
    let mut is_reported = false;
    while !stop.is_cancelled() {
        let waiting =
            store.longest_without_owner().await.ok().flatten().is_some_and(|time| time > UNDELIVERED);
        if waiting && !is_reported {
            tracing::warn!(
                "webhooks are not delivered: no worker with events.webhook.key_file delivers them, and this one has none"
            );
        }
        is_reported = waiting;
        tokio::select! {
            () = stop.cancelled() => {}
            () = tokio::time::sleep(UNDELIVERED) => {}
        }
    }
}

fn set_health(id: Uuid, lag_events: f64, lag_seconds: f64, failing: f64) {
    let outlet = id.to_string();
    metrics::gauge!(m::OUTLET_LAG_EVENTS, "outlet" => outlet.clone()).set(lag_events);
    metrics::gauge!(m::OUTLET_LAG_SECONDS, "outlet" => outlet.clone()).set(lag_seconds);
    metrics::gauge!(m::OUTLET_FAILING, "outlet" => outlet).set(failing);
}

/// Another worker exports them now.
fn forget_health(id: Uuid) {
    set_health(id, 0.0, 0.0, 0.0);
}
