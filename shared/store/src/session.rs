//! Detects a connection pooler that shares sessions. In transaction mode a pooler moves a client between sessions:
//! session timeouts are lost or come from another client, prepared statements are missing, and LISTEN receives
//! nothing. Without the timeouts, a hanging owner would keep the fence's row locks, so such a pooler is refused and
//! not worked around.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use super::error::StoreError;
use super::pool::Store;

/// A pooler may return the same session by chance, but not this often.
const ROUNDS: usize = 3;
/// Limit for about a dozen round trips and two new connections.
const TIMEOUT: Duration = Duration::from_secs(5);
const SHARED: &str = "shares sessions between clients";
const WITHOUT_TIMEOUTS: &str = "does not apply the session timeouts";

impl Store {
    /// Refuses a pooler that shares sessions or does not apply the session timeouts. A pooler in session mode is
    /// accepted if the role or the database has the timeouts (`ALTER ROLE … SET`).
    pub async fn check_session(&self) -> Result<(), StoreError> {
        // A timeout counts as a connection error: the database may be unreachable.
        let found = tokio::time::timeout(TIMEOUT, self.find_session_problem()).await;
        found
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
            .map_err(session_error)?
            .map_or(Ok(()), |problem| Err(StoreError::Pooled { problem: problem.to_owned() }))
    }

    /// The problem, if there is one. Uses no prepared statements, so that it works through any pooler.
    async fn find_session_problem(&self) -> Result<Option<&'static str>, sqlx::Error> {
        let options = self.pool.without_timeout().connect_options();
        let mut ours = PgConnection::connect_with(&options).await?;
        let mut other = PgConnection::connect_with(&options).await?;
        for _ in 0..ROUNDS {
            let before = backend(&mut ours).await?;
            other.execute(sqlx::raw_sql("BEGIN")).await?;
            // Short-circuit: with a single session for all clients, the second query would wait forever.
            let shared = backend(&mut other).await? == before || backend(&mut ours).await? != before;
            other.execute(sqlx::raw_sql("ROLLBACK")).await?;
            if shared {
                return Ok(Some(SHARED));
            }
        }
        let in_force = in_force(&mut ours, self.statement_timeout.as_millis()).await?;
        ours.close().await?;
        other.close().await?;
        Ok((!in_force).then_some(WITHOUT_TIMEOUTS))
    }
}

async fn backend(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    let query = sqlx::raw_sql("-- check_session\nSELECT pg_backend_pid()");
    connection.fetch_one(query).await?.try_get(0)
}

/// Whether all three timeouts are set, and to at most the requested value.
async fn in_force(connection: &mut PgConnection, millis: u128) -> Result<bool, sqlx::Error> {
    // Safe: the only interpolated value is a number.
    let query = AssertSqlSafe(format!(
        "-- check_session: time-outs
        SELECT count(*) = 3
        FROM pg_settings
        WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')
          AND setting::BIGINT BETWEEN 1 AND {millis}"
    ));
    connection.fetch_one(sqlx::raw_sql(query)).await?.try_get(0)
}

/// PgBouncer refuses unknown startup parameters with a code that it also uses for temporary errors; the text differs.
fn session_error(source: sqlx::Error) -> StoreError {
    match source.as_database_error().map(|refused| refused.message().to_owned()) {
        Some(message) if message.contains("unsupported startup parameter") => {
            StoreError::Pooled { problem: format!("rejects the session parameters ({message})") }
        }
        _ => StoreError::db("check_session")(source),
    }
}
