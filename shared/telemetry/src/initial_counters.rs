//! Counters that a process registers at its start, with the value 0. Otherwise a rate or an alert on a counter misses its first
//! increment, and a missing metric looks like a missing process.

use super::metrics as m;

/// Which counters a process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Api,
    Worker,
}

/// A label and its values.
pub type Label<'a> = (&'static str, &'a [&'static str]);
/// A counter and, for each of its labels, the values that are known in advance.
type Counter = (&'static str, &'static [Label<'static>]);

const TRACE_EXPORTS: Counter = (m::TRACE_EXPORTS_TOTAL, &[("result", &["ok", "failed"])]);

const EVENT_RESETS: Counter = (m::EVENT_RESETS_TOTAL, &[("reason", &["epoch", "retention"])]);

const API: [Counter; 7] = [
    (m::EVENT_STREAMS_ENDED_TOTAL, &[("reason", &["slow", "key", "stop"])]),
    EVENT_RESETS,
    (m::TX_CREATE_TOTAL, &[("result", &["created", "existing"])]),
    (m::JSON_RPC_CALLS_TOTAL, &[("method", &["eth_sendTransaction"]), ("result", &["ok", "error"])]),
    (m::INTERNAL_QUEUE_WAITS_TOTAL, &[("queue", &["api_keys", "json_rpc"])]),
    (m::LOG_LINES_DROPPED_TOTAL, &[]),
    TRACE_EXPORTS,
];

const WORKER: [Counter; 20] = [
    (m::EVENTS_LOGGED_TOTAL, &[]),
    (m::EVENT_SEQUENCER_ERRORS_TOTAL, &[]),
    EVENT_RESETS,
    (m::WEBHOOK_DELIVERIES_TOTAL, &[("result", &["delivered", "failed", "exhausted"])]),
    (m::WEBHOOKS_DISABLED_TOTAL, &[("reason", &["gone", "failing", "key_revoked"])]),
    (
        m::LEASE_ACQUIRE_TOTAL,
        &[("result", &["insert", "free", "takeover", "renew", "not_owner", "lost", "error"])],
    ),
    (
        m::RECEIPT_CHECK_TOTAL,
        &[("place", &["block", "early", "lane", "attribution"]), ("result", &["found", "missing", "error"])],
    ),
    (m::FINALITY_CHECK_TOTAL, &[("result", &["final", "replaced", "unknown"])]),
    (m::TX_FINAL_TOTAL, &[("result", &["confirmed", "failed", "cancelled"])]),
    (m::STUCK_DECISIONS_TOTAL, &[("action", &["wait", "rebroadcast", "bump", "cancel", "escalate"])]),
    (m::CONFIRMATIONS_NEW_FORK_TOTAL, &[]),
    (m::INTERNAL_QUEUE_DROPPED_TOTAL, &[("queue", &["mailbox", "blocks"])]),
    (
        m::INTERNAL_QUEUE_WAITS_TOTAL,
        &[("queue", &["writer", "reader_rows", "reader_heads", "reader_spent", "reader_late"])],
    ),
    (m::EXTERNAL_NONCES_TOTAL, &[("how", &["stepped_over", "displaced"])]),
    (
        m::DUTY_RUNS_TOTAL,
        &[("duty", &["prune", "audit_nonces", "check_balances"]), ("result", &["ok", "error"])],
    ),
    (m::RPC_ERRORS_TOTAL, &[("kind", &["transport", "timeout", "http", "malformed"])]),
    (m::TX_SUBMIT_UNKNOWN_TOTAL, &[]),
    (m::MEMPOOL_ACTIONS_TOTAL, &[("action", &["bump", "resend", "look_up"])]),
    (m::LOG_LINES_DROPPED_TOTAL, &[]),
    TRACE_EXPORTS,
];

pub(super) fn register(program: Program) {
    let counters: &[Counter] = match program {
        Program::Api => &API,
        Program::Worker => &WORKER,
    };
    for (name, labels) in counters {
        register_counter(name, labels);
    }
}

/// Registers a counter with every combination of its label values.
pub fn register_counter(name: &'static str, labels: &[Label<'_>]) {
    for labels in combinations(labels) {
        metrics::counter!(name, labels).increment(0);
    }
}

fn combinations(labels: &[Label<'_>]) -> Vec<Vec<metrics::Label>> {
    labels.iter().fold(vec![Vec::new()], |found, (label, values)| {
        let with = |begun: &Vec<metrics::Label>| -> Vec<Vec<metrics::Label>> {
            let extended =
                |value: &&'static str| [&begun[..], &[metrics::Label::new(*label, *value)]].concat();
            values.iter().map(extended).collect()
        };
        found.iter().flat_map(with).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_combined() {
        let labels = combinations(&[("send", &["first", "again"]), ("result", &["accepted", "no_answer"])]);
        assert_eq!(labels.len(), 4);
        assert!(labels.contains(&vec![
            metrics::Label::new("send", "again"),
            metrics::Label::new("result", "no_answer")
        ]));
        assert_eq!(combinations(&[]), [Vec::new()]);
    }

    #[test]
    fn every_counter_is_registered_at_the_start() {
        // Registered for each remote signer, by its kind; the others by the worker, which knows their label values.
        const ELSEWHERE: [&str; 5] = [
            m::SIGNER_REQUESTS_TOTAL,
            m::TX_SUBMIT_TOTAL,
            m::LEASE_FENCED_TOTAL,
            m::MEMPOOL_DIAGNOSES_TOTAL,
            m::POLICY_REFUSED_TOTAL,
        ];
        let source = include_str!("metrics.rs");
        let named =
            source.lines().filter_map(|line| line.strip_prefix("pub const ")?.split_once(": &str = \""));
        let counters: Vec<&str> = named
            .filter_map(|(_, value)| value.strip_suffix("\";"))
            .filter(|name| name.ends_with("_total") && !ELSEWHERE.contains(name))
            .collect();
        assert!(counters.len() > 10, "{counters:?}");
        let registered: Vec<&str> = API.iter().chain(&WORKER).map(|(name, _)| *name).collect();
        for counter in counters {
            assert!(registered.contains(&counter), "{counter} is not registered");
        }
    }
}
