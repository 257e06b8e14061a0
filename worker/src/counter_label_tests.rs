//! The label values that a worker registers at its start are those that its code counts.

use gapless_chain::SubmitClass;
use gapless_domain::mempool::Verdict;
use gapless_domain::policy::Rule;
use gapless_store::FencedWrite;
use gapless_telemetry::{metrics as m, worker_label_values};

#[test]
fn every_class_of_a_send_is_registered() {
    let mut expected: Vec<&str> = SubmitClass::ALL.into_iter().map(SubmitClass::as_str).collect();
    expected.push("no_answer");
    assert_eq!(worker_label_values(m::TX_SUBMIT_TOTAL, "result"), expected);
}

#[test]
fn every_operation_of_a_write_is_registered() {
    assert_eq!(worker_label_values(m::LEASE_FENCED_TOTAL, "operation"), FencedWrite::OPERATIONS);
}

#[test]
fn every_verdict_and_every_rule_is_registered() {
    use Rule::{Allow, Deploy, MaxValue, MaxValuePerDay};
    use Verdict::{InMempool, ProbablyLost, ProbablyReplaced, Unknown};
    let verdicts = [InMempool, ProbablyLost, ProbablyReplaced, Unknown].map(Verdict::as_str);
    assert_eq!(worker_label_values(m::MEMPOOL_DIAGNOSES_TOTAL, "verdict"), verdicts);
    let rules = [Allow, Deploy, MaxValue, MaxValuePerDay].map(Rule::as_str);
    assert_eq!(worker_label_values(m::POLICY_REFUSED_TOTAL, "rule"), rules);
}
