//! One reservation on the client's side: request it, poll for the nonce, answer. Dropping it gives it up.

use std::time::{Duration, Instant};

use super::error::EmbedError;
use super::{Gapless, PollBackoff};
use gapless_domain::intent::check_request_id;
use gapless_domain::sanitize::storable;
use gapless_domain::{Answer, Event, EventKind, Nonce, ReservationState, SubmitterKey, TxId, Via};
use gapless_store::{AnswerOutcome, NewReservation, ReservationOutcome, ReservationOwner, StoreError};

/// A request that is not renewed for this long is abandoned and gets no nonce.
const REQUEST_TTL: Duration = Duration::from_secs(15);
/// How often a waiting client renews its request; also the time limit for giving up.
const RENEW_INTERVAL: Duration = Duration::from_secs(3);
/// Between two tries while the database is unreachable.
const RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The same limit as for the reason of a cancellation.
const MAX_REASON_CHARS: usize = 1_000;

#[derive(Clone, Debug)]
pub(super) struct ReservationRequest {
    pub(super) submitter: SubmitterKey,
    pub(super) request_id: String,
    pub(super) via: Via,
    /// How long the nonce stays reserved.
    pub(super) reserve_for: Duration,
    /// How long to wait for the nonce.
    pub(super) wait: Duration,
}

/// A granted nonce and the end of its reservation.
#[derive(Clone, Copy, Debug)]
pub(super) struct GrantedNonce {
    pub(super) nonce: Nonce,
    pub(super) ends: Instant,
}

/// A stored reservation request. Dropped before it is answered, it is given up.
#[derive(Debug)]
pub(super) struct PendingReservation {
    gapless: Gapless,
    pub(super) tx_id: TxId,
    pub(super) owner: ReservationOwner,
    /// Answered, given up, or ended by the worker: nothing to do on drop.
    finished: bool,
}

#[derive(Debug)]
pub(super) enum RequestOutcome {
    New(PendingReservation),
    /// The request id was used before.
    Known(TxId),
}

impl PendingReservation {
    pub(super) async fn request(
        gapless: &Gapless,
        request: &ReservationRequest,
    ) -> Result<RequestOutcome, EmbedError> {
        check_request_id(&request.request_id)?;
        let new = NewReservation {
            tx_id: TxId::new(),
            submitter: request.submitter,
            request_id: request.request_id.clone(),
            via: request.via,
            owner: ReservationOwner::new(),
            // The database refuses zero; the worker applies the upper limit.
            reserve_for: request.reserve_for.max(Duration::from_millis(1)),
            wanted_for: REQUEST_TTL,
        };
        // From here on a row may exist, even if the insert returns an error: dropping this gives it up.
        let mut reservation = PendingReservation {
            gapless: gapless.clone(),
            tx_id: new.tx_id,
            owner: new.owner,
            finished: false,
        };
        let retry = ConnectionRetry::within(request.wait);
        let outcome = loop {
            let tried = gapless.store.request_reservation(&new).await;
            if let Some(outcome) = retry.result_or_wait(tried).await {
                break outcome?;
            }
        };
        reservation.finished = outcome != ReservationOutcome::Created;
        match outcome {
            ReservationOutcome::Created => {
                let (submitter, tx_id) = (request.submitter, Some(reservation.tx_id));
                gapless.events.publish(&Event { submitter, tx_id, kind: EventKind::Accepted });
                gapless.wake_workers().await;
                Ok(RequestOutcome::New(reservation))
            }
            ReservationOutcome::Existing(tx_id) => Ok(RequestOutcome::Known(tx_id)),
            ReservationOutcome::Conflict(tx_id) => Err(EmbedError::RequestIdConflict { tx_id }),
            ReservationOutcome::UnknownSubmitter => Err(EmbedError::UnknownSubmitter(request.submitter)),
            ReservationOutcome::Protected { reason } => Err(EmbedError::Protected { reason }),
            ReservationOutcome::WrongMode if request.via == Via::LowLevel => Err(EmbedError::NotLowLevel),
            ReservationOutcome::WrongMode => Err(EmbedError::LowLevel),
        }
    }

    /// Polls until the nonce is granted, at most for `wait`. Renews the request meanwhile.
    pub(super) async fn nonce(&mut self, wait: Duration) -> Result<GrantedNonce, EmbedError> {
        let tx_id = self.tx_id;
        let mut backoff = PollBackoff::until(wait);
        let mut renewed_at = Instant::now();
        loop {
            match self.poll().await {
                Ok(Some(granted)) => return Ok(granted),
                Ok(None) => {}
                Err(EmbedError::Store(error)) if error.is_connection() => {
                    tracing::debug!(tx.id = %tx_id, %error, "could not read the reservation; retrying");
                }
                Err(error) => return Err(error),
            }
            if renewed_at.elapsed() >= RENEW_INTERVAL {
                renewed_at = Instant::now();
                // A failed renewal is retried. If all of them fail, the request expires and no nonce is used.
                let _ = self.gapless.store.keep_waiting(tx_id, self.owner, REQUEST_TTL).await;
            }
            if !backoff.sleep().await {
                self.give_up("the client stopped waiting for its nonce").await;
                // The nonce may have been granted in between; its placeholder consumes it then.
                return match self.gapless.store.reservation(tx_id).await {
                    Ok(Some(view)) if view.state != ReservationState::Requested => {
                        Err(EmbedError::TooLate { tx_id, state: view.state })
                    }
                    _ => Err(EmbedError::NoNonceInTime { tx_id }),
                };
            }
        }
    }

    async fn poll(&mut self) -> Result<Option<GrantedNonce>, EmbedError> {
        let tx_id = self.tx_id;
        let queried_at = Instant::now();
        let Some(view) = self.gapless.store.reservation(tx_id).await? else {
            self.finished = true;
            return Err(EmbedError::NotOwner { tx_id });
        };
        match (view.state, view.nonce) {
            // Counted from before the query: the database computed `left` after that, so this never ends too late.
            (ReservationState::Reserved, Some(nonce)) if !view.left.is_zero() => {
                Ok(Some(GrantedNonce { nonce, ends: queried_at + view.left }))
            }
            (ReservationState::Requested, _) if !view.tx_state.is_terminal() => Ok(None),
            (ReservationState::Requested, _) => {
                self.finished = true;
                let reason = view.last_error.unwrap_or_default();
                Err(EmbedError::Ended { tx_id, state: view.tx_state, reason })
            }
            (state, _) => {
                self.finished = true;
                Err(EmbedError::TooLate { tx_id, state })
            }
        }
    }

    /// Stores the answer. After `Ok` the worker is bound to it.
    pub(super) async fn answer(&mut self, answer: &Answer, within: Duration) -> Result<(), EmbedError> {
        let (tx_id, owner) = (self.tx_id, self.owner);
        let answered = submit_answer(&self.gapless, tx_id, owner, answer, within).await;
        // After a database error it is unknown whether the answer was stored; the drop gives the reservation up, which
        // has no effect on a stored answer.
        self.finished = !matches!(answered, Err(EmbedError::Store(_)));
        answered
    }

    /// Lets the placeholder consume the nonce at once. If this fails, the reservation expires instead.
    pub(super) async fn give_up(&mut self, reason: &str) {
        self.finished = true;
        give_up(&self.gapless, self.tx_id, self.owner, reason).await;
    }

    /// Ends the automatic give-up on drop: an `Allocation` takes over.
    pub(super) fn detach(mut self) {
        self.finished = true;
    }
}

impl Drop for PendingReservation {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let (gapless, tx_id, owner) = (self.gapless.clone(), self.tx_id, self.owner);
        runtime.spawn(async move { give_up(&gapless, tx_id, owner, "the call was dropped").await });
    }
}

pub(super) async fn submit_answer(
    gapless: &Gapless,
    tx_id: TxId,
    owner: ReservationOwner,
    answer: &Answer,
    within: Duration,
) -> Result<(), EmbedError> {
    let retry = ConnectionRetry::within(within);
    let outcome = loop {
        let tried = gapless.store.answer_reservation(tx_id, owner, answer).await;
        if let Some(outcome) = retry.result_or_wait(tried).await {
            break outcome?;
        }
    };
    match outcome {
        AnswerOutcome::Taken => {
            gapless.wake_workers().await;
            Ok(())
        }
        AnswerOutcome::TooLate(state) => Err(EmbedError::TooLate { tx_id, state }),
        AnswerOutcome::AlreadyAnswered => Err(EmbedError::AlreadyAnswered { tx_id }),
        AnswerOutcome::NotOwner => Err(EmbedError::NotOwner { tx_id }),
    }
}

async fn give_up(gapless: &Gapless, tx_id: TxId, owner: ReservationOwner, reason: &str) {
    let answer = Answer::GaveUp(truncate_reason(reason));
    if let Err(error) = submit_answer(gapless, tx_id, owner, &answer, RENEW_INTERVAL).await {
        tracing::debug!(tx.id = %tx_id, error = %error, "could not give up the reservation; it will expire");
    }
}

pub(super) fn truncate_reason(reason: &str) -> String {
    match reason.trim() {
        "" => "no reason was given".to_owned(),
        reason => storable(reason).chars().take(MAX_REASON_CHARS).collect(),
    }
}

/// Retries while the database is unreachable, up to a limit. Every statement used here is idempotent.
struct ConnectionRetry {
    started: Instant,
    limit: Duration,
}

impl ConnectionRetry {
    fn within(limit: Duration) -> ConnectionRetry {
        ConnectionRetry { started: Instant::now(), limit }
    }

    /// `None`, after a pause: try again.
    async fn result_or_wait<T>(&self, tried: Result<T, StoreError>) -> Option<Result<T, StoreError>> {
        match tried {
            Err(error) if error.is_connection() && self.started.elapsed() < self.limit => {
                tokio::time::sleep(RETRY_INTERVAL).await;
                None
            }
            other => Some(other),
        }
    }
}
