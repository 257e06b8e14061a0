//! Errors of the store.

use semver::Version;

use super::schema::ConnectedProgram;

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database returned an error or could not be reached. Whether a COMMIT took effect may be unknown.
    #[error("{operation}: {}", cause(.error))]
    Db {
        operation: &'static str,
        /// Not the error's `source`: the message contains it already, and a chain of causes would repeat it.
        error: sqlx::Error,
    },
    /// A compare-and-set write did not match the expected rows. Nothing was written.
    #[error("{operation}: expected {expected} rows, found {found}")]
    RowsAffected { operation: &'static str, expected: usize, found: usize },
    /// A stored value that this version cannot read.
    #[error("{table}.{column} of {id}: {problem}")]
    Inconsistency { table: &'static str, column: &'static str, id: String, problem: String },
    #[error(
        "the database schema is older than this program (version {found}, needed {needed}): run `gapless migrate`"
    )]
    SchemaTooOld { found: i64, needed: i64 },
    /// A migration was applied whose text differs from this program's: it was made before the first release.
    #[error(
        "the database has the schema of an unreleased version (migration {version} differs), which cannot be upgraded: \
         use an empty database"
    )]
    SchemaUnreleased { version: i64 },
    #[error(
        "this program is version {own}, and the database schema needs version {oldest} or newer: update the program"
    )]
    ProgramTooOld { own: Version, oldest: String },
    #[error(
        "programs older than version {oldest} are connected to the database: {}; update or stop them first \
         (docs/operate/upgrade.md#contract)",
        list(.connected)
    )]
    OlderPrograms { oldest: Version, connected: Vec<ConnectedProgram> },
    #[error(
        "events cannot be recorded yet: programs older than version {oldest} are connected to the database and write \
         none: {}; update or stop them first",
        list(.connected)
    )]
    ProgramsRecordNothing { oldest: Version, connected: Vec<ConnectedProgram> },
    /// See `check_session`.
    #[error(
        "database.url points to a connection pooler that {problem}: connect to PostgreSQL directly \
         (docs/operate/production.md#connection-poolers)"
    )]
    Pooled { problem: String },
    /// Without the URL itself: it contains a password.
    #[error("invalid database.url: {problem}")]
    BadUrl { problem: String },
    #[error(
        "database.url points to another machine ({host}) without sslmode: add sslmode=verify-full, and \
         sslrootcert=FILE for a private CA; or sslmode=disable if the network in between is trusted \
         (docs/operate/access.md#tls)"
    )]
    Unsecured { host: String },
    /// The server's certificate is not valid, or it offers no TLS.
    #[error("{operation}: the database server is not trusted: {problem}{}", remedy(.problem))]
    Untrusted { operation: &'static str, problem: String },
}

/// PostgreSQL's message alone: sqlx appends the line in PostgreSQL's own source code, which looks like a line of ours.
fn cause(error: &sqlx::Error) -> String {
    match error {
        sqlx::Error::Database(db) => db.message().to_owned(),
        sqlx::Error::Io(error) => format!("no connection to the database: {error}"),
        sqlx::Error::PoolTimedOut => "no connection to the database within the time limit".to_owned(),
        other => other.to_string(),
    }
}

fn list(programs: &[ConnectedProgram]) -> String {
    programs.iter().map(ConnectedProgram::to_string).collect::<Vec<_>>().join(", ")
}

/// A hint for a certificate that was not accepted.
fn remedy(problem: &str) -> &'static str {
    if problem.contains("UnknownIssuer") {
        " (its certificate was issued by an unknown CA: set sslrootcert to the right CA certificate)"
    } else if problem.contains("not valid for name") || problem.contains("NotValidForName") {
        " (the host in database.url must match the certificate)"
    } else {
        ""
    }
}

/// The problem, if the error is about the server's certificate or missing TLS.
fn tls_problem(source: &sqlx::Error) -> Option<String> {
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
    /// Whether the database answers, with a schema that this program cannot use.
    pub fn is_schema(&self) -> bool {
        matches!(
            self,
            StoreError::SchemaTooOld { .. }
                | StoreError::SchemaUnreleased { .. }
                | StoreError::ProgramTooOld { .. }
        )
    }

    pub(crate) fn db(operation: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
        move |error| match tls_problem(&error) {
            Some(problem) => StoreError::Untrusted { operation, problem },
            None => StoreError::Db { operation, error },
        }
    }

    /// Whether retrying is useless until someone changes the configuration or the database.
    pub fn needs_operator(&self) -> bool {
        matches!(
            self,
            StoreError::SchemaTooOld { .. }
                | StoreError::SchemaUnreleased { .. }
                | StoreError::ProgramTooOld { .. }
                | StoreError::Pooled { .. }
                | StoreError::BadUrl { .. }
                | StoreError::Unsecured { .. }
                | StoreError::Untrusted { .. }
        )
    }

    /// The message for operators, without the name of the operation.
    pub fn reason(&self) -> String {
        match self {
            StoreError::Db { error, .. } => cause(error),
            StoreError::Untrusted { problem, .. } => {
                format!("the database server is not trusted: {problem}{}", remedy(problem))
            }
            other => other.to_string(),
        }
    }

    /// PostgreSQL's code of the error (SQLSTATE), if the database returned one.
    pub fn sql_state(&self) -> Option<String> {
        match self {
            StoreError::Db { error, .. } => Some(error.as_database_error()?.code()?.into_owned()),
            _ => None,
        }
    }

    /// Whether this is a temporary problem with the database or the connection, and not with a row: retrying may
    /// help. An untrusted server ends a program at its start; a running program retries.
    pub fn is_connection(&self) -> bool {
        let error = match self {
            StoreError::Untrusted { .. } => return true,
            StoreError::Db { error, .. } => error,
            _ => return false,
        };
        match error {
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::PoolTimedOut
            | sqlx::Error::PoolClosed
            | sqlx::Error::WorkerCrashed
            | sqlx::Error::Protocol(_) => true,
            // All temporary. 08: connection exceptions. 53: out of resources. 57P: shutdown, crash, cannot connect
            // now. 57014 and 55P03: our own statement and lock timeouts; 25P03: idle-in-transaction timeout. 40:
            // deadlock and serialisation failures.
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

#[cfg(test)]
mod tests {
    use std::error::Error;

    use super::*;

    #[test]
    fn a_cause_is_named_once_and_is_not_in_the_chain_of_causes() {
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let error = StoreError::db("check_session")(sqlx::Error::Io(refused));
        assert_eq!(error.to_string(), "check_session: no connection to the database: connection refused");
        assert_eq!(error.reason(), "no connection to the database: connection refused");
        assert!(error.source().is_none());
    }
}
