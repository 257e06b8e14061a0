//! BLOCKED: why the head of a queue cannot get a nonce.

use super::sub_state::SubState;

/// What a blocked head waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockedReason {
    Funds,
    Fee,
    Node,
    Signer,
}

impl BlockedReason {
    pub const ALL: [BlockedReason; 4] =
        [BlockedReason::Funds, BlockedReason::Fee, BlockedReason::Node, BlockedReason::Signer];

    /// The value in metrics and events.
    pub fn as_str(self) -> &'static str {
        match self {
            BlockedReason::Funds => "funds",
            BlockedReason::Fee => "fee",
            BlockedReason::Node => "node",
            BlockedReason::Signer => "signer",
        }
    }

    /// Whether the cause is the intent itself (cannot be paid or priced) and not an unavailable node or signer.
    pub fn is_intent_specific(self) -> bool {
        matches!(self, BlockedReason::Funds | BlockedReason::Fee)
    }

    /// From the sub-state of a QUEUED intent. Other sub-states do not block. `write_lanes` lists the same four.
    pub fn of_sub_state(sub_state: SubState) -> Option<BlockedReason> {
        match sub_state {
            SubState::WaitingFunds => Some(BlockedReason::Funds),
            SubState::WaitingFee => Some(BlockedReason::Fee),
            SubState::WaitingNode => Some(BlockedReason::Node),
            SubState::WaitingSigner => Some(BlockedReason::Signer),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_sub_state_and_no_other_sub_state_blocks() {
        for sub_state in SubState::ALL {
            let reason = BlockedReason::ALL
                .into_iter()
                .find(|reason| sub_state.as_str() == format!("waiting_{}", reason.as_str()));
            assert_eq!(BlockedReason::of_sub_state(sub_state), reason);
        }
    }
}
