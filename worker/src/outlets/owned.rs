//! One outlet of this worker, from its claim to the end of its lease: loads it, delivers, and loads it again after a
//! change.

use std::sync::Arc;
use std::time::Duration;

use gapless_events::EventFeed;
use gapless_store::events::ResetReason;
use gapless_store::outlets::{
    DeliveryWrite, HealthWrite, LoadedOutlet, OutletLease, OutletState, OutletWrite, Written,
};
use gapless_store::webhooks::{DeliveryState, DisabledReason};
use gapless_store::{Store, StoreError};
use gapless_telemetry::metrics as m;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::outlet::{Outlet, Sent};
use super::runner::{End, Session, count_delivery};
use super::webhook::Webhook;
use super::{Settings, notices};

/// After an error of the database.
const RETRY: Duration = Duration::from_secs(1);
/// Attempts at a notice, which all events wait for.
const NOTICE_ATTEMPTS: usize = 3;

pub(super) struct OwnedOutlet {
    pub(super) store: Store,
    pub(super) feed: EventFeed,
    pub(super) lease: Arc<OutletLease>,
    pub(super) settings: Arc<Settings>,
    pub(super) state: watch::Receiver<Option<OutletState>>,
    pub(super) stop: CancellationToken,
}

impl OwnedOutlet {
    /// Returns when it was disabled, the lease is lost, or `stop`. True: this worker cannot deliver to it.
    pub(super) async fn run(mut self) -> bool {
        let outlet = self.lease.outlet_id();
        let mut reported = None;
        while !self.stop.is_cancelled() {
            let end = match self.session().await {
                Ok(end) => end,
                Err(error) => {
                    let text = Some(error.to_string());
                    if reported != text {
                        tracing::warn!(%error, outlet = %outlet, "deliveries are interrupted; retrying");
                        reported = text;
                    }
                    self.pause(RETRY).await;
                    continue;
                }
            };
            reported = None;
            match end {
                End::Changed => {}
                End::Reset(reason, _) => {
                    metrics::counter!(m::EVENT_RESETS_TOTAL, "reason" => reason.as_str()).increment(1);
                    tracing::warn!(reason = reason.as_str(), outlet = %outlet,
                        "an outlet missed events; it goes on with the oldest event that there is");
                }
                End::Disabled(reason) => {
                    metrics::counter!(m::WEBHOOKS_DISABLED_TOTAL, "reason" => reason.as_str()).increment(1);
                    tracing::warn!(reason = reason.as_str(), outlet = %outlet, "a webhook was disabled");
                    return false;
                }
                End::LeaseLost => {
                    tracing::info!(outlet = %outlet, "lost the lease of an outlet");
                    return false;
                }
                End::Stopped => return false,
                End::Unusable => return true,
            }
        }
        false
    }

    async fn session(&mut self) -> Result<End, StoreError> {
        let Some(loaded) = self.store.load_outlet(&self.lease).await? else { return Ok(End::LeaseLost) };
        if !loaded.key_usable {
            return self.disable_with_key(loaded.settings.revision).await;
        }
        let webhook = Webhook::new(&loaded.settings, &self.settings.ring, self.settings.sender.clone());
        let outlet: Arc<dyn Outlet> = match webhook {
            Ok(webhook) => Arc::new(webhook),
            Err(unusable) => return self.report_unusable(&unusable.to_string()).await,
        };
        if let Some((id, reason)) = loaded.reset {
            return self.deliver_reset(&outlet, &loaded, id, reason).await;
        }
        let stop = self.stop.clone();
        let Self { store, feed, lease, settings, state, .. } = self;
        Session::new(store, feed, lease, settings, state, outlet, loaded).run(&stop).await
    }

    /// Nothing can be sent. That is no attempt: the receiver is not the cause. Another worker may have the key.
    async fn report_unusable(&self, problem: &str) -> Result<End, StoreError> {
        tracing::error!(outlet = %self.lease.outlet_id(), problem, "a webhook cannot be delivered");
        let health = HealthWrite { error: Some(problem.to_owned()), ..HealthWrite::default() };
        let write = OutletWrite { health, ..OutletWrite::default() };
        self.store.write_outlet(&self.lease, &write).await?;
        Ok(End::Unusable)
    }

    /// Delivers the notice that events are missing, before any event. `End::Changed`: go on with the events.
    async fn deliver_reset(
        &mut self,
        outlet: &Arc<dyn Outlet>,
        loaded: &LoadedOutlet,
        id: Uuid,
        reason: ResetReason,
    ) -> Result<End, StoreError> {
        let mut made = 0;
        loop {
            if self.stop.is_cancelled() {
                return Ok(End::Stopped);
            }
            if let Some(end) = self.end_of_notice(loaded) {
                return Ok(end);
            }
            if !self.lease.may_send() {
                self.pause(RETRY).await;
                continue;
            }
            let message = notices::reset(id, self.lease.outlet_id(), reason, &loaded.cursor);
            let began = Instant::now();
            let sent = outlet.send(message).await;
            made += 1;
            let wait = match &sent {
                Sent::Failed { retry_after, .. } if made < NOTICE_ATTEMPTS => {
                    self.settings.schedule.next(made, *retry_after)
                }
                Sent::Failed { .. } | Sent::Delivered { .. } | Sent::Gone { .. } => None,
            };
            let revision = loaded.settings.revision;
            let end = self.note_reset((id, revision), sent, began.elapsed(), wait).await?;
            match (end, wait) {
                (Some(end), _) => return Ok(end),
                (None, Some(wait)) => self.pause_notice(wait, loaded).await,
                (None, None) => return Ok(End::Changed),
            }
        }
    }

    /// Until the next attempt, or until the webhook was changed.
    async fn pause_notice(&mut self, time: Duration, loaded: &LoadedOutlet) {
        let until = Instant::now() + time;
        while !self.stop.is_cancelled() && self.end_of_notice(loaded).is_none() && Instant::now() < until {
            self.pause(until.saturating_duration_since(Instant::now())).await;
        }
    }

    async fn note_reset(
        &self,
        (id, revision): (Uuid, i64),
        sent: Sent,
        duration: Duration,
        wait: Option<Duration>,
    ) -> Result<Option<End>, StoreError> {
        let is_gone = matches!(sent, Sent::Gone { .. });
        let (state, status_code, error) = match sent {
            Sent::Delivered { status_code } => (DeliveryState::Delivered, status_code, None),
            Sent::Failed { status_code, error, .. } | Sent::Gone { status_code, error } => {
                let state = if wait.is_some() || is_gone {
                    DeliveryState::Retrying
                } else {
                    DeliveryState::Exhausted
                };
                (state, status_code, Some(error))
            }
        };
        count_delivery(state);
        let succeeded = error.is_none();
        let disabled = is_gone.then_some(DisabledReason::Gone);
        let delivery = DeliveryWrite {
            event_id: id,
            position: None,
            sequence: None,
            tx_id: None,
            kind: notices::RESET.to_owned(),
            state,
            attempts: 1,
            ago: Duration::ZERO,
            next_in: wait,
            status_code,
            error: error.clone(),
            duration,
        };
        let write = OutletWrite {
            deliveries: vec![delivery],
            health: HealthWrite { succeeded: Some(succeeded), any_success: succeeded, error },
            reset_done: wait.is_none() && !is_gone,
            disabled: disabled.map(|reason| (reason, revision)),
            ..OutletWrite::default()
        };
        Ok(match self.store.write_outlet(&self.lease, &write).await? {
            Written::LeaseLost => Some(End::LeaseLost),
            Written::Yes => disabled.map(End::Disabled),
        })
    }

    /// The webhook was disabled or changed since it was loaded. A change of its key is noticed by the next load.
    fn end_of_notice(&self, loaded: &LoadedOutlet) -> Option<End> {
        let state = self.state.borrow();
        let state = state.as_ref()?;
        if !state.is_enabled {
            return Some(End::Stopped);
        }
        // An older revision was read before the webhook was loaded.
        let is_same = state.key_usable && state.revision <= loaded.settings.revision;
        (!is_same).then_some(End::Changed)
    }

    async fn disable_with_key(&self, revision: i64) -> Result<End, StoreError> {
        let reason = DisabledReason::KeyRevoked;
        let write = OutletWrite { disabled: Some((reason, revision)), ..OutletWrite::default() };
        Ok(match self.store.write_outlet(&self.lease, &write).await? {
            Written::Yes => End::Disabled(reason),
            Written::LeaseLost => End::LeaseLost,
        })
    }

    /// Ends early if the webhook changed, or with `stop`.
    async fn pause(&mut self, time: Duration) {
        tokio::select! {
            () = tokio::time::sleep(time) => {}
            () = self.stop.cancelled() => {}
            changed = self.state.changed() => {
                if changed.is_err() {
                    self.stop.cancel();
                }
            }
        }
    }
}
