//! The argument and the return types of a handler.

use std::sync::Arc;
use std::time::{Duration, Instant};

use gapless_domain::reservation::check_answer;
use gapless_domain::{
    Address, Answer, Bytes, ChainId, Fees, InvalidIntent, Nonce, RequestedTx, TxId, U256, UnsignedTx,
};
use gapless_signer::{Signer, SignerError, read_signed};

use super::error::EmbedError;

/// The reserved nonce of one call, passed to its handler.
#[derive(Clone, Debug)]
pub struct NonceContext {
    pub tx_id: TxId,
    pub chain_id: ChainId,
    pub submitter: Address,
    pub nonce: Nonce,
    /// End of the reservation: a later answer is refused.
    pub(super) ends: Instant,
    pub(super) signer: Option<Arc<dyn Signer>>,
}

/// The transaction that a handler returns.
#[derive(Clone, Debug)]
pub enum HandlerTx {
    /// The worker sets the fees and signs it.
    Unsigned(Box<RequestedTx>),
    /// Signed by the client, for the reserved nonce.
    Signed(Bytes),
}

impl From<RequestedTx> for HandlerTx {
    fn from(tx: RequestedTx) -> Self {
        HandlerTx::Unsigned(Box::new(tx))
    }
}

impl From<Bytes> for HandlerTx {
    fn from(raw: Bytes) -> Self {
        HandlerTx::Signed(raw)
    }
}

/// What a handler may return: a transaction, or a transaction and a value for the caller of `run`.
pub trait HandlerAnswer {
    type Value;
    fn split(self) -> (HandlerTx, Self::Value);
}

impl HandlerAnswer for HandlerTx {
    type Value = ();
    fn split(self) -> (HandlerTx, ()) {
        (self, ())
    }
}

impl HandlerAnswer for RequestedTx {
    type Value = ();
    fn split(self) -> (HandlerTx, ()) {
        (self.into(), ())
    }
}

impl HandlerAnswer for Bytes {
    type Value = ();
    fn split(self) -> (HandlerTx, ()) {
        (self.into(), ())
    }
}

impl<W: Into<HandlerTx>, T> HandlerAnswer for (W, T) {
    type Value = T;
    fn split(self) -> (HandlerTx, T) {
        (self.0.into(), self.1)
    }
}

/// Why `NonceContext::sign` failed.
#[derive(Debug, thiserror::Error)]
pub enum SignError {
    #[error("this process holds no key of the submitter; return the transaction unsigned")]
    NoKey,
    #[error(transparent)]
    Invalid(#[from] InvalidIntent),
    #[error(transparent)]
    Signer(#[from] SignerError),
}

impl NonceContext {
    /// Time until the reservation ends.
    pub fn time_left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    /// Whether this process can sign for the submitter.
    pub fn can_sign(&self) -> bool {
        self.signer.is_some()
    }

    /// Signs for the reserved nonce with a key of this process (`Gapless::with_signers`). Sends nothing: return the
    /// result.
    pub async fn sign(&self, tx: RequestedTx, gas_limit: U256, fees: Fees) -> Result<HandlerTx, SignError> {
        let signer = self.signer.as_ref().ok_or(SignError::NoKey)?;
        let payload = tx.validate()?;
        check_answer(&payload)?;
        let unsigned = UnsignedTx {
            chain_id: self.chain_id,
            from: self.submitter,
            nonce: self.nonce,
            gas_limit,
            fees,
            payload,
        };
        Ok(HandlerTx::Signed(signer.sign(&unsigned).await?.raw))
    }

    /// The answer as it is stored, or why it is invalid. The worker checks it again and does not rely on this.
    pub(super) fn validate(&self, tx: HandlerTx) -> Result<Answer, EmbedError> {
        match tx {
            HandlerTx::Unsigned(tx) => {
                let payload = tx.validate()?;
                check_answer(&payload)?;
                Ok(Answer::Unsigned(Box::new(payload)))
            }
            HandlerTx::Signed(raw) => {
                read_signed(self.chain_id, self.submitter, self.nonce, &raw).map_err(EmbedError::BadBytes)?;
                Ok(Answer::Signed(raw))
            }
        }
    }
}
