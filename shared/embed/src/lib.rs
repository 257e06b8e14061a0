//! Nonces for programs that link this crate: `with_nonce`, and the low-level API.
//!
//! The client side of reservations; it needs the database only. It writes requests and answers and nothing else: the
//! worker that owns the submitter assigns nonces, and records, sends and tracks transactions. When a client sees its
//! nonce, the placeholder is already recorded, so the nonce is consumed whatever happens to the client
//! (docs/adr/0012, docs/guide/embedding.md).

mod call;
mod context;
mod error;
mod low_level;
mod reservation;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use call::{Accepted, Call, Failure};
pub use context::{HandlerAnswer, HandlerTx, NonceContext, SignError};
pub use error::{EmbedError, WithNonceError};
pub use low_level::Allocation;

use gapless_config::{Config, EventsMode, Secret};
use gapless_domain::{SubmitterKey, TxId};
use gapless_events::{self as events, EventPublisher};
use gapless_signer::SignerSet;
use gapless_store::{Store, StoreError, Timeouts, TxView};

/// How long a nonce stays reserved by default. If the client dies, its submitter is blocked for the rest of this time.
pub const DEFAULT_RESERVATION: Duration = Duration::from_secs(10);
/// How long a call waits for its nonce by default.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(60);
/// Few: a call runs a handful of short statements.
const MAX_CONNECTIONS: u32 = 5;
/// Bounds of the polling interval. A poll reads one row by its primary key.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
const MAX_POLL_INTERVAL: Duration = Duration::from_millis(250);

/// A client of a Gapless deployment. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gapless {
    store: Store,
    events: Arc<dyn EventPublisher>,
    signers: Option<Arc<SignerSet>>,
}

impl Gapless {
    /// Needs the database only. Refuses a schema that is older than this program.
    pub async fn connect(database_url: &Secret) -> Result<Gapless, StoreError> {
        Self::open(database_url, EventsMode::Poll).await
    }

    /// The same, with the configuration of the deployment: events are published according to `events.mode`.
    pub async fn with_config(config: &Config) -> Result<Gapless, StoreError> {
        Self::open(&config.database.url, config.events.mode).await
    }

    async fn open(url: &Secret, mode: EventsMode) -> Result<Gapless, StoreError> {
        let store = Store::new(url, "gapless-embedded", MAX_CONNECTIONS, Timeouts::default())?;
        store.check_session().await?;
        store.check_schema().await?;
        Ok(Gapless { store, events: events::publisher(mode), signers: None })
    }

    /// Keys of this process, for handlers that sign themselves.
    pub fn with_signers(self, signers: Arc<SignerSet>) -> Gapless {
        Gapless { signers: Some(signers), ..self }
    }

    /// A call with options: `call(submitter).request_id("invoice-7").run(handler)`.
    pub fn call(&self, submitter: SubmitterKey) -> Call<'_> {
        Call::new(self, submitter)
    }

    /// Runs the handler with the submitter's next nonce and sends the transaction it returns. Returns as soon as the
    /// worker is bound to that transaction; track it by its `tx_id`. If the handler fails, panics or times out, if
    /// the client is killed, or if the transaction is invalid, a placeholder consumes the nonce.
    pub async fn with_nonce<H, F, A, E>(
        &self,
        submitter: SubmitterKey,
        handler: H,
    ) -> Result<Accepted<A::Value>, WithNonceError<E>>
    where
        H: FnOnce(NonceContext) -> F,
        F: Future<Output = Result<A, E>>,
        A: HandlerAnswer,
        E: std::fmt::Display,
    {
        self.call(submitter).run(handler).await
    }

    /// The intent as `GET /api/v1/tx/{txId}` shows it.
    pub async fn tx(&self, tx_id: TxId) -> Result<Option<TxView>, StoreError> {
        self.store.get_tx(tx_id).await
    }

    /// Waits until the intent is final, at most for `limit`. Returns its current state.
    pub async fn wait_final(&self, tx_id: TxId, limit: Duration) -> Result<Option<TxView>, StoreError> {
        let mut backoff = PollBackoff::until(limit);
        loop {
            let view = self.store.get_tx(tx_id).await?;
            if view.as_ref().is_none_or(|view| view.state.is_terminal()) || !backoff.sleep().await {
                return Ok(view);
            }
        }
    }

    /// Wakes the workers. They also poll: a lost notification costs about a second.
    async fn wake_workers(&self) {
        if let Err(error) = self.store.notify_work().await {
            tracing::debug!(error = %error, "could not notify the workers; they will poll");
        }
    }
}

/// Polling intervals that double up to a maximum, until a deadline.
#[derive(Debug)]
struct PollBackoff {
    deadline: Instant,
    interval: Duration,
}

impl PollBackoff {
    fn until(limit: Duration) -> PollBackoff {
        // A limit that overflows the clock becomes 136 years.
        let now = Instant::now();
        let deadline = now.checked_add(limit).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        PollBackoff { deadline, interval: MIN_POLL_INTERVAL }
    }

    /// False: the deadline has passed.
    async fn sleep(&mut self) -> bool {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        tokio::time::sleep(self.interval.min(left)).await;
        self.interval = (self.interval * 2).min(MAX_POLL_INTERVAL);
        true
    }
}
