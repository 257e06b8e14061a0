//! Statistics of PostgreSQL. Queried from another database, so that the queries are not counted.

use anyhow::{Context, Result};
use sqlx::postgres::{PgPool, PgPoolOptions};

use crate::report::{Row, Table};

/// Maximum number of statements in a table.
const TOP: i64 = 12;

/// The counters of one database.
#[derive(Clone, Debug)]
pub(crate) struct Monitor {
    pool: PgPool,
    database: String,
    has_statements: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Counters {
    /// Transactions, including read-only ones.
    pub(crate) commits: f64,
    /// Writing transactions of the whole server: only these get a transaction id and wait for the disk.
    pub(crate) writes: f64,
    /// `None`: the server has no pg_stat_statements.
    pub(crate) statements: Option<f64>,
    /// Of the whole server.
    pub(crate) wal_bytes: f64,
}

/// A statement, identified by its leading comment.
#[derive(Clone, Debug)]
pub(crate) struct Statement {
    pub(crate) name: String,
    pub(crate) calls: f64,
    pub(crate) rows: f64,
    pub(crate) exec_ms: f64,
    pub(crate) wal_bytes: f64,
}

impl Monitor {
    pub(crate) async fn connect(monitor_url: &str, database: &str, has_statements: bool) -> Result<Monitor> {
        let pool = PgPoolOptions::new().max_connections(1).connect(monitor_url).await?;
        if has_statements {
            sqlx::query("CREATE EXTENSION IF NOT EXISTS pg_stat_statements").execute(&pool).await?;
        }
        Ok(Monitor { pool, database: database.to_owned(), has_statements })
    }

    pub(crate) async fn counters(&self) -> Result<Counters> {
        let (commits, writes, wal_bytes): (f64, f64, f64) = sqlx::query_as(
            "SELECT (xact_commit + xact_rollback)::FLOAT8,
                    pg_snapshot_xmax(pg_current_snapshot())::TEXT::FLOAT8,
                    pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::FLOAT8
             FROM pg_stat_database
             WHERE datname = $1",
        )
        .bind(&self.database)
        .fetch_one(&self.pool)
        .await
        .context("the server's statistics")?;
        let statements = match self.has_statements {
            true => Some(
                sqlx::query_scalar(
                    "SELECT coalesce(sum(s.calls), 0)::FLOAT8
                     FROM pg_stat_statements s
                     JOIN pg_database d ON d.oid = s.dbid
                     WHERE d.datname = $1",
                )
                .bind(&self.database)
                .fetch_one(&self.pool)
                .await?,
            ),
            false => None,
        };
        Ok(Counters { commits, writes, statements, wal_bytes })
    }

    pub(crate) async fn version(self) -> Result<String> {
        let version: String = sqlx::query_scalar("SHOW server_version").fetch_one(&self.pool).await?;
        self.pool.close().await;
        Ok(version.split(' ').next().unwrap_or_default().to_owned())
    }

    /// Resets the statement statistics, so that the preparation is not counted.
    pub(crate) async fn reset_statements(&self) -> Result<()> {
        if self.has_statements {
            let forget =
                "SELECT pg_stat_statements_reset(0, d.oid, 0) FROM pg_database d WHERE d.datname = $1";
            sqlx::query(forget).bind(&self.database).execute(&self.pool).await?;
        }
        Ok(())
    }

    /// The statements that took the server longest, most expensive first.
    pub(crate) async fn top(&self) -> Result<Vec<Statement>> {
        if !self.has_statements {
            return Ok(Vec::new());
        }
        let rows: Vec<(String, f64, f64, f64, f64)> = sqlx::query_as(
            "SELECT split_part(ltrim(split_part(s.query, E'\\n', 1), '- '), ':', 1) AS name,
                    sum(s.calls)::FLOAT8, sum(s.rows)::FLOAT8, sum(s.total_exec_time)::FLOAT8,
                    sum(s.wal_bytes)::FLOAT8
             FROM pg_stat_statements s
             JOIN pg_database d ON d.oid = s.dbid
             WHERE d.datname = $1
             GROUP BY 1
             ORDER BY 4 DESC
             LIMIT $2",
        )
        .bind(&self.database)
        .bind(TOP)
        .fetch_all(&self.pool)
        .await?;
        let named = |(name, calls, rows, exec_ms, wal_bytes): (String, f64, f64, f64, f64)| Statement {
            name: name.chars().take(40).collect(),
            calls,
            rows,
            exec_ms,
            wal_bytes,
        };
        Ok(rows.into_iter().map(named).collect())
    }

    /// Drops the database. Its name is a plain identifier.
    pub(crate) async fn drop_database(self, database: &str) -> Result<()> {
        let statement = format!("DROP DATABASE {database} WITH (FORCE)");
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&self.pool).await?;
        self.pool.close().await;
        Ok(())
    }
}

/// Cost of each statement, per transaction.
pub(crate) fn statements_table(title: &str, statements: &[Statement], count: f64) -> Table {
    let mut table = Table::new(title);
    for statement in statements {
        table.rows.push(
            Row::default()
                .text("statement", &statement.name)
                .number("calls/tx", statement.calls / count, 4)
                .number("rows/tx", statement.rows / count, 2)
                .number("ms/tx", statement.exec_ms / count, 4)
                .number("WAL B/tx", statement.wal_bytes / count, 0),
        );
    }
    table
}
