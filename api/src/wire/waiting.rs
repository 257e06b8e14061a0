//! Why a transaction or a submitter waits, in responses.

use chrono::{DateTime, Utc};
use gapless_domain as domain;
use gapless_store::{PendingRequestView, TxAction};
use poem_openapi::types::Example;
use poem_openapi::{Enum, Object};

use super::tx::example_time;
use gapless_domain::redact_nonces;

/// What a transaction that is not final waits for, or the head of a submitter's queue.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", example)]
pub(crate) struct Waiting {
    pub(crate) reason: WaitReason,
    /// Since when. Does not change while the reason is the same. For a signed transaction with the reason `funds`,
    /// `fee`, `node` or `signer` it is when it was signed or mined: the cause may have begun later.
    pub(crate) since: DateTime<Utc>,
    /// The reason as text, with what to do about it. May change.
    pub(crate) message: String,
}

/// What is waited for. Later versions may add values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "snake_case")]
pub(crate) enum WaitReason {
    /// The submitter is paused, until an operator resumes it.
    Paused,
    /// The submitter is in PROTECT, until an operator releases or adopts it.
    Protect,
    /// A nonce was consumed by an unknown transaction. Workers search for it.
    Suspect,
    /// The address has too little money.
    Funds,
    /// The fee limit is below the current price.
    Fee,
    /// No node of the chain gives a usable answer.
    Node,
    /// The signer is unavailable.
    Signer,
    /// The nodes serve another chain than the configured one: nothing is sent.
    ChainHalted,
    /// No worker is running, none serves the chain, or none has taken the submitter. `message` says which.
    NoWorker,
    /// Its `notBefore` is in the future.
    NotBefore,
    /// Earlier transactions of the same submitter come first.
    EarlierTransactions,
    /// A program that reserves a nonce has not answered yet.
    Client,
    /// It would revert now. That is checked once more before it fails.
    RevertCheck,
    /// No node accepts it. An empty transaction takes its place.
    Rejected,
    /// Nothing: a worker is about to continue with it.
    NextStep,
    /// It was sent and is in no block yet.
    Block,
    /// It is in a block and needs further ones.
    Confirmations,
}

/// An accepted request about a transaction that is not executed yet.
#[derive(Clone, Debug, Object)]
#[oai(rename_all = "camelCase", example)]
pub(crate) struct PendingRequest {
    pub(crate) kind: PendingKind,
    /// When it was accepted.
    pub(crate) since: DateTime<Utc>,
}

/// Kind of a request about a transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enum)]
#[oai(rename_all = "snake_case")]
pub(crate) enum PendingKind {
    Cancel,
    SpeedUp,
    Rebroadcast,
}

impl Waiting {
    /// Recorded texts may contain nonces, which only admins see.
    pub(crate) fn new(waiting: domain::Waiting, for_admin: bool) -> Waiting {
        let message = if for_admin { waiting.message } else { redact_nonces(&waiting.message) };
        Waiting { reason: waiting.reason.into(), since: waiting.since, message }
    }
}

impl From<domain::WaitReason> for WaitReason {
    fn from(reason: domain::WaitReason) -> Self {
        match reason {
            domain::WaitReason::Paused => WaitReason::Paused,
            domain::WaitReason::Protect => WaitReason::Protect,
            domain::WaitReason::Suspect => WaitReason::Suspect,
            domain::WaitReason::Funds => WaitReason::Funds,
            domain::WaitReason::Fee => WaitReason::Fee,
            domain::WaitReason::Node => WaitReason::Node,
            domain::WaitReason::Signer => WaitReason::Signer,
            domain::WaitReason::ChainHalted => WaitReason::ChainHalted,
            domain::WaitReason::NoWorker => WaitReason::NoWorker,
            domain::WaitReason::NotBefore => WaitReason::NotBefore,
            domain::WaitReason::EarlierTransactions => WaitReason::EarlierTransactions,
            domain::WaitReason::Client => WaitReason::Client,
            domain::WaitReason::RevertCheck => WaitReason::RevertCheck,
            domain::WaitReason::Rejected => WaitReason::Rejected,
            domain::WaitReason::NextStep => WaitReason::NextStep,
            domain::WaitReason::Block => WaitReason::Block,
            domain::WaitReason::Confirmations => WaitReason::Confirmations,
        }
    }
}

impl From<PendingRequestView> for PendingRequest {
    fn from(view: PendingRequestView) -> Self {
        let kind = match view.action {
            TxAction::Cancel => PendingKind::Cancel,
            TxAction::SpeedUp => PendingKind::SpeedUp,
            TxAction::Rebroadcast => PendingKind::Rebroadcast,
        };
        PendingRequest { kind, since: view.since }
    }
}

impl Example for Waiting {
    fn example() -> Self {
        Waiting {
            reason: WaitReason::Confirmations,
            since: example_time(13),
            message: "It is in a block and waits for confirmations.".into(),
        }
    }
}

impl Example for PendingRequest {
    fn example() -> Self {
        PendingRequest { kind: PendingKind::SpeedUp, since: example_time(9) }
    }
}

#[cfg(test)]
mod tests {
    use poem_openapi::types::ToJSON;

    use super::*;

    #[test]
    fn the_words_are_those_of_the_domain() {
        for reason in domain::WaitReason::ALL {
            assert_eq!(WaitReason::from(reason).to_json_string(), format!("\"{}\"", reason.as_str()));
        }
    }

    #[test]
    fn only_admins_see_nonces() {
        let message = "The submitter is in PROTECT (nonce 41 was used elsewhere).".to_owned();
        let waiting =
            domain::Waiting { reason: domain::WaitReason::Protect, since: DateTime::UNIX_EPOCH, message };
        assert!(!Waiting::new(waiting.clone(), false).message.contains("41"));
        assert!(Waiting::new(waiting, true).message.contains("41"));
    }
}
