//! Moves recorded events into the log. One worker does it, by lease; nothing depends on there being only one.
//!
//! It runs apart from the lanes, on connections of its own: a slow or stopped sequencer delays events and no
//! transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use gapless_config::Config;
use gapless_domain::WorkerId;
use gapless_store::events::OutboxFloor;
use gapless_store::notifier::Notifier;
use gapless_store::{Channel, Store, StoreError};
use gapless_telemetry::metrics as m;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Name of the duty's lease.
const DUTY: &str = "events";
/// How often the stored switch is read, and the outbox without a notification.
const POLL: Duration = Duration::from_secs(1);
/// Shortest time between two moves: after one of few events, and of many. Each costs the same for one event as for
/// hundreds.
const MIN_PAUSE: Duration = Duration::from_millis(10);
const BUSY_PAUSE: Duration = Duration::from_millis(80);
const BUSY_MOVE: u64 = 10;
/// How often the floor of the outbox is raised while many events are moved, or few. Each time is a new version of the row.
const RAISE_FLOOR: Duration = Duration::from_secs(2);
const RAISE_FLOOR_FOR_FEW: Duration = Duration::from_secs(60);
const MANY_EVENTS: u64 = 2_000;
/// A floor that could not be raised so often is given up: it may be of another database.
const FLOOR_TRIES: u32 = 20;
/// Moves in a row before lease and switch are looked at again.
const MOVES: usize = 20;
/// How often old partitions are looked for: a part of the retention period, within these limits.
const MIN_DROP: Duration = Duration::from_secs(1);
const MAX_DROP: Duration = Duration::from_secs(60);

/// Whether events are recorded, as this process last read it. Commits do not rely on it: they read the stored value.
#[derive(Clone, Debug, Default)]
pub(crate) struct RecordingHint(Arc<AtomicBool>);

impl RecordingHint {
    pub(crate) fn is_enabled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, enabled: bool) {
        self.0.store(enabled, Ordering::Relaxed);
    }
}

/// Wakes the sequencer after a commit: directly if it is this process, otherwise with NOTIFY.
#[derive(Clone, Debug)]
pub(crate) struct EventsWritten {
    recording: RecordingHint,
    local: Arc<LocalWake>,
    /// `None`: in simulations.
    remote: Option<Notifier>,
}

#[derive(Debug, Default)]
struct LocalWake {
    /// This process is the sequencer.
    elected: AtomicBool,
    wake: Notify,
}

impl EventsWritten {
    pub(crate) fn new(recording: RecordingHint, remote: Option<Notifier>) -> EventsWritten {
        EventsWritten { recording, local: Arc::default(), remote }
    }

    /// After the commit of this many events.
    pub(crate) fn written(&self, events: usize) {
        if events == 0 || !self.recording.is_enabled() {
            return;
        }
        if self.local.elected.load(Ordering::Relaxed) {
            self.local.wake.notify_one();
        } else if let Some(remote) = &self.remote {
            remote.notify(events);
        }
    }

    /// There may be events of other processes.
    pub(crate) fn maybe_written(&self) {
        if self.local.elected.load(Ordering::Relaxed) {
            self.local.wake.notify_one();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Sequencer {
    store: Store,
    worker_id: WorkerId,
    lease_duration: Duration,
    retention: Duration,
    /// The configuration asks for recording.
    asks: bool,
    recording: RecordingHint,
    written: EventsWritten,
    /// Notifies the readers of the log.
    logged: Notifier,
}

/// What the elected process remembers between moves.
#[derive(Debug, Default)]
struct Elected {
    until: Option<Instant>,
    /// With the number of tries to raise it.
    floor: Option<(OutboxFloor, u32)>,
    floor_at: Option<Instant>,
    dropped_at: Option<Instant>,
    /// Moved since the floor was raised.
    moved: u64,
}

/// Of some moves in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Moved {
    events: u64,
    /// There are more to move.
    is_more: bool,
}

impl Sequencer {
    pub(crate) fn new(
        config: &Config,
        store: Store,
        worker_id: WorkerId,
        recording: RecordingHint,
        written: EventsWritten,
    ) -> Sequencer {
        Sequencer {
            logged: Notifier::start(store.clone(), Channel::Events),
            store,
            worker_id,
            lease_duration: config.lease.duration,
            retention: config.events.retention,
            asks: config.events.mode.asks_for_recording(),
            recording,
            written,
        }
    }

    pub(crate) async fn run(self, stop: CancellationToken) {
        let (mut elected, mut reported) = (Elected::default(), None);
        let mut follow_at = Instant::now();
        while !stop.is_cancelled() {
            let mut outcome = Ok(());
            if Instant::now() >= follow_at {
                outcome = self.follow_switch(&mut elected).await;
                follow_at = Instant::now() + POLL;
            }
            let mut moved = Moved::default();
            self.written.local.elected.store(elected.is_elected(), Ordering::Relaxed);
            if outcome.is_ok() && elected.is_elected() {
                outcome = self.move_events(&mut elected).await.map(|done| moved = done);
            }
            if let Err(error) = &outcome {
                metrics::counter!(m::EVENT_SEQUENCER_ERRORS_TOTAL).increment(1);
                // A lost database is reported by others too; once is enough.
                let text = error.to_string();
                if reported.as_ref() != Some(&text) {
                    tracing::warn!(error = text, "events are not delivered at the moment; retrying");
                    reported = Some(text);
                }
            } else if reported.take().is_some() {
                tracing::info!("events are delivered again");
            }
            if moved.is_more {
                continue;
            }
            let pause = match outcome {
                Ok(()) if moved.events >= BUSY_MOVE => BUSY_PAUSE,
                Ok(()) => MIN_PAUSE,
                Err(_) => POLL,
            };
            tokio::select! {
                () = stop.cancelled() => {}
                () = async {
                    tokio::time::sleep(pause).await;
                    let rest = follow_at.saturating_duration_since(Instant::now());
                    let _ = tokio::time::timeout(rest, self.written.local.wake.notified()).await;
                } => {}
            }
        }
        self.written.local.elected.store(false, Ordering::Relaxed);
    }

    /// Reads the switch, asks for it if configured, and acquires or renews the duty.
    async fn follow_switch(&self, elected: &mut Elected) -> Result<(), StoreError> {
        let was_enabled = self.recording.is_enabled();
        let by = format!("configuration of worker {}", self.worker_id);
        let stored = match self.asks {
            true => self.store.ask_for_event_recording(&by).await,
            false => self.store.event_recording().await,
        };
        let stored = match stored {
            // Older programs are connected. What is stored stays.
            Err(error @ StoreError::ProgramsRecordNothing { .. }) => {
                self.recording.set(false);
                return Err(error);
            }
            other => other?,
        };
        self.recording.set(stored.enabled);
        if stored.enabled != was_enabled {
            tracing::info!(enabled = stored.enabled, by = stored.changed_by, "recording of events");
        } else if self.asks && !stored.enabled {
            tracing::debug!("the configuration asks for events, but an operator has disabled them");
        }
        let requested_at = Instant::now();
        // What was written before it was disabled is still delivered.
        let has_work = stored.enabled || self.store.has_unsequenced_events().await?;
        if !has_work && !elected.is_elected() {
            return Ok(());
        }
        let is_due = elected.until.is_none_or(|until| until < requested_at + self.lease_duration / 2);
        if is_due {
            let held = self.store.hold_duty(DUTY, &self.worker_id, self.lease_duration).await?;
            if held && elected.until.is_none() {
                tracing::info!(worker.id = %self.worker_id, "this worker orders the events");
            }
            *elected = match held {
                true => {
                    Elected { until: Some(requested_at + self.lease_duration), ..std::mem::take(elected) }
                }
                false => Elected::default(),
            };
        }
        Ok(())
    }

    async fn move_events(&self, elected: &mut Elected) -> Result<Moved, StoreError> {
        let mut moved = Moved { events: 0, is_more: true };
        for _ in 0..MOVES {
            let done = self.store.sequence_events(self.retention).await?;
            moved.events += done.moved;
            if done.moved > 0 {
                metrics::counter!(m::EVENTS_LOGGED_TOTAL).increment(done.moved);
                elected.moved += done.moved;
                self.logged.notify(usize::try_from(done.moved).unwrap_or(usize::MAX));
            }
            metrics::gauge!(m::EVENT_LOG_POSITION).set(done.position as f64);
            if !done.is_full {
                moved.is_more = false;
                break;
            }
        }
        self.raise_floor(elected).await?;
        let drop_every = (self.retention / 100).clamp(MIN_DROP, MAX_DROP);
        if elected.dropped_at.is_none_or(|at| at.elapsed() >= drop_every) {
            elected.dropped_at = Some(Instant::now());
            match self.store.drop_event_partitions(self.retention).await {
                Ok(0) => {}
                Ok(partitions) => tracing::info!(partitions, "dropped events older than events.retention"),
                // A long read, a dump for example, holds the table: next time.
                Err(error) if !error.is_connection() => {
                    tracing::info!(%error, "could not drop old events; trying again later");
                }
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    async fn raise_floor(&self, elected: &mut Elected) -> Result<(), StoreError> {
        let every = if elected.moved >= MANY_EVENTS { RAISE_FLOOR } else { RAISE_FLOOR_FOR_FEW };
        if elected.moved == 0 || elected.floor_at.is_some_and(|at| at.elapsed() < every) {
            return Ok(());
        }
        elected.floor_at = Some(Instant::now());
        match elected.floor.take() {
            Some((floor, _)) if self.store.raise_outbox_floor(&floor).await? => elected.moved = 0,
            // Somebody still writes, or what they wrote is not moved yet.
            Some((floor, tries)) if tries < FLOOR_TRIES => elected.floor = Some((floor, tries + 1)),
            Some(_) | None => {}
        }
        if elected.floor.is_none() {
            elected.floor = Some((self.store.outbox_floor().await?, 0));
        }
        Ok(())
    }
}

impl Elected {
    fn is_elected(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() < until)
    }
}
