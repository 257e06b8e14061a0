//! A manually advanced database clock per thread: a `clock_timestamp` function that precedes PostgreSQL's in the
//! search path, so that the product's statements use it.

use std::time::Duration;

use sqlx::PgPool;
use sqlx::types::chrono::{DateTime, Utc};

/// Creates the function and the table of clocks.
pub(crate) async fn install(db: &PgPool) {
    sqlx::raw_sql(
        "CREATE SCHEMA sim;
         CREATE TABLE sim.clock (thread TEXT PRIMARY KEY, at TIMESTAMPTZ NOT NULL) WITH (fillfactor = 50);
         CREATE FUNCTION sim.clock_timestamp() RETURNS TIMESTAMPTZ LANGUAGE sql VOLATILE AS $$
             SELECT at FROM sim.clock WHERE thread = current_setting('sim.thread')
         $$;
         -- A default is bound to a function when it is written down.
         ALTER TABLE tx_attempt ALTER COLUMN created_at SET DEFAULT sim.clock_timestamp();",
    )
    .execute(db)
    .await
    .unwrap();
}

/// Database URL of a thread.
pub(crate) fn url(url: &str, thread: usize) -> String {
    format!("{url}?options=-c%20sim.thread%3D{thread}%20-c%20search_path%3Dsim,pg_catalog,public")
}

/// Sets the start time, which is always the same.
pub(crate) async fn set(db: &PgPool) {
    sqlx::query(
        "INSERT INTO sim.clock (thread, at) VALUES (current_setting('sim.thread'), '2100-01-01T00:00:00Z')
         ON CONFLICT (thread) DO UPDATE SET at = EXCLUDED.at",
    )
    .execute(db)
    .await
    .unwrap();
}

/// The current time.
pub(crate) async fn now(db: &PgPool) -> DateTime<Utc> {
    sqlx::query_scalar("SELECT sim.clock_timestamp()").fetch_one(db).await.unwrap()
}

/// Advances the clocks of tokio and of the database.
pub(crate) async fn advance(db: &PgPool, time: Duration) {
    tokio::time::advance(time).await;
    sqlx::query(
        "UPDATE sim.clock SET at = at + make_interval(secs => $1) WHERE thread = current_setting('sim.thread')",
    )
    .bind(time.as_secs_f64())
    .execute(db)
    .await
    .unwrap();
}
