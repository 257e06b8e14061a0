//! Results of attempts that are not stored yet.

use std::collections::BTreeMap;
use std::time::Duration;

use gapless_domain::TxId;
use gapless_store::outlets::{DeliveryWrite, HealthWrite, OutletWrite, ReplayWrite, Sequence};
use gapless_store::webhooks::DeliveryState;
use tokio::time::Instant;
use uuid::Uuid;

/// The result of one attempt.
#[derive(Clone, Debug)]
pub(super) struct Attempt {
    pub(super) result: AttemptResult,
    pub(super) status_code: Option<u16>,
    pub(super) duration: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AttemptResult {
    Delivered,
    Failed {
        error: String,
        retry_after: Option<Duration>,
    },
    /// The event does not exist any more; only for replays. Nothing was sent.
    Missing,
}

/// What was delivered.
#[derive(Clone, Debug)]
pub(super) struct Delivered {
    pub(super) event_id: Uuid,
    pub(super) position: Option<i64>,
    pub(super) sequence: Sequence,
    pub(super) tx_id: Option<TxId>,
    pub(super) kind: String,
}

#[derive(Debug, Default)]
pub(super) struct Results {
    /// With the time of the last attempt.
    deliveries: BTreeMap<Uuid, (DeliveryWrite, Instant)>,
    replays: Vec<ReplayWrite>,
    health: HealthWrite,
}

impl Results {
    pub(super) fn is_empty(&self) -> bool {
        self.deliveries.is_empty() && self.replays.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.deliveries.len()
    }

    pub(super) fn add_replay(&mut self, write: ReplayWrite) {
        self.replays.push(write);
    }

    /// `next_in`: until the next attempt.
    pub(super) fn add(
        &mut self,
        what: Delivered,
        state: DeliveryState,
        next_in: Option<Duration>,
        attempt: Attempt,
        now: Instant,
    ) {
        let error = match attempt.result {
            AttemptResult::Delivered => {
                self.health.succeeded = Some(true);
                self.health.any_success = true;
                None
            }
            AttemptResult::Failed { error, .. } => {
                self.health.succeeded = Some(false);
                self.health.error = Some(error.clone());
                Some(error)
            }
            // Not the fault of the receiver.
            AttemptResult::Missing => Some("the event is no longer in the log".to_owned()),
        };
        let before = self.deliveries.remove(&what.event_id).map_or(0, |(row, _)| row.attempts);
        let Delivered { event_id, position, sequence, tx_id, kind } = what;
        let row = DeliveryWrite {
            event_id,
            position,
            sequence,
            tx_id,
            kind,
            state,
            attempts: before + 1,
            ago: Duration::ZERO,
            next_in,
            status_code: attempt.status_code,
            error,
            duration: attempt.duration,
        };
        self.deliveries.insert(event_id, (row, now));
    }

    /// In the order of the attempts, which the list of deliveries shows.
    pub(super) fn take(&mut self, now: Instant) -> OutletWrite {
        let Results { deliveries, replays, health } = std::mem::take(self);
        let mut deliveries: Vec<(DeliveryWrite, Instant)> = deliveries.into_values().collect();
        deliveries.sort_by_key(|(_, at)| *at);
        let deliveries = deliveries
            .into_iter()
            .map(|(row, at)| DeliveryWrite { ago: now.saturating_duration_since(at), ..row })
            .collect();
        OutletWrite { deliveries, replays, health, ..OutletWrite::default() }
    }
}
