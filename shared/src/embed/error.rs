//! Why a call has no transaction.

use crate::domain::{InvalidIntent, ReservationState, SubmitterKey, TxId, TxState};
use crate::store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    #[error("no worker has announced a signer for {0}")]
    UnknownSubmitter(SubmitterKey),
    #[error("the submitter waits for an operator: {reason}")]
    Protected { reason: String },
    #[error("the submitter's nonces are given by the low-level hook (nonce.low_level): use `allocate`")]
    LowLevel,
    #[error("the submitter's nonces are given to its queue: `allocate` needs nonce.low_level.enabled")]
    NotLowLevel,
    #[error("this request id was used for an ordinary request")]
    RequestIdConflict { tx_id: TxId },
    #[error(transparent)]
    Invalid(#[from] InvalidIntent),
    /// The bytes are not a transaction of this submitter at this nonce. Nothing was recorded; the hold goes on.
    #[error("the signed bytes do not count: {0}")]
    BadBytes(String),
    /// Nothing of the caller's was sent, and nothing will be. A nonce that was given at that very moment is consumed by its
    /// placeholder.
    #[error("no nonce was given in time")]
    NoNonceInTime { tx_id: TxId },
    #[error("it ended as {state} without a nonce: {reason}")]
    Ended { tx_id: TxId, state: TxState, reason: String },
    #[error("too late: the nonce is {state}, and its placeholder may have been sent")]
    TooLate { tx_id: TxId, state: ReservationState },
    #[error("it was answered before, in other words")]
    AnsweredBefore { tx_id: TxId },
    #[error("there is no such reservation, or it is somebody else's")]
    NotYours { tx_id: TxId },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// How `with_nonce` ends without a transaction. With a `tx_id`, the handler had seen its nonce: a placeholder consumes it,
/// and the intent ends as FAILED.
#[derive(Debug, thiserror::Error)]
pub enum WithNonceError<E> {
    #[error("the handler failed: {error}")]
    Handler { tx_id: TxId, error: E },
    #[error("the handler panicked: {message}")]
    Panicked { tx_id: TxId, message: String },
    #[error("the handler did not answer while its nonce was held")]
    HoldEnded { tx_id: TxId },
    #[error("what the handler wants can never be sent: {error}")]
    Refused { tx_id: TxId, error: EmbedError },
    #[error(transparent)]
    Other(#[from] EmbedError),
}

impl<E> From<StoreError> for WithNonceError<E> {
    fn from(error: StoreError) -> Self {
        WithNonceError::Other(error.into())
    }
}
