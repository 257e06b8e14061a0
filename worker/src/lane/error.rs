//! Why a step failed; each variant determines how the lane continues.

use std::time::Duration;

use gapless_chain::RpcError;

use crate::reader::ReadError;
use crate::writer::WriteError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// The lane ends: the lease is lost.
    #[error("the lane ends: {0}")]
    Stop(&'static str),
    /// Reload the rows after a pause and continue.
    #[error("{cause}")]
    Retry { after: Duration, cause: String },
    /// A node request failed: as `Retry`, and affected intents get the wait reason `waiting_node`.
    #[error("{cause}")]
    Node { cause: String },
    /// The outcome of a commit is unknown: reload the rows once it is decided.
    #[error("{cause}")]
    UnknownCommit { cause: String },
    /// An error that retrying may not fix: logged as an error, reloaded at long intervals.
    #[error("{cause}")]
    Park { after: Duration, cause: String },
}

/// First pause after a database or node error.
pub(super) const RETRY_AFTER: Duration = Duration::from_millis(500);
/// Retry interval of a parked lane: an operator may have fixed the cause.
const PARK_FOR: Duration = Duration::from_secs(15);

impl From<WriteError> for StepError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::LeaseLost => StepError::Stop("the lease is lost"),
            WriteError::Unknown(_) | WriteError::NoAnswer => {
                StepError::UnknownCommit { cause: error.to_string() }
            }
            WriteError::Refused(cause) => StepError::Park { after: PARK_FOR, cause: cause.to_string() },
        }
    }
}

impl From<ReadError> for StepError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::NoAnswer => StepError::Retry { after: RETRY_AFTER, cause: error.to_string() },
            ReadError::Store(cause) if cause.is_connection() => {
                StepError::Retry { after: RETRY_AFTER, cause: cause.to_string() }
            }
            ReadError::Store(cause) => StepError::Park { after: PARK_FOR, cause: cause.to_string() },
        }
    }
}

impl From<RpcError> for StepError {
    fn from(error: RpcError) -> Self {
        StepError::Node { cause: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_without_an_answer_may_be_committed_and_a_read_is_repeated() {
        assert!(matches!(WriteError::NoAnswer.into(), StepError::UnknownCommit { .. }));
        assert!(matches!(ReadError::NoAnswer.into(), StepError::Retry { .. }));
    }
}
