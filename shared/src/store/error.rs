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
    /// Without the URL itself: it holds a password.
    #[error("database.url cannot be used: {problem}")]
    BadUrl { problem: String },
    #[error(
        "database.url leads to another machine ({host}) and does not say how the way there is secured: add \
         sslmode=verify-full, and sslrootcert=FILE if its authority is your own; or sslmode=disable, if nobody else \
         can reach the network between (docs/operations.md, TLS)"
    )]
    Unsecured { host: String },
    /// The server is not who it should be, or cannot prove it.
    #[error("{operation}: the database server is not trusted: {problem}{}", remedy(.problem))]
    Untrusted { operation: &'static str, problem: String },
}

/// What helps with a certificate that is not accepted.
fn remedy(problem: &str) -> &'static str {
    if problem.contains("UnknownIssuer") {
        " (no authority that is known here has signed its certificate: name the right one in sslrootcert)"
    } else if problem.contains("not valid for name") || problem.contains("NotValidForName") {
        " (database.url must name the server as its certificate does)"
    } else {
        ""
    }
}

/// What is wrong with the server's certificate, if that is what went wrong. Or that it offers no TLS.
fn distrust(source: &sqlx::Error) -> Option<String> {
    match source {
        sqlx::Error::Io(error) => match error.get_ref()?.downcast_ref::<rustls::Error>()? {
            refused @ rustls::Error::InvalidCertificate(_) => Some(refused.to_string()),
            _ => None,
        },
        sqlx::Error::Tls(error) => Some(error.to_string()),
        _ => None,
    }
}

impl StoreError {
    pub(crate) fn db(operation: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
        move |source| match distrust(&source) {
            Some(problem) => StoreError::Untrusted { operation, problem },
            None => StoreError::Db { operation, source },
        }
    }

    /// Whether somebody has to change something before this database can be used: waiting does not help.
    pub fn is_for_people(&self) -> bool {
        matches!(
            self,
            StoreError::SchemaTooOld { .. }
                | StoreError::Pooled { .. }
                | StoreError::BadUrl { .. }
                | StoreError::Unsecured { .. }
                | StoreError::Untrusted { .. }
        )
    }

    /// Whether the database could not be reached or answered: waiting may help, and no row is to blame. A server that is not
    /// trusted stops a start; a program that runs waits for one that is.
    pub fn is_connection(&self) -> bool {
        let source = match self {
            StoreError::Untrusted { .. } => return true,
            StoreError::Db { source, .. } => source,
            _ => return false,
        };
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
