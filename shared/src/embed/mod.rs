//! Nonces for code of your own: `with_nonce`, and the low-level hook behind it.
//!
//! This is the caller's side, for programs that link this crate and reach the database. It writes requests and answers,
//! and nothing else: nonces are given, and transactions recorded, sent and followed, by the worker that owns the
//! submitter. A nonce that is shown here has its placeholder on disk; whatever becomes of the caller, the nonce is
//! consumed (docs/adr/0012, docs/embedding.md).

mod call;
mod context;
mod error;
mod low_level;
mod reservation;

use std::sync::Arc;
use std::time::{Duration, Instant};

pub use call::{Accepted, Call, Failure};
pub use context::{HandlerAnswer, NonceContext, SignProblem, Wanted};
pub use error::{EmbedError, WithNonceError};
pub use low_level::Allocation;

use crate::config::{Config, EventsMode, Secret};
use crate::domain::{SubmitterKey, TxId};
use crate::events::{self, EventPublisher};
use crate::signer::SignerSet;
use crate::store::{Store, StoreError, Timeouts, TxView};

/// How long a nonce is held unless the call says otherwise. The submitter waits that long for a caller that died.
pub const DEFAULT_RESERVATION: Duration = Duration::from_secs(10);
/// How long a call waits for its nonce unless it says otherwise.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(60);
/// Few: a call sends a handful of short statements.
const CONNECTIONS: u32 = 5;
/// Between two looks at a row. A look is one row by its key.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);
const LONGEST_LOOK: Duration = Duration::from_millis(250);

/// A Gapless deployment as other code uses it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gapless {
    store: Store,
    events: Arc<dyn EventPublisher>,
    signers: Option<Arc<SignerSet>>,
}

impl Gapless {
    /// Needs nothing but the database. Refuses a schema that is older than this program.
    pub async fn connect(database_url: &Secret) -> Result<Gapless, StoreError> {
        Self::open(database_url, EventsMode::Poll).await
    }

    /// The same, with the configuration of the deployment: events are told as it says.
    pub async fn with_config(config: &Config) -> Result<Gapless, StoreError> {
        Self::open(&config.database.url, config.events.mode).await
    }

    async fn open(url: &Secret, mode: EventsMode) -> Result<Gapless, StoreError> {
        let store = Store::new(url, "gapless-embedded", CONNECTIONS, Timeouts::default())?;
        store.check_session().await?;
        store.check_schema().await?;
        Ok(Gapless { store, events: events::publisher(mode), signers: None })
    }

    /// Keys of this process, for handlers that sign by themselves.
    pub fn with_signers(self, signers: Arc<SignerSet>) -> Gapless {
        Gapless { signers: Some(signers), ..self }
    }

    /// A call that can be told more before it runs: `call(submitter).request_id("invoice-7").run(handler)`.
    pub fn call(&self, submitter: SubmitterKey) -> Call<'_> {
        Call::new(self, submitter)
    }

    /// Gives the handler the submitter's next nonce, and carries what it returns to the chain. Returns when the worker is
    /// bound to that; follow the `tx_id` to its end. A handler that fails, panics or takes too long, a caller that is
    /// killed, and a transaction that can never be sent all end alike: a placeholder consumes the nonce.
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

    /// Waits until the intent is final, or for `limit`. Answers it as it is then.
    pub async fn wait_final(&self, tx_id: TxId, limit: Duration) -> Result<Option<TxView>, StoreError> {
        let mut looks = Looks::until(limit);
        loop {
            let view = self.store.get_tx(tx_id).await?;
            if view.as_ref().is_none_or(|view| view.state.is_terminal()) || !looks.pause().await {
                return Ok(view);
            }
        }
    }

    /// Wakes the workers. Polling is the truth: a lost word costs a second.
    async fn wake_workers(&self) {
        if let Err(error) = self.store.notify_work().await {
            tracing::debug!(error = %error, "workers were not notified; they poll");
        }
    }
}

/// Looks at a row again and again, ever more rarely, until a limit.
#[derive(Debug)]
struct Looks {
    until: Instant,
    pause: Duration,
}

impl Looks {
    fn until(limit: Duration) -> Looks {
        // A limit beyond what a clock can hold is no limit that anybody lives to see.
        let now = Instant::now();
        let until = now.checked_add(limit).unwrap_or(now + Duration::from_secs(u32::MAX.into()));
        Looks { until, pause: SHORTEST_LOOK }
    }

    /// False: the limit is reached.
    async fn pause(&mut self) -> bool {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        tokio::time::sleep(self.pause.min(left)).await;
        self.pause = (self.pause * 2).min(LONGEST_LOOK);
        true
    }
}
