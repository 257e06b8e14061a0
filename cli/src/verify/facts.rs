//! Data that the audit compares: one submitter in the database and on the chain.

use std::collections::HashMap;

use gapless_domain::{ReservationState, TxState, U256};

#[derive(Clone, Debug)]
pub(super) struct SubmitterFacts {
    pub(super) address: String,
    pub(super) cursor: Option<CursorFacts>,
    /// The key is also used outside Gapless.
    pub(super) shared: bool,
    /// Inclusive ranges of nonces recorded as external.
    pub(super) external: Vec<(u64, u64)>,
    pub(super) intents: Vec<IntentFacts>,
    pub(super) attempts: Vec<AttemptFacts>,
    pub(super) reservations: Vec<ReservationFacts>,
    /// In the order in which they were written.
    pub(super) counts: Vec<CountFacts>,
    /// The chain's transaction count, read before the database, so that everything counted is already committed there.
    pub(super) chain_count: u64,
    /// Receipts by transaction hash, read after the database. Attempts not listed are not mined.
    pub(super) mined: HashMap<String, Mined>,
    /// Transactions of this address in the blocks, read before the database; `None`: no block scan.
    pub(super) in_blocks: Option<Vec<InBlock>>,
}

impl SubmitterFacts {
    /// Whether the nonce is recorded as external.
    pub(super) fn is_external(&self, nonce: u64) -> bool {
        self.external.iter().any(|(first, last)| (*first..=*last).contains(&nonce))
    }
}

/// A transaction of a submitter, found in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct InBlock {
    pub(super) tx_hash: String,
    pub(super) nonce: u64,
    pub(super) block: u64,
}

#[derive(Clone, Debug)]
pub(super) struct CursorFacts {
    pub(super) start: u64,
    pub(super) next: u64,
    /// No intent below this nonce should be open.
    pub(super) open_from: u64,
    /// Reason, if the submitter is in PROTECT.
    pub(super) protect: Option<String>,
}

#[derive(Clone, Debug)]
pub(super) struct IntentFacts {
    pub(super) tx_id: String,
    pub(super) state: TxState,
    pub(super) nonce: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct AttemptFacts {
    pub(super) tx_id: String,
    /// Position among the attempts of the intent, from 1.
    pub(super) ordinal: u32,
    pub(super) nonce: u64,
    /// Only consumes the nonce.
    pub(super) placeholder: bool,
    pub(super) tx_hash: String,
    pub(super) fencing_token: u64,
    /// An external transaction consumed the nonce, as recorded by an operator or for a shared key.
    pub(super) displaced: bool,
}

/// A nonce granted to a reserving client.
#[derive(Clone, Debug)]
pub(super) struct ReservationFacts {
    pub(super) tx_id: String,
    pub(super) nonce: u64,
    pub(super) state: ReservationState,
}

/// A value counted towards the cap of a day.
#[derive(Clone, Debug)]
pub(super) struct CountFacts {
    pub(super) tx_id: String,
    /// In UTC, by the clock of the database.
    pub(super) day: String,
    pub(super) value: U256,
    pub(super) limit: Option<U256>,
    /// Including the value.
    pub(super) day_total: Option<U256>,
    pub(super) fencing_token: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mined {
    pub(super) succeeded: bool,
}
