//! One open intent as the lane holds it: the stored row, what changed since, and when it is due.

mod reservation;

use std::time::Duration;

use gapless::config::ReleaseAt;
use gapless::domain::mempool::Diagnosis;
use gapless::domain::{
    AttemptId, Confirmation, Ending, ErrorCode, FinalConfirmations, H256, Receipt, SignedDraft, TxError,
    TxState, U256,
};
use gapless::store::{Attempt, AttemptKind, Move, OpenIntent};
use tokio::time::Instant;

pub(crate) use reservation::ReservationChange;

/// Why it waits: other bytes are wanted, and cannot be paid or priced, or the node refuses them for that.
pub(crate) const NOT_REPLACED: &str = "not_replaced";

/// First wait after a node did not take the bytes; doubles up to the resubmit interval.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct OpenTx {
    /// The row as it shall be.
    pub(crate) intent: OpenIntent,
    /// The state that is on disk.
    persisted: TxState,
    /// Something differs from the row on disk.
    dirty: bool,
    /// It can wait for company: losing it only resends the same bytes.
    lazy: bool,
    /// Bytes that are not on disk yet. Cannot be sent.
    draft: Option<(AttemptKind, SignedDraft)>,
    /// What is new about the nonce that is held for a caller outside.
    reservation_change: Option<ReservationChange>,
    /// The caller's transaction has to wait: not looked at before this.
    pub(crate) answer_at: Option<Instant>,
    /// Sends claimed since the last commit, and the time of the next that goes with them.
    claimed: u32,
    resubmit_in: Option<Duration>,
    /// Sends claimed so far, by this owner and those before.
    pub(crate) sends: u32,
    /// A claim is on disk that no send has used yet.
    pub(crate) may_send: bool,
    /// A node is known to have taken the bytes: the next nonce may follow.
    pub(crate) is_taken: bool,
    /// When the bytes are due (again).
    pub(crate) due: Instant,
    backoff: Duration,
    pub(crate) prepared_at: Instant,
    /// When the chain last gave reason to believe the receipt.
    pub(crate) receipt_seen: Instant,
    /// When the last set of bytes was made.
    pub(crate) last_attempt_at: Instant,
    /// No other attempt is made before this: the last try to make one failed, or the pool wants more.
    pub(crate) replace_at: Option<Instant>,
    /// Somebody asked for a higher price.
    pub(crate) speed_up: bool,
    /// Numbers of the requests that asked for it. They are finished in the commit of the attempt, or with the reason why there is
    /// none.
    pub(crate) asked: Vec<i64>,
    /// Why other bytes that are wanted cannot be made.
    pub(crate) unaffordable: Option<TxError>,
    /// The policy does not let its bytes be replaced, and that was noted.
    pub(crate) refused_by_policy: bool,
    /// The node refused the last price outright.
    pub(crate) underpriced: bool,
    /// The same bytes were asked for, whatever the timer says.
    pub(crate) resend: bool,
    /// Older attempts as well, until a node takes one.
    pub(crate) resend_older: bool,
    /// Since when, and with how many sends before, it has been unmined without a break.
    pub(crate) unmined_since: Instant,
    pub(crate) sends_before: u32,
    /// The confirming blocks that consumers of events were told of by this lane.
    pub(crate) told_blocks: Vec<Confirmation>,
    /// What made it final; written with the state.
    pub(crate) counted: Option<FinalConfirmations>,
    /// When its nonce was first seen consumed by none of our hashes.
    pub(crate) suspected: Option<Instant>,
    /// Refused while it was not the oldest, and sent at once when it became so.
    pub(crate) was_first: bool,
    /// It says that it waits for a node because none shows the head, not because of a send.
    pub(crate) shows_trouble: bool,
    /// Where it seemed to be at the last look.
    diagnosis: Option<Diagnosis>,
    /// That is not on disk.
    diagnosis_unwritten: bool,
}

impl OpenTx {
    /// From a row: everything is on disk, and whoever owned it before may or may not have sent it.
    pub(crate) fn loaded(intent: OpenIntent, now: Instant) -> Self {
        // The newest bytes may never have been sent, or nobody knows: send now.
        let unsent = intent.state == TxState::InFlight || !intent.last_attempt_sent;
        let due = if unsent { now } else { now + intent.resubmit_in };
        OpenTx {
            persisted: intent.state,
            dirty: false,
            lazy: true,
            draft: None,
            reservation_change: None,
            answer_at: None,
            claimed: 0,
            resubmit_in: None,
            sends: intent.sends,
            may_send: false,
            is_taken: !unsent
                && matches!(intent.state, TxState::Submitted | TxState::Tracking | TxState::Stuck),
            due,
            backoff: FIRST_BACKOFF,
            prepared_at: now.checked_sub(intent.age).unwrap_or(now),
            receipt_seen: now,
            last_attempt_at: now.checked_sub(intent.last_attempt_age).unwrap_or(now),
            replace_at: None,
            speed_up: false,
            asked: Vec::new(),
            unaffordable: None,
            refused_by_policy: false,
            underpriced: false,
            resend: false,
            resend_older: false,
            unmined_since: now.checked_sub(intent.age).unwrap_or(now),
            sends_before: 0,
            told_blocks: Vec::new(),
            counted: None,
            suspected: None,
            was_first: false,
            shows_trouble: matches!(intent.state, TxState::Submitted | TxState::Tracking),
            diagnosis: None,
            diagnosis_unwritten: false,
            intent,
        }
    }

    /// Freshly signed: QUEUED on disk, IN_FLIGHT once committed. The commit claims the first send.
    pub(crate) fn prepared(
        intent: OpenIntent,
        draft: SignedDraft,
        resubmit_in: Duration,
        now: Instant,
    ) -> Self {
        let mut tx = OpenTx::loaded(intent, now);
        tx.persisted = TxState::Queued;
        tx.draft = Some((AttemptKind::Original, draft));
        tx.claim(resubmit_in);
        tx
    }

    /// Other bytes for the same nonce. The commit claims their first send; every earlier hash stays watched.
    pub(crate) fn redraft(
        &mut self,
        kind: AttemptKind,
        draft: SignedDraft,
        resubmit_in: Duration,
        now: Instant,
    ) {
        self.intent.tx_hash = draft.tx_hash;
        self.intent.gas_params = Some(draft.gas_params());
        self.intent.max_cost = self.intent.max_cost.max(draft.max_cost);
        self.draft = Some((kind, draft));
        self.last_attempt_at = now;
        self.replace_at = None;
        self.speed_up = false;
        self.unaffordable = None;
        self.underpriced = false;
        self.due = now;
        self.claim(resubmit_in);
    }

    /// It shall not happen: a placeholder is to take its nonce.
    pub(crate) fn give_up(&mut self, ending: Ending) {
        if self.intent.ending.is_none() {
            self.intent.ending = Some(ending);
            self.dirty = true;
            self.lazy = false;
        }
    }

    /// Gas of the intent's own bytes, where that is known: what was noted last may be a placeholder's.
    pub(crate) fn gas_limit(&self) -> Option<U256> {
        let noted = self.intent.gas_params.as_ref().filter(|_| !self.is_placeholder());
        let noted = noted.and_then(|params| params.get("gasLimit")).cloned();
        noted.and_then(|gas| serde_json::from_value(gas).ok()).or(self.intent.payload.gas_limit)
    }

    /// Why the bytes with this hash exist.
    pub(crate) fn kind_of(&self, hash: H256) -> Option<AttemptKind> {
        self.intent.attempts.iter().find(|attempt| attempt.tx_hash() == hash).map(Attempt::kind)
    }

    /// The bytes that are sent are a placeholder's.
    pub(crate) fn is_placeholder(&self) -> bool {
        self.attempt().is_some_and(|attempt| attempt.kind() == AttemptKind::Placeholder)
    }

    pub(crate) fn state(&self) -> TxState {
        self.intent.state
    }

    /// A transaction from outside consumed its nonce.
    pub(crate) fn lose_nonce(&mut self, words: &str, now: Instant) {
        self.enter(TxState::Protect);
        self.lose_reservation(now);
        self.complain(Some("nonce_taken"), Some(TxError::new(ErrorCode::NonceTaken, words)));
    }

    /// Has bytes, and is in no block.
    pub(crate) fn is_unmined(&self) -> bool {
        matches!(self.state(), TxState::InFlight | TxState::Submitted | TxState::Stuck)
    }

    /// The same, and no caller holds its nonce.
    pub(crate) fn is_on_its_way(&self) -> bool {
        self.is_unmined() && !self.is_reserved()
    }

    pub(crate) fn hashes(&self) -> Vec<H256> {
        self.intent.attempts.iter().map(Attempt::tx_hash).collect()
    }

    /// The bytes to send: the latest attempt, once it is on disk.
    pub(crate) fn attempt(&self) -> Option<&Attempt> {
        self.intent.attempts.last()
    }

    /// What may be sent, the newest first: all attempts that mean the same as the newest. Once there is a placeholder, the
    /// intent itself is not sent again; and the placeholder of a nonce that was held is not sent beside the caller's transaction.
    pub(crate) fn sendable_attempts(&self) -> Vec<Attempt> {
        let placeholder = self.is_placeholder();
        let same = |attempt: &&Attempt| (attempt.kind() == AttemptKind::Placeholder) == placeholder;
        self.intent.attempts.iter().rev().filter(same).cloned().collect()
    }

    /// Keeps how a node answered a send.
    pub(crate) fn note_outcome(&mut self, attempt: AttemptId, outcome: &str) {
        let sent = self.intent.attempts.iter_mut().find(|own| own.id() == attempt);
        sent.into_iter().for_each(|own| own.answered(outcome));
    }

    pub(crate) fn draft(&self) -> Option<&(AttemptKind, SignedDraft)> {
        self.draft.as_ref()
    }

    /// Whether it is final by these bytes: that they were sent needs no row of its own any more.
    pub(crate) fn ends_by(&self, attempt: AttemptId) -> bool {
        let mined = self.intent.receipt.as_ref().filter(|_| self.state().is_terminal());
        mined.is_some_and(|receipt| {
            self.intent.attempts.iter().any(|own| own.id() == attempt && own.tx_hash() == receipt.tx_hash)
        })
    }

    /// Whether it still counts against the window.
    pub(crate) fn holds_window(&self, release_at: ReleaseAt) -> bool {
        match release_at {
            ReleaseAt::Confirmed => self.state().is_open(),
            ReleaseAt::Mined => self.state().is_open() && self.state() != TxState::Tracking,
        }
    }

    /// Moves on in memory; the next commit writes it.
    pub(crate) fn enter(&mut self, state: TxState) {
        debug_assert!(self.state().may_become(state), "{} -> {state}", self.state());
        self.intent.state = state;
        self.intent.sub_state = None;
        self.dirty = true;
        // Only "a node took it" may be lost: the next owner would merely send the same bytes again.
        self.lazy &= state == TxState::Submitted && self.persisted == TxState::InFlight;
    }

    pub(crate) fn mined(&mut self, receipt: Receipt, now: Instant) {
        self.intent.tx_hash = receipt.tx_hash;
        self.intent.receipt = Some(receipt);
        self.receipt_seen = now;
        self.suspected = None;
        self.intent.last_error = None;
        self.enter(TxState::Tracking);
    }

    /// The block is gone: the same bytes are due again.
    pub(crate) fn unmined(&mut self, now: Instant) {
        self.intent.receipt = None;
        self.is_taken = false;
        self.due = now;
        self.start_waiting(now);
        self.enter(TxState::Submitted);
    }

    /// From now on it counts as unmined: what was before does not make it stuck.
    pub(crate) fn start_waiting(&mut self, now: Instant) {
        self.unmined_since = now;
        self.sends_before = self.sends;
    }

    /// The same bytes, as soon as they are claimed.
    pub(crate) fn send_now(&mut self, now: Instant) {
        self.resend = true;
        self.due = now;
    }

    /// The same, and older attempts too if no node takes the newest.
    pub(crate) fn send_all_now(&mut self, now: Instant) {
        self.send_now(now);
        self.resend_older = true;
    }

    /// Other bytes are wanted and cannot be made: says so while that lasts. Numbers in the words change all the time; only
    /// another reason is news.
    pub(crate) fn cannot_replace(&mut self, error: TxError) {
        if self.unaffordable.as_ref().is_none_or(|known| known.code != error.code) {
            self.unaffordable = Some(error);
        }
        let error = self.unaffordable.clone();
        let stuck = self.state() == TxState::Stuck;
        self.complain(Some(if stuck { "unmined" } else { NOT_REPLACED }), error);
    }

    /// The same after trouble: what the waits had grown to says nothing any more.
    pub(crate) fn send_again(&mut self, now: Instant) {
        self.backoff = FIRST_BACKOFF;
        self.send_now(now);
    }

    /// Notes why it waits, if that is news.
    pub(crate) fn complain(&mut self, sub_state: Option<&str>, error: Option<TxError>) {
        if self.intent.sub_state.as_deref() != sub_state || self.intent.last_error != error {
            self.intent.sub_state = sub_state.map(str::to_owned);
            self.intent.last_error = error;
            self.dirty = true;
        }
    }

    /// Keeps what a look into the nodes' pools has shown; true if it differs from the look before.
    pub(crate) fn diagnosed(&mut self, diagnosis: Diagnosis) -> bool {
        self.diagnosis_unwritten = true;
        self.diagnosis.replace(diagnosis) != self.diagnosis
    }

    /// To be written, unless it is mined meanwhile.
    pub(crate) fn unwritten_diagnosis(&self) -> Option<&Diagnosis> {
        self.diagnosis.as_ref().filter(|_| self.diagnosis_unwritten && self.is_unmined())
    }

    /// Something is to be written, at once or with company.
    pub(crate) fn has_news(&self) -> bool {
        self.dirty || self.unwritten_diagnosis().is_some()
    }

    pub(crate) fn diagnosis_written(&mut self) {
        self.diagnosis_unwritten = false;
    }

    /// Claims one send; it may happen only after the commit.
    pub(crate) fn claim(&mut self, resubmit_in: Duration) {
        self.claimed += 1;
        self.resend = false;
        self.sends = self.sends.saturating_add(1);
        self.resubmit_in = Some(resubmit_in);
        self.dirty = true;
        self.lazy = false;
    }

    /// The node took the bytes: the next send is due by the timer.
    pub(crate) fn taken(&mut self, interval: Duration, now: Instant) {
        self.is_taken = true;
        self.underpriced = false;
        self.backoff = FIRST_BACKOFF;
        self.suspected = None;
        self.due = now + interval;
    }

    /// The node did not take them: again after a growing wait.
    pub(crate) fn put_off(&mut self, longest: Duration, now: Instant) {
        self.due = now + self.backoff.min(longest);
        self.backoff = (self.backoff * 2).min(longest.max(FIRST_BACKOFF));
    }

    /// The state as it is on disk.
    pub(crate) fn state_on_disk(&self) -> TxState {
        self.persisted
    }

    /// PROTECT on disk, and found to be ours since.
    pub(crate) fn leaves_protect(&self) -> bool {
        self.persisted == TxState::Protect && self.state() != TxState::Protect
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.dirty && !self.lazy
    }

    pub(crate) fn to_move(&self) -> Move {
        let queued = self.state() == TxState::Queued;
        Move {
            tx_id: self.intent.tx_id,
            from: self.persisted,
            to: self.state(),
            sub_state: self.intent.sub_state.clone(),
            nonce: (!queued).then_some(self.intent.nonce),
            tx_hash: (!queued).then_some(self.intent.tx_hash),
            last_error: self.intent.last_error.clone(),
            receipt: self.intent.receipt.clone(),
            confirmations: self.counted.clone(),
            replaced_by: self.replaced_by(),
            ending: self.intent.ending.clone(),
            mined_send: None,
            sends: self.claimed,
            resubmit_in: self.resubmit_in,
        }
    }

    /// The mined hash, if it is not that of the first attempt.
    fn replaced_by(&self) -> Option<H256> {
        let mined = self.intent.receipt.as_ref()?.tx_hash;
        self.kind_of(mined).filter(|kind| *kind != AttemptKind::Original).map(|_| mined)
    }

    /// The commit is through: memory and disk agree, and bytes that were drafts are attempts.
    pub(crate) fn committed(&mut self, attempts: impl Iterator<Item = Attempt>) {
        self.persisted = self.state();
        self.dirty = false;
        self.lazy = true;
        self.draft = None;
        if let (Some(ReservationChange::Note), Some(reservation)) =
            (self.reservation_change.take(), &mut self.intent.reservation)
        {
            reservation.noted = true;
        }
        self.may_send |= self.claimed > 0;
        self.claimed = 0;
        self.resubmit_in = None;
        self.intent.attempts.extend(attempts);
    }
}
