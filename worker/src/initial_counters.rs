//! Counters with a label whose values are defined by other crates, registered at the start with the value 0.

use gapless_chain::SubmitClass;
use gapless_domain::mempool::Verdict;
use gapless_domain::policy::Rule;
use gapless_store::FencedWrite;
use gapless_telemetry::{metrics as m, register_counter};

pub(crate) fn register() {
    let mut results = SubmitClass::ALL.map(SubmitClass::as_str).to_vec();
    results.push("no_answer");
    register_counter(m::TX_SUBMIT_TOTAL, &[("send", &["first", "again"]), ("result", &results)]);
    register_counter(m::LEASE_FENCED_TOTAL, &[("operation", &FencedWrite::OPERATIONS)]);
    register_counter(m::MEMPOOL_DIAGNOSES_TOTAL, &[("verdict", &Verdict::ALL.map(Verdict::as_str))]);
    register_counter(m::POLICY_REFUSED_TOTAL, &[("rule", &Rule::ALL.map(Rule::as_str))]);
}
