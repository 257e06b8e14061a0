//! What the audit compares: one submitter as the database has it, and as the chain has it. Plain data.

use std::collections::HashMap;

use gapless::domain::TxState;

#[derive(Clone, Debug)]
pub struct SubmitterFacts {
    pub chain_id: u64,
    pub address: String,
    pub cursor: Option<CursorFacts>,
    pub intents: Vec<IntentFacts>,
    pub attempts: Vec<AttemptFacts>,
    /// The chain's count of the address, read before the database: whatever it counts was committed by then.
    pub chain_count: u64,
    /// By transaction hash; read after the database. Attempts that are not in it are not mined.
    pub mined: HashMap<String, Mined>,
    /// What the blocks hold from this address, read before the database; `None`: the blocks were not read.
    pub in_blocks: Option<Vec<InBlock>>,
}

/// A transaction from one of our addresses, as found in a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InBlock {
    pub tx_hash: String,
    pub nonce: u64,
    pub block: u64,
}

#[derive(Clone, Debug)]
pub struct CursorFacts {
    pub start: u64,
    pub next: u64,
    /// The submitter has stopped and says why.
    pub protect: Option<String>,
}

#[derive(Clone, Debug)]
pub struct IntentFacts {
    pub tx_id: String,
    pub state: TxState,
    pub nonce: Option<u64>,
}

#[derive(Clone, Debug)]
pub struct AttemptFacts {
    pub tx_id: String,
    pub nonce: u64,
    /// Consumes the nonce and has no other effect.
    pub placeholder: bool,
    pub tx_hash: String,
    pub fencing_token: u64,
    /// Declared dead by an operator: the nonce is finally someone else's.
    pub displaced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mined {
    pub succeeded: bool,
}
