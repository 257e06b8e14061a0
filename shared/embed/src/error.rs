//! Errors of `with_nonce` and of the low-level API.

use gapless_domain::{InvalidIntent, ReservationState, SubmitterKey, TxId, TxState};
use gapless_store::StoreError;

#[derive(Debug, thiserror::Error)]
pub enum EmbedError {
    #[error("no worker has announced a signer for {0}")]
    UnknownSubmitter(SubmitterKey),
    #[error("the submitter waits for an operator: {reason}")]
    Protected { reason: String },
    #[error("the submitter is in low-level mode (nonce.low_level.enabled): use `allocate`")]
    LowLevel,
    #[error("the submitter is not in low-level mode: `allocate` needs nonce.low_level.enabled")]
    NotLowLevel,
    #[error("this request id was used for a request without a reservation")]
    RequestIdConflict { tx_id: TxId },
    #[error(transparent)]
    Invalid(#[from] InvalidIntent),
    /// The bytes are not a transaction of this submitter with this nonce. Nothing was recorded; the nonce stays
    /// reserved.
    #[error("invalid signed transaction: {0}")]
    BadBytes(String),
    /// Nothing of the client was sent or will be sent. If the nonce was granted in the same moment, its placeholder
    /// consumes it.
    #[error("no nonce was granted in time")]
    NoNonceInTime { tx_id: TxId },
    #[error("the intent ended as {state} without a nonce: {reason}")]
    Ended { tx_id: TxId, state: TxState, reason: String },
    #[error("too late: the reservation is {state}, and its placeholder may have been sent")]
    TooLate { tx_id: TxId, state: ReservationState },
    #[error("the reservation already has a different answer")]
    AlreadyAnswered { tx_id: TxId },
    #[error("the reservation does not exist or has another owner")]
    NotOwner { tx_id: TxId },
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why `with_nonce` has no transaction. With a `tx_id`, the handler had its nonce: a placeholder consumes it, and the
/// intent ends as FAILED.
#[derive(Debug, thiserror::Error)]
pub enum WithNonceError<E> {
    #[error("the handler failed: {error}")]
    Handler { tx_id: TxId, error: E },
    #[error("the handler panicked: {message}")]
    Panicked { tx_id: TxId, message: String },
    #[error("the handler did not return before its reservation expired")]
    ReservationExpired { tx_id: TxId },
    #[error("the handler's transaction is invalid: {error}")]
    Refused { tx_id: TxId, error: EmbedError },
    #[error(transparent)]
    Other(#[from] EmbedError),
}

impl<E> From<StoreError> for WithNonceError<E> {
    fn from(error: StoreError) -> Self {
        WithNonceError::Other(error.into())
    }
}
