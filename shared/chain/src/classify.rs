//! Classifies a node's error response to a send: one pure function and one table.
//!
//! Nodes report errors as text that changes between versions, so the patterns are data: an ordered table, which a
//! chain's configuration extends. The caller decides how to handle each class.

use std::collections::BTreeMap;

use SubmitClass::*;

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
    /// EIP-7702 delegated sender: in-flight limit reached.
    DelegatedLimit,
    FeeCapExceeded,
    Fatal,
    /// A problem of the node (rate limit, syncing, header not found): retry, or use another node.
    Unavailable,
    Unknown,
}

impl SubmitClass {
    pub const ALL: [SubmitClass; 13] = [
        Accepted,
        AlreadyKnown,
        NonceTooLow,
        NonceTooHigh,
        ReplacementUnderpriced,
        Underpriced,
        InsufficientFunds,
        PoolFull,
        DelegatedLimit,
        FeeCapExceeded,
        Fatal,
        Unavailable,
        Unknown,
    ];

    /// The name in configuration, logs and stored outcomes.
    pub fn as_str(self) -> &'static str {
        match self {
            Accepted => "accepted",
            AlreadyKnown => "already_known",
            NonceTooLow => "nonce_too_low",
            NonceTooHigh => "nonce_too_high",
            ReplacementUnderpriced => "replacement_underpriced",
            Underpriced => "underpriced",
            InsufficientFunds => "insufficient_funds",
            PoolFull => "pool_full",
            DelegatedLimit => "delegated_limit",
            FeeCapExceeded => "fee_cap_exceeded",
            Fatal => "fatal",
            Unavailable => "unavailable",
            Unknown => "unknown",
        }
    }
}

/// A node's response to a send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitOutcome {
    pub class: SubmitClass,
    /// The node's message; empty if accepted.
    pub message: String,
    pub code: i64,
}

impl SubmitOutcome {
    pub fn accepted() -> Self {
        SubmitOutcome { class: Accepted, message: String::new(), code: 0 }
    }
}

/// A pattern and how it is matched. Patterns are lower-case; the text is converted before matching.
#[derive(Clone, Copy, Debug)]
enum Wording {
    /// Anywhere: providers add prefixes and suffixes to the node's message.
    Has(&'static str),
    /// Both anywhere, in this order: the node inserts a value in between.
    HasBoth(&'static str, &'static str),
    /// At the start of a word: `known transaction` must not match `unknown transaction`.
    Word(&'static str),
    /// The whole text: for words too common to match as a substring.
    Is(&'static str),
}

use Wording::*;

impl Wording {
    fn found_in(self, text: &str) -> bool {
        match self {
            Has(wording) => text.contains(wording),
            HasBoth(first, then) => text.split_once(first).is_some_and(|(_, rest)| rest.contains(then)),
            Word(wording) => text
                .match_indices(wording)
                .any(|(at, _)| !text[..at].chars().next_back().is_some_and(char::is_alphanumeric)),
            Is(wording) => text.trim().trim_end_matches('.') == wording,
        }
    }
}

/// In search order; the first class with a matching pattern wins.
///
/// Fatal comes first because a revert reason can contain any other pattern (`execution reverted: nonce too low`), so
/// its patterns are the most specific. `replacement transaction underpriced` contains `underpriced`, and pool limits
/// contain the text of general limits, so specific classes precede general ones.
const PATTERNS: &[(SubmitClass, &[Wording])] = &[
    (
        Fatal,
        &[
            Has("execution reverted"),
            Has("exceeds block gas limit"),
            Has("exceeds max transaction gas limit"),
            Has("exceeds transaction gas cap"),
            HasBoth("transaction gas limit", "is greater than the cap"),
            Has("gas limit too high"),
            Has("gas limit is too high"),
            Has("gas limit reached"),
            Has("gaslimitexceeded"),
            Has("intrinsic gas too low"),
            Has("intrinsic gas too high"),
            Has("intrinsic gas exceeds gas limit"),
            Has("intrinsicgas"),
            HasBoth("transaction requires at least ", " gas but got "),
            Has("requires gas floor of"),
            Has("insufficient gas for floor data gas cost"),
            Has("gas uint64 overflow"),
            Has("not enough gas for transaction validation"),
            Has("failed to pay the fee to the operator"),
            Has("oversized data"),
            Has("rlptoolong"),
            Has("max initcode size exceeded"),
            Has("initcode too large"),
            Has("create initcode size limit"),
            Has("transaction whose init code length is"),
            Has("transaction type not supported"),
            Has("unknown transaction type"),
            HasBoth("tx type ", " not supported"),
            Has("invalid sender"),
            Has("invalid signature"),
            Has("invalid transaction v, r, s"),
            Has("invalid chain id"),
            Has("wrong chainid"),
            Has("with an invalid chainid"),
            Has("sender is not an eoa"),
            Has("sender not an eoa"),
            Has("senderiscontract"),
            Has("sender account not authorized"),
            Has("forbidden sender address"),
            Has("failed to recover sender"),
            Has("failedtoresolvesender"),
            Has("failed to decode signed transaction"),
            Has("invalid message format"),
            Has("int256overflow"),
            Has("transaction cost overflow"),
            Has("max priority fee per gas higher than max fee per gas"),
            HasBoth("maxpriorityfeepergas (", ") is bigger than maxfeepergas"),
            Has("transaction invalid"),
            Is("invalid"),
        ],
    ),
    (
        // Arbitrum also returns `invalid transaction nonce` for a nonce that is too high. Too low is the safe
        // interpretation: its handling looks up receipts and counts before any decision. So it is for Harmony's
        // `transaction already finalized`, which the node says about a hash in a block: unlike "already known", it makes
        // the lane look for the receipt.
        NonceTooLow,
        &[
            Has("nonce too low"),
            Has("nonce is too low"),
            Has("oldnonce"),
            Has("invalid transaction nonce"),
            // Substrate's name for a nonce below the account's.
            Has("pool(stale"),
            Has("transaction already finalized"),
        ],
    ),
    (
        // Parity and Kaia describe the other transaction instead of the price. It has the same nonce and another hash,
        // so it is one of our earlier attempts, or the key is used elsewhere; neither ends the transaction.
        ReplacementUnderpriced,
        &[
            Has("replacement transaction underpriced"),
            Has("another transaction with same nonce in the queue"),
            Has("another tx which has the same nonce in the tx pool"),
            Has("replacementnotallowed"),
            Has("could not replace existing tx"),
        ],
    ),
    (
        // Counts as sent, and is sent again by timer. CometBFT's cache may also contain a transaction that was dropped or
        // is already in a block: the timer and the block watcher cover both.
        AlreadyKnown,
        &[
            Has("already known"),
            Has("alreadyknown"),
            Has("ownnoncealreadyused"),
            Word("known transaction"),
            Has("transaction already imported"),
            Has("existing txn with same hash"),
            Has("transaction with the same hash was already imported"),
            Has("pool(alreadyimported"),
            Has("tx already exists in cache"),
        ],
    ),
    (
        DelegatedLimit,
        &[
            Has("in-flight transaction limit reached for delegated accounts"),
            Has("gapped-nonce tx from delegated accounts"),
            Has("delegatorhaspendingtx"),
            Has("authority already reserved"),
        ],
    ),
    (
        PoolFull,
        &[
            Has("txpool is full"),
            Has("transaction pool is full"),
            Has("account limit exceeded"),
            Has("sub-pool is full"),
            Has("pending tx pool full"),
            Has("queue full"),
            Has("transaction pool not enabled"),
            Has("too many transactions in the queue"),
        ],
    ),
    (
        Underpriced,
        &[
            Has("underpriced"),
            Has("gas price below"),
            Has("priority fee below minimum"),
            Has("less than block base fee"),
            Has("is too low for the next block"),
            Has("fee too low"),
            Has("feetoolow"),
            Has("gas price too low"),
            Has("unacceptable gas price"),
            Has("gasprice is less than gas price minimum floor"),
        ],
    ),
    (
        NonceTooHigh,
        &[
            Has("nonce too high"),
            Has("nonce too far in future"),
            Has("noncegap"),
            Has("nonce is too distant"),
            Has("transaction with a lower nonce exists"),
        ],
    ),
    (
        // Hedera's payer is the sender, or the operator of the relay. In both cases the same bytes wait for funds.
        InsufficientFunds,
        &[
            Has("insufficient funds"),
            Has("insufficientfunds"),
            Has("insufficient balance"),
            Has("not enough funds for gas"),
            Has("doesn't have enough funds to send tx"),
            Has("lack of funds"),
            Has("would cause overdraft"),
            Has("upfront cost exceeds account balance"),
            Has("insufficient_payer_balance"),
        ],
    ),
    (
        Unavailable,
        &[
            Has("header not found"),
            Has("transaction indexing is in progress"),
            Has("missing trie node"),
            Has("syncing"),
            Has("timeout"),
            Has("timed out"),
            Has("deadline exceeded"),
            Has("context canceled"),
            Has("rate limit"),
            Has("request limit"),
            Has("too many requests"),
            Has("requests limited"),
            Has("batch too large"),
            Has("exceeds max batch size"),
            Has("bad gateway"),
            Has("service unavailable"),
            Has("temporarily unavailable"),
            Has("connection refused"),
            Has("connection reset"),
            Is("502"),
            Is("503"),
            Is("408"),
        ],
    ),
    (FeeCapExceeded, &[Has("exceeds the configured cap"), Has("transaction fee cap exceeded")]),
];

/// Fatal patterns about the transaction itself, independent of the node. All others may be a limit or a rule of the
/// node, or its view of the sender.
const ABOUT_PAYLOAD: &[Wording] = &[
    Has("oversized data"),
    Has("rlptoolong"),
    Has("max initcode size exceeded"),
    Has("initcode too large"),
    Has("create initcode size limit"),
    Has("transaction whose init code length is"),
];

/// Whether a fatal error of an execution (estimate, call) is about the transaction and not about the node. Patterns
/// configured as fatal always are.
pub fn is_about_payload(message: &str, extra: &ErrorPatterns) -> bool {
    let text = message.to_lowercase();
    extra.class_of(&text) == Some(Fatal) || ABOUT_PAYLOAD.iter().any(|wording| wording.found_in(&text))
}

/// Unambiguous codes, used only if no pattern matches. Besu's other codes (-32001 … -32007) have other meanings in
/// EIP-1474 and at providers, so they are not classified.
fn class_of_code(code: i64) -> SubmitClass {
    match code {
        -32005 | -32029 | 408 | 429 | 502 | 503 | 504 => Unavailable,
        // The node lacks the method or does not accept batches; another node may.
        -32601 | -32600 => Unavailable,
        -32006 => NonceTooHigh,
        -32009 => Underpriced,
        _ => Unknown,
    }
}

/// Patterns added by a chain's configuration. They are matched before the table, so they can also override it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ErrorPatterns(Vec<(SubmitClass, Vec<String>)>);

impl ErrorPatterns {
    /// `{ nonce_too_low = ["stale nonce"] }`. Classes are searched in the order of the table, not of the file.
    pub fn from_config(extra: &BTreeMap<String, Vec<String>>) -> Result<ErrorPatterns, String> {
        let mut left = extra.clone();
        let mut patterns = Vec::new();
        for (class, _) in PATTERNS {
            let Some(texts) = left.remove(class.as_str()) else { continue };
            let texts: Vec<String> = texts.iter().map(|text| text.trim().to_lowercase()).collect();
            if texts.iter().any(String::is_empty) {
                return Err(format!("{}: a pattern must not be empty", class.as_str()));
            }
            patterns.push((*class, texts));
        }
        match left.keys().next() {
            None => Ok(ErrorPatterns(patterns)),
            Some(name) => {
                let known: Vec<&str> = PATTERNS.iter().map(|(class, _)| class.as_str()).collect();
                Err(format!("unknown error class `{name}`; valid classes: {}", known.join(", ")))
            }
        }
    }

    fn class_of(&self, text: &str) -> Option<SubmitClass> {
        self.0
            .iter()
            .find(|(_, texts)| texts.iter().any(|t| text.contains(t.as_str())))
            .map(|(class, _)| *class)
    }
}

/// The class of a JSON-RPC error. `data` is used only if the message matches no pattern, because some nodes put
/// `Internal error` into the message and the reason into `data`.
pub fn classify(code: i64, message: &str, data: Option<&str>, extra: &ErrorPatterns) -> SubmitClass {
    [Some(message), data]
        .into_iter()
        .flatten()
        .map(str::to_lowercase)
        .find_map(|text| extra.class_of(&text).or_else(|| class_of_text(&text)))
        .unwrap_or_else(|| class_of_code(code))
}

fn class_of_text(text: &str) -> Option<SubmitClass> {
    PATTERNS.iter().find(|(_, wordings)| wordings.iter().any(|w| w.found_in(text))).map(|(class, _)| *class)
}

#[cfg(test)]
#[path = "classify_tests.rs"]
mod tests;
