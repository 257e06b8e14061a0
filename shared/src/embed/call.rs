//! `with_nonce`: one handler, one nonce.

use std::any::Any;
use std::fmt::Display;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::FutureExt;
use uuid::Uuid;

use super::context::{HandlerAnswer, NonceContext};
use super::error::{EmbedError, WithNonceError};
use super::reservation::{Ask, Asked, PendingReservation};
use super::{DEFAULT_RESERVATION, DEFAULT_WAIT, Gapless};
use crate::domain::{SubmitterKey, TxId, Via};

/// Between two runs of a handler that asked for another.
const SHORTEST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What the worker is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Accepted<T = ()> {
    pub tx_id: TxId,
    /// The request id was used before: this handler did not run. The intent is the earlier one.
    pub repeated: bool,
    /// What the handler returned beside its transaction. `None`: it did not run.
    pub value: Option<T>,
}

/// Why a handler of `run_retrying` has no transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<E> {
    /// Not now. The nonce stays reserved, and the handler runs again while the hold and the number of tries last.
    Retry(E),
    /// Never. The placeholder consumes the nonce at once.
    GiveUp(E),
}

/// A call of `with_nonce` that has not begun.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct Call<'a> {
    gapless: &'a Gapless,
    ask: Ask,
}

impl<'a> Call<'a> {
    pub(super) fn new(gapless: &'a Gapless, submitter: SubmitterKey) -> Call<'a> {
        let request_id = format!("with-nonce-{}", Uuid::new_v4());
        let ask =
            Ask { submitter, request_id, via: Via::WithNonce, hold: DEFAULT_RESERVATION, wait: DEFAULT_WAIT };
        Call { gapless, ask }
    }

    /// An idempotency key, unique per submitter: the handler runs at most once for it.
    pub fn request_id(mut self, request_id: impl Into<String>) -> Self {
        self.ask.request_id = request_id.into();
        self
    }

    /// How long the nonce may be held; at most `nonce.max_reservation` of the worker. The submitter sends nothing meanwhile.
    pub fn hold(mut self, hold: Duration) -> Self {
        self.ask.hold = hold;
        self
    }

    /// How long to wait for the nonce. It stands in the queue like every other request.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.ask.wait = wait;
        self
    }

    /// Runs the handler once it has a nonce. See `Gapless::with_nonce`.
    pub async fn run<H, F, A, E>(self, handler: H) -> Result<Accepted<A::Value>, WithNonceError<E>>
    where
        H: FnOnce(NonceContext) -> F,
        F: Future<Output = Result<A, E>>,
        A: HandlerAnswer,
        E: Display,
    {
        let mut handler = Some(handler);
        let once = |context| {
            // It runs once: a first failure is the last.
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

    /// The same for a handler that may fail for now: after `Failure::Retry` it runs again at the same nonce, with growing pauses,
    /// at most `tries` times and while the nonce is held. Nothing is sent meanwhile.
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
        let mut reservation = match PendingReservation::ask(self.gapless, &self.ask).await? {
            Asked::New(reservation) => reservation,
            Asked::Known(tx_id) => return Ok(Accepted { tx_id, repeated: true, value: None }),
        };
        let given = reservation.nonce(self.ask.wait).await?;
        let submitter = self.ask.submitter;
        let signers = self.gapless.signers.as_ref();
        let context = NonceContext {
            tx_id: reservation.tx_id,
            chain_id: submitter.chain_id,
            submitter: submitter.address,
            nonce: given.nonce,
            ends: given.ends,
            signer: signers.and_then(|signers| signers.get(&submitter.address)),
        };
        // The handler is called inside, too: it may panic before it returns a future.
        let running = AssertUnwindSafe(until_answered(tries, handler, &context)).catch_unwind();
        let tx_id = reservation.tx_id;
        let (wanted, value) = match tokio::time::timeout(context.time_left(), running).await {
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
                reservation.give_up("the handler did not answer while its nonce was held").await;
                return Err(WithNonceError::HoldEnded { tx_id });
            }
        };
        let answer = match context.checked(wanted) {
            Ok(answer) => answer,
            Err(error) => {
                reservation.give_up(&format!("what the handler wants can never be sent: {error}")).await;
                return Err(WithNonceError::Refused { tx_id, error });
            }
        };
        match reservation.answer(&answer, context.time_left()).await {
            Ok(()) => Ok(Accepted { tx_id, repeated: false, value: Some(value) }),
            Err(EmbedError::TooLate { tx_id, .. }) => Err(WithNonceError::HoldEnded { tx_id }),
            Err(error) => Err(error.into()),
        }
    }
}

/// Runs the handler until it answers, gives up, or has had all its tries.
async fn until_answered<H, F, A, E>(tries: u32, mut handler: H, context: &NonceContext) -> Result<A, E>
where
    H: FnMut(NonceContext) -> F,
    F: Future<Output = Result<A, Failure<E>>>,
    E: Display,
{
    let (mut runs, mut pause) = (0, SHORTEST_PAUSE);
    loop {
        runs += 1;
        match handler(context.clone()).await {
            Ok(answer) => return Ok(answer),
            Err(Failure::GiveUp(error)) => return Err(error),
            Err(Failure::Retry(error)) if runs >= tries => return Err(error),
            Err(Failure::Retry(error)) => {
                tracing::debug!(tx.id = %context.tx_id, %error, runs, retry_in = ?pause,
                    "the handler asks to run again; its nonce stays reserved");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }
}

/// What a panic said, as far as it said anything.
fn message_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_told_in_its_own_words() {
        let caught = |f: fn()| message_of(std::panic::catch_unwind(f).unwrap_err().as_ref());
        assert_eq!(caught(|| panic!("as {}", "formatted")), "as formatted");
        assert_eq!(caught(|| panic!("as it is")), "as it is");
        assert_eq!(caught(|| std::panic::panic_any(7)), "no message");
    }
}
