//! Nonce reservations: while a client reserves the nonce of an intent, only its placeholder is stored, unsent.

use std::time::Duration;

use gapless_domain::{Ending, ErrorCode, Payload, ReservationState, SignedDraft, SubState, TxState};
use gapless_store::{AttemptKind, OpenIntent, ReservedNonce};
use tokio::time::Instant;

use super::OpenTx;

/// What the next commit writes about a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservationChange {
    /// The nonce is granted to the client for this duration.
    Reserve(Duration),
    /// The client's answer was read.
    Note,
    /// The client's transaction takes the nonce.
    Use,
    /// The placeholder takes the nonce; `unanswered`: because the client sent no answer in time.
    Recycle { unanswered: bool },
}

impl OpenTx {
    /// A nonce reserved for a client: the placeholder is stored with it, and not sent during the reservation.
    pub(crate) fn reserved(
        intent: OpenIntent,
        placeholder: SignedDraft,
        duration: Duration,
        now: Instant,
    ) -> Self {
        let mut tx = OpenTx::loaded(intent, now);
        tx.unsaved.persisted = TxState::Queued;
        tx.unsaved.draft = Some((AttemptKind::Placeholder, placeholder));
        tx.unsaved.reservation_change = Some(ReservationChange::Reserve(duration));
        tx.unsaved.dirty = true;
        tx.unsaved.lazy = false;
        tx
    }

    /// The nonce is reserved for a client: neither it nor any later nonce is sent.
    pub(crate) fn is_reserved(&self) -> bool {
        self.intent.reservation.as_ref().is_some_and(ReservedNonce::is_reserved)
    }

    pub(crate) fn reservation_change(&self) -> Option<ReservationChange> {
        self.unsaved.reservation_change
    }

    /// Records that the client's answer was read, if that is not stored yet.
    pub(crate) fn note_answer(&mut self) {
        let unseen = self
            .intent
            .reservation
            .as_ref()
            .is_some_and(|reservation| reservation.answer.is_some() && !reservation.noted);
        if unseen && self.is_reserved() {
            self.change_reservation(ReservationChange::Note);
        }
    }

    /// The client's transaction takes the nonce. The placeholder stays stored and is never sent.
    pub(crate) fn use_reservation(
        &mut self,
        draft: SignedDraft,
        payload: Payload,
        resubmit_in: Duration,
        now: Instant,
    ) {
        self.intent.expires =
            self.intent.reservation.as_ref().and_then(|reservation| reservation.answer_expires);
        self.intent.payload = payload;
        self.end_reservation(ReservationState::Used, ReservationChange::Use, now);
        self.redraft(AttemptKind::Original, draft, resubmit_in, now);
    }

    /// Ends the reservation: the placeholder takes the nonce. Call `give_up` first to set the reason.
    pub(crate) fn recycle(&mut self, unanswered: bool, now: Instant) {
        debug_assert!(self.intent.ending.is_some(), "a reservation ends with a reason");
        self.end_reservation(ReservationState::Recyclable, ReservationChange::Recycle { unanswered }, now);
    }

    /// An external transaction consumed the reserved nonce: the client's transaction can never be mined.
    pub(crate) fn lose_reservation(&mut self, now: Instant) {
        if self.is_reserved() {
            let reason = "its nonce was consumed by an external transaction".to_owned();
            self.give_up(Ending { state: TxState::Failed, code: ErrorCode::NonceTaken, reason });
            self.recycle(false, now);
        }
    }

    fn end_reservation(&mut self, state: ReservationState, change: ReservationChange, now: Instant) {
        if let Some(reservation) = &mut self.intent.reservation {
            reservation.state = state;
        }
        self.change_reservation(change);
        match self.state() {
            TxState::InFlight => self.intent.sub_state = None,
            TxState::Stuck => self.intent.sub_state = Some(SubState::Unmined),
            _ => {}
        }
        if matches!(self.state(), TxState::InFlight | TxState::Stuck) {
            self.intent.last_error = None;
        }
        self.sending.due = now;
        self.start_waiting(now);
    }

    fn change_reservation(&mut self, change: ReservationChange) {
        self.unsaved.reservation_change = Some(change);
        self.unsaved.dirty = true;
        self.unsaved.lazy = false;
    }

    /// Only one attempt can have been sent. The placeholder of a reservation, its first attempt, was never sent if
    /// others followed.
    pub(crate) fn has_first_bytes_only(&self) -> bool {
        self.intent.attempts.len() == 1 + self.unsent_placeholders()
    }

    /// Number of leading attempts that are placeholders of a reservation: 0 or 1.
    pub(crate) fn unsent_placeholders(&self) -> usize {
        let first = self.intent.attempts.first();
        usize::from(first.is_some_and(|first| first.kind() == AttemptKind::Placeholder))
    }
}
