//! A connection pool with client-side timeouts. The server ends every statement after `statement_timeout`; if even
//! that response does not arrive, the connection is dead without an error: the server's machine is gone, or a
//! middlebox dropped the connection. The driver has no timeout for this, neither for a statement nor for returning a
//! connection.

use std::io;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgPool, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Connection, Either, Error, Execute, Executor, Postgres, SqlStr, Transaction};
use tokio::time::timeout;

use super::error::StoreError;

/// Added to the server's `statement_timeout`.
const GRACE: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub(crate) struct TimeoutPool {
    pool: PgPool,
    answer_timeout: Duration,
}

impl TimeoutPool {
    /// `statement`: the server's `statement_timeout`.
    pub(super) fn new(pool: PgPool, statement: Duration) -> TimeoutPool {
        TimeoutPool { pool, answer_timeout: statement + GRACE }
    }

    /// Call `release` after use: a connection that is dropped in the middle of a statement is closed.
    pub(super) async fn acquire(&self) -> Result<PooledConnection, Error> {
        Ok(PooledConnection {
            connection: self.pool.acquire().await?,
            reusable: false,
            answer_timeout: self.answer_timeout,
        })
    }

    /// Runs a transaction with a time limit.
    pub(super) async fn wait_for<T>(
        &self,
        operation: &'static str,
        transaction: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        // Time for two statements that both reach their limit; more than two slow statements mean a fault.
        let waited = timeout(self.answer_timeout * 2, transaction).await;
        waited.unwrap_or_else(|_| Err(StoreError::db(operation)(no_response())))
    }

    /// Without the client-side timeout: for LISTEN, which waits forever, and for migrations and the audit, which may
    /// take long.
    pub(super) fn without_timeout(&self) -> &PgPool {
        &self.pool
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
    }
}

/// A connection in use. If dropped in the middle of a statement it is closed and not returned: the pool would ping it
/// and could wait forever.
#[derive(Debug)]
pub(super) struct PooledConnection {
    connection: PoolConnection<Postgres>,
    /// No statement is running: it can be returned to the pool.
    reusable: bool,
    answer_timeout: Duration,
}

impl PooledConnection {
    pub(super) async fn begin(&mut self) -> Result<Transaction<'_, Postgres>, Error> {
        self.connection.begin().await
    }

    /// Ends the use. The connection is returned unless `outcome` is a connection error.
    pub(super) fn release<T>(mut self, outcome: &Result<T, StoreError>) {
        self.reusable = !outcome.as_ref().is_err_and(StoreError::is_connection);
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if self.reusable {
            // The pool pings a connection before it takes it back, without a timeout. An unresponsive one would
            // occupy its slot forever; when this timeout cancels the return, the connection is closed and the slot is
            // freed.
            tokio::spawn(timeout(self.answer_timeout, self.connection.return_to_pool()));
        } else {
            self.connection.close_on_drop();
        }
    }
}

impl<'p> Executor<'p> for &'_ TimeoutPool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Either<PgQueryResult, PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let pool = self.clone();
        let answered = async move {
            let mut conn = pool.acquire().await?;
            let answer = conn.connection.fetch_many(query).try_collect::<Vec<_>>();
            let answer = timeout(pool.answer_timeout, answer).await.map_err(|_| no_response())?;
            conn.reusable = true;
            Ok(stream::iter(answer?.into_iter().map(Ok)))
        };
        answered.try_flatten_stream().boxed()
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, Error>>
    where
        'p: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        let mut rows = self.fetch(query);
        async move { rows.try_next().await }.boxed()
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, Error>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        async move {
            let mut conn = pool.acquire().await?;
            let prepared = timeout(pool.answer_timeout, conn.connection.prepare_with(sql, parameters)).await;
            conn.reusable = prepared.is_ok();
            prepared.map_err(|_| no_response())?
        }
        .boxed()
    }
}

pub(super) fn no_response() -> Error {
    Error::Io(io::Error::new(io::ErrorKind::TimedOut, "no response from the database within the timeout"))
}
