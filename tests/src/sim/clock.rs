//! The database's clock, one for each thread, that moves only when it is told to. A function of our own stands before
//! PostgreSQL's in the search path: the statements are the product's.

use std::time::Duration;

use sqlx::PgPool;
use sqlx::types::chrono::{DateTime, Utc};

/// Every statement that asks for the time finds this one first.
pub(super) async fn install(db: &PgPool) {
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

/// Where a thread connects to.
pub(super) fn url(url: &str, thread: usize) -> String {
    format!("{url}?options=-c%20sim.thread%3D{thread}%20-c%20search_path%3Dsim,pg_catalog,public")
}

/// The same time at every start.
pub(super) async fn set(db: &PgPool) {
    sqlx::query(
        "INSERT INTO sim.clock (thread, at) VALUES (current_setting('sim.thread'), '2100-01-01T00:00:00Z')
         ON CONFLICT (thread) DO UPDATE SET at = EXCLUDED.at",
    )
    .execute(db)
    .await
    .unwrap();
}

/// What it shows.
pub(super) async fn now(db: &PgPool) -> DateTime<Utc> {
    sqlx::query_scalar("SELECT sim.clock_timestamp()").fetch_one(db).await.unwrap()
}

/// Lets time pass, here and there.
pub(super) async fn advance(db: &PgPool, time: Duration) {
    tokio::time::advance(time).await;
    sqlx::query(
        "UPDATE sim.clock SET at = at + make_interval(secs => $1) WHERE thread = current_setting('sim.thread')",
    )
    .bind(time.as_secs_f64())
    .execute(db)
    .await
    .unwrap();
}
