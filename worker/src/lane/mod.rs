//! A lane: the actor that owns one leased submitter. Sequential code around one loop.
//!
//! All state is in the database. A lane starts by loading the rows, and reloads them after any error. There is no
//! recovery mode, and dropping a lane at any await point is safe.

mod alarms;
mod error;
mod flush;
mod open;
mod parts;
mod pending;
mod rows;
mod schedule;
mod window;

use std::sync::Arc;
use std::time::Duration;

use gapless_config::Profile;
use gapless_domain::{Address, EventKind, SubState, TxId};
use gapless_signer::{PolicySigner, Signer};
use gapless_store::{FencedWrite, Lease};
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::Span;

use crate::chains::Chain;
use crate::failpoint;
use crate::steps;
use crate::steps::protect::Allowed;
use crate::watcher::{LaneEvent, Mailbox};
use crate::writer::WriteError;
use schedule::NextStep;

pub(crate) use error::StepError;
pub(crate) use open::OpenTx;
pub(crate) use parts::{Ended, LaneCommand, LaneStatus, WorkerContext};
pub(crate) use pending::QueuedMove;

use parts::{Progress, Signals, Signing};
use pending::PendingWrite;
use rows::Rows;

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) lease: Lease,
    pub(crate) context: Arc<WorkerContext>,
    pub(crate) chain: Arc<Chain>,
    pub(crate) signing: Signing,
    pub(crate) signals: Signals,
    pub(crate) status: Arc<LaneStatus>,
    /// Replaced by a reload.
    pub(crate) rows: Rows,
    pub(crate) pending: PendingWrite,
    pub(crate) prepare: steps::prepare::Preparation,
    pub(crate) track: steps::track::Tracking,
    pub(crate) sharing: steps::shared_key::Sharing,
    pub(crate) key: steps::protect::KeyState,
    pub(crate) recovery: steps::recover::Recovery,
    pub(crate) inspections: steps::diagnose::Inspections,
    progress: Progress,
}

/// What a lane does after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "sim-driver"), allow(unreachable_pub))]
pub enum Next {
    Again,
    /// Until an event arrives, at most until then.
    Wait(Option<Instant>),
    /// An error occurred; the rows are reloaded after this pause.
    Pause(Duration),
    /// There is nothing to do: the lease can be released.
    Done,
    /// The lease is lost.
    Lost,
}

/// Longest pause between two retries of a lane while a node or the database is unreachable.
const LONGEST_RETRY: Duration = Duration::from_secs(15);
/// After this time a halted chain is stored as the wait reason of its intents.
const SHOW_HALT_AFTER: Duration = Duration::from_secs(2);
/// How long a lazy write is delayed to be combined with others. On most chains the transaction is mined sooner, and
/// the write is not needed.
const LAZY: Duration = Duration::from_secs(1);

impl Lane {
    pub(crate) fn new(
        lease: Lease,
        context: Arc<WorkerContext>,
        chain: Arc<Chain>,
        signer: Arc<dyn Signer>,
    ) -> (Lane, Mailbox) {
        let (mailbox, inbox) = Mailbox::new(chain.config.nonce.max_in_flight);
        let policy = chain.config.policies.get(&lease.key().address).cloned();
        let signer = match &policy {
            Some(policy) => Arc::new(PolicySigner::new(signer, policy.clone())),
            None => signer,
        };
        let signals = Signals { mailbox: mailbox.clone(), inbox, recovered: chain.watcher.recovered() };
        let lane = Lane {
            lease,
            context,
            chain,
            signing: Signing { signer, policy },
            signals,
            status: Arc::default(),
            rows: Rows::default(),
            pending: PendingWrite::default(),
            prepare: Default::default(),
            track: Default::default(),
            sharing: Default::default(),
            key: Default::default(),
            recovery: Default::default(),
            inspections: Default::default(),
            progress: Progress { reload: true, late: true, ..Progress::default() },
        };
        (lane, mailbox)
    }

    /// Carries the fields of the lane to every line that is logged within it. Its level is the highest, because a
    /// filter for warnings must not remove it.
    pub(crate) fn span(&self) -> Span {
        tracing::error_span!("lane", chain.id = self.chain.config.id.0,
            submitter = %self.lease.key().address_text(), worker.id = %self.context.worker_id,
            fencing_token = self.lease.token().0)
    }

    /// Runs until there is nothing to do, the fleet requests the lease, or it is lost.
    pub(crate) async fn run(mut self, mut commands: watch::Receiver<LaneCommand>) -> Ended {
        let (owned, command) = tokio::select! {
            biased;
            command = handle_command(&mut commands) => (command != LaneCommand::Abandon, Some(command)),
            owned = self.work() => (owned, None),
        };
        self.clear_state();
        let tag = self.lease.tag();
        Ended {
            tag,
            lease: owned.then_some(self.lease),
            handed_over: command == Some(LaneCommand::HandOver),
            was_blocked: command == Some(LaneCommand::ReleaseBlocked),
        }
    }

    /// Ends a lane that runs without its loop.
    #[cfg(feature = "sim-driver")]
    pub(crate) fn into_lease(mut self) -> Lease {
        self.clear_state();
        self.lease
    }

    /// True: the lease is still owned and can be released.
    async fn work(&mut self) -> bool {
        failpoint::hit("claimed");
        loop {
            match self.step().await {
                Next::Again => {}
                Next::Wait(until) => self.wait(until).await,
                Next::Pause(pause) => self.pause(pause).await,
                Next::Done => return true,
                Next::Lost => return false,
            }
        }
    }

    /// Runs one step and handles its errors.
    pub(crate) async fn step(&mut self) -> Next {
        let mut result = self.advance().await;
        if let Err(error) = &result
            && let Some(cause) = error.node_failure()
            && let Err(second) = self.show_waiting_for_node(&cause).await
        {
            result = Err(second);
        }
        match result {
            Ok(next) => {
                self.progress.retry_pause = Duration::ZERO;
                match next {
                    NextStep::Again => Next::Again,
                    NextStep::Wait(until) => Next::Wait(until),
                    NextStep::Done => Next::Done,
                }
            }
            Err(error) => self.handle_error(&error),
        }
    }

    fn handle_error(&mut self, error: &StepError) -> Next {
        match error {
            StepError::LeaseLost => {
                tracing::info!(reason = %error, "lane ends");
                return Next::Lost;
            }
            StepError::NotRenewed | StepError::Read(_) => {
                tracing::warn!(error = %error, "step failed; lane reloads its rows");
            }
            StepError::Node(_) | StepError::Halted(_) => {
                tracing::warn!(error = %error, "node request failed; lane reloads its rows");
            }
            StepError::UnknownCommit(cause) => {
                match cause {
                    // Logged by the writer, once for all lanes of the batch.
                    WriteError::Unknown(_) => {
                        tracing::debug!("outcome of a commit unknown; lane reloads its rows");
                    }
                    _ => tracing::warn!(error = %error, "outcome of a commit unknown; lane reloads its rows"),
                }
                self.progress.commit_unknown = true;
            }
            StepError::Unreadable(_) => {
                tracing::error!(error = %error, "lane parked");
            }
            // Logged by the writer, with the rejected rows.
            StepError::Refused(_) => {}
            // The same; the late ones are ended before the rows are read.
            StepError::TooLate => self.progress.late = true,
        }
        self.start_over(error.retry_after())
    }

    /// A node request failed before anything could be prepared: stores that as the wait reason. Clears the state in
    /// memory first, because it may be wrong.
    async fn show_waiting_for_node(&mut self, cause: &str) -> Result<(), StepError> {
        let (window_has_room, stopped) = (self.window_has_room(), self.rows.paused || self.is_protected());
        self.clear_state();
        match (window_has_room, stopped) {
            _ if self.progress.reload => self.show_unread_waiting(cause).await,
            (true, false) => steps::prepare::show_waiting_for_node(self, cause).await,
            (false, false) => self.show_open_waiting(cause).await,
            (_, true) => Ok(()),
        }
    }

    /// Clears the state in memory, which may be wrong and must not be written, and schedules a reload.
    fn start_over(&mut self, after: Duration) -> Next {
        self.clear_state();
        self.progress.reload = true;
        let pause = after.max(self.progress.retry_pause);
        self.progress.retry_pause = (pause * 2).min(LONGEST_RETRY);
        Next::Pause(pause)
    }

    /// `load` replaces the state of the key and of its sharing. Recovery and inspections continue:
    /// - A recovery may be scheduled while the lane waits for its reload, and must not get lost. Its pauses and misses
    ///   limit resends, and failing requests reload the rows often.
    /// - An inspection may be running and ends with an event; a second one must not be started. Its schedule would
    ///   start over with every reload, and an inspection might never be due.
    fn clear_state(&mut self) {
        let hashes: Vec<_> = self.rows.open.iter().flat_map(OpenTx::hashes).collect();
        self.chain.watcher.leave(&hashes, &self.signals.mailbox);
        self.rows = Rows::default();
        self.pending = PendingWrite::default();
        self.prepare.reload();
        self.track = Default::default();
    }

    /// One pass over all intents that could advance. Order matters: open intents before queued ones.
    async fn advance(&mut self) -> Result<NextStep, StepError> {
        self.drain_inbox();
        // An error would mean that the watcher was dropped, but the chain owns it.
        if self.signals.recovered.has_changed().unwrap_or(false) {
            self.signals.recovered.mark_unchanged();
            steps::recover::schedule(self);
        }
        if self.progress.commit_unknown {
            // An undecided transaction holds the lock on the lease row: once this fence has passed, its outcome is
            // decided.
            self.context.writer.commit(FencedWrite::new(&self.lease)).await?;
            self.progress.commit_unknown = false;
        }
        if self.progress.late {
            // Without a node, and without reading the rows again, which would begin all observations of the key anew.
            self.progress.late = steps::late::end(self).await?;
        }
        if let Some(problem) = self.chain.halted() {
            tracing::debug!(problem, "lane waits for its chain");
            let shown_at = *self.progress.halted_since.get_or_insert_with(Instant::now) + SHOW_HALT_AFTER;
            if Instant::now() < shown_at {
                return Ok(NextStep::Wait(Some(shown_at)));
            }
            // The first identity check takes a moment at every start. A longer halt is shown like any node error.
            return Err(StepError::Halted(problem));
        }
        self.progress.halted_since = None;
        if self.progress.reload {
            self.flush().await?;
            self.load().await?;
        }
        if steps::operator::carry_out(self).await? {
            // Requests about intents are decided by the reloaded rows.
            self.progress.reload = true;
            return Ok(NextStep::Again);
        }
        steps::request::carry_out(self).await?;
        self.progress.moved = false;
        steps::track::advance(self).await?;
        let allowed = steps::protect::allowed(self).await?;
        if allowed != Allowed::Nothing {
            steps::stuck::alarm(self);
            if allowed == Allowed::Everything {
                // Reservations of a SUSPECT submitter wait: nothing of the client's transaction exists yet.
                steps::reserve::advance(self).await?;
            }
            steps::replace::advance(self).await?;
            steps::delegated::advance(self);
            steps::recover::advance(self).await?;
            steps::submit::advance(self).await?;
            if allowed == Allowed::Everything && steps::prepare::fill(self).await? {
                return Ok(NextStep::Again);
            }
        }
        steps::diagnose::begin(self);
        steps::recover::show_node_outage(self);
        self.flush_if_due().await?;
        if self.progress.moved {
            return Ok(NextStep::Again);
        }
        Ok(self.next_step(allowed))
    }

    /// Loads the submitter's rows. State that was only in memory is dropped.
    async fn load(&mut self) -> Result<(), StepError> {
        let rows = self.context.reader.lane(self.lease.key()).await?;
        self.clear_state();
        self.sharing = steps::shared_key::Sharing::loaded(&rows);
        self.rows = Rows::loaded(rows, self.chain.config.resubmit.interval, Instant::now());
        self.restore_alarms();
        steps::stuck::resume(self);
        self.key = std::mem::take(&mut self.key).read_again(self.rows.stored_evidence.clone());
        // A used nonce makes only an unshared key SUSPECT: external use of a shared key is expected.
        let used = |tx: &OpenTx| tx.intent.sub_state == Some(SubState::NonceUsed);
        if !self.sharing.enabled && self.rows.open.iter().any(used) {
            self.key.doubted_before();
        }
        let open_from = self.rows.sequence.as_ref().map(|sequence| sequence.open_from);
        self.update_in_flight();
        self.rows.stored_sequence = self.rows.sequence.clone();
        // A stored bound that lags is corrected by the next write: it would report work that does not exist.
        if let (Some(stored), Some(on_disk)) = (&mut self.rows.stored_sequence, open_from) {
            stored.open_from = on_disk;
        }
        self.progress.reload = false;
        // Watch before the lookup, so that no block is missed in between.
        for tx in &self.rows.open {
            for hash in tx.hashes() {
                self.chain.watcher.watch(hash, &self.signals.mailbox);
            }
        }
        steps::track::look_up_all(self).await;
        if std::mem::take(&mut self.progress.missed_events) {
            self.handle_event(LaneEvent::Reorged { from: 0 });
        }
        Ok(())
    }

    fn drain_inbox(&mut self) {
        while let Some(event) = self.signals.inbox.try_recv() {
            self.handle_event(event);
        }
    }

    fn handle_event(&mut self, event: LaneEvent) {
        match event {
            // Posted only for submitters that are not paused.
            LaneEvent::Work => {
                self.rows.expect_more();
                self.rows.paused = false;
            }
            LaneEvent::MaybeWork => self.rows.expect_more(),
            LaneEvent::Reload => self.progress.reload = true,
            LaneEvent::Late => self.progress.late = true,
            LaneEvent::Paused(paused) => self.rows.paused = paused,
            LaneEvent::Shared(shared) => self.progress.reload |= shared != self.sharing.enabled,
            LaneEvent::Included(receipt) => steps::track::included(self, receipt),
            LaneEvent::HeightReached => {
                if self.prepare.reverts.is_checking() {
                    // It is checked again at the new head.
                    self.prepare.end_hold();
                }
            }
            LaneEvent::Reorged { from } => {
                self.prepare.reverts.replaced_from(from);
                steps::track::reorged(self, from);
            }
            LaneEvent::Diagnosed(found) => steps::diagnose::apply(self, found),
            // The reload restores all of it: work, pause and sharing are in the rows, receipts are looked up, blocks
            // are checked for reorgs, and every step requests heights again. A lost diagnosis is only advice.
            LaneEvent::Missed => {
                tracing::warn!("lane mailbox overflowed; lane reloads its rows");
                self.progress.reload = true;
                self.progress.late = true;
                self.progress.missed_events = true;
                // The result of a running inspection may be among the dropped events.
                self.inspections = Default::default();
            }
        }
    }

    pub(crate) fn address(&self) -> Address {
        self.lease.key().address
    }

    /// An intent changed state: another step may advance it further.
    pub(crate) fn step_again(&mut self) {
        self.progress.moved = true;
    }

    /// Reloads the rows before the next step: they may be newer than memory.
    pub(crate) fn request_reload(&mut self) {
        self.progress.reload = true;
        self.progress.moved = true;
    }

    /// Whether the profile allows replacing the transaction of an assigned nonce.
    pub(crate) fn may_replace(&self) -> bool {
        self.chain.config.nonce.profile != Profile::StabilityFirst
    }

    pub(crate) fn is_protected(&self) -> bool {
        self.rows.sequence.as_ref().is_some_and(|sequence| sequence.protect.is_some())
    }

    /// Adds a domain event; it is published after the commit.
    pub(crate) fn emit_event(&mut self, tx_id: Option<TxId>, kind: EventKind) {
        self.pending.event(self.lease.key(), tx_id, kind);
    }
}

/// Returns when the lane must stop. The lease is still owned unless the command is `Abandon`.
async fn handle_command(commands: &mut watch::Receiver<LaneCommand>) -> LaneCommand {
    match commands.wait_for(|command| *command != LaneCommand::Run).await {
        Ok(command) => *command,
        // The fleet was dropped: do not release.
        Err(_) => LaneCommand::Abandon,
    }
}
