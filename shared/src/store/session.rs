//! Whether this program has its sessions to itself. A pooler in transaction mode gives them to whoever comes next: their
//! time-outs are lost or somebody else's, statements that were prepared are gone, and nothing that is said by NOTIFY arrives.
//! A fence whose owner may hang with the lock in its hand is no fence for long, so that is refused, and not worked around.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row};

use super::error::StoreError;
use super::pool::Store;

/// A pooler may give back the same session by chance; not so often.
const ROUNDS: usize = 3;
/// For some dozen round trips and two new connections. Not a matter of the pooler alone: the database may be away.
const PATIENCE: Duration = Duration::from_secs(5);
const SHARED: &str = "gives a session to somebody else between two transactions";
const WITHOUT_TIME_OUTS: &str = "drops the time-outs of a session";

impl Store {
    /// Refuses a pooler that shares sessions, or does not pass on what they ask for. One in session mode is fine where the
    /// role has the time-outs (`ALTER ROLE … SET`).
    pub async fn check_session(&self) -> Result<(), StoreError> {
        // A session that is waited for is none that one has.
        let looked = tokio::time::timeout(PATIENCE, self.look_at_sessions()).await;
        looked
            .unwrap_or(Err(sqlx::Error::PoolTimedOut))
            .map_err(told)?
            .map_or(Ok(()), |problem| Err(StoreError::Pooled { problem: problem.to_owned() }))
    }

    /// What is wrong, if anything. Statements are not prepared: the answer must come through any pooler.
    async fn look_at_sessions(&self) -> Result<Option<&'static str>, sqlx::Error> {
        let options = self.pool.without_timeout().connect_options();
        let mut ours = PgConnection::connect_with(&options).await?;
        let mut other = PgConnection::connect_with(&options).await?;
        for _ in 0..ROUNDS {
            let before = backend(&mut ours).await?;
            other.execute(sqlx::raw_sql("BEGIN")).await?;
            // The second question only after the first: where there is one session for all, it would wait for ever.
            let shared = backend(&mut other).await? == before || backend(&mut ours).await? != before;
            other.execute(sqlx::raw_sql("ROLLBACK")).await?;
            if shared {
                return Ok(Some(SHARED));
            }
        }
        let in_force = in_force(&mut ours, self.statement_timeout.as_millis()).await?;
        ours.close().await?;
        other.close().await?;
        Ok((!in_force).then_some(WITHOUT_TIME_OUTS))
    }
}

async fn backend(connection: &mut PgConnection) -> Result<i32, sqlx::Error> {
    let asked = sqlx::raw_sql("-- check_session\nSELECT pg_backend_pid()");
    connection.fetch_one(asked).await?.try_get(0)
}

/// Whether all time-outs are set, and to no more than what was asked for.
async fn in_force(connection: &mut PgConnection, millis: u128) -> Result<bool, sqlx::Error> {
    // The only thing in it that is not written here is a number.
    let asked = AssertSqlSafe(format!(
        "-- check_session: time-outs
        SELECT count(*) = 3
        FROM pg_settings
        WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')
          AND setting::BIGINT BETWEEN 1 AND {millis}"
    ));
    connection.fetch_one(sqlx::raw_sql(asked)).await?.try_get(0)
}

/// PgBouncer refuses start-up parameters it does not know, with a code that it has for passing trouble, too.
fn told(source: sqlx::Error) -> StoreError {
    match source.as_database_error().map(|refused| refused.message().to_owned()) {
        Some(message) if message.contains("unsupported startup parameter") => {
            StoreError::Pooled { problem: format!("does not pass on what a session asks for ({message})") }
        }
        _ => StoreError::db("check_session")(source),
    }
}
