//! All known error messages of nodes, returned to a worker that sends: it reacts according to the class, with the same
//! bytes, without a gap, and with one effect.

use std::collections::BTreeSet;

use gapless_chain::SubmitClass;
use gapless_testkit::{
    Address, Fault, Mining, SendsOf, Stack, StackBuilder, Submitter, TxId, TxRow, TxState, eventually,
    payload,
};
use serde_json::json;

use crate::stack;

/// The table of the classifier's own test: class, client, code, text.
const ERROR_TABLE: &str = include_str!("../../../shared/chain/src/node_answers.tsv");

/// The classes that the tests below cover. A class of the table that is missing here fails the first test.
const SHOWN: [SubmitClass; 12] = [
    SubmitClass::AlreadyKnown,
    SubmitClass::NonceTooLow,
    SubmitClass::NonceTooHigh,
    SubmitClass::ReplacementUnderpriced,
    SubmitClass::Underpriced,
    SubmitClass::InsufficientFunds,
    SubmitClass::PoolFull,
    SubmitClass::DelegatedLimit,
    SubmitClass::FeeCapExceeded,
    SubmitClass::Unavailable,
    SubmitClass::Fatal,
    SubmitClass::Unknown,
];

#[derive(Clone, Copy, Debug)]
struct ErrorCase {
    class: &'static str,
    client: &'static str,
    code: i64,
    text: &'static str,
}

impl ErrorCase {
    /// Without forwarding the transaction.
    fn refusal(self) -> Fault {
        Fault::Error { code: self.code, message: self.text.into() }
    }

    /// Although the node has the transaction.
    fn lie(self) -> Fault {
        Fault::ErrorAfter { code: self.code, message: self.text.into() }
    }
}

fn table() -> Vec<ErrorCase> {
    let row = |line: &'static str| {
        let cells: Vec<&str> = line.split('\t').collect();
        let [class, client, code, text] = cells[..] else { panic!("four cells, not `{line}`") };
        ErrorCase { class, client, code: code.parse().unwrap(), text }
    };
    ERROR_TABLE.lines().skip(1).map(row).collect()
}

fn cases_of(classes: &[SubmitClass]) -> Vec<ErrorCase> {
    let names: Vec<&str> = classes.iter().map(|class| class.as_str()).collect();
    table().into_iter().filter(|case| names.contains(&case.class)).collect()
}

/// One submitter and one recipient per row.
struct Cast {
    stack: Stack,
    rows: Vec<ErrorCase>,
}

impl Cast {
    async fn of(classes: &[SubmitClass], build: impl FnOnce(StackBuilder) -> StackBuilder) -> Cast {
        let rows = cases_of(classes);
        assert!(rows.len() >= classes.len(), "{classes:?}");
        let builder = stack().proxied().submitters(rows.len()).set("resubmit.interval", "1s");
        Cast { stack: build(builder).up().await, rows }
    }

    fn payee(index: usize) -> Address {
        Address::from_low_u64_be(0xa115_0000 + index as u64)
    }

    /// Each row with its submitter.
    fn parts(&self) -> impl Iterator<Item = (usize, ErrorCase, &Submitter)> {
        self.rows
            .iter()
            .zip(self.stack.submitters())
            .enumerate()
            .map(|(index, (case, who))| (index, *case, who))
    }

    /// From now on each submitter's sends get the response of its row.
    fn refuse_all(&self, nonce: Option<u64>) {
        for (_, case, who) in self.parts() {
            self.stack.proxy().always_to(SendsOf { from: who.address(), nonce }, case.refusal());
        }
    }

    async fn create(&self, request_id: &str) -> Vec<TxId> {
        let mut tx_ids = Vec::new();
        for (index, _, who) in self.parts() {
            tx_ids.push(self.stack.create(who, request_id, &payload(Cast::payee(index), 1)).await);
        }
        tx_ids
    }

    /// Waits until every row in the database shows the class of its response and the reaction to it.
    async fn wait_each(&self, tx_ids: &[TxId], handled: impl Fn(ErrorCase, &TxRow) -> bool) {
        for ((_, case, _), tx_id) in self.parts().zip(tx_ids) {
            eventually(&format!("the answer is handled: {case:?}"), async || {
                let row = self.stack.row(*tx_id).await;
                assert!(row.state != TxState::Protect, "{case:?}: {row:?}");
                let outcome =
                    self.stack.attempts(*tx_id).await.pop().and_then(|attempt| attempt.last_outcome);
                let as_class = outcome.as_deref() == Some(case.class);
                if as_class && handled(case, &row) { Ok(()) } else { Err((row, outcome)) }
            })
            .await;
        }
    }

    /// Each nonce was sent with one set of bytes, and each recipient got `value`.
    async fn assert_one_effect(&self, value: u64) {
        for (index, case, who) in self.parts() {
            let sent = self.stack.proxy().sent_by(who.address());
            let distinct: BTreeSet<(u64, &str)> =
                sent.iter().map(|one| (one.nonce, one.raw.as_str())).collect();
            let nonces: BTreeSet<u64> = sent.iter().map(|one| one.nonce).collect();
            assert_eq!(distinct.len(), nonces.len(), "other bytes: {case:?}");
            assert_eq!(nonces, (0..value).collect(), "{case:?}");
            assert_eq!(self.stack.anvil().balance(Cast::payee(index)).await, value.into(), "{case:?}");
        }
    }

    /// The node has the transaction and returns the same error: detected, and not sent with other bytes or at another
    /// nonce.
    async fn lie_once(&self, request_id: &str) {
        for (_, case, who) in self.parts() {
            self.stack.proxy().next_to(SendsOf { from: who.address(), nonce: None }, case.lie());
        }
        let tx_ids = self.create(request_id).await;
        self.stack.wait_confirmed(&tx_ids).await;
        assert_eq!(self.stack.proxy().rules_left(), 0, "every submitter got the false error");
    }

    /// Rejected until that shows in the rows, then accepted; then accepted with the same error.
    async fn back_off_and_go_on(self, handled: impl Fn(ErrorCase, &TxRow) -> bool) -> Stack {
        self.refuse_all(None);
        let tx_ids = self.create("refused").await;
        self.wait_each(&tx_ids, handled).await;
        self.stack.proxy().clear();
        self.stack.wait_confirmed(&tx_ids).await;
        for tx_id in tx_ids {
            let attempts = self.stack.attempts(tx_id).await;
            assert_eq!(attempts.len(), 1, "{attempts:?}");
        }
        self.lie_once("lied-to").await;
        self.assert_one_effect(2).await;
        self.stack
    }
}

/// The row shows the node's message and the reason for waiting.
fn shows_error(sub_state: Option<&str>) -> impl Fn(ErrorCase, &TxRow) -> bool {
    move |case, row| row.last_error.as_deref() == Some(case.text) && row.sub_state.as_deref() == sub_state
}

/// Scenario 33: every class is covered.
#[test]
fn every_class_of_the_table_is_shown_and_has_a_row() {
    let in_table: BTreeSet<&str> = table().iter().map(|case| case.class).collect();
    let shown: BTreeSet<&str> = SHOWN.iter().map(|class| class.as_str()).collect();
    assert_eq!(in_table, shown);
    for client in ["geth", "reth", "nethermind", "besu", "erigon", "arbitrum", "zksync"] {
        assert!(table().iter().any(|case| case.client == client), "{client}");
    }
}

/// Scenario 33: "already known" counts as sent, and the timer resends it in case it was wrong.
#[tokio::test(flavor = "multi_thread")]
async fn already_known_is_submitted() {
    let cast = Cast::of(&[SubmitClass::AlreadyKnown], |stack| stack).await;
    let stack = cast.back_off_and_go_on(|_, row| row.state == TxState::Submitted).await;
    stack.finish().await;
}

/// Scenario 33: "nonce too low" for an unused nonce is checked, and does not cause PROTECT.
#[tokio::test(flavor = "multi_thread")]
async fn nonce_too_low_is_looked_into_and_believed_only_when_it_is_true() {
    let cast = Cast::of(&[SubmitClass::NonceTooLow], |stack| stack).await;
    let stack = cast.back_off_and_go_on(shows_error(Some("nonce_used"))).await;
    assert!(!stack.workers()[0].log().contains("PROTECT"), "no false alarm");
    stack.finish().await;
}

/// Scenario 33: "nonce too high" resends the lower nonces, in order.
#[tokio::test(flavor = "multi_thread")]
async fn nonce_too_high_has_the_lower_nonces_sent_again() {
    let cast = Cast::of(&[SubmitClass::NonceTooHigh], |stack| {
        // The timer would resend nothing: any resend is a reaction to the error.
        stack.window(2).mining(Mining::Manual).set("resubmit.enabled", false)
    })
    .await;
    cast.refuse_all(Some(1));
    let lower = cast.create("lower").await;
    let upper = cast.create("upper").await;
    cast.wait_each(&upper, shows_error(Some("lower_nonce_missing"))).await;
    for (_, case, who) in cast.parts() {
        eventually(&format!("the lower nonce goes out again: {case:?}"), async || {
            let sent = cast.stack.proxy().sent_by(who.address());
            let times = sent.iter().filter(|sent| sent.nonce == 0).count();
            if times >= 2 { Ok(()) } else { Err(times) }
        })
        .await;
    }
    cast.stack.proxy().clear();
    cast.stack.wait_pending(2 * cast.rows.len() as u64).await;
    cast.stack.anvil().mine(1).await;
    cast.stack.wait_confirmed(&lower).await;
    cast.stack.wait_confirmed(&upper).await;
    cast.assert_one_effect(2).await;
    cast.stack.finish().await;
}

/// Scenario 33: "replacement underpriced" means that the earlier attempt is in the mempool; that one is mined.
#[tokio::test(flavor = "multi_thread")]
async fn replacement_underpriced_leaves_the_earlier_attempt_alive() {
    let cast = Cast::of(&[SubmitClass::ReplacementUnderpriced], |stack| stack.mining(Mining::Manual)).await;
    let tx_ids = cast.create("outbid").await;
    cast.stack.wait_pending(tx_ids.len() as u64).await;
    cast.refuse_all(None);
    for tx_id in &tx_ids {
        let path = format!("/api/v1/tx/{tx_id}/speed-up?wait=60s");
        let answer = cast.stack.client().admin_post(&path, &json!({ "reason": "a customer waits" })).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        assert_eq!(cast.stack.wait_attempts(*tx_id, 2).await[1].kind, "REPLACEMENT");
    }
    cast.wait_each(&tx_ids, shows_error(None)).await;
    cast.stack.anvil().mine(1).await;
    for ((index, case, _), tx_id) in cast.parts().zip(&tx_ids) {
        let row = cast.stack.wait_for(*tx_id, TxState::Confirmed).await;
        let attempts = cast.stack.attempts(*tx_id).await;
        assert_eq!((row.tx_hash, attempts.len()), (Some(attempts[0].tx_hash), 2), "{case:?}");
        assert_eq!(cast.stack.anvil().balance(Cast::payee(index)).await, 1.into(), "{case:?}");
    }
    cast.stack.finish().await;
}

/// Scenario 33: "underpriced" is resent unchanged if bumping is off.
#[tokio::test(flavor = "multi_thread")]
async fn underpriced_waits_with_the_same_bytes_where_bumping_is_off() {
    let cast = Cast::of(&[SubmitClass::Underpriced], |stack| stack).await;
    cast.back_off_and_go_on(shows_error(None)).await.finish().await;
}

/// Scenario 33: "underpriced" gets a higher price if bumping is on.
#[tokio::test(flavor = "multi_thread")]
async fn underpriced_is_priced_again_where_bumping_is_on() {
    let cast = Cast::of(&[SubmitClass::Underpriced], |stack| {
        stack.set("gasbump.enabled", true).set("gasbump.min_interval", "300ms").set("gasbump.max_attempts", 1)
    })
    .await;
    cast.refuse_all(None);
    let tx_ids = cast.create("cheap").await;
    for tx_id in &tx_ids {
        assert_eq!(cast.stack.wait_attempts(*tx_id, 2).await[1].kind, "REPLACEMENT");
    }
    cast.stack.proxy().clear();
    cast.stack.wait_confirmed(&tx_ids).await;
    for (index, case, _) in cast.parts() {
        assert_eq!(cast.stack.anvil().balance(Cast::payee(index)).await, 1.into(), "{case:?}");
    }
    cast.stack.finish().await;
}

/// Scenario 33: "insufficient funds" blocks the lane visibly, and it continues by itself.
#[tokio::test(flavor = "multi_thread")]
async fn insufficient_funds_waits_for_funds_and_goes_on() {
    let cast = Cast::of(&[SubmitClass::InsufficientFunds], |stack| stack).await;
    cast.back_off_and_go_on(shows_error(Some("waiting_funds"))).await.finish().await;
}

/// Scenario 33: a full mempool, a limit for delegated accounts, a cap of the node, a failing node: retried with the
/// same bytes.
#[tokio::test(flavor = "multi_thread")]
async fn trouble_that_passes_is_waited_for_with_the_same_bytes() {
    let passing = [
        SubmitClass::PoolFull,
        SubmitClass::DelegatedLimit,
        SubmitClass::FeeCapExceeded,
        SubmitClass::Unavailable,
    ];
    let cast = Cast::of(&passing, |stack| stack).await;
    let handled = |case: ErrorCase, row: &TxRow| {
        let why = match case.class {
            class if class == SubmitClass::DelegatedLimit.as_str() => Some("delegated_limit"),
            class if class == SubmitClass::Unavailable.as_str() => Some("waiting_node"),
            _ => None,
        };
        shows_error(why)(case, row)
    };
    cast.back_off_and_go_on(handled).await.finish().await;
}

/// Scenario 33: an unknown error is stored, counted, logged with its message, and retried.
#[tokio::test(flavor = "multi_thread")]
async fn unknown_words_are_counted_and_logged_and_it_is_tried_again() {
    let cast = Cast::of(&[SubmitClass::Unknown], |stack| stack).await;
    let words: Vec<&str> = cast.rows.iter().map(|case| case.text).collect();
    let stack = cast.back_off_and_go_on(shows_error(None)).await;
    let worker = &stack.workers()[0];
    assert!(worker.metric("gapless_tx_submit_unknown_total", &[]).await >= words.len() as f64);
    let log = worker.log();
    for text in words {
        assert!(log.contains(text), "{text}");
    }
    stack.finish().await;
}

/// Scenario 33: a transaction that no node will ever accept is FAILED, and a placeholder consumes the nonce; the next
/// one is mined.
#[tokio::test(flavor = "multi_thread")]
async fn fatal_words_end_in_failed_and_the_nonce_is_consumed() {
    let cast = Cast::of(&[SubmitClass::Fatal], |stack| stack).await;
    for (_, case, who) in cast.parts() {
        cast.stack.proxy().next_to(SendsOf { from: who.address(), nonce: Some(0) }, case.refusal());
    }
    let (refused, next) = (cast.create("refused").await, cast.create("next").await);
    for ((_, case, _), tx_id) in cast.parts().zip(&refused) {
        let row = cast.stack.wait_for(*tx_id, TxState::Failed).await;
        assert_eq!(row.nonce, Some(0), "{case:?}");
        assert!(row.last_error.unwrap().contains(case.text), "{case:?}");
        let attempts = cast.stack.attempts(*tx_id).await;
        let kinds: Vec<&str> = attempts.iter().map(|attempt| attempt.kind.as_str()).collect();
        assert_eq!(kinds, ["ORIGINAL", "PLACEHOLDER"], "{case:?}");
        assert_eq!(attempts[0].last_outcome.as_deref(), Some("fatal"), "{case:?}");
    }
    for tx_id in next {
        assert_eq!(cast.stack.wait_for(tx_id, TxState::Confirmed).await.nonce, Some(1));
    }
    for (index, case, _) in cast.parts() {
        assert_eq!(cast.stack.anvil().balance(Cast::payee(index)).await, 1.into(), "{case:?}");
    }
    cast.stack.finish().await;
}

/// Scenario 33: a fatal error for a transaction that the node has: the chain decides, and the state shows the result.
#[tokio::test(flavor = "multi_thread")]
async fn fatal_words_about_bytes_that_are_mined_all_the_same_are_not_believed() {
    let cast = Cast::of(&[SubmitClass::Fatal], |stack| stack).await;
    for (_, case, who) in cast.parts() {
        cast.stack.proxy().next_to(SendsOf { from: who.address(), nonce: None }, case.lie());
    }
    let tx_ids = cast.create("mined").await;
    for ((index, case, _), tx_id) in cast.parts().zip(&tx_ids) {
        let row = cast.stack.wait_for(*tx_id, TxState::Confirmed).await;
        assert_eq!(row.tx_hash, Some(cast.stack.attempts(*tx_id).await[0].tx_hash), "{case:?}");
        assert_eq!(cast.stack.anvil().balance(Cast::payee(index)).await, 1.into(), "{case:?}");
    }
    cast.stack.finish().await;
}
