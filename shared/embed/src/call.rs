//! `with_nonce`: runs a handler with a reserved nonce.

use std::any::Any;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use uuid::Uuid;

use super::context::{HandlerAnswer, NonceContext};
use super::error::{EmbedError, WithNonceError};
use super::reservation::{PendingReservation, RequestOutcome, ReservationRequest};
use super::{DEFAULT_RESERVATION, DEFAULT_WAIT, Gapless};
use gapless_domain::{SubmitterKey, TxId, Via};

/// Backoff between two runs of a handler that returned `Failure::Retry`.
const MIN_BACKOFF: Duration = Duration::from_millis(50);
const MAX_BACKOFF: Duration = Duration::from_secs(1);

/// An accepted transaction: the worker is bound to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted<T = ()> {
    pub tx_id: TxId,
    /// The request id was used before: the handler did not run, and `tx_id` is the earlier intent.
    pub repeated: bool,
    /// The value that the handler returned with its transaction. `None`: it did not run.
    pub value: Option<T>,
}

/// Why a handler of `run_retrying` returned no transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// Temporary. The nonce stays reserved, and the handler runs again until the reservation or the tries are used up.
    Retry(E),
    /// Permanent. The placeholder consumes the nonce at once.
    GiveUp(E),
}

/// A `with_nonce` call and its options.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct Call<'a> {
    gapless: &'a Gapless,
    request: ReservationRequest,
}

impl<'a> Call<'a> {
    pub(super) fn new(gapless: &'a Gapless, submitter: SubmitterKey) -> Call<'a> {
        let request = ReservationRequest {
            submitter,
            request_id: format!("with-nonce-{}", Uuid::new_v4()),
            via: Via::WithNonce,
            reserve_for: DEFAULT_RESERVATION,
            wait: DEFAULT_WAIT,
        };
        Call { gapless, request }
    }

    /// An idempotency key, unique per submitter: the handler runs at most once for it.
    pub fn request_id(mut self, request_id: impl Into<String>) -> Self {
        self.request.request_id = request_id.into();
        self
    }

    /// How long the nonce stays reserved; at most `nonce.max_reservation` of the worker. The submitter sends no later
    /// nonce meanwhile.
    pub fn reserve_for(mut self, duration: Duration) -> Self {
        self.request.reserve_for = duration;
        self
    }

    /// How long to wait for the nonce. The request waits in the submitter's queue like any other.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.request.wait = wait;
        self
    }

    /// Waits for the nonce, then runs the handler once. See `Gapless::with_nonce`.
    pub async fn run<H, F, A, E>(self, handler: H) -> Result<Accepted<A::Value>, WithNonceError<E>>
    where
        H: FnOnce(NonceContext) -> F,
        F: Future<Output = Result<A, E>>,
        A: HandlerAnswer,
        E: Display,
    {
        let mut handler = Some(handler);
        let once = |context| {
            // It runs once: every failure is permanent.
            let running = handler.take().map(|handler| handler(context));
            async move {
                match running {
                    Some(running) => running.await.map_err(Failure::GiveUp),
                    None => std::future::pending().await,
                }
            }
        };
        self.run_retrying(1, once).await
    }

    /// The same for a handler that may fail temporarily: after `Failure::Retry` it runs again with the same nonce and
    /// exponential backoff, at most `tries` times and until the reservation ends. Nothing is sent meanwhile.
    pub async fn run_retrying<H, F, A, E>(
        self,
        tries: u32,
        handler: H,
    ) -> Result<Accepted<A::Value>, WithNonceError<E>>
    where
        H: FnMut(NonceContext) -> F,
        F: Future<Output = Result<A, Failure<E>>>,
        A: HandlerAnswer,
        E: Display,
    {
        let mut reservation = match PendingReservation::request(self.gapless, &self.request).await? {
            RequestOutcome::New(reservation) => reservation,
            RequestOutcome::Known(tx_id) => return Ok(Accepted { tx_id, repeated: true, value: None }),
        };
        let granted = reservation.nonce(self.request.wait).await?;
        let submitter = self.request.submitter;
        let signers = self.gapless.signers.as_ref();
        let context = NonceContext {
            tx_id: reservation.tx_id,
            chain_id: submitter.chain_id,
            submitter: submitter.address,
            nonce: granted.nonce,
            ends: granted.ends,
            signer: signers.and_then(|signers| signers.get(&submitter.address)),
        };
        // The handler is also called inside `catch_unwind`: it may panic before it returns a future.
        let running = AssertUnwindSafe(run_with_retries(tries, handler, &context)).catch_unwind();
        let tx_id = reservation.tx_id;
        let (tx, value) = match tokio::time::timeout(context.time_left(), running).await {
            Ok(Ok(Ok(answer))) => answer.split(),
            Ok(Ok(Err(error))) => {
                reservation.give_up(&format!("the handler failed: {error}")).await;
                return Err(WithNonceError::Handler { tx_id, error });
            }
            Ok(Err(panic)) => {
                let message = message_of(panic.as_ref());
                reservation.give_up(&format!("the handler panicked: {message}")).await;
                return Err(WithNonceError::Panicked { tx_id, message });
            }
            Err(_) => {
                reservation.give_up("the handler did not return before its reservation expired").await;
                return Err(WithNonceError::ReservationExpired { tx_id });
            }
        };
        let answer = match context.validate(tx) {
            Ok(answer) => answer,
            Err(error) => {
                reservation.give_up(&format!("the handler's transaction is invalid: {error}")).await;
                return Err(WithNonceError::Refused { tx_id, error });
            }
        };
        match reservation.answer(&answer, context.time_left()).await {
            Ok(()) => Ok(Accepted { tx_id, repeated: false, value: Some(value) }),
            Err(EmbedError::TooLate { tx_id, .. }) => Err(WithNonceError::ReservationExpired { tx_id }),
            Err(error) => Err(error.into()),
        }
    }
}

/// Runs the handler until it returns a transaction, gives up, or has no tries left.
async fn run_with_retries<H, F, A, E>(tries: u32, mut handler: H, context: &NonceContext) -> Result<A, E>
where
    H: FnMut(NonceContext) -> F,
    F: Future<Output = Result<A, Failure<E>>>,
    E: Display,
{
    let (mut runs, mut backoff) = (0, MIN_BACKOFF);
    loop {
        runs += 1;
        match handler(context.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(Failure::GiveUp(error)) => return Err(error),
            Err(Failure::Retry(error)) if runs >= tries => return Err(error),
            Err(Failure::Retry(error)) => {
                tracing::debug!(tx.id = %context.tx_id, %error, runs, retry_in = ?backoff,
                    "the handler failed and is retried; its nonce stays reserved");
                tokio::time::sleep(backoff).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
            }
        }
    }
}

/// The message of a panic, if it has one.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_of_a_panic_is_extracted() {
        let caught = |f: fn()| message_of(std::panic::catch_unwind(f).unwrap_err().as_ref());
        assert_eq!(caught(|| panic!("as {}", "formatted")), "as formatted");
        assert_eq!(caught(|| panic!("as it is")), "as it is");
        assert_eq!(caught(|| std::panic::panic_any(7)), "no message");
    }
}
