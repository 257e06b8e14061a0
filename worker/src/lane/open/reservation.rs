//! The nonce of an intent while a caller outside holds it: its placeholder is on disk and waits.

use std::time::Duration;

use gapless::domain::{Ending, ErrorCode, Payload, ReservationState, SignedDraft, TxState};
use gapless::store::{AttemptKind, OpenIntent, ReservedNonce};
use tokio::time::Instant;

use super::OpenTx;

/// What the next commit writes about a held nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservationChange {
    /// The caller may see it, for so long.
    Reserve(Duration),
    /// Its answer was seen.
    Note,
    /// Its transaction takes the nonce.
    Use,
    /// The placeholder takes it; `unanswered`: because no answer came.
    Recycle { unanswered: bool },
}

impl OpenTx {
    /// A nonce for a caller outside: its placeholder is recorded with it, and not sent while the caller holds it.
    pub(crate) fn reserved(
        intent: OpenIntent,
        placeholder: SignedDraft,
        hold: Duration,
        now: Instant,
    ) -> Self {
        let mut tx = OpenTx::loaded(intent, now);
        tx.persisted = TxState::Queued;
        tx.draft = Some((AttemptKind::Placeholder, placeholder));
        tx.reservation_change = Some(ReservationChange::Reserve(hold));
        tx.dirty = true;
        tx.lazy = false;
        tx
    }

    /// A caller outside holds the nonce: nothing is sent, and nothing behind it either.
    pub(crate) fn is_reserved(&self) -> bool {
        self.intent.reservation.as_ref().is_some_and(ReservedNonce::is_reserved)
    }

    pub(crate) fn reservation_change(&self) -> Option<ReservationChange> {
        self.reservation_change
    }

    /// Writes down that the caller's answer was seen, if that is news.
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

    /// The caller's transaction takes the nonce. The placeholder stays recorded, and is sent no more.
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

    /// The caller shall have it no more: the placeholder takes the nonce. Says why before, by `give_up`.
    pub(crate) fn recycle(&mut self, unanswered: bool, now: Instant) {
        debug_assert!(self.intent.ending.is_some(), "a hold ends for a reason");
        self.end_reservation(ReservationState::Recyclable, ReservationChange::Recycle { unanswered }, now);
    }

    /// A stranger took the nonce that was held. Whatever the caller has in mind for it can never happen.
    pub(crate) fn lose_reservation(&mut self, now: Instant) {
        if self.is_reserved() {
            let reason = "its nonce was taken by a transaction from outside".to_owned();
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
            TxState::Stuck => self.intent.sub_state = Some("unmined".to_owned()),
            _ => {}
        }
        if matches!(self.state(), TxState::InFlight | TxState::Stuck) {
            self.intent.last_error = None;
        }
        self.due = now;
        self.start_waiting(now);
    }

    fn change_reservation(&mut self, change: ReservationChange) {
        self.reservation_change = Some(change);
        self.dirty = true;
        self.lazy = false;
    }

    /// No other bytes of it can be anywhere. The placeholder of a held nonce, its first attempt, never left if others
    /// followed.
    pub(crate) fn has_first_bytes_only(&self) -> bool {
        self.intent.attempts.len() == 1 + self.kept_back()
    }

    /// How many of its attempts, the first ones, are placeholders of a nonce that was held.
    pub(crate) fn kept_back(&self) -> usize {
        let first = self.intent.attempts.first();
        usize::from(first.is_some_and(|first| first.kind() == AttemptKind::Placeholder))
    }
}
