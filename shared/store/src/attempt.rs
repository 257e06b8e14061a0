//! An attempt: signed and committed bytes. Only attempts can be broadcast.

use ethers_core::types::{Bytes, H256};

use gapless_domain::{AttemptId, Fees, Nonce, TxId};

/// Why these bytes exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptKind {
    Original,
    Replacement,
    Placeholder,
}

impl AttemptKind {
    pub fn as_str(self) -> &'static str {
        match self {
            AttemptKind::Original => "ORIGINAL",
            AttemptKind::Replacement => "REPLACEMENT",
            AttemptKind::Placeholder => "PLACEHOLDER",
        }
    }
}

impl std::str::FromStr for AttemptKind {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "ORIGINAL" => Ok(AttemptKind::Original),
            "REPLACEMENT" => Ok(AttemptKind::Replacement),
            "PLACEHOLDER" => Ok(AttemptKind::Placeholder),
            other => Err(format!("unknown attempt kind `{other}`")),
        }
    }
}

/// Signed *and* committed bytes. The fields are private and only the store builds one, after COMMIT or from a row:
/// every later owner of the submitter finds the same bytes in the database.
#[derive(Clone, PartialEq, Eq)]
pub struct Attempt {
    pub(super) id: AttemptId,
    pub(super) tx_id: TxId,
    pub(super) nonce: Nonce,
    pub(super) kind: AttemptKind,
    pub(super) raw: Bytes,
    pub(super) tx_hash: H256,
    pub(super) fees: Fees,
    pub(super) last_outcome: Option<String>,
}

impl Attempt {
    pub fn id(&self) -> AttemptId {
        self.id
    }
    pub fn tx_id(&self) -> TxId {
        self.tx_id
    }
    pub fn nonce(&self) -> Nonce {
        self.nonce
    }
    pub fn kind(&self) -> AttemptKind {
        self.kind
    }
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }
    pub fn tx_hash(&self) -> H256 {
        self.tx_hash
    }
    pub fn fees(&self) -> Fees {
        self.fees
    }
    /// Class of the last node response to a send of these bytes, if known.
    pub fn last_outcome(&self) -> Option<&str> {
        self.last_outcome.as_deref()
    }
    /// Sets the class of a newer response in memory only; a `SentNote` writes it to the database.
    pub fn set_last_outcome(&mut self, outcome: &str) {
        self.last_outcome = Some(outcome.to_owned());
    }
}

impl std::fmt::Debug for Attempt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the signed bytes: anyone who reads them could broadcast them.
        f.debug_struct("Attempt")
            .field("id", &self.id)
            .field("tx_id", &self.tx_id)
            .field("nonce", &self.nonce)
            .field("kind", &self.kind)
            .field("tx_hash", &self.tx_hash)
            .finish_non_exhaustive()
    }
}
