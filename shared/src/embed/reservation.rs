//! One reservation in the hands of a call: asked for, waited for, answered, or given up when the call is dropped.

use std::time::{Duration, Instant};

use super::error::EmbedError;
use super::{Gapless, Looks};
use crate::domain::intent::check_request_id;
use crate::domain::sanitize::storable;
use crate::domain::{Answer, Event, EventKind, Nonce, ReservationState, SubmitterKey, TxId, Via};
use crate::store::{AnswerOutcome, NewReservation, ReservationOutcome, ReservationOwner, StoreError};

/// A caller that is not heard of for this long gets no nonce any more.
const WANTED_FOR: Duration = Duration::from_secs(15);
/// How often it says that it waits.
const SAY_SO: Duration = Duration::from_secs(3);
/// Between two tries while the database is away.
const TRY_AGAIN: Duration = Duration::from_millis(100);
/// As long as the reasons of cancellations.
const MAX_REASON_CHARS: usize = 1_000;

/// What is asked for.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) submitter: SubmitterKey,
    pub(super) request_id: String,
    pub(super) via: Via,
    pub(super) hold: Duration,
    pub(super) wait: Duration,
}

/// A nonce that was given, and until when it is held.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantedNonce {
    pub(super) nonce: Nonce,
    pub(super) ends: Instant,
}

/// A request is out. Dropped before it is answered, it is given up.
#[derive(Debug)]
pub(super) struct PendingReservation {
    gapless: Gapless,
    pub(super) tx_id: TxId,
    pub(super) owner: ReservationOwner,
    /// Answered, given up, or no longer ours to end.
    over: bool,
}

/// Whether a request is new.
#[derive(Debug)]
pub(super) enum Asked {
    New(PendingReservation),
    /// The same request id asked before.
    Known(TxId),
}

impl PendingReservation {
    pub(super) async fn ask(gapless: &Gapless, ask: &Ask) -> Result<Asked, EmbedError> {
        check_request_id(&ask.request_id)?;
        let new = NewReservation {
            tx_id: TxId::new(),
            submitter: ask.submitter,
            request_id: ask.request_id.clone(),
            via: ask.via,
            owner: ReservationOwner::new(),
            // Nothing would be no hold at all; the worker bounds the other end.
            hold: ask.hold.max(Duration::from_millis(1)),
            wanted_for: WANTED_FOR,
        };
        // From here on a row may exist, whatever comes back: dropping this gives it up.
        let mut reservation =
            PendingReservation { gapless: gapless.clone(), tx_id: new.tx_id, owner: new.owner, over: false };
        let outbox = gapless.events.wants_outbox();
        let patience = Patience::of(ask.wait);
        let outcome = loop {
            let tried = gapless.store.request_reservation(&new, outbox).await;
            if let Some(outcome) = patience.judge(tried).await {
                break outcome?;
            }
        };
        reservation.over = outcome != ReservationOutcome::Created;
        match outcome {
            ReservationOutcome::Created => {
                let tx_id = Some(reservation.tx_id);
                gapless.events.publish(&Event { submitter: ask.submitter, tx_id, kind: EventKind::Accepted });
                gapless.wake_workers().await;
                Ok(Asked::New(reservation))
            }
            ReservationOutcome::Existing(tx_id) => Ok(Asked::Known(tx_id)),
            ReservationOutcome::Conflict(tx_id) => Err(EmbedError::RequestIdConflict { tx_id }),
            ReservationOutcome::UnknownSubmitter => Err(EmbedError::UnknownSubmitter(ask.submitter)),
            ReservationOutcome::Protected { reason } => Err(EmbedError::Protected { reason }),
            ReservationOutcome::WrongMode if ask.via == Via::LowLevel => Err(EmbedError::NotLowLevel),
            ReservationOutcome::WrongMode => Err(EmbedError::LowLevel),
        }
    }

    /// Waits until the nonce is there.
    pub(super) async fn nonce(&mut self, wait: Duration) -> Result<GrantedNonce, EmbedError> {
        let tx_id = self.tx_id;
        let mut looks = Looks::until(wait);
        let mut said_so = Instant::now();
        loop {
            match self.look().await {
                Ok(Some(given)) => return Ok(given),
                Ok(None) => {}
                Err(EmbedError::Store(error)) if error.is_connection() => {
                    tracing::debug!(tx.id = %tx_id, error = %error, "the reservation could not be looked at");
                }
                Err(error) => return Err(error),
            }
            if said_so.elapsed() >= SAY_SO {
                said_so = Instant::now();
                // A word that is lost is said again; without any, the request lapses and costs nothing.
                let _ = self.gapless.store.keep_waiting(tx_id, self.owner, WANTED_FOR).await;
            }
            if !looks.pause().await {
                self.give_up("the caller waited no longer for its nonce").await;
                // It may have been given in between, and is consumed by its placeholder then.
                return match self.gapless.store.reservation(tx_id).await {
                    Ok(Some(view)) if view.state != ReservationState::Requested => {
                        Err(EmbedError::TooLate { tx_id, state: view.state })
                    }
                    _ => Err(EmbedError::NoNonceInTime { tx_id }),
                };
            }
        }
    }

    async fn look(&mut self) -> Result<Option<GrantedNonce>, EmbedError> {
        let tx_id = self.tx_id;
        let asked_at = Instant::now();
        let Some(view) = self.gapless.store.reservation(tx_id).await? else {
            self.over = true;
            return Err(EmbedError::NotYours { tx_id });
        };
        match (view.state, view.nonce) {
            // From before the question: what is left was worked out after it.
            (ReservationState::Reserved, Some(nonce)) if !view.left.is_zero() => {
                Ok(Some(GrantedNonce { nonce, ends: asked_at + view.left }))
            }
            (ReservationState::Requested, _) if !view.tx_state.is_terminal() => Ok(None),
            (ReservationState::Requested, _) => {
                self.over = true;
                let reason = view.last_error.unwrap_or_default();
                Err(EmbedError::Ended { tx_id, state: view.tx_state, reason })
            }
            (state, _) => {
                self.over = true;
                Err(EmbedError::TooLate { tx_id, state })
            }
        }
    }

    /// Binds the worker to the answer, or says why not.
    pub(super) async fn answer(&mut self, answer: &Answer, within: Duration) -> Result<(), EmbedError> {
        let (tx_id, owner) = (self.tx_id, self.owner);
        let answered = answer_as(&self.gapless, tx_id, owner, answer, within).await;
        // An error of the database leaves it open whether the answer was taken; giving up settles it, if it was not.
        self.over = !matches!(answered, Err(EmbedError::Store(_)));
        answered
    }

    /// The placeholder shall consume the nonce, at once. If that cannot be said, the end of the hold says it.
    pub(super) async fn give_up(&mut self, reason: &str) {
        self.over = true;
        give_up(&self.gapless, self.tx_id, self.owner, reason).await;
    }

    /// Somebody else ends it.
    pub(super) fn keep(mut self) {
        self.over = true;
    }
}

impl Drop for PendingReservation {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (gapless, tx_id, owner) = (self.gapless.clone(), self.tx_id, self.owner);
        runtime.spawn(async move { give_up(&gapless, tx_id, owner, "the call was dropped").await });
    }
}

pub(super) async fn answer_as(
    gapless: &Gapless,
    tx_id: TxId,
    owner: ReservationOwner,
    answer: &Answer,
    within: Duration,
) -> Result<(), EmbedError> {
    let patience = Patience::of(within);
    let outcome = loop {
        let tried = gapless.store.answer_reservation(tx_id, owner, answer).await;
        if let Some(outcome) = patience.judge(tried).await {
            break outcome?;
        }
    };
    match outcome {
        AnswerOutcome::Taken => {
            gapless.wake_workers().await;
            Ok(())
        }
        AnswerOutcome::TooLate(state) => Err(EmbedError::TooLate { tx_id, state }),
        AnswerOutcome::AnsweredBefore => Err(EmbedError::AnsweredBefore { tx_id }),
        AnswerOutcome::NotYours => Err(EmbedError::NotYours { tx_id }),
    }
}

async fn give_up(gapless: &Gapless, tx_id: TxId, owner: ReservationOwner, reason: &str) {
    let answer = Answer::GaveUp(shortened(reason));
    if let Err(error) = answer_as(gapless, tx_id, owner, &answer, SAY_SO).await {
        tracing::debug!(tx.id = %tx_id, error = %error, "not given up by hand; the end of the hold does it");
    }
}

pub(super) fn shortened(reason: &str) -> String {
    match reason.trim() {
        "" => "no reason was given".to_owned(),
        reason => storable(reason).chars().take(MAX_REASON_CHARS).collect(),
    }
}

/// Tries on while the database is away. Every statement here may be repeated.
struct Patience {
    begun: Instant,
    limit: Duration,
}

impl Patience {
    fn of(limit: Duration) -> Patience {
        Patience { begun: Instant::now(), limit }
    }

    /// `None`: try again.
    async fn judge<T>(&self, tried: Result<T, StoreError>) -> Option<Result<T, StoreError>> {
        match tried {
            Err(error) if error.is_connection() && self.begun.elapsed() < self.limit => {
                tokio::time::sleep(TRY_AGAIN).await;
                None
            }
            other => Some(other),
        }
    }
}
