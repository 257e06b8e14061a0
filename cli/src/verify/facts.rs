//! What the audit compares: one submitter as the database has it, and as the chain has it. Plain data.

use std::collections::HashMap;

use gapless::domain::{ReservationState, TxState};

#[derive(Clone, Debug)]
pub(super) struct SubmitterFacts {
    pub(super) address: String,
    pub(super) cursor: Option<CursorFacts>,
    /// Others use the key as well.
    pub(super) shared: bool,
    /// Nonces that were left to others while it was shared, both ends included.
    pub(super) foreign: Vec<(u64, u64)>,
    pub(super) intents: Vec<IntentFacts>,
    pub(super) attempts: Vec<AttemptFacts>,
    pub(super) reservations: Vec<ReservationFacts>,
    /// The chain's count of the address, read before the database: whatever it counts was committed by then.
    pub(super) chain_count: u64,
    /// By transaction hash; read after the database. Attempts that are not in it are not mined.
    pub(super) mined: HashMap<String, Mined>,
    /// What the blocks hold from this address, read before the database; `None`: the blocks were not read.
    pub(super) in_blocks: Option<Vec<InBlock>>,
}

impl SubmitterFacts {
    /// Recorded as left to others.
    pub(super) fn is_external(&self, nonce: u64) -> bool {
        self.foreign.iter().any(|(first, last)| (*first..=*last).contains(&nonce))
    }
}

/// A transaction from one of our addresses, as found in a block.
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
    /// Nothing below it should be open.
    pub(super) open_from: u64,
    /// The submitter has stopped and says why.
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
    /// Its place among the attempts of the intent, from 1.
    pub(super) ordinal: u32,
    pub(super) nonce: u64,
    /// Consumes the nonce and has no other effect.
    pub(super) placeholder: bool,
    pub(super) tx_hash: String,
    pub(super) fencing_token: u64,
    /// Declared dead, by an operator or on a shared key: the nonce is finally someone else's.
    pub(super) displaced: bool,
}

/// A nonce that was shown to a caller outside.
#[derive(Clone, Debug)]
pub(super) struct ReservationFacts {
    pub(super) tx_id: String,
    pub(super) nonce: u64,
    pub(super) state: ReservationState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Mined {
    pub(super) succeeded: bool,
}
