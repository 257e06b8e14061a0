//! A `FencedWrite` is what one lane wants changed, all or nothing. It is made from a lease; `fence` applies it.

use std::time::Duration;

use ethers_core::types::H256;
use tokio::time::Instant;

use super::attempt::{Attempt, AttemptKind};
use super::evidence::Evidence;
use super::external_nonce::ExternalNonces;
use super::lease::{Fence, Lease};
use super::policy_audit::PolicyNote;
use super::reservation_lane::{ReservationChange, ReservationWrite};
use crate::domain::mempool::Diagnosis;
use crate::domain::{
    AttemptId, Ending, Event, FencingToken, FinalConfirmations, Nonce, Payload, Receipt, SignedDraft,
    SubmitterKey, TxError, TxId, TxState,
};

/// A change of one intent: the state it leaves, the state it enters, and every mutable column as it shall be.
#[derive(Clone, Debug)]
pub struct Move {
    pub tx_id: TxId,
    pub from: TxState,
    pub to: TxState,
    pub sub_state: Option<String>,
    pub nonce: Option<Nonce>,
    pub tx_hash: Option<H256>,
    pub last_error: Option<TxError>,
    pub receipt: Option<Receipt>,
    /// What made it final, if it was mined.
    pub confirmations: Option<FinalConfirmations>,
    /// The attempt that took the nonce instead of the first, once that is decided.
    pub replaced_by: Option<H256>,
    /// How it ends if a placeholder takes its nonce.
    pub ending: Option<Ending>,
    /// A send of the mined bytes that was not noted before.
    pub mined_send: Option<MinedSend>,
    /// Sends claimed by this write; they happen only after it is committed.
    pub sends: u32,
    /// When the same bytes are due again; `None` leaves the time as it is.
    pub resubmit_in: Option<Duration>,
}

impl Move {
    /// From one state to another, with nothing else to say.
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

/// Where the sequence stands, compared and set.
#[derive(Clone, Debug)]
pub struct CursorWrite {
    /// What it is now, or `None` if it does not exist yet and is created.
    pub expect_next: Option<Nonce>,
    pub expect_protected: bool,
    pub start: Nonce,
    pub next: Nonce,
    pub in_flight: Option<(TxId, Nonce)>,
    /// No intent below it is open; `next` if none is.
    pub open_from: Nonce,
    pub protect: Option<String>,
    pub max_in_flight: u32,
    /// The account has delegated code (EIP-7702).
    pub delegated: bool,
}

/// A send of an attempt, and how a node answered it.
#[derive(Clone, Debug)]
pub struct SentNote {
    pub tx_id: TxId,
    pub attempt_id: AttemptId,
    /// Class of the answer; `None`: there was no answer, and what was answered before stays.
    pub outcome: Option<&'static str>,
    /// The answer in the node's words, if it did not take the bytes. Can be stored as it is.
    pub answer: Option<String>,
    pub at: Instant,
    /// More than one if several were made before one could be noted.
    pub sends: u32,
}

/// The last send of bytes that were mined, where the intent is final before that is noted: it goes with the intent's own
/// write. A row of `tx_attempt` would have to be written for it alone.
#[derive(Clone, Copy, Debug)]
pub struct MinedSend {
    /// Of the answer: the node took the bytes.
    pub class: &'static str,
    pub at: Instant,
}

/// Which row asked: an operator's about a submitter, or a client's about an intent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedBy {
    Audit(i64),
    TxRequest(i64),
}

/// What became of a request.
#[derive(Clone, Debug)]
pub struct DoneAction {
    pub asked_by: AskedBy,
    /// What it led to, or why it was refused.
    pub outcome: Result<String, String>,
}

#[derive(Debug)]
pub(super) struct NewAttempt {
    pub(super) id: AttemptId,
    pub(super) tx_id: TxId,
    pub(super) kind: AttemptKind,
    pub(super) draft: SignedDraft,
}

/// What one lane wants changed. Without a lease there is none.
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
    pub(super) foreign: Vec<ExternalNonces>,
    pub(super) done_actions: Vec<DoneAction>,
    pub(super) seen_requests: Vec<i64>,
    pub(super) holds: Vec<ReservationWrite>,
    pub(super) policy: Vec<PolicyNote>,
    pub(super) events: Vec<Event>,
}

/// What became of a write.
#[derive(Debug)]
pub enum Applied {
    /// Committed; the attempts it inserted may now be broadcast.
    Yes(Vec<Attempt>),
    /// Someone else owns the submitter. Nothing was written.
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
            foreign: Vec::new(),
            done_actions: Vec::new(),
            seen_requests: Vec::new(),
            holds: Vec::new(),
            policy: Vec::new(),
            events: Vec::new(),
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
            && self.foreign.is_empty()
            && self.done_actions.is_empty()
            && self.seen_requests.is_empty()
            && self.holds.is_empty()
            && self.policy.is_empty()
            && self.events.is_empty()
    }

    pub fn change(&mut self, change: Move) {
        self.moves.push(change);
    }

    /// Signed bytes for an intent; committed before anyone can send them.
    pub fn record(&mut self, tx_id: TxId, kind: AttemptKind, draft: SignedDraft) {
        self.attempts.push(NewAttempt { id: AttemptId::new(), tx_id, kind, draft });
    }

    /// Gives the nonce of a draft to a caller outside. Its placeholder is recorded with it: there is no way to spell a held
    /// nonce without the bytes that consume it.
    pub fn reserve(&mut self, tx_id: TxId, placeholder: SignedDraft, hold: Duration) {
        self.holds.push(ReservationWrite {
            tx_id,
            change: ReservationChange::Reserve { nonce: placeholder.nonce, hold },
        });
        self.record(tx_id, AttemptKind::Placeholder, placeholder);
    }

    /// The caller's transaction takes the held nonce: recorded with the end of the hold.
    pub fn use_reservation(&mut self, tx_id: TxId, draft: SignedDraft, payload: Payload) {
        self.holds
            .push(ReservationWrite { tx_id, change: ReservationChange::Use { payload: Box::new(payload) } });
        self.record(tx_id, AttemptKind::Original, draft);
    }

    /// The placeholder shall consume the held nonce. With `unanswered`, only if the caller has not answered: otherwise
    /// the write is refused, and an answer that was taken is never thrown away.
    pub fn recycle(&mut self, tx_id: TxId, unanswered: bool) {
        self.holds.push(ReservationWrite { tx_id, change: ReservationChange::Recycle { unanswered } });
    }

    /// The answer was seen, and has to wait: nobody needs to be woken for it any more.
    pub fn note_answer(&mut self, tx_id: TxId) {
        self.holds.push(ReservationWrite { tx_id, change: ReservationChange::Note });
    }

    pub fn cursor(&mut self, cursor: CursorWrite) {
        self.cursor = Some(cursor);
    }

    /// What is known of consumed nonces, all of it as it shall be.
    pub fn evidence(&mut self, evidence: Evidence) {
        self.evidence = Some(evidence);
    }

    pub fn sent(&mut self, note: SentNote) {
        self.sent.push(note);
    }

    /// Where an unmined intent seems to be.
    pub fn diagnosed(&mut self, tx_id: TxId, diagnosis: Diagnosis) {
        self.diagnoses.push((tx_id, diagnosis));
    }

    /// Declares the attempts of an intent dead: its nonce is finally someone else's.
    pub fn displace(&mut self, tx_id: TxId) {
        self.displaced.push(tx_id);
    }

    /// Notes nonces that are left to others. The database refuses it for a strict submitter.
    pub fn foreign(&mut self, range: ExternalNonces) {
        self.foreign.push(range);
    }

    /// Marks a request as dealt with.
    pub fn action_done(&mut self, action: DoneAction) {
        self.done_actions.push(action);
    }

    /// A client's request was seen and takes longer than this write: nobody needs to be woken for it any more.
    pub fn request_seen(&mut self, request_no: i64) {
        self.seen_requests.push(request_no);
    }

    /// What the policy decided, on disk with what follows from it.
    pub fn policy(&mut self, note: PolicyNote) {
        self.policy.push(note);
    }

    /// Kept in the outbox, in the same commit.
    pub fn event(&mut self, event: Event) {
        self.events.push(event);
    }

    /// How much of what somebody may be waiting for ends with this write: intents, and requests about them.
    pub fn endings(&self) -> usize {
        self.moves.iter().filter(|change| change.to.is_terminal()).count() + self.done_actions.len()
    }

    /// Call after COMMIT only: this is where bytes become an `Attempt`.
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
