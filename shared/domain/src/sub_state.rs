//! The sub-state of an intent: why it waits, or why it ended. docs/reference/state-machine.md describes each.

use std::fmt;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SubState {
    /// The sender cannot pay for it.
    WaitingFunds,
    /// Its fee cap is below the base fee.
    WaitingFee,
    /// No node gives a usable answer.
    WaitingNode,
    /// The signer is unavailable.
    WaitingSigner,
    /// The client that requested a reservation does not renew its request.
    WaitingClient,
    /// It would revert now, and an earlier transaction is unmined.
    WaitingEarlier,
    /// It would revert; that is checked once more.
    CheckingRevert,
    /// Its nonce is reserved for a client.
    Reserved,
    /// The node misses a lower nonce.
    LowerNonceMissing,
    /// Nodes accept one pending transaction of an account with delegated code.
    DelegatedLimit,
    /// No node accepts its bytes.
    Rejected,
    /// A replacement is needed but cannot be paid or priced, or the node refuses it for that reason.
    NotReplaced,
    /// A node reports that its nonce is used.
    NonceUsed,
    /// An external transaction consumed its nonce.
    NonceTaken,
    /// An external transaction consumed its nonce; it gets another.
    Displaced,
    /// It was accepted and is unmined for too long.
    Unmined,
    /// Ended: it would revert.
    WouldRevert,
    /// Ended: it reverted on chain.
    Reverted,
    /// Ended: the chain would never accept it.
    Invalid,
    /// Ended: the signer refuses to sign it.
    SignerRefused,
    /// Ended: the policy of its submitter forbids it.
    Policy,
    /// Ended: the configuration forbids it.
    Forbidden,
    /// Ended by `queue.blocked = "fail"`.
    Blocked,
    /// Ended: its deadline passed.
    Deadline,
    /// Ended: the client that requested a reservation is gone.
    Abandoned,
    /// Ended as requested, before a nonce was used.
    GivenUp,
    /// Ended: an empty transaction consumed its nonce.
    Placeholder,
}

impl SubState {
    pub const ALL: [SubState; 27] = [
        SubState::WaitingFunds,
        SubState::WaitingFee,
        SubState::WaitingNode,
        SubState::WaitingSigner,
        SubState::WaitingClient,
        SubState::WaitingEarlier,
        SubState::CheckingRevert,
        SubState::Reserved,
        SubState::LowerNonceMissing,
        SubState::DelegatedLimit,
        SubState::Rejected,
        SubState::NotReplaced,
        SubState::NonceUsed,
        SubState::NonceTaken,
        SubState::Displaced,
        SubState::Unmined,
        SubState::WouldRevert,
        SubState::Reverted,
        SubState::Invalid,
        SubState::SignerRefused,
        SubState::Policy,
        SubState::Forbidden,
        SubState::Blocked,
        SubState::Deadline,
        SubState::Abandoned,
        SubState::GivenUp,
        SubState::Placeholder,
    ];

    /// The stored value.
    pub fn as_str(self) -> &'static str {
        match self {
            SubState::WaitingFunds => "waiting_funds",
            SubState::WaitingFee => "waiting_fee",
            SubState::WaitingNode => "waiting_node",
            SubState::WaitingSigner => "waiting_signer",
            SubState::WaitingClient => "waiting_caller",
            SubState::WaitingEarlier => "waiting_earlier",
            SubState::CheckingRevert => "checking_revert",
            SubState::Reserved => "reserved",
            SubState::LowerNonceMissing => "lower_nonce_missing",
            SubState::DelegatedLimit => "delegated_limit",
            SubState::Rejected => "rejected",
            SubState::NotReplaced => "not_replaced",
            SubState::NonceUsed => "nonce_used",
            SubState::NonceTaken => "nonce_taken",
            SubState::Displaced => "displaced",
            SubState::Unmined => "unmined",
            SubState::WouldRevert => "would_revert",
            SubState::Reverted => "reverted",
            SubState::Invalid => "invalid",
            SubState::SignerRefused => "signer_refused",
            SubState::Policy => "policy",
            SubState::Forbidden => "forbidden",
            SubState::Blocked => "blocked",
            SubState::Deadline => "deadline",
            SubState::Abandoned => "abandoned",
            SubState::GivenUp => "given_up",
            SubState::Placeholder => "placeholder",
        }
    }

    /// From a row. `None` for a value of a newer version: nothing is concluded from it.
    pub fn read(stored: &str) -> Option<SubState> {
        SubState::ALL.into_iter().find(|known| known.as_str() == stored)
    }
}

impl fmt::Display for SubState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sub_state_is_read_as_it_was_written() {
        for sub_state in SubState::ALL {
            assert_eq!(SubState::read(sub_state.as_str()), Some(sub_state));
        }
        assert_eq!(SubState::read("of_a_newer_version"), None);
    }
}
