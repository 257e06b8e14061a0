//! A pool whose users do not wait for ever. The server ends every statement after `statement_timeout`; if not even that is heard, the
//! connection is dead and does not know it: the server's machine is gone, or something between has forgotten it. No error
//! would ever come, and the driver has no time-out of its own, neither for a statement nor for taking a connection back.

use std::io;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt, TryFutureExt, TryStreamExt};
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgPool, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{Connection, Describe, Either, Error, Execute, Executor, Postgres, SqlStr, Transaction};
use tokio::time::timeout;

use super::error::StoreError;

/// What an answer may take on top of the server's own limit.
const GRACE: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub(crate) struct TimeoutPool {
    pool: PgPool,
    answer_timeout: Duration,
}

impl TimeoutPool {
    /// `statement`: after this the server ends a statement by itself.
    pub(super) fn new(pool: PgPool, statement: Duration) -> TimeoutPool {
        TimeoutPool { pool, answer_timeout: statement + GRACE }
    }

    /// To be released: who leaves it in the middle of something has it closed.
    pub(super) async fn acquire(&self) -> Result<PooledConnection, Error> {
        Ok(PooledConnection {
            connection: self.pool.acquire().await?,
            settled: false,
            answer_timeout: self.answer_timeout,
        })
    }

    /// The outcome of a transaction on a connection that is held.
    pub(super) async fn wait_for<T>(
        &self,
        operation: &'static str,
        transaction: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        // Two statements that are waited for to the end: more of them are waited for only when something is very wrong.
        let waited = timeout(self.answer_timeout * 2, transaction).await;
        waited.unwrap_or_else(|_| Err(StoreError::db(operation)(silent())))
    }

    /// Without patience: for listeners, who wait for ever, and for migrations and the audit, which may take long.
    pub(super) fn without_timeout(&self) -> &PgPool {
        &self.pool
    }

    pub(super) async fn close(&self) {
        self.pool.close().await;
    }
}

/// A connection in use. Left in the middle of something it is closed and not taken back: the pool would ask it whether it is well,
/// and wait for ever.
#[derive(Debug)]
pub(super) struct PooledConnection {
    connection: PoolConnection<Postgres>,
    settled: bool,
    answer_timeout: Duration,
}

impl PooledConnection {
    pub(super) async fn begin(&mut self) -> Result<Transaction<'_, Postgres>, Error> {
        self.connection.begin().await
    }

    /// Nothing is under way any more, however it ended.
    pub(super) fn release<T>(mut self, outcome: &Result<T, StoreError>) {
        self.settled = !outcome.as_ref().is_err_and(StoreError::is_connection);
    }
}

impl Drop for PooledConnection {
    fn drop(&mut self) {
        if self.settled {
            // The pool asks a connection whether it is well before it takes it back, without a limit. One that falls silent just
            // then would keep its place in the pool for ever; a return that is given up closes it and frees the place.
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
            let mut held = pool.acquire().await?;
            let answer = held.connection.fetch_many(query).try_collect::<Vec<_>>();
            let answer = timeout(pool.answer_timeout, answer).await.map_err(|_| silent())?;
            held.settled = true;
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
            let mut held = pool.acquire().await?;
            let prepared = timeout(pool.answer_timeout, held.connection.prepare_with(sql, parameters)).await;
            held.settled = prepared.is_ok();
            prepared.map_err(|_| silent())?
        }
        .boxed()
    }

    #[doc(hidden)]
    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<Describe<Postgres>, Error>>
    where
        'p: 'e,
    {
        let pool = self.clone();
        async move {
            let mut held = pool.acquire().await?;
            let described = timeout(pool.answer_timeout, held.connection.describe(sql)).await;
            held.settled = described.is_ok();
            described.map_err(|_| silent())?
        }
        .boxed()
    }
}

pub(super) fn silent() -> Error {
    Error::Io(io::Error::new(
        io::ErrorKind::TimedOut,
        "no answer from the database, not even that it took too long",
    ))
}
