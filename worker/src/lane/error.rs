//! Why a step failed; each variant determines how the lane continues.

use std::time::Duration;

use gapless_chain::RpcError;

use crate::reader::ReadError;
use crate::writer::WriteError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// The lane ends.
    #[error("the lease is lost")]
    LeaseLost,
    /// The lease could not be renewed yet: the lane tries again.
    #[error("the lease was not renewed in time to send")]
    NotRenewed,
    /// The database is unavailable: the lane tries again.
    #[error(transparent)]
    Read(ReadError),
    /// A row cannot be read, which retrying may not fix: the lane reads it again at long intervals.
    #[error(transparent)]
    Unreadable(ReadError),
    /// A node request failed: as `Read`, and affected intents get the wait reason `waiting_node`.
    #[error(transparent)]
    Node(#[from] RpcError),
    /// The chain is halted: as `Node`.
    #[error("{0}")]
    Halted(String),
    /// The outcome of a commit is unknown: the lane reads its rows once it is decided.
    #[error(transparent)]
    UnknownCommit(WriteError),
    /// The database refused a write, which retrying may not fix: as `Unreadable`. The writer has logged it.
    #[error(transparent)]
    Refused(WriteError),
    /// The same, probably because an intent could no longer start when its nonce was to be committed: the lane tries again.
    #[error("an intent could no longer start")]
    TooLate,
}

/// First pause after a database or node error.
const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Renewals are more frequent than other errors end.
const RENEWED_AFTER: Duration = Duration::from_millis(200);
/// Retry interval of a parked lane: an operator may have fixed the cause.
const PARK_FOR: Duration = Duration::from_secs(15);

impl StepError {
    /// Pause before the rows are read again.
    pub(super) fn retry_after(&self) -> Duration {
        match self {
            StepError::NotRenewed | StepError::TooLate => RENEWED_AFTER,
            StepError::Unreadable(_) | StepError::Refused(_) => PARK_FOR,
            _ => RETRY_AFTER,
        }
    }

    /// What affected intents show: the lane waits for a node.
    pub(super) fn node_failure(&self) -> Option<String> {
        matches!(self, StepError::Node(_) | StepError::Halted(_)).then(|| self.to_string())
    }
}

impl From<WriteError> for StepError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::LeaseLost => StepError::LeaseLost,
            WriteError::Unknown(_) | WriteError::NoAnswer => StepError::UnknownCommit(error),
            WriteError::Refused(_) => StepError::Refused(error),
        }
    }
}

impl From<ReadError> for StepError {
    fn from(error: ReadError) -> Self {
        match &error {
            ReadError::Store(cause) if !cause.is_connection() => StepError::Unreadable(error),
            ReadError::Store(_) | ReadError::NoAnswer => StepError::Read(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_without_an_answer_may_be_committed_and_a_read_is_repeated() {
        assert!(matches!(WriteError::NoAnswer.into(), StepError::UnknownCommit(_)));
        assert!(matches!(ReadError::NoAnswer.into(), StepError::Read(_)));
    }
}
