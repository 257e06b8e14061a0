//! What goes over the wire, in the shapes and words clients see. No rule lives here: requests are checked by the
//! domain, answers come from the store's views.

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

pub(crate) use body::Body;
#[cfg(feature = "fuzz")]
pub(crate) use body::parse;
pub(crate) use history::TxHistory;
pub(crate) use operator::{ActionResult, ActionStatus, AdoptReason, OperatorReason};
pub(crate) use problem::Problem;
#[cfg(feature = "fuzz")]
pub(crate) use request::TxPayload;
pub(crate) use request::{BatchRequest, CreateTx};
pub(crate) use simulation::{Outcome, Simulation};
pub(crate) use submitter::{Submitter, SubmitterPage};
pub(crate) use tx::{Accepted, BatchResponse, BatchResult, Tx, TxPage, TxState};
pub(crate) use tx_actions::{Resolution, ResolveAction, TxActionReason, TxActionResult};

/// A text of ours or of a node, without the nonces it may speak of: clients never see one. Decimal numbers are struck
/// out when the text mentions nonces or the sequence at all; words that merely contain digits, such as hashes, stay.
pub(crate) fn redact_nonces(text: &str) -> String {
    let lower = text.to_ascii_lowercase();
    if !lower.contains("nonce") && !lower.contains("sequence") {
        return text.to_owned();
    }
    // A hyphen joins: a transaction id stays whole even where a part of it is all digits.
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
    fn nonces_are_struck_out_of_texts_that_mention_them() {
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
