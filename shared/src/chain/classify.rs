//! What a node's answer to a send means. One pure function, one table.

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubmitClass {
    Accepted,
    AlreadyKnown,
    NonceTooLow,
    NonceTooHigh,
    ReplacementUnderpriced,
    Underpriced,
    InsufficientFunds,
    PoolFull,
    /// EIP-7702 delegated sender: only so many in flight.
    DelegatedLimit,
    FeeCapExceeded,
    Fatal,
    /// The node is in trouble (rate limit, syncing, header not found): ask again or elsewhere.
    Unavailable,
    Unknown,
}

/// It answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitOutcome {
    pub class: SubmitClass,
    /// The node's own words; empty when it accepted.
    pub message: String,
    pub code: i64,
}
