//! Connections, and the schema they must find.

use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::postgres::PgPoolOptions;
use sqlx::{ConnectOptions, Connection};

use super::address::Address;
use super::error::StoreError;
use super::timeout_pool::TimeoutPool;
use crate::config::Secret;

/// A pool of connections. Opaque outside the store: nobody else writes SQL.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) pool: TimeoutPool,
    /// What its sessions ask for.
    pub(super) statement_timeout: Duration,
}

/// A connection that was idle for this long is asked whether it is still there before it is used: a round trip, which
/// those in constant use are spared. One that breaks in between fails its statement, like one that breaks a moment later.
const ASK_IDLE_FROM: Duration = Duration::from_secs(1);

static MIGRATIONS: Migrator = sqlx::migrate!("../migrations");

/// How long statements may take and locks may be waited for.
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
    /// Opens no connection yet: the first use does, so that a database that is away is met by one retry path. Refuses a
    /// database on another machine, if nobody has said how the way there is secured.
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
            .application_name(application)
            .options(limits.map(|limit| (limit, millis.as_str())))
            // Whoever runs a statement logs what it meant; the text of the SQL helps nobody in a log.
            .disable_statement_logging();
        let pool = PgPoolOptions::new()
            .max_connections(max_connections)
            .acquire_timeout(timeouts.acquire)
            // One that was used a moment ago is as good as one that was asked a moment ago.
            .test_before_acquire(false)
            .before_acquire(|connection, meta| {
                Box::pin(async move { Ok(meta.idle_for < ASK_IDLE_FROM || connection.ping().await.is_ok()) })
            })
            .connect_lazy_with(options);
        Ok(Store { pool: TimeoutPool::new(pool, timeouts.statement), statement_timeout: timeouts.statement })
    }

    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(&self.pool).await.map_err(StoreError::db("ping"))?;
        Ok(())
    }

    /// Brings the schema up to this program's version. Safe to run from several places at once.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        MIGRATIONS.run(self.pool.without_timeout()).await.map_err(|error| StoreError::Db {
            operation: "migrate",
            source: sqlx::Error::Migrate(Box::new(error)),
        })
    }

    /// Refuses a schema older than this program. A newer one is fine: migrations only add.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        let needed = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0);
        let found: Option<i64> = sqlx::query_scalar(
            "-- check_schema
            SELECT max(version)
            FROM _sqlx_migrations
            WHERE success",
        )
        .fetch_one(&self.pool)
        .await
        .or_else(|error| match &error {
            // 42P01: no such table, so nothing was ever migrated.
            sqlx::Error::Database(db) if db.code().as_deref() == Some("42P01") => Ok(None),
            _ => Err(StoreError::db("check_schema")(error)),
        })?;
        let found = found.unwrap_or(0);
        if found < needed { Err(StoreError::SchemaTooOld { found, needed }) } else { Ok(()) }
    }

    pub async fn close(&self) {
        self.pool.close().await;
    }
}
