//! A lane: the actor that owns one leased submitter. Ordinary sequential code around one loop.
//!
//! The rows are the program counter. A lane starts by reading them; whenever something goes wrong it reads them
//! again. There is no recovery mode, and dropping a lane at any await point is safe.

mod alarms;
mod error;
mod flush;
mod open;
mod parts;
mod schedule;
mod window;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use gapless::config::Profile;
use gapless::domain::{Address, Event, EventKind, Policy, TxId};
use gapless::signer::{PolicySigner, Signer};
use gapless::store::{
    DoneAction, Evidence, FencedWrite, Lease, PendingAction, PendingTxRequest, PolicyNote, QueuedIntent,
    SentNote,
};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::chains::Chain;
use crate::failpoint;
use crate::steps;
use crate::steps::protect::Allowed;
use crate::watcher::{Inbox, LaneEvent, Mailbox};
use schedule::NextStep;

pub(crate) use error::StepError;
pub(crate) use open::{NOT_REPLACED, OpenTx};
pub(crate) use parts::{Ended, Funds, LaneCommand, QueuedMove, Sequence, Sharing, WorkerContext};

#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) lease: Lease,
    pub(crate) context: Arc<WorkerContext>,
    pub(crate) chain: Arc<Chain>,
    /// Behind the policy, where there is one.
    pub(crate) signer: Arc<dyn Signer>,
    /// What the submitter may do. `None`: anything.
    pub(crate) policy: Option<Arc<Policy>>,
    pub(crate) mailbox: Mailbox,
    inbox: Inbox,
    /// In nonce order.
    pub(crate) open: VecDeque<OpenTx>,
    /// Heads of the queue, read ahead.
    pub(crate) queue: VecDeque<QueuedIntent>,
    /// Heads that others may overtake.
    pub(crate) passed: steps::prepare::Passed,
    /// Whether the database may hold more eligible intents than `queue`.
    pub(crate) more_queued: bool,
    pub(crate) sequence: Option<Sequence>,
    /// What `sequence` is on disk.
    stored_sequence: Option<Sequence>,
    pub(crate) paused: bool,
    own_window: Option<u32>,
    pub(crate) sharing: Sharing,
    /// When the account's code was last looked at.
    pub(crate) code_seen: Option<Instant>,
    pub(crate) actions: Vec<PendingAction>,
    pub(crate) tx_requests: Vec<PendingTxRequest>,
    /// Changes of intents that have no nonce.
    pub(crate) queued_moves: Vec<QueuedMove>,
    pub(crate) sent_notes: Vec<SentNote>,
    pub(crate) done_actions: Vec<DoneAction>,
    /// Requests that were seen and take longer than one commit.
    pub(crate) seen_requests: Vec<i64>,
    /// What the policy decided since the last commit.
    pub(crate) policy_notes: Vec<PolicyNote>,
    events: Vec<Event>,
    pub(crate) funds: Option<Funds>,
    /// No preparing before this: funds, signer or node are not there.
    pub(crate) hold_until: Option<Instant>,
    /// The caller that waits at the head of the queue and is not heard of, by its intent, and since when.
    pub(crate) caller_silent: Option<(TxId, Instant)>,
    /// What would revert, and where that was seen.
    pub(crate) reverts: steps::prepare::Reverts,
    /// Told when a node is well again.
    recovered: watch::Receiver<u64>,
    pub(crate) recovery: steps::recover::Recovery,
    pub(crate) key: steps::protect::KeyState,
    /// What its evidence is on disk.
    stored_evidence: Evidence,
    pub(crate) looks: steps::diagnose::Looks,
    /// The look for receipts that follows reading the rows has failed: when it is repeated, and the pause before that.
    pub(crate) look_again: Option<(Instant, Duration)>,
    /// An intent moved on in the middle of a turn: another turn may move it further.
    pub(crate) moved: bool,
    /// Pause before the rows are read again after trouble; grows while it lasts.
    retry_pause: Duration,
    lazy_since: Option<Instant>,
    idle_since: Option<Instant>,
    /// It has nothing to do. For the fleet: nothing but an early word of new work depends on it.
    pub(crate) idle: Arc<AtomicBool>,
    /// The head of its queue is blocked, and no nonce is open.
    pub(crate) only_waits: Arc<AtomicBool>,
    /// What is on its way and waits for a node, as the rows say and as was told.
    told_waiting: Option<TxId>,
    /// Since when the chain may not be used.
    halted_since: Option<Instant>,
    reload: bool,
    /// News was lost: once the rows are read, what they say of blocks is looked at, too.
    missed_news: bool,
    /// A write may or may not have been committed.
    unsure: bool,
}

/// What a lane does after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "sim-driver"), allow(unreachable_pub))]
pub enum Next {
    Again,
    /// Until there is news, or until then.
    Wait(Option<Instant>),
    /// Something went wrong; the rows are read again after this.
    Pause(Duration),
    /// There is nothing to do: the lease may go back.
    Done,
    /// The lease is somebody else's.
    Lost,
}

/// A node or a database that is away for long is not asked more often than this by each lane.
const LONGEST_RETRY: Duration = Duration::from_secs(15);
/// A chain that may not be used for this long is said to be what its submitters wait for.
const SHOW_HALT_AFTER: Duration = Duration::from_secs(2);
/// How long a write that can wait waits for company. On most chains it is mined in less, and needs no write of its own.
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
        let recovered = chain.watcher.recovered();
        let lane = Lane {
            lease,
            context,
            chain,
            signer,
            policy,
            mailbox: mailbox.clone(),
            inbox,
            open: VecDeque::new(),
            queue: VecDeque::new(),
            passed: Default::default(),
            more_queued: true,
            sequence: None,
            stored_sequence: None,
            paused: false,
            own_window: None,
            sharing: Sharing::default(),
            code_seen: None,
            actions: Vec::new(),
            tx_requests: Vec::new(),
            queued_moves: Vec::new(),
            sent_notes: Vec::new(),
            done_actions: Vec::new(),
            seen_requests: Vec::new(),
            policy_notes: Vec::new(),
            events: Vec::new(),
            funds: None,
            hold_until: None,
            caller_silent: None,
            reverts: Default::default(),
            recovered,
            recovery: Default::default(),
            key: Default::default(),
            stored_evidence: Evidence::default(),
            looks: Default::default(),
            look_again: None,
            moved: false,
            retry_pause: Duration::ZERO,
            lazy_since: None,
            idle_since: None,
            idle: Arc::default(),
            only_waits: Arc::default(),
            told_waiting: None,
            halted_since: None,
            reload: true,
            missed_news: false,
            unsure: false,
        };
        (lane, mailbox)
    }

    /// Runs until there is nothing to do, the fleet wants the lease back, or it is lost.
    pub(crate) async fn run(mut self, mut orders: watch::Receiver<LaneCommand>) -> Ended {
        let (keep, order) = tokio::select! {
            biased;
            order = handle_command(&mut orders) => (order != LaneCommand::Abandon, Some(order)),
            keep = self.work() => (keep, None),
        };
        self.forget_everything();
        let tag = self.lease.tag();
        Ended {
            tag,
            lease: keep.then_some(self.lease),
            handed_over: order == Some(LaneCommand::HandOver),
            gave_way: order == Some(LaneCommand::GiveWay),
        }
    }

    /// Ends a lane that no loop drives.
    #[cfg(feature = "sim-driver")]
    pub(crate) fn into_lease(mut self) -> Lease {
        self.forget_everything();
        self.lease
    }

    /// True: the lease is still ours and can be released.
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

    /// One turn, and what its end means.
    pub(crate) async fn step(&mut self) -> Next {
        let mut turn = self.turn().await;
        if let Err(StepError::Node { cause }) = &turn
            && let Err(worse) = self.show_waiting_for_node(&cause.clone()).await
        {
            turn = Err(worse);
        }
        if turn.is_ok() {
            self.retry_pause = Duration::ZERO;
        }
        match turn {
            Ok(NextStep::Again) => Next::Again,
            Ok(NextStep::Wait(until)) => Next::Wait(until),
            Ok(NextStep::Done) => Next::Done,
            Err(StepError::Stop(why)) => {
                tracing::info!(chain.id = self.chain.config.id.0, submitter = %self.lease.key().address_text(),
                    fencing_token = self.lease.token().0, why, "lane ends");
                Next::Lost
            }
            Err(StepError::Retry { after, cause }) => {
                tracing::warn!(chain.id = self.chain.config.id.0, submitter = %self.lease.key().address_text(),
                    fencing_token = self.lease.token().0, cause, "lane reads its rows again");
                self.start_over(after)
            }
            Err(StepError::Node { cause }) => {
                tracing::warn!(chain.id = self.chain.config.id.0, submitter = %self.lease.key().address_text(),
                    fencing_token = self.lease.token().0, cause, "a node could not be asked; lane reads its rows again");
                self.start_over(error::SOON)
            }
            Err(StepError::Unsure { cause }) => {
                tracing::warn!(chain.id = self.chain.config.id.0, submitter = %self.lease.key().address_text(),
                    fencing_token = self.lease.token().0, cause, "lane reads its rows again");
                self.unsure = true;
                self.start_over(error::SOON)
            }
            Err(StepError::Park { after, cause }) => {
                tracing::error!(chain.id = self.chain.config.id.0, submitter = %self.lease.key().address_text(),
                    fencing_token = self.lease.token().0, cause, "lane parked");
                self.start_over(after)
            }
        }
    }

    /// A turn ended before anything could be prepared. What else is in memory is forgotten first: it may be wrong.
    async fn show_waiting_for_node(&mut self, cause: &str) -> Result<(), StepError> {
        let (has_room, stopped) = (self.has_room(), self.paused || self.is_protected());
        self.forget_everything();
        match (has_room, stopped) {
            _ if self.reload => self.show_unread_waiting(cause).await,
            (true, false) => steps::prepare::show_waiting_for_node(self, cause).await,
            (false, false) => self.show_open_waiting(cause).await,
            (_, true) => Ok(()),
        }
    }

    /// What is in memory may be wrong, and must not be written: forget it and read the rows.
    fn start_over(&mut self, after: Duration) -> Next {
        self.forget_everything();
        self.reload = true;
        let pause = after.max(self.retry_pause);
        self.retry_pause = (pause * 2).min(LONGEST_RETRY);
        Next::Pause(pause)
    }

    fn forget_everything(&mut self) {
        let hashes: Vec<_> = self.open.iter().flat_map(OpenTx::hashes).collect();
        self.chain.watcher.leave(&hashes, &self.mailbox);
        self.open.clear();
        self.queue.clear();
        self.passed = Default::default();
        self.queued_moves.clear();
        self.sent_notes.clear();
        self.done_actions.clear();
        self.seen_requests.clear();
        self.policy_notes.clear();
        self.events.clear();
        self.sharing.found.clear();
        self.sequence = None;
        self.stored_sequence = None;
        self.lazy_since = None;
        self.look_again = None;
        self.told_waiting = None;
    }

    /// One round over everything that could move. Order matters: what is open before what is new.
    async fn turn(&mut self) -> Result<NextStep, StepError> {
        self.read_mail();
        // An error would mean that the watcher is gone, and it is not: the chain holds it.
        if self.recovered.has_changed().unwrap_or(false) {
            self.recovered.mark_unchanged();
            steps::recover::heard(self);
        }
        if let Some(problem) = self.chain.halted() {
            tracing::debug!(chain.id = self.chain.config.id.0, problem, "lane waits for its chain");
            let shown_at = *self.halted_since.get_or_insert_with(Instant::now) + SHOW_HALT_AFTER;
            if Instant::now() < shown_at {
                return Ok(NextStep::Wait(Some(shown_at)));
            }
            // The first check takes a moment at every start. What lasts longer is shown like any other trouble of a node.
            return Err(StepError::Node { cause: problem });
        }
        self.halted_since = None;
        if self.unsure {
            // Whatever was not known to be committed holds the lease's row until it is decided: after the fence it is.
            self.context.writer.commit(FencedWrite::new(&self.lease)).await?;
            self.unsure = false;
        }
        if self.reload {
            self.flush().await?;
            self.load().await?;
        }
        if steps::operator::carry_out(self).await? {
            // Requests about intents are judged by the rows as they are now.
            self.reload = true;
            return Ok(NextStep::Again);
        }
        steps::request::carry_out(self).await?;
        self.moved = false;
        steps::track::advance(self).await?;
        let allowed = steps::protect::allowed(self).await?;
        if allowed != Allowed::Nothing {
            steps::stuck::alarm(self);
            if allowed == Allowed::Everything {
                // What a caller wants at a nonce that is in doubt waits: nothing of it exists yet.
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
        steps::recover::show_trouble(self);
        self.flush_if_due().await?;
        if self.moved {
            return Ok(NextStep::Again);
        }
        Ok(self.next_step(allowed))
    }

    /// Reads the submitter as the last owner left it. What was only in memory is forgotten.
    async fn load(&mut self) -> Result<(), StepError> {
        let rows = self.context.reader.lane(self.lease.key()).await?;
        let now = Instant::now();
        self.forget_everything();
        self.more_queued = true;
        self.paused = rows.paused;
        self.own_window = rows.max_in_flight;
        self.sharing = Sharing { enabled: rows.shared, known: rows.foreign, ..Sharing::default() };
        self.code_seen = None;
        self.actions = rows.actions;
        self.tx_requests = rows.tx_requests;
        self.open = rows.open.into_iter().map(|intent| OpenTx::loaded(intent, now)).collect();
        // The time in the row schedules, and no clock that was set back may put a send off for longer than the timer does.
        let interval = self.chain.config.resubmit.interval;
        self.open.iter_mut().for_each(|tx| tx.due = tx.due.min(now + interval));
        self.recall_alarms();
        steps::stuck::resume(self);
        self.open.iter_mut().for_each(OpenTx::note_answer);
        let open_from = rows.cursor.as_ref().map(|cursor| cursor.open_from);
        self.stored_evidence = rows.cursor.as_ref().map(|cursor| cursor.evidence.clone()).unwrap_or_default();
        self.key = std::mem::take(&mut self.key).read_again(self.stored_evidence.clone());
        // A shared key is never doubted: others may use it.
        let used = |tx: &OpenTx| tx.intent.sub_state.as_deref() == Some(steps::submit::NONCE_USED);
        if !self.sharing.enabled && self.open.iter().any(used) {
            self.key.doubted_before();
        }
        self.sequence = rows.cursor.map(|cursor| Sequence {
            start: cursor.start,
            next: cursor.next,
            protect: cursor.protect,
            max_in_flight: cursor.max_in_flight,
            in_flight: None,
            open_from: cursor.open_from,
            delegated: cursor.delegated,
        });
        self.settle_in_flight();
        self.stored_sequence = self.sequence.clone();
        // A bound that lags is mended: it says that there is work.
        if let (Some(stored), Some(on_disk)) = (&mut self.stored_sequence, open_from) {
            stored.open_from = on_disk;
        }
        self.funds = None;
        self.hold_until = None;
        self.reload = false;
        // Watched first, looked up second: a block in between is told, one before is found.
        for tx in &self.open {
            for hash in tx.hashes() {
                self.chain.watcher.watch(hash, &self.mailbox);
            }
        }
        steps::track::look_up_all(self).await;
        if std::mem::take(&mut self.missed_news) {
            self.handle_event(LaneEvent::Reorged { from: 0 });
        }
        Ok(())
    }

    fn read_mail(&mut self) {
        while let Some(news) = self.inbox.try_recv() {
            self.handle_event(news);
        }
    }

    fn handle_event(&mut self, news: LaneEvent) {
        match news {
            // Only told of submitters that are not paused.
            LaneEvent::Work => {
                self.more_queued = true;
                self.paused = false;
            }
            LaneEvent::Look => self.more_queued = true,
            LaneEvent::Reload => self.reload = true,
            LaneEvent::Paused(paused) => self.paused = paused,
            LaneEvent::Shared(shared) => self.reload |= shared != self.sharing.enabled,
            LaneEvent::Included(receipt) => steps::track::included(self, receipt),
            LaneEvent::Deep => {
                if self.reverts.is_checking() {
                    // It is looked at again at the next head.
                    self.hold_until = None;
                }
            }
            LaneEvent::Reorged { from } => {
                self.reverts.replaced_from(from);
                steps::track::reorged(self, from);
            }
            LaneEvent::Diagnosed(found) => steps::diagnose::found(self, found),
            // Work, pauses and sharing are in the rows, receipts are looked up when these are read, heights are asked for
            // again by every turn, and replaced blocks are looked for then. A diagnosis is advice: the next look gives another.
            LaneEvent::Missed => {
                tracing::warn!(chain.id = self.chain.config.id.0, submitter = %self.lease.key().address_text(),
                    worker.id = %self.context.worker_id, fencing_token = self.lease.token().0,
                    "the lane's mailbox was full; it reads its rows again");
                self.reload = true;
                self.missed_news = true;
                self.looks = Default::default();
            }
        }
    }

    pub(crate) fn address(&self) -> Address {
        self.lease.key().address
    }

    /// The rows may say more than memory does: reads them before the next turn.
    pub(crate) fn read_again(&mut self) {
        self.reload = true;
        self.moved = true;
    }

    /// Whether other bytes may be made for a given nonce at all.
    pub(crate) fn may_replace(&self) -> bool {
        self.chain.config.nonce.profile != Profile::StabilityFirst
    }

    pub(crate) fn is_protected(&self) -> bool {
        self.sequence.as_ref().is_some_and(|sequence| sequence.protect.is_some())
    }

    /// Notes a domain event; it is published when the commit that makes it true is through.
    pub(crate) fn tell(&mut self, tx_id: Option<TxId>, kind: EventKind) {
        let last = self.events.iter_mut().rev().find(|event| event.tx_id == tx_id);
        if last.is_some_and(|event| event.kind.absorb(&kind)) {
            return;
        }
        self.events.push(Event { submitter: self.lease.key(), tx_id, kind });
    }
}

/// Returns when the lane has to stop. The lease is still ours unless it has to vanish.
async fn handle_command(orders: &mut watch::Receiver<LaneCommand>) -> LaneCommand {
    match orders.wait_for(|order| *order != LaneCommand::Run).await {
        Ok(order) => *order,
        // The fleet is gone without a word: keep nothing.
        Err(_) => LaneCommand::Abandon,
    }
}
