//! Request and response types of the API. They contain no business rules: the domain validates requests, and responses
//! are made from the store's views.

mod body;
mod history;
mod mempool;
mod operator;
mod problem;
mod request;
mod simulation;
mod submitter;
mod tx;
mod tx_actions;
mod tx_error;
mod waiting;

pub(crate) use body::Body;
#[cfg(feature = "fuzz")]
pub(crate) use body::parse;
pub(crate) use history::TxHistory;
pub(crate) use operator::{ActionResult, ActionStatus, AdoptReason, OperatorReason};
pub(crate) use problem::Problem;
#[cfg(feature = "fuzz")]
pub(crate) use request::TxPayload;
pub(crate) use request::{BatchRequest, CreateTx, TIME_FORMAT};
pub(crate) use simulation::{Outcome, Simulation};
pub(crate) use submitter::{Submitter, SubmitterPage};
pub(crate) use tx::{
    Accepted, BatchResponse, BatchResult, EXAMPLE_ID, EXAMPLE_SUBMITTER, Tx, TxPage, TxState,
};
pub(crate) use tx_actions::{Resolution, ResolveAction, TxActionReason, TxActionResult};

/// Removes nonces from a message, because clients must not see them. If the text contains "nonce" or "sequence", every
/// decimal number is replaced by `…`. Words that only contain digits, such as hashes, stay.
pub(crate) fn redact_nonces(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    if !lower.contains("nonce") && !lower.contains("sequence") {
        return text.to_owned();
    }
    // A hyphen is part of a word, so that a UUID stays whole even if a group has only digits.
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let mut redacted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_word(c) != is_word(first)).unwrap_or(rest.len());
        let (run, tail) = rest.split_at(end);
        redacted.push_str(if run.bytes().all(|byte| byte.is_ascii_digit()) { "…" } else { run });
        rest = tail;
    }
    redacted
}

#[cfg(test)]
mod tests {
    use super::redact_nonces;

    #[test]
    fn numbers_are_redacted_in_texts_about_nonces() {
        assert_eq!(
            redact_nonces("nonce too low: next nonce 5, tx nonce 4"),
            "nonce too low: next nonce …, tx nonce …"
        );
        assert_eq!(redact_nonces("Nonce 7 taken by 0x12ab"), "Nonce … taken by 0x12ab");
        assert_eq!(
            redact_nonces("nonce: address 0xab, tx: 12 state:13"),
            "nonce: address 0xab, tx: … state:…"
        );
        assert_eq!(
            redact_nonces("the chain counts 8 transactions, this sequence explains 7"),
            "the chain counts … transactions, this sequence explains …"
        );
        assert_eq!(redact_nonces("needs 5 wei"), "needs 5 wei");
    }
}
