//! An open intent in the lane's memory: the stored row, changes since, and when it is due.

mod reservation;

use std::time::Duration;

use gapless_config::ReleaseAt;
use gapless_domain::mempool::Diagnosis;
use gapless_domain::{
    AttemptId, Confirmation, Ending, ErrorCode, FinalConfirmations, H256, Receipt, SignedDraft, SubState,
    TxError, TxState, U256,
};
use gapless_store::{Attempt, AttemptKind, Move, OpenIntent};
use gapless_telemetry::step_span;
use tokio::time::Instant;
use tracing::Span;

pub(crate) use reservation::ReservationChange;

/// First backoff after a node did not accept the bytes; doubles up to the resubmit interval.
const FIRST_BACKOFF: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct OpenTx {
    /// The row including uncommitted changes.
    pub(crate) intent: OpenIntent,
    unsaved: Unsaved,
    pub(crate) sending: Sending,
    pub(crate) replacing: Replacing,
    /// The reserving client's transaction has to wait until this time.
    pub(crate) answer_at: Option<Instant>,
    pub(crate) prepared_at: Instant,
    /// When the receipt was last confirmed by the chain.
    pub(crate) receipt_seen: Instant,
    /// The confirming blocks that this lane has reported in events.
    pub(crate) reported_blocks: Vec<Confirmation>,
    /// The confirmations that made it final; written with the state.
    pub(crate) counted: Option<FinalConfirmations>,
    /// When its nonce was first found consumed by none of its own hashes.
    pub(crate) suspected: Option<Instant>,
    /// Its wait reason `waiting_node` is due to an unreadable head, not to a failed send.
    pub(crate) shows_outage: bool,
    /// The last mempool diagnosis.
    diagnosis: Option<Diagnosis>,
    /// Lasts as long as the current state.
    state_span: Span,
}

/// What differs from the stored row.
#[derive(Debug)]
struct Unsaved {
    /// The stored state.
    persisted: TxState,
    /// Something differs from the stored row.
    dirty: bool,
    /// The change may be committed later with others: losing it only resends the same bytes.
    lazy: bool,
    /// Signed bytes that are not stored yet. Cannot be sent.
    draft: Option<(AttemptKind, SignedDraft)>,
    /// Uncommitted change of the nonce reservation.
    reservation_change: Option<ReservationChange>,
    /// Sends claimed since the last commit, and the resubmit time that is stored with them.
    claimed: u32,
    resubmit_in: Option<Duration>,
    diagnosis_unwritten: bool,
}

impl Unsaved {
    fn nothing(persisted: TxState) -> Unsaved {
        Unsaved {
            persisted,
            dirty: false,
            lazy: true,
            draft: None,
            reservation_change: None,
            claimed: 0,
            resubmit_in: None,
            diagnosis_unwritten: false,
        }
    }
}

/// When and how its bytes are sent.
#[derive(Debug)]
pub(crate) struct Sending {
    /// When the bytes are due (again).
    pub(crate) due: Instant,
    backoff: Duration,
    /// Sends claimed so far, by this owner and previous ones.
    pub(crate) sends: u32,
    /// A stored claim has not been used by a send yet.
    pub(crate) may_send: bool,
    /// A node is known to have accepted the bytes: the next nonce may be sent.
    pub(crate) is_accepted: bool,
    /// A resend of the same bytes was requested, regardless of the timer.
    pub(crate) resend: bool,
    /// Also resend older attempts, until a node accepts one.
    pub(crate) resend_older: bool,
    /// Refused while it was not the oldest, and resent immediately when it became the oldest.
    pub(crate) was_first: bool,
    /// Since when it has been unmined without interruption, and how many sends there were before.
    pub(crate) unmined_since: Instant,
    pub(crate) sends_before: u32,
}

/// Whether its bytes are replaced at a higher price.
#[derive(Debug)]
pub(crate) struct Replacing {
    /// When the last attempt was signed.
    pub(crate) last_attempt_at: Instant,
    /// No replacement is made before this: the last try failed, or the mempool requires a higher price.
    pub(crate) replace_at: Option<Instant>,
    /// A speed-up was requested.
    pub(crate) speed_up: bool,
    /// Ids of the speed-up requests. They are finished in the commit of the attempt, or with the reason why there is
    /// none.
    pub(crate) speed_up_requests: Vec<i64>,
    /// Why a needed replacement cannot be made.
    pub(crate) unaffordable: Option<TxError>,
    /// The policy forbids replacing its bytes, and that was recorded.
    pub(crate) refused_by_policy: bool,
    /// The node rejected the last price as too low.
    pub(crate) underpriced: bool,
}

impl OpenTx {
    /// From a stored row. The previous owner may or may not have sent its bytes.
    pub(crate) fn loaded(intent: OpenIntent, now: Instant) -> Self {
        // The newest bytes may never have been sent: send now.
        let unsent = intent.state == TxState::InFlight || !intent.last_attempt_sent;
        let due = if unsent { now } else { now + intent.resubmit_in };
        let age = |age: Duration| now.checked_sub(age).unwrap_or(now);
        let sending = Sending {
            due,
            backoff: FIRST_BACKOFF,
            sends: intent.sends,
            may_send: false,
            is_accepted: !unsent
                && matches!(intent.state, TxState::Submitted | TxState::Tracking | TxState::Stuck),
            resend: false,
            resend_older: false,
            was_first: false,
            unmined_since: age(intent.age),
            sends_before: 0,
        };
        let replacing = Replacing {
            last_attempt_at: age(intent.last_attempt_age),
            replace_at: None,
            speed_up: false,
            speed_up_requests: Vec::new(),
            unaffordable: None,
            refused_by_policy: false,
            underpriced: false,
        };
        OpenTx {
            unsaved: Unsaved::nothing(intent.state),
            sending,
            replacing,
            answer_at: None,
            prepared_at: age(intent.age),
            receipt_seen: now,
            reported_blocks: Vec::new(),
            counted: None,
            suspected: None,
            shows_outage: matches!(intent.state, TxState::Submitted | TxState::Tracking),
            diagnosis: None,
            state_span: state_span(&intent),
            intent,
        }
    }

    /// Newly signed: stored as QUEUED, IN_FLIGHT once committed. The commit claims the first send.
    pub(crate) fn prepared(
        intent: OpenIntent,
        draft: SignedDraft,
        resubmit_in: Duration,
        now: Instant,
    ) -> Self {
        let mut tx = OpenTx::loaded(intent, now);
        tx.unsaved.persisted = TxState::Queued;
        tx.unsaved.draft = Some((AttemptKind::Original, draft));
        tx.claim(resubmit_in);
        tx
    }

    /// A new attempt for the same nonce. The commit claims its first send; all earlier hashes stay watched.
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
        self.unsaved.draft = Some((kind, draft));
        self.replacing.last_attempt_at = now;
        self.replacing.replace_at = None;
        self.replacing.speed_up = false;
        self.replacing.unaffordable = None;
        self.replacing.underpriced = false;
        self.sending.due = now;
        self.claim(resubmit_in);
    }

    /// Abandons the intent: a placeholder is to consume its nonce.
    pub(crate) fn give_up(&mut self, ending: Ending) {
        if self.intent.ending.is_none() {
            self.intent.ending = Some(ending);
            self.unsaved.dirty = true;
            self.unsaved.lazy = false;
        }
    }

    /// Gas limit of the intent's own transaction, if known: the newest attempt may be a placeholder.
    pub(crate) fn gas_limit(&self) -> Option<U256> {
        let stored = self.intent.gas_params.as_ref().filter(|_| !self.is_placeholder());
        let stored = stored.and_then(|params| params.get("gasLimit")).cloned();
        stored.and_then(|gas| serde_json::from_value(gas).ok()).or(self.intent.payload.gas_limit)
    }

    /// Kind of the attempt with this hash.
    pub(crate) fn kind_of(&self, hash: H256) -> Option<AttemptKind> {
        self.intent.attempts.iter().find(|attempt| attempt.tx_hash() == hash).map(Attempt::kind)
    }

    /// The newest attempt is a placeholder.
    pub(crate) fn is_placeholder(&self) -> bool {
        self.attempt().is_some_and(|attempt| attempt.kind() == AttemptKind::Placeholder)
    }

    pub(crate) fn state(&self) -> TxState {
        self.intent.state
    }

    /// An external transaction consumed its nonce.
    pub(crate) fn lose_nonce(&mut self, reason: &str, now: Instant) {
        self.enter(TxState::Protect);
        self.lose_reservation(now);
        self.set_wait_reason(Some(SubState::NonceTaken), Some(TxError::new(ErrorCode::NonceTaken, reason)));
    }

    /// Has signed bytes and is in no block.
    pub(crate) fn is_unmined(&self) -> bool {
        matches!(self.state(), TxState::InFlight | TxState::Submitted | TxState::Stuck)
    }

    /// Unmined, and its nonce is not reserved for a client.
    pub(crate) fn is_pending(&self) -> bool {
        self.is_unmined() && !self.is_reserved()
    }

    pub(crate) fn hashes(&self) -> Vec<H256> {
        self.intent.attempts.iter().map(Attempt::tx_hash).collect()
    }

    /// The bytes to send: the newest stored attempt.
    pub(crate) fn attempt(&self) -> Option<&Attempt> {
        self.intent.attempts.last()
    }

    /// Attempts that may be sent, newest first: only placeholders if the newest is one, otherwise none of them. So an
    /// intent is not sent again after its placeholder, nor a reservation's placeholder after the client's transaction.
    pub(crate) fn sendable_attempts(&self) -> Vec<Attempt> {
        let placeholder = self.is_placeholder();
        let same = |attempt: &&Attempt| (attempt.kind() == AttemptKind::Placeholder) == placeholder;
        self.intent.attempts.iter().rev().filter(same).cloned().collect()
    }

    /// Records a node's answer to a send.
    pub(crate) fn note_outcome(&mut self, attempt: AttemptId, outcome: &str) {
        let sent = self.intent.attempts.iter_mut().find(|own| own.id() == attempt);
        sent.into_iter().for_each(|own| own.set_last_outcome(outcome));
    }

    pub(crate) fn draft(&self) -> Option<&(AttemptKind, SignedDraft)> {
        self.unsaved.draft.as_ref()
    }

    /// Whether this attempt was mined and made the intent final: its send then needs no row of its own.
    pub(crate) fn ends_by(&self, attempt: AttemptId) -> bool {
        let mined = self.intent.receipt.as_ref().filter(|_| self.state().is_terminal());
        mined.is_some_and(|receipt| {
            self.intent.attempts.iter().any(|own| own.id() == attempt && own.tx_hash() == receipt.tx_hash)
        })
    }

    /// Whether it occupies the window.
    pub(crate) fn holds_window(&self, release_at: ReleaseAt) -> bool {
        match release_at {
            ReleaseAt::Confirmed => self.state().is_open(),
            ReleaseAt::Mined => self.state().is_open() && self.state() != TxState::Tracking,
        }
    }

    /// Changes the state in memory; the next commit writes it.
    pub(crate) fn enter(&mut self, state: TxState) {
        debug_assert!(self.state().may_become(state), "{} -> {state}", self.state());
        self.intent.state = state;
        self.intent.sub_state = None;
        self.state_span = state_span(&self.intent);
        self.unsaved.dirty = true;
        // Only "a node accepted it" may be lost: the next owner would merely send the same bytes again.
        self.unsaved.lazy &= state == TxState::Submitted && self.unsaved.persisted == TxState::InFlight;
    }

    pub(crate) fn mined(&mut self, receipt: Receipt, now: Instant) {
        self.intent.tx_hash = receipt.tx_hash;
        self.intent.receipt = Some(receipt);
        self.receipt_seen = now;
        self.suspected = None;
        self.intent.last_error = None;
        self.enter(TxState::Tracking);
    }

    /// Its block was replaced: the same bytes are due again.
    pub(crate) fn unmined(&mut self, now: Instant) {
        self.intent.receipt = None;
        self.sending.is_accepted = false;
        self.sending.due = now;
        self.start_waiting(now);
        self.enter(TxState::Submitted);
    }

    /// Restarts the unmined period: earlier time and sends do not make it stuck.
    pub(crate) fn start_waiting(&mut self, now: Instant) {
        self.sending.unmined_since = now;
        self.sending.sends_before = self.sending.sends;
    }

    /// Makes the same bytes due now; they are sent once the send is claimed.
    pub(crate) fn send_now(&mut self, now: Instant) {
        self.sending.resend = true;
        self.sending.due = now;
    }

    /// As `send_now`, and also older attempts if no node accepts the newest.
    pub(crate) fn send_all_now(&mut self, now: Instant) {
        self.send_now(now);
        self.sending.resend_older = true;
    }

    /// Sets the wait reason while a needed replacement cannot be made. The amounts in the message change often, so
    /// only a different code counts as a change.
    pub(crate) fn cannot_replace(&mut self, error: TxError) {
        if self.replacing.unaffordable.as_ref().is_none_or(|known| known.code != error.code) {
            self.replacing.unaffordable = Some(error);
        }
        let error = self.replacing.unaffordable.clone();
        let stuck = self.state() == TxState::Stuck;
        self.set_wait_reason(Some(if stuck { SubState::Unmined } else { SubState::NotReplaced }), error);
    }

    /// As `send_now` after a recovery: also resets the backoff.
    pub(crate) fn send_again(&mut self, now: Instant) {
        self.sending.backoff = FIRST_BACKOFF;
        self.send_now(now);
    }

    /// Sets why it waits; a change is written with the next commit.
    pub(crate) fn set_wait_reason(&mut self, sub_state: Option<SubState>, error: Option<TxError>) {
        if self.intent.sub_state != sub_state || self.intent.last_error != error {
            self.intent.sub_state = sub_state;
            self.intent.last_error = error;
            self.unsaved.dirty = true;
        }
    }

    /// Records a mempool diagnosis; true if it differs from the previous one.
    pub(crate) fn diagnosed(&mut self, diagnosis: Diagnosis) -> bool {
        self.unsaved.diagnosis_unwritten = true;
        self.diagnosis.replace(diagnosis) != self.diagnosis
    }

    /// The diagnosis to store, unless the transaction was mined meanwhile.
    pub(crate) fn unwritten_diagnosis(&self) -> Option<&Diagnosis> {
        self.diagnosis.as_ref().filter(|_| self.unsaved.diagnosis_unwritten && self.is_unmined())
    }

    /// Something has to be written, urgent or lazy.
    pub(crate) fn has_changes(&self) -> bool {
        self.unsaved.dirty || self.unwritten_diagnosis().is_some()
    }

    pub(crate) fn diagnosis_written(&mut self) {
        self.unsaved.diagnosis_unwritten = false;
    }

    /// Claims one send, which is allowed only after the commit.
    pub(crate) fn claim(&mut self, resubmit_in: Duration) {
        self.unsaved.claimed += 1;
        self.sending.resend = false;
        self.sending.sends = self.sending.sends.saturating_add(1);
        self.unsaved.resubmit_in = Some(resubmit_in);
        self.unsaved.dirty = true;
        self.unsaved.lazy = false;
    }

    /// The node accepted the bytes: the next send is due after the interval.
    pub(crate) fn accepted(&mut self, interval: Duration, now: Instant) {
        self.sending.is_accepted = true;
        self.replacing.underpriced = false;
        self.sending.backoff = FIRST_BACKOFF;
        self.suspected = None;
        self.sending.due = now + interval;
    }

    /// The node did not accept them: due again after an exponential backoff.
    pub(crate) fn back_off(&mut self, longest: Duration, now: Instant) {
        self.sending.due = now + self.sending.backoff.min(longest);
        self.sending.backoff = (self.sending.backoff * 2).min(longest.max(FIRST_BACKOFF));
    }

    /// The stored state.
    pub(crate) fn state_on_disk(&self) -> TxState {
        self.unsaved.persisted
    }

    /// Stored as PROTECT, and since found to be the submitter's own transaction.
    pub(crate) fn leaves_protect(&self) -> bool {
        self.unsaved.persisted == TxState::Protect && self.state() != TxState::Protect
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.unsaved.dirty
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.unsaved.dirty && !self.unsaved.lazy
    }

    pub(crate) fn to_move(&self) -> Move {
        let queued = self.state() == TxState::Queued;
        Move {
            tx_id: self.intent.tx_id,
            from: self.unsaved.persisted,
            to: self.state(),
            sub_state: self.intent.sub_state,
            nonce: (!queued).then_some(self.intent.nonce),
            tx_hash: (!queued).then_some(self.intent.tx_hash),
            last_error: self.intent.last_error.clone(),
            receipt: self.intent.receipt.clone(),
            confirmations: self.counted.clone(),
            replaced_by: self.replaced_by(),
            ending: self.intent.ending.clone(),
            mined_send: None,
            sends: self.unsaved.claimed,
            resubmit_in: self.unsaved.resubmit_in,
        }
    }

    /// The mined hash, if it is not that of the first attempt.
    fn replaced_by(&self) -> Option<H256> {
        let mined = self.intent.receipt.as_ref()?.tx_hash;
        self.kind_of(mined).filter(|kind| *kind != AttemptKind::Original).map(|_| mined)
    }

    /// Called after a commit: memory and database agree, and drafts are stored attempts.
    pub(crate) fn committed(&mut self, attempts: impl Iterator<Item = Attempt>) {
        let diagnosis_unwritten = self.unsaved.diagnosis_unwritten;
        let nothing = Unsaved { diagnosis_unwritten, ..Unsaved::nothing(self.state()) };
        let saved = std::mem::replace(&mut self.unsaved, nothing);
        if let (Some(ReservationChange::Note), Some(reservation)) =
            (saved.reservation_change, &mut self.intent.reservation)
        {
            reservation.noted = true;
        }
        self.sending.may_send |= saved.claimed > 0;
        self.intent.attempts.extend(attempts);
    }
}

/// A span for the time in a state. None for a state that does not last.
fn state_span(intent: &OpenIntent) -> Span {
    match intent.state.is_open() {
        true => step_span(intent.state.as_str(), intent.trace_context.as_deref(), &intent.tx_id),
        false => Span::none(),
    }
}
