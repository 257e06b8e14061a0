//! Every metric of Gapless: name, unit, labels, meaning. No metric is named anywhere else.
//!
//! Labels are bounded: outcomes, route names, chains, duties. Never an address, a hash or a transaction.

use std::sync::OnceLock;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

/// API. `result`: created, existing, or the `code` of the problem.
pub const TX_CREATE_TOTAL: &str = "gapless_tx_create_total";
/// API. `route`: operation id or `other`; `status`: HTTP status.
pub const HTTP_REQUEST_SECONDS: &str = "gapless_http_request_seconds";
/// API. Rows per group insert.
pub const INTAKE_BATCH_SIZE: &str = "gapless_intake_batch_size";
/// API. Connections that are open.
pub const API_CONNECTIONS: &str = "gapless_api_connections";
/// API. Requests that wait for a transaction to be final.
pub const LONG_POLLS: &str = "gapless_long_polls";
/// Both. Lines that were not logged because whoever reads the log is too slow.
pub const LOG_LINES_DROPPED_TOTAL: &str = "gapless_log_lines_dropped_total";

/// Worker. `result`: insert (its first owner ever), free (it had been given back), takeover (it had expired under its last
/// owner), renew, not_owner (someone was faster), lost (found by a renewal), error. `renew` counts each lease of each renewal.
pub const LEASE_ACQUIRE_TOTAL: &str = "gapless_lease_acquire_total";
/// Worker. `operation`: what the write was for, as `FencedWrite::operation` names it. Writes refused because the lease was lost.
pub const LEASE_FENCED_TOTAL: &str = "gapless_lease_fenced_total";
/// Worker. `send`: first, or again for bytes of which an earlier send is known; `result`: class of the node's answer, or no_answer.
pub const TX_SUBMIT_TOTAL: &str = "gapless_tx_submit_total";
/// Worker. `place`: who looks: block (its hash was seen in one), early (on a chain that mines at once), lane (after the rows were
/// read, before a resend, for a stale receipt), attribution (who consumed a nonce); `result`: found, missing, error. Found and
/// missing count receipts, error counts look-ups.
pub const RECEIPT_CHECK_TOTAL: &str = "gapless_receipt_check_total";
/// Worker. `result`: final (its block is canonical at the required depth), replaced (another block is), unknown (no node could say).
pub const FINALITY_CHECK_TOTAL: &str = "gapless_finality_check_total";
/// Worker. `result`: confirmed, failed, cancelled. Intents that ended, after the commit.
pub const TX_FINAL_TOTAL: &str = "gapless_tx_final_total";
/// Worker. `action`: wait, rebroadcast, bump, cancel, escalate. What the policy wanted for intents that became STUCK.
pub const STUCK_DECISIONS_TOTAL: &str = "gapless_stuck_decisions_total";
/// Worker. Times that blocks were replaced, as seen by this process.
pub const CONFIRMATIONS_NEW_FORK_TOTAL: &str = "gapless_confirmations_new_fork_total";
/// Worker. Fenced writes per transaction.
pub const WRITER_BATCH_SIZE: &str = "gapless_writer_batch_size";
/// Worker. One transaction of fenced writes, commit included.
pub const WRITER_FLUSH_SECONDS: &str = "gapless_writer_flush_seconds";
/// Worker. `chain`: chain id. Intents without a nonce.
pub const QUEUE_DEPTH: &str = "gapless_queue_depth";
/// Worker. `chain`: chain id. Age of the oldest intent without a nonce.
pub const QUEUE_OLDEST_AGE_SECONDS: &str = "gapless_queue_oldest_age_seconds";
/// Worker. `chain`: chain id. Intents with a nonce that are in no block.
pub const UNMINED_TRANSACTIONS: &str = "gapless_unmined_transactions";
/// Worker. `chain`: chain id. How long ago the oldest of them was given its nonce.
pub const UNMINED_OLDEST_AGE_SECONDS: &str = "gapless_unmined_oldest_age_seconds";
/// Worker. `chain`: chain id. Intents in a block that is not final: the backlog of receipts.
pub const TRACKING_TRANSACTIONS: &str = "gapless_tracking_transactions";
/// Worker. `chain`: chain id. How long ago the oldest of them was given its nonce.
pub const TRACKING_OLDEST_AGE_SECONDS: &str = "gapless_tracking_oldest_age_seconds";
/// Worker. `queue`: mailbox (the fullest of all lanes), writer, reader_rows, reader_heads, reader_spent, ended_lanes, blocks. What waits
/// inside this process, looked at every second.
pub const INTERNAL_QUEUE_DEPTH: &str = "gapless_internal_queue_depth";
/// Worker. `queue`: mailbox, blocks. What did not fit; whoever reads the queue is told that something is missing and reads anew.
pub const INTERNAL_QUEUE_DROPPED_TOTAL: &str = "gapless_internal_queue_dropped_total";
/// Worker. `queue`: writer, reader_rows, reader_heads, reader_spent. Questions that waited for room.
pub const INTERNAL_QUEUE_WAITS_TOTAL: &str = "gapless_internal_queue_waits_total";
/// Worker. Submitters this process owns.
pub const LANES: &str = "gapless_lanes";
/// Worker. `chain`: chain id. Submitters that wait for an operator.
pub const PROTECTED_SUBMITTERS: &str = "gapless_protected_submitters";
/// Worker. `chain`: chain id. Submitters with a consumed nonce that nothing explains: they get no new nonces.
pub const SUSPECT_SUBMITTERS: &str = "gapless_suspect_submitters";
/// Worker. `chain`: chain id; `reason`: funds, fee, node, signer. How long the head of a queue has been blocked, the longest of all.
pub const LANE_BLOCKED_SECONDS: &str = "gapless_lane_blocked_seconds";
/// Worker. `chain`: chain id. Submitters whose key others use as well.
pub const SHARED_SUBMITTERS: &str = "gapless_shared_submitters";
/// Worker. `how`: stepped_over, displaced. Nonces of shared submitters that others used.
pub const EXTERNAL_NONCES_TOTAL: &str = "gapless_external_nonces_total";
/// Worker. `rule`: allow, deploy, max_value, max_value_per_day. What policies of submitters refused.
pub const POLICY_REFUSED_TOTAL: &str = "gapless_policy_refused_total";
/// Worker. `chain`: chain id. Intents that are STUCK.
pub const STUCK_TRANSACTIONS: &str = "gapless_stuck_transactions";
/// Worker. `chain`: chain id. Submitters below `balance.low`, as this process last counted; the duty has one holder.
pub const SUBMITTER_BALANCE_LOW: &str = "gapless_submitter_balance_low";
/// Worker. `duty`, `result`: ok, error.
pub const DUTY_RUNS_TOTAL: &str = "gapless_duty_runs_total";
/// Worker. `method`: of the JSON-RPC call. From the call to its answer, waiting for a batch included.
pub const RPC_REQUEST_SECONDS: &str = "gapless_rpc_request_seconds";
/// Worker. Calls per HTTP request.
pub const RPC_BATCH_SIZE: &str = "gapless_rpc_batch_size";
/// Worker. `kind`: what kept us from an answer.
pub const RPC_ERRORS_TOTAL: &str = "gapless_rpc_errors_total";
/// Worker. `chain`: chain id; `node`: host and port. 1: of the right chain, at the head, and it answers.
pub const RPC_NODE_HEALTHY: &str = "gapless_rpc_node_healthy";
/// Worker. `chain`: chain id; `node`: host and port. Blocks behind the best node of the chain, as last asked.
pub const RPC_NODE_LAG_BLOCKS: &str = "gapless_rpc_node_lag_blocks";
/// Worker. Answers to a broadcast that no pattern knows.
pub const TX_SUBMIT_UNKNOWN_TOTAL: &str = "gapless_tx_submit_unknown_total";
/// Worker. `verdict`: where an unmined transaction seemed to be.
pub const MEMPOOL_DIAGNOSES_TOTAL: &str = "gapless_mempool_diagnoses_total";
pub const MEMPOOL_ACTIONS_TOTAL: &str = "gapless_mempool_actions_total";
/// Worker. `signer`: kind of remote signer; `result`: signed, refused, different (from what was asked), unavailable.
pub const SIGNER_REQUESTS_TOTAL: &str = "gapless_signer_requests_total";
/// Worker. `signer`: kind of remote signer. From asking to the checked answer, waiting for a turn included.
pub const SIGNER_REQUEST_SECONDS: &str = "gapless_signer_request_seconds";

/// From a local round trip to the longest long poll.
const SECONDS_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0];
const SIZE_BUCKETS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];

/// Gives the current values in the Prometheus text format.
#[derive(Clone)]
pub struct MetricsHandle(PrometheusHandle);

impl MetricsHandle {
    pub fn render(&self) -> String {
        // Folds the histograms' raw samples together; without it they pile up between scrapes.
        self.0.run_upkeep();
        self.0.render()
    }

    /// To be called now and then in a process that nobody scrapes.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

impl std::fmt::Debug for MetricsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MetricsHandle")
    }
}

/// Installs the process-wide recorder on the first call; later calls give the same handle.
pub fn install_metrics() -> MetricsHandle {
    static HANDLE: OnceLock<MetricsHandle> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let recorder = PrometheusBuilder::new()
                .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), &SECONDS_BUCKETS)
                .expect("the list of buckets is not empty")
                .set_buckets_for_metric(Matcher::Suffix("_size".into()), &SIZE_BUCKETS)
                .expect("the list of buckets is not empty")
                .build_recorder();
            let handle = MetricsHandle(recorder.handle());
            if metrics::set_global_recorder(recorder).is_err() {
                tracing::warn!("another metrics recorder is installed; /metrics stays empty");
            }
            describe();
            handle
        })
        .clone()
}

fn describe() {
    describe_counter!(TX_CREATE_TOTAL, "Create requests by result");
    describe_histogram!(HTTP_REQUEST_SECONDS, Unit::Seconds, "HTTP requests by route and status");
    describe_histogram!(INTAKE_BATCH_SIZE, Unit::Count, "Rows per group insert");
    describe_gauge!(API_CONNECTIONS, Unit::Count, "Open connections of clients");
    describe_gauge!(LONG_POLLS, Unit::Count, "Requests that wait for a transaction to be final");
    describe_counter!(LOG_LINES_DROPPED_TOTAL, "Log lines dropped because the log's reader is too slow");
    describe_counter!(LEASE_ACQUIRE_TOTAL, "Lease acquisitions and renewals by result");
    describe_counter!(LEASE_FENCED_TOTAL, "Writes refused because the lease was lost, by operation");
    describe_counter!(TX_SUBMIT_TOTAL, "First and repeated broadcasts by class of the node's answer");
    describe_counter!(RECEIPT_CHECK_TOTAL, "Receipt look-ups of watcher and lanes by place and result");
    describe_counter!(FINALITY_CHECK_TOTAL, "Checks of blocks at the required depth by result");
    describe_counter!(TX_FINAL_TOTAL, "Intents that ended, by result");
    describe_counter!(STUCK_DECISIONS_TOTAL, "Decisions about stuck intents by action");
    describe_counter!(
        CONFIRMATIONS_NEW_FORK_TOTAL,
        "Times that blocks were replaced, as seen by this process"
    );
    describe_histogram!(WRITER_BATCH_SIZE, Unit::Count, "Fenced writes per transaction");
    describe_histogram!(
        WRITER_FLUSH_SECONDS,
        Unit::Seconds,
        "Transactions of fenced writes, commit included"
    );
    describe_gauge!(QUEUE_DEPTH, Unit::Count, "Intents without a nonce");
    describe_gauge!(QUEUE_OLDEST_AGE_SECONDS, Unit::Seconds, "Age of the oldest intent without a nonce");
    describe_gauge!(UNMINED_TRANSACTIONS, Unit::Count, "Intents with a nonce that are in no block");
    describe_gauge!(UNMINED_OLDEST_AGE_SECONDS, Unit::Seconds, "Age of the oldest unmined nonce");
    describe_gauge!(TRACKING_TRANSACTIONS, Unit::Count, "Intents in a block that is not final");
    describe_gauge!(
        TRACKING_OLDEST_AGE_SECONDS,
        Unit::Seconds,
        "Age of the oldest nonce in a block that is not final"
    );
    describe_gauge!(INTERNAL_QUEUE_DEPTH, Unit::Count, "What waits in queues inside this process");
    describe_counter!(INTERNAL_QUEUE_DROPPED_TOTAL, "What did not fit into queues that may lose it");
    describe_counter!(INTERNAL_QUEUE_WAITS_TOTAL, "Questions that waited for room in a queue");
    describe_gauge!(LANES, Unit::Count, "Submitters this process owns");
    describe_gauge!(PROTECTED_SUBMITTERS, Unit::Count, "Submitters that wait for an operator");
    describe_gauge!(
        LANE_BLOCKED_SECONDS,
        Unit::Seconds,
        "Longest time that the head of a queue has waited for this"
    );
    describe_gauge!(
        SUSPECT_SUBMITTERS,
        Unit::Count,
        "Submitters with a consumed nonce that nothing explains"
    );
    describe_gauge!(SHARED_SUBMITTERS, Unit::Count, "Submitters whose key others use as well");
    describe_counter!(EXTERNAL_NONCES_TOTAL, "Nonces of shared submitters that others used");
    describe_counter!(POLICY_REFUSED_TOTAL, "Intents that policies of submitters refused, by rule");
    describe_gauge!(STUCK_TRANSACTIONS, Unit::Count, "Transactions unmined for too long");
    describe_gauge!(SUBMITTER_BALANCE_LOW, Unit::Count, "Submitters below balance.low");
    describe_counter!(DUTY_RUNS_TOTAL, "Runs of scheduled duties by result");
    describe_histogram!(RPC_REQUEST_SECONDS, Unit::Seconds, "JSON-RPC calls by method");
    describe_histogram!(RPC_BATCH_SIZE, Unit::Count, "JSON-RPC calls per HTTP request");
    describe_counter!(RPC_ERRORS_TOTAL, "JSON-RPC requests without an answer, by kind");
    describe_gauge!(
        RPC_NODE_HEALTHY,
        Unit::Count,
        "Whether a node is of the right chain, at the head, and answers"
    );
    describe_gauge!(RPC_NODE_LAG_BLOCKS, Unit::Count, "Blocks a node is behind the best one of its chain");
    describe_counter!(TX_SUBMIT_UNKNOWN_TOTAL, "Answers to a broadcast that no pattern knows");
    describe_counter!(MEMPOOL_DIAGNOSES_TOTAL, "Looks for unmined transactions by verdict");
    describe_counter!(MEMPOOL_ACTIONS_TOTAL, "What a mempool diagnosis brought forward, by action");
    describe_counter!(SIGNER_REQUESTS_TOTAL, "Requests to remote signers by kind and result");
    describe_histogram!(SIGNER_REQUEST_SECONDS, Unit::Seconds, "Requests to remote signers by kind");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_metric_is_rendered_with_its_buckets() {
        let handle = install_metrics();
        metrics::counter!(TX_CREATE_TOTAL, "result" => "created").increment(2);
        metrics::histogram!(HTTP_REQUEST_SECONDS, "route" => "createTx", "status" => "202").record(0.003);
        let text = handle.render();
        assert!(text.contains("gapless_tx_create_total{result=\"created\"} 2"), "{text}");
        assert!(
            text.contains(
                "gapless_http_request_seconds_bucket{route=\"createTx\",status=\"202\",le=\"0.005\"} 1"
            ),
            "{text}"
        );
    }
}
