//! The store: connection pool, migrations, schema check.

use std::time::Duration;

use sqlx::migrate::MigrateError;
use sqlx::postgres::PgPoolOptions;
use sqlx::{ConnectOptions, Connection};

use super::address::Address;
use super::error::StoreError;
use super::migrations::MIGRATIONS;
use super::timeout_pool::TimeoutPool;
use gapless_config::Secret;

/// The database. Opaque outside this module: no other code runs SQL.
#[derive(Clone, Debug)]
pub struct Store {
    pub(crate) pool: TimeoutPool,
    /// The `statement_timeout` that sessions request.
    pub(super) statement_timeout: Duration,
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
            .application_name(application)
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
            .connect_lazy_with(options);
        Ok(Store { pool: TimeoutPool::new(pool, timeouts.statement), statement_timeout: timeouts.statement })
    }

    pub async fn ping(&self) -> Result<(), StoreError> {
        sqlx::query("SELECT 1").execute(&self.pool).await.map_err(StoreError::db("ping"))?;
        Ok(())
    }

    /// Migrates the schema to this program's version. Safe to run concurrently.
    pub async fn migrate(&self) -> Result<(), StoreError> {
        check_applied(&self.applied_migrations("migrate").await?)?;
        MIGRATIONS.run(self.pool.without_timeout()).await.map_err(|error| match error {
            MigrateError::VersionMissing(version) => StoreError::SchemaTooNew { version },
            error => StoreError::Db { operation: "migrate", error: sqlx::Error::Migrate(Box::new(error)) },
        })
    }

    /// Refuses a schema older than this program, or of an unreleased version. A newer one is accepted: migrations only
    /// add.
    pub async fn check_schema(&self) -> Result<(), StoreError> {
        let applied = self.applied_migrations("check_schema").await?;
        check_applied(&applied)?;
        let needed = MIGRATIONS.iter().map(|migration| migration.version).max().unwrap_or(0);
        let found = applied.iter().map(|(version, _)| *version).max().unwrap_or(0);
        if found < needed { Err(StoreError::SchemaTooOld { found, needed }) } else { Ok(()) }
    }

    /// Versions and checksums of the applied migrations.
    async fn applied_migrations(&self, operation: &'static str) -> Result<Vec<(i64, Vec<u8>)>, StoreError> {
        let applied = sqlx::query_as(
            "-- applied_migrations
            SELECT version, checksum
            FROM _sqlx_migrations
            WHERE success",
        );
        applied.fetch_all(&self.pool).await.or_else(|error| match &error {
            // 42P01: undefined table: no migration was ever run.
            sqlx::Error::Database(db) if db.code().as_deref() == Some("42P01") => Ok(Vec::new()),
            _ => Err(StoreError::db(operation)(error)),
        })
    }

    pub async fn close(&self) {
        self.pool.close().await;
    }
}

/// Refuses an applied migration whose text is not this program's.
fn check_applied(applied: &[(i64, Vec<u8>)]) -> Result<(), StoreError> {
    let known = |version: i64| MIGRATIONS.iter().find(|migration| migration.version == version);
    for (version, checksum) in applied {
        if known(*version).is_some_and(|migration| migration.checksum[..] != checksum[..]) {
            return Err(StoreError::SchemaUnreleased { version: *version });
        }
    }
    Ok(())
}
