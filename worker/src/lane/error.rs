//! Why a step ended early. The decision rides with the cause.

use std::time::Duration;

use gapless::chain::RpcError;

use crate::reader::ReadError;
use crate::writer::WriteError;

#[derive(Debug, thiserror::Error)]
pub(crate) enum StepError {
    /// The lane ends: the submitter is someone else's, or the process stops.
    #[error("the lane ends: {0}")]
    Stop(&'static str),
    /// Read the rows again after a while and go on from what they say.
    #[error("{cause}")]
    Retry { after: Duration, cause: String },
    /// A node could not be asked: as above, and what cannot be prepared without it says so.
    #[error("{cause}")]
    Node { cause: String },
    /// Nobody knows whether a write was committed: read the rows again, once that is decided.
    #[error("{cause}")]
    Unsure { cause: String },
    /// Something is wrong that waiting may not mend: read again, but rarely, and say so loudly.
    #[error("{cause}")]
    Park { after: Duration, cause: String },
}

/// Long enough for a database or a node to come back, short enough to be prompt when it does.
pub(super) const SOON: Duration = Duration::from_millis(500);
/// A parked lane looks again this often: the cause may have been mended by hand.
const RARELY: Duration = Duration::from_secs(15);

impl From<WriteError> for StepError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::LeaseLost => StepError::Stop("the lease is lost"),
            WriteError::Stopping => StepError::Stop("the worker is stopping"),
            WriteError::Unknown(cause) => StepError::Unsure { cause: cause.to_string() },
            WriteError::Refused(cause) => StepError::Park { after: RARELY, cause: cause.to_string() },
        }
    }
}

impl From<ReadError> for StepError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Stopping => StepError::Stop("the worker is stopping"),
            ReadError::Store(cause) if cause.is_connection() => {
                StepError::Retry { after: SOON, cause: cause.to_string() }
            }
            ReadError::Store(cause) => StepError::Park { after: RARELY, cause: cause.to_string() },
        }
    }
}

impl From<RpcError> for StepError {
    fn from(error: RpcError) -> Self {
        StepError::Node { cause: error.to_string() }
    }
}
