//! What can go wrong between us and the database.

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database refused, or could not be asked. Whether a COMMIT took effect may be unknown.
    #[error("{operation}: {source}")]
    Db {
        operation: &'static str,
        #[source]
        source: sqlx::Error,
    },
    /// A guarded write met other rows than it meant to. Nothing was written.
    #[error("{operation}: {expected} rows meant, {found} met")]
    RowsAffected { operation: &'static str, expected: usize, found: usize },
    /// A stored cell that no code of this version writes.
    #[error("{table}.{column} of {id}: {problem}")]
    Inconsistency { table: &'static str, column: &'static str, id: String, problem: String },
    #[error(
        "the database schema is older than this program (version {found}, needed {needed}): run `gapless migrate`"
    )]
    SchemaTooOld { found: i64, needed: i64 },
    /// Sessions are not ours alone. See `check_session`.
    #[error(
        "database.url leads to a connection pooler that {problem}: connect to PostgreSQL itself \
         (docs/operations.md, Connection poolers)"
    )]
    Pooled { problem: String },
}

impl StoreError {
    pub(crate) fn db(operation: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
        move |source| StoreError::Db { operation, source }
    }

    /// Whether somebody has to change something before this database can be used: waiting does not help.
    pub fn is_for_people(&self) -> bool {
        matches!(self, StoreError::SchemaTooOld { .. } | StoreError::Pooled { .. })
    }

    /// Whether the database could not be reached or answered: waiting may help, and no row is to blame.
    pub fn is_connection(&self) -> bool {
        let StoreError::Db { source, .. } = self else { return false };
        match source {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_) => true,
            // 08: connection exceptions. 53: out of resources. 57P: shutdown, crash, cannot connect now.
            // 57014 and 55P03 are our own statement and lock time-outs; 25P03 is the idle-in-transaction one;
            // 40: deadlock and serialisation. All of them pass.
            sqlx::Error::Database(db) => db.code().is_some_and(|code| {
                code.starts_with("08")
                    || code.starts_with("53")
                    || code.starts_with("57")
                    || code.starts_with("40")
                    || code == "55P03"
                    || code == "25P03"
            }),
            _ => false,
        }
    }
}

pub(crate) fn ensure_rows(operation: &'static str, expected: usize, found: usize) -> Result<(), StoreError> {
    if expected == found { Ok(()) } else { Err(StoreError::RowsAffected { operation, expected, found }) }
}
