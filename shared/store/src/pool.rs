//! The store: its connection pool.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use sqlx::postgres::PgPoolOptions;
use sqlx::{ConnectOptions, Connection};

use super::address::Address;
use super::error::StoreError;
use super::schema::refuse_if_too_old;
use super::timeout_pool::TimeoutPool;
use gapless_config::Secret;

/// The database. Opaque outside this module: no other code runs SQL.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) pool: TimeoutPool,
    /// The `statement_timeout` that sessions request.
    pub(super) statement_timeout: Duration,
    /// Whether events were recorded at the last insert of requests. Only selects the statement that is tried first.
    pub(super) recording: Arc<AtomicBool>,
}

/// A connection that was idle for this long is pinged before use; busy connections save that round trip. One that
/// breaks after the check fails its statement, as it could at any time.
const PING_AFTER: Duration = Duration::from_secs(1);

/// Time limits: `statement` for a statement, a lock and an idle transaction; `acquire` for a connection from the pool.
#[derive(Clone, Copy, Debug)]
pub struct Timeouts {
    pub statement: Duration,
    pub acquire: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Timeouts { statement: Duration::from_secs(10), acquire: Duration::from_secs(5) }
    }
}

impl Store {
    /// Opens no connection: the first use does, so that an unreachable database has a single retry path. Refuses a
    /// database on another machine without an explicit `sslmode`.
    pub fn new(
        url: &Secret,
        application: &str,
        max_connections: u32,
        timeouts: Timeouts,
    ) -> Result<Store, StoreError> {
        let millis = timeouts.statement.as_millis().to_string();
        let limits = ["statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"];
        let options = Address::read(url)?
            .options()?
            // With the version: a migration that contracts the schema waits for older programs to end.
            .application_name(&format!("{application} {}", env!("CARGO_PKG_VERSION")))
            .options(limits.map(|limit| (limit, millis.as_str())))
            // Every statement takes milliseconds. Compiling one, which PostgreSQL does if it expects many rows, takes
            // far longer: 30 to 100 ms for a page of submitters.
            .options([("jit", "off")])
            // Callers log the operation; the SQL text would not help.
            .disable_statement_logging();
        let pool = PgPoolOptions::new()
            .max_connections(max_connections)
            .acquire_timeout(timeouts.acquire)
            // `before_acquire` pings idle connections only.
            .test_before_acquire(false)
            .before_acquire(|connection, meta| {
                Box::pin(async move { Ok(meta.idle_for < PING_AFTER || connection.ping().await.is_ok()) })
            })
            .after_connect(|connection, _| Box::pin(refuse_if_too_old(connection)))
            .connect_lazy_with(options);
        Ok(Store {
            pool: TimeoutPool::new(pool, timeouts.statement),
            statement_timeout: timeouts.statement,
            recording: Arc::default(),
        })
    }

    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(&self.pool).await.map_err(StoreError::db("ping"))?;
        Ok(())
    }

    pub async fn close(&self) {
        self.pool.close().await;
    }
}
