//! What a handler sees, and what it may return.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::domain::reservation::check_answer;
use crate::domain::{
    Address, Answer, Bytes, ChainId, Fees, InvalidIntent, Nonce, RequestedTx, TxId, U256, UnsignedTx,
};
use crate::signer::{Signer, SignerError, read_signed};

use super::error::EmbedError;

/// The nonce of one call, and whose it is.
#[derive(Clone, Debug)]
pub struct NonceContext {
    pub tx_id: TxId,
    pub chain_id: ChainId,
    pub submitter: Address,
    pub nonce: Nonce,
    /// After this the answer does not count.
    pub(super) ends: Instant,
    pub(super) signer: Option<Arc<dyn Signer>>,
}

/// What a handler wants at its nonce.
#[derive(Clone, Debug)]
pub enum Wanted {
    /// Priced and signed by the worker.
    Unsigned(Box<RequestedTx>),
    /// Signed by the caller, for this nonce and no other.
    Signed(Bytes),
}

impl From<RequestedTx> for Wanted {
    fn from(tx: RequestedTx) -> Self {
        Wanted::Unsigned(Box::new(tx))
    }
}

impl From<Bytes> for Wanted {
    fn from(raw: Bytes) -> Self {
        Wanted::Signed(raw)
    }
}

/// What a handler may return: a transaction, or a transaction and a value that the call hands back.
pub trait HandlerAnswer {
    type Value;
    fn split(self) -> (Wanted, Self::Value);
}

impl HandlerAnswer for Wanted {
    type Value = ();
    fn split(self) -> (Wanted, ()) {
        (self, ())
    }
}

impl HandlerAnswer for RequestedTx {
    type Value = ();
    fn split(self) -> (Wanted, ()) {
        (self.into(), ())
    }
}

impl HandlerAnswer for Bytes {
    type Value = ();
    fn split(self) -> (Wanted, ()) {
        (self.into(), ())
    }
}

impl<W: Into<Wanted>, T> HandlerAnswer for (W, T) {
    type Value = T;
    fn split(self) -> (Wanted, T) {
        (self.0.into(), self.1)
    }
}

/// Why a handler has no signature.
#[derive(Debug, thiserror::Error)]
pub enum SignProblem {
    #[error("this process holds no key of the submitter; return the transaction unsigned")]
    NoKey,
    #[error(transparent)]
    Invalid(#[from] InvalidIntent),
    #[error(transparent)]
    Signer(#[from] SignerError),
}

impl NonceContext {
    /// What is left of the hold.
    pub fn time_left(&self) -> Duration {
        self.ends.saturating_duration_since(Instant::now())
    }

    /// Whether this process can sign for the submitter.
    pub fn can_sign(&self) -> bool {
        self.signer.is_some()
    }

    /// Signs at the held nonce with a key of this process (`Gapless::with_signers`). Nothing is sent: return the result.
    pub async fn sign(&self, tx: RequestedTx, gas_limit: U256, fees: Fees) -> Result<Wanted, SignProblem> {
        let signer = self.signer.as_ref().ok_or(SignProblem::NoKey)?;
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
        Ok(Wanted::Signed(signer.sign(&unsigned).await?.raw))
    }

    /// The answer as it is stored, or why it could never be sent. The worker looks at it again, and trusts none of this.
    pub(super) fn checked(&self, wanted: Wanted) -> Result<Answer, EmbedError> {
        match wanted {
            Wanted::Unsigned(tx) => {
                let payload = tx.validate()?;
                check_answer(&payload)?;
                Ok(Answer::Unsigned(Box::new(payload)))
            }
            Wanted::Signed(raw) => {
                read_signed(self.chain_id, self.submitter, self.nonce, &raw).map_err(EmbedError::BadBytes)?;
                Ok(Answer::Signed(raw))
            }
        }
    }
}
