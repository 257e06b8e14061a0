//! A `FencedWrite` is the set of changes of one lane, applied atomically. It is made from a lease; `fence` applies it.

use std::time::Duration;

use ethers_core::types::H256;
use tokio::time::Instant;

use super::attempt::{Attempt, AttemptKind};
use super::cursor::CursorWrite;
use super::evidence::Evidence;
use super::external_nonce::ExternalNonces;
use super::lease::{Fence, Lease};
use super::policy_audit::PolicyNote;
use super::reservation_lane::{ReservationChange, ReservationWrite};
use gapless_domain::mempool::Diagnosis;
use gapless_domain::{
    AttemptId, Ending, Event, FencingToken, FinalConfirmations, Nonce, Payload, Receipt, SignedDraft,
    SubState, SubmitterKey, TxError, TxId, TxState,
};

/// A state change of one intent: old state, new state, and the new value of every mutable column.
#[derive(Clone, Debug)]
pub struct Move {
    pub tx_id: TxId,
    pub from: TxState,
    pub to: TxState,
    pub sub_state: Option<SubState>,
    pub nonce: Option<Nonce>,
    pub tx_hash: Option<H256>,
    pub last_error: Option<TxError>,
    pub receipt: Option<Receipt>,
    /// The confirmations that made it final, if it was mined.
    pub confirmations: Option<FinalConfirmations>,
    /// The attempt that was mined instead of the original, once that is final.
    pub replaced_by: Option<H256>,
    /// How it ends if a placeholder consumes its nonce.
    pub ending: Option<Ending>,
    /// The last send of the mined bytes, if it is not recorded yet.
    pub mined_send: Option<MinedSend>,
    /// Sends claimed by this write; they happen only after it is committed.
    pub sends: u32,
    /// Time until the same bytes are sent again; `None` leaves the stored time unchanged.
    pub resubmit_in: Option<Duration>,
}

impl Move {
    /// A state change with all other columns empty.
    pub fn new(tx_id: TxId, from: TxState, to: TxState) -> Move {
        Move {
            tx_id,
            from,
            to,
            sub_state: None,
            nonce: None,
            tx_hash: None,
            last_error: None,
            receipt: None,
            confirmations: None,
            replaced_by: None,
            ending: None,
            mined_send: None,
            sends: 0,
            resubmit_in: None,
        }
    }
}

/// A send of an attempt, and the node's response.
#[derive(Clone, Debug)]
pub struct SentNote {
    pub tx_id: TxId,
    pub attempt_id: AttemptId,
    /// Class of the response; `None`: there was none, and the stored one is unchanged.
    pub outcome: Option<&'static str>,
    /// Text of the response, if the node did not accept the bytes. Already sanitized for storage.
    pub answer: Option<String>,
    pub at: Instant,
    /// Number of sends since the last recorded one.
    pub sends: u32,
}

/// The last send of the mined bytes, if the intent becomes final before that send is recorded. It is stored in the
/// intent's row, which is written anyway; `tx_attempt` would need an extra write.
#[derive(Clone, Copy, Debug)]
pub struct MinedSend {
    /// Class of the response: the node accepted the bytes.
    pub class: &'static str,
    pub at: Instant,
}

/// The request row: an operator's request (`audit_log`) or a client's request about an intent (`tx_request`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedBy {
    Audit(i64),
    TxRequest(i64),
}

/// A finished request.
#[derive(Clone, Debug)]
pub struct DoneAction {
    pub asked_by: AskedBy,
    /// The result, or why it was refused.
    pub outcome: Result<String, String>,
}

#[derive(Debug)]
pub(super) struct NewAttempt {
    pub(super) id: AttemptId,
    pub(super) tx_id: TxId,
    pub(super) kind: AttemptKind,
    pub(super) draft: SignedDraft,
}

/// The changes of one lane. Can only be made with a lease.
#[derive(Debug)]
pub struct FencedWrite {
    pub(super) fence: Fence,
    pub(super) moves: Vec<Move>,
    pub(super) attempts: Vec<NewAttempt>,
    pub(super) cursor: Option<CursorWrite>,
    pub(super) evidence: Option<Evidence>,
    pub(super) sent: Vec<SentNote>,
    pub(super) diagnoses: Vec<(TxId, Diagnosis)>,
    pub(super) displaced: Vec<TxId>,
    pub(super) external: Vec<ExternalNonces>,
    pub(super) done_actions: Vec<DoneAction>,
    pub(super) seen_requests: Vec<i64>,
    pub(super) reservations: Vec<ReservationWrite>,
    pub(super) policy: Vec<PolicyNote>,
    pub(super) events: Vec<Event>,
    awaited: usize,
}

/// Result of a write.
#[derive(Debug)]
pub enum Applied {
    /// Committed; the attempts it inserted may now be broadcast.
    Yes(Vec<Attempt>),
    /// Another worker owns the submitter. Nothing was written.
    LeaseLost,
}

impl FencedWrite {
    pub fn new(lease: &Lease) -> Self {
        FencedWrite {
            fence: lease.fence(),
            moves: Vec::new(),
            attempts: Vec::new(),
            cursor: None,
            evidence: None,
            sent: Vec::new(),
            diagnoses: Vec::new(),
            displaced: Vec::new(),
            external: Vec::new(),
            done_actions: Vec::new(),
            seen_requests: Vec::new(),
            reservations: Vec::new(),
            policy: Vec::new(),
            events: Vec::new(),
            awaited: 0,
        }
    }

    pub fn submitter(&self) -> SubmitterKey {
        self.fence.key
    }

    pub fn token(&self) -> FencingToken {
        self.fence.token
    }

    pub fn is_empty(&self) -> bool {
        self.moves.is_empty()
            && self.cursor.is_none()
            && self.evidence.is_none()
            && self.sent.is_empty()
            && self.diagnoses.is_empty()
            && self.displaced.is_empty()
            && self.external.is_empty()
            && self.done_actions.is_empty()
            && self.seen_requests.is_empty()
            && self.reservations.is_empty()
            && self.policy.is_empty()
            && self.events.is_empty()
    }

    pub fn change(&mut self, change: Move) {
        self.moves.push(change);
    }

    /// Adds signed bytes for an intent. They can be sent only after the commit.
    pub fn record(&mut self, tx_id: TxId, kind: AttemptKind, draft: SignedDraft) {
        self.attempts.push(NewAttempt { id: AttemptId::new(), tx_id, kind, draft });
    }

    /// Grants the nonce of the placeholder to the reserving client. The placeholder is recorded with it: a nonce
    /// cannot be reserved without the bytes that consume it.
    pub fn reserve(&mut self, tx_id: TxId, placeholder: SignedDraft, reserve_for: Duration) {
        let change = ReservationChange::Reserve { nonce: placeholder.nonce, reserve_for };
        self.reservations.push(ReservationWrite { tx_id, change });
        self.record(tx_id, AttemptKind::Placeholder, placeholder);
    }

    /// Uses the reserved nonce for the client's transaction and ends the reservation.
    pub fn use_reservation(&mut self, tx_id: TxId, draft: SignedDraft, payload: Payload) {
        let change = ReservationChange::Use { payload: Box::new(payload) };
        self.reservations.push(ReservationWrite { tx_id, change });
        self.record(tx_id, AttemptKind::Original, draft);
    }

    /// Lets the placeholder consume the reserved nonce. With `unanswered`, the write fails if the client has
    /// answered, so that a stored answer is never discarded.
    pub fn recycle(&mut self, tx_id: TxId, unanswered: bool) {
        self.reservations.push(ReservationWrite { tx_id, change: ReservationChange::Recycle { unanswered } });
    }

    /// Marks an answer that cannot be used yet as seen: `find_work` does not report it again.
    pub fn note_answer(&mut self, tx_id: TxId) {
        self.reservations.push(ReservationWrite { tx_id, change: ReservationChange::Note });
    }

    pub fn cursor(&mut self, cursor: CursorWrite) {
        self.cursor = Some(cursor);
    }

    /// Replaces the stored evidence about consumed nonces.
    pub fn evidence(&mut self, evidence: Evidence) {
        self.evidence = Some(evidence);
    }

    pub fn sent(&mut self, note: SentNote) {
        self.sent.push(note);
    }

    /// Stores the mempool diagnosis of an unmined intent.
    pub fn diagnosed(&mut self, tx_id: TxId, diagnosis: Diagnosis) {
        self.diagnoses.push((tx_id, diagnosis));
    }

    /// Marks the attempts of an intent as displaced: an external transaction with its nonce is final.
    pub fn displace(&mut self, tx_id: TxId) {
        self.displaced.push(tx_id);
    }

    /// Records nonces that are left to external senders. The database refuses it for a strict submitter.
    pub fn external(&mut self, range: ExternalNonces) {
        self.external.push(range);
    }

    /// Marks a request as finished.
    pub fn action_done(&mut self, action: DoneAction) {
        self.done_actions.push(action);
    }

    /// Marks a client's request that takes longer than this write as seen: `find_work` does not report it again.
    pub fn request_seen(&mut self, request_no: i64) {
        self.seen_requests.push(request_no);
    }

    /// Records a policy decision in the commit of its consequence.
    pub fn policy(&mut self, note: PolicyNote) {
        self.policy.push(note);
    }

    /// Writes the event to the outbox, in the same commit, if events are recorded.
    pub fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Clients wait for the hashes of this many new attempts.
    pub fn awaited(&mut self, attempts: usize) {
        self.awaited = attempts;
    }

    pub fn has_awaited(&self) -> bool {
        self.awaited > 0
    }

    /// Number of intents and requests that this write finishes, and of hashes: clients may be waiting for them.
    pub fn endings(&self) -> usize {
        let ended = self.moves.iter().filter(|change| change.to.is_terminal()).count();
        ended + self.done_actions.len() + self.awaited
    }

    /// Number of events.
    pub fn events(&self) -> usize {
        self.events.len()
    }

    /// The inserted attempts. Call after COMMIT only: an `Attempt` may be broadcast.
    pub(super) fn committed_attempts(&self) -> Vec<Attempt> {
        self.attempts
            .iter()
            .map(|new| Attempt {
                id: new.id,
                tx_id: new.tx_id,
                nonce: new.draft.nonce,
                kind: new.kind,
                raw: new.draft.raw.clone(),
                tx_hash: new.draft.tx_hash,
                fees: new.draft.fees,
                last_outcome: None,
            })
            .collect()
    }
}
