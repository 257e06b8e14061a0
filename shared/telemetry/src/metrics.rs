//! All metrics: names, units, labels and descriptions.
//!
//! Labels have few values (results, routes, chains, duties), never addresses, hashes or transactions.

use std::sync::OnceLock;

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};

use super::initial_counters::{Program, register};

/// API. `result`: created, existing, or the `code` of the problem.
pub const TX_CREATE_TOTAL: &str = "gapless_tx_create_total";
/// API. `route`: operation id or `other`; `status`: HTTP status.
pub const HTTP_REQUEST_SECONDS: &str = "gapless_http_request_seconds";
/// API. Rows per group insert.
pub const INTAKE_BATCH_SIZE: &str = "gapless_intake_batch_size";
/// API. Open connections.
pub const API_CONNECTIONS: &str = "gapless_api_connections";
pub const JSON_RPC_CALLS_TOTAL: &str = "gapless_json_rpc_calls_total";
/// API. Long-polling requests that wait for a transaction to be final.
pub const LONG_POLLS: &str = "gapless_long_polls";
/// Both. Log lines dropped because the reader of the log is too slow.
pub const LOG_LINES_DROPPED_TOTAL: &str = "gapless_log_lines_dropped_total";
/// Both. Requests to the collector of traces. `result`: ok, failed. Spans of failed requests may be lost.
pub const TRACE_EXPORTS_TOTAL: &str = "gapless_trace_exports_total";

/// Worker. `result`: insert (first owner), free (was released), takeover (expired under its last owner), renew,
/// not_owner (another worker was faster), lost (detected by a renewal), error. `renew` counts each lease of each
/// renewal.
pub const LEASE_ACQUIRE_TOTAL: &str = "gapless_lease_acquire_total";
/// Worker. `operation`: see `FencedWrite::operation`. Writes rejected because the lease was lost.
pub const LEASE_FENCED_TOTAL: &str = "gapless_lease_fenced_total";
/// Worker. `send`: first, or again for bytes sent before; `result`: class of the node's response, or no_answer.
pub const TX_SUBMIT_TOTAL: &str = "gapless_tx_submit_total";
/// Worker. `place`: block (its hash was seen in a block), early (on a chain with instant mining), lane (after the rows
/// were read, before a resend, for a stale receipt), attribution (which transaction consumed a nonce); `result`:
/// found, missing, error. Found and missing count receipts, error counts look-ups.
pub const RECEIPT_CHECK_TOTAL: &str = "gapless_receipt_check_total";
/// Worker. `result`: final (the block is canonical at the required depth), replaced (another block is), unknown.
pub const FINALITY_CHECK_TOTAL: &str = "gapless_finality_check_total";
/// Worker. `result`: confirmed, failed, cancelled. Intents that became final, counted after the commit.
pub const TX_FINAL_TOTAL: &str = "gapless_tx_final_total";
/// Worker. `action`: wait, rebroadcast, bump, cancel, escalate. Policy decisions for intents that became STUCK.
pub const STUCK_DECISIONS_TOTAL: &str = "gapless_stuck_decisions_total";
/// Worker. Reorgs seen by this process.
pub const CONFIRMATIONS_NEW_FORK_TOTAL: &str = "gapless_confirmations_new_fork_total";
/// Worker. Events that this process moved to the event log.
pub const EVENTS_LOGGED_TOTAL: &str = "gapless_events_logged_total";
/// Worker. Failed tries to order events.
pub const EVENT_SEQUENCER_ERRORS_TOTAL: &str = "gapless_event_sequencer_errors_total";
/// Worker. Position of the newest event, on the worker that orders them.
pub const EVENT_LOG_POSITION: &str = "gapless_event_log_position";
/// API. Open event streams.
pub const EVENT_STREAMS: &str = "gapless_event_streams";
/// API. `reason`: slow (the client read too slowly), key (revoked or expired), stop (the server stops). Streams that the
/// server ended.
pub const EVENT_STREAMS_ENDED_TOTAL: &str = "gapless_event_streams_ended_total";
/// API and worker. `reason`: epoch (the database was restored or failed over), retention (the events were dropped).
/// Readers and webhooks whose cursor has no place in the log.
pub const EVENT_RESETS_TOTAL: &str = "gapless_event_resets_total";
/// Worker. `result`: delivered, failed (tried again later), exhausted (the last attempt failed). Attempts of webhook
/// deliveries.
pub const WEBHOOK_DELIVERIES_TOTAL: &str = "gapless_webhook_deliveries_total";
/// Worker. `reason`: gone, failing, key_revoked. Webhooks that were disabled by themselves.
pub const WEBHOOKS_DISABLED_TOTAL: &str = "gapless_webhooks_disabled_total";
/// Worker. `outlet`: id of the webhook; there are at most `api.max_webhooks`. Events after its cursor, on its owner.
pub const OUTLET_LAG_EVENTS: &str = "gapless_outlet_lag_events";
/// Worker. `outlet`: id of the webhook. Age of the oldest event after its cursor.
pub const OUTLET_LAG_SECONDS: &str = "gapless_outlet_lag_seconds";
/// Worker. `outlet`: id of the webhook. 1 while all of its deliveries fail.
pub const OUTLET_FAILING: &str = "gapless_outlet_failing";
/// Worker. Fenced writes per transaction.
pub const WRITER_BATCH_SIZE: &str = "gapless_writer_batch_size";
/// Worker. Duration of one transaction of fenced writes, including the commit.
pub const WRITER_FLUSH_SECONDS: &str = "gapless_writer_flush_seconds";
/// Worker. `chain`: chain id. Intents without a nonce.
pub const QUEUE_DEPTH: &str = "gapless_queue_depth";
/// Worker. `chain`: chain id. Age of the oldest intent without a nonce.
pub const QUEUE_OLDEST_AGE_SECONDS: &str = "gapless_queue_oldest_age_seconds";
/// Worker. `chain`: chain id. Intents with a nonce that are in no block.
pub const UNMINED_TRANSACTIONS: &str = "gapless_unmined_transactions";
/// Worker. `chain`: chain id. Time since the oldest of them was assigned its nonce.
pub const UNMINED_OLDEST_AGE_SECONDS: &str = "gapless_unmined_oldest_age_seconds";
/// Worker. `chain`: chain id. Mined intents that are not final.
pub const TRACKING_TRANSACTIONS: &str = "gapless_tracking_transactions";
/// Worker. `chain`: chain id. Time since the oldest of them was assigned its nonce.
pub const TRACKING_OLDEST_AGE_SECONDS: &str = "gapless_tracking_oldest_age_seconds";
/// Worker. `queue`: mailbox (the longest of all lanes), writer, reader_rows, reader_heads, reader_spent, ended_lanes,
/// blocks. Entries in internal queues, sampled every second.
pub const INTERNAL_QUEUE_DEPTH: &str = "gapless_internal_queue_depth";
/// Worker. `queue`: mailbox, blocks. Entries dropped because the queue was full; the reader is notified and reloads.
pub const INTERNAL_QUEUE_DROPPED_TOTAL: &str = "gapless_internal_queue_dropped_total";
/// `queue`: api_keys in the API; writer, reader_rows, reader_heads, reader_spent in the worker. Requests that waited for free
/// capacity.
pub const INTERNAL_QUEUE_WAITS_TOTAL: &str = "gapless_internal_queue_waits_total";
/// Worker. Submitters this process owns.
pub const LANES: &str = "gapless_lanes";
/// Worker. `chain`: chain id. Submitters in PROTECT.
pub const PROTECTED_SUBMITTERS: &str = "gapless_protected_submitters";
/// Worker. `chain`: chain id. Submitters in SUSPECT: a consumed nonce is unexplained, so they get no new nonces.
pub const SUSPECT_SUBMITTERS: &str = "gapless_suspect_submitters";
/// Worker. `chain`: chain id; `reason`: funds, fee, node, signer. Longest time that the head of a queue has been
/// blocked.
pub const LANE_BLOCKED_SECONDS: &str = "gapless_lane_blocked_seconds";
/// Worker. `chain`: chain id. Submitters with a shared key.
pub const SHARED_SUBMITTERS: &str = "gapless_shared_submitters";
/// Worker. `how`: stepped_over, displaced. Nonces of shared keys used by external transactions.
pub const EXTERNAL_NONCES_TOTAL: &str = "gapless_external_nonces_total";
/// Worker. `rule`: allow, deploy, max_value, max_value_per_day. Intents refused by a submitter's policy.
pub const POLICY_REFUSED_TOTAL: &str = "gapless_policy_refused_total";
/// Worker. `chain`: chain id. Intents that are STUCK.
pub const STUCK_TRANSACTIONS: &str = "gapless_stuck_transactions";
/// Worker. `chain`: chain id. Submitters below `balance.low`, as last counted by this process; one worker runs the
/// duty.
pub const SUBMITTER_BALANCE_LOW: &str = "gapless_submitter_balance_low";
/// Worker. `duty`, `result`: ok, error.
pub const DUTY_RUNS_TOTAL: &str = "gapless_duty_runs_total";
/// Worker. `method`: JSON-RPC method. Time from call to response, including waiting for a batch.
pub const RPC_REQUEST_SECONDS: &str = "gapless_rpc_request_seconds";
/// Worker. Calls per HTTP request.
pub const RPC_BATCH_SIZE: &str = "gapless_rpc_batch_size";
/// Worker. `kind`: why there was no response.
pub const RPC_ERRORS_TOTAL: &str = "gapless_rpc_errors_total";
/// Worker. `chain`: chain id; `node`: host and port. 1: reachable, correct chain, and at the head.
pub const RPC_NODE_HEALTHY: &str = "gapless_rpc_node_healthy";
/// Worker. `chain`: chain id; `node`: host and port. Blocks behind the best node of the chain.
pub const RPC_NODE_LAG_BLOCKS: &str = "gapless_rpc_node_lag_blocks";
/// Worker. Unclassified responses to a broadcast.
pub const TX_SUBMIT_UNKNOWN_TOTAL: &str = "gapless_tx_submit_unknown_total";
/// Worker. `verdict`: where an unmined transaction was found.
pub const MEMPOOL_DIAGNOSES_TOTAL: &str = "gapless_mempool_diagnoses_total";
pub const MEMPOOL_ACTIONS_TOTAL: &str = "gapless_mempool_actions_total";
/// Worker. `signer`: kind of remote signer; `result`: signed, refused, different (from the request), unavailable.
pub const SIGNER_REQUESTS_TOTAL: &str = "gapless_signer_requests_total";
/// Worker. `signer`: kind of remote signer. Time from request to checked response, including waiting for a slot.
pub const SIGNER_REQUEST_SECONDS: &str = "gapless_signer_request_seconds";

/// From a local round trip to the maximum long poll.
const SECONDS_BUCKETS: [f64; 14] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 60.0];
const SIZE_BUCKETS: [f64; 10] = [1.0, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0, 500.0, 1000.0];

/// Renders the current values in the Prometheus text format.
#[derive(Clone)]
pub struct MetricsHandle(PrometheusHandle);

impl MetricsHandle {
    pub fn render(&self) -> String {
        // Aggregates the histograms' samples, which otherwise accumulate between scrapes.
        self.0.run_upkeep();
        self.0.render()
    }

    /// Call it periodically in a process that is not scraped.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

impl std::fmt::Debug for MetricsHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MetricsHandle")
    }
}

/// Installs the process-wide recorder on the first call; later calls return the same handle.
pub fn install_metrics(program: Program) -> MetricsHandle {
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
            register(program);
            handle
        })
        .clone()
}

fn describe() {
    describe_counter!(TX_CREATE_TOTAL, "Create requests by result");
    describe_histogram!(HTTP_REQUEST_SECONDS, Unit::Seconds, "HTTP requests by route and status");
    describe_counter!(EVENTS_LOGGED_TOTAL, Unit::Count, "Events that this process moved to the event log");
    describe_counter!(EVENT_SEQUENCER_ERRORS_TOTAL, Unit::Count, "Failed tries to order events");
    describe_gauge!(EVENT_LOG_POSITION, Unit::Count, "Position of the newest event");
    describe_gauge!(EVENT_STREAMS, Unit::Count, "Open event streams");
    describe_counter!(
        EVENT_STREAMS_ENDED_TOTAL,
        Unit::Count,
        "Event streams that the server ended, by reason"
    );
    describe_counter!(
        EVENT_RESETS_TOTAL,
        Unit::Count,
        "Readers whose cursor has no place in the event log, by reason"
    );
    describe_counter!(WEBHOOK_DELIVERIES_TOTAL, Unit::Count, "Attempts of webhook deliveries by result");
    describe_counter!(WEBHOOKS_DISABLED_TOTAL, Unit::Count, "Webhooks disabled by themselves, by reason");
    describe_gauge!(OUTLET_LAG_EVENTS, Unit::Count, "Events after the cursor of an outlet");
    describe_gauge!(
        OUTLET_LAG_SECONDS,
        Unit::Seconds,
        "Age of the oldest event after the cursor of an outlet"
    );
    describe_gauge!(OUTLET_FAILING, Unit::Count, "1 while all deliveries to an outlet fail");
    describe_histogram!(INTAKE_BATCH_SIZE, Unit::Count, "Rows per group insert");
    describe_counter!(
        JSON_RPC_CALLS_TOTAL,
        Unit::Count,
        "Calls of the JSON-RPC endpoint, by method and result"
    );
    describe_gauge!(API_CONNECTIONS, Unit::Count, "Open connections of clients");
    describe_gauge!(LONG_POLLS, Unit::Count, "Long-polling requests that wait for a transaction to be final");
    describe_counter!(LOG_LINES_DROPPED_TOTAL, "Log lines dropped because the reader of the log is too slow");
    describe_counter!(TRACE_EXPORTS_TOTAL, "Requests to the collector of traces by result");
    describe_counter!(LEASE_ACQUIRE_TOTAL, "Lease acquisitions and renewals by result");
    describe_counter!(LEASE_FENCED_TOTAL, "Writes rejected because the lease was lost, by operation");
    describe_counter!(TX_SUBMIT_TOTAL, "First and repeated broadcasts by class of the node's response");
    describe_counter!(RECEIPT_CHECK_TOTAL, "Receipt look-ups of watcher and lanes by place and result");
    describe_counter!(FINALITY_CHECK_TOTAL, "Checks of blocks at the required depth by result");
    describe_counter!(TX_FINAL_TOTAL, "Intents that became final, by result");
    describe_counter!(STUCK_DECISIONS_TOTAL, "Decisions about stuck intents by action");
    describe_counter!(CONFIRMATIONS_NEW_FORK_TOTAL, "Reorgs seen by this process");
    describe_histogram!(WRITER_BATCH_SIZE, Unit::Count, "Fenced writes per transaction");
    describe_histogram!(
        WRITER_FLUSH_SECONDS,
        Unit::Seconds,
        "Transactions of fenced writes, including the commit"
    );
    describe_gauge!(QUEUE_DEPTH, Unit::Count, "Intents without a nonce");
    describe_gauge!(QUEUE_OLDEST_AGE_SECONDS, Unit::Seconds, "Age of the oldest intent without a nonce");
    describe_gauge!(UNMINED_TRANSACTIONS, Unit::Count, "Intents with a nonce that are in no block");
    describe_gauge!(UNMINED_OLDEST_AGE_SECONDS, Unit::Seconds, "Age of the oldest unmined nonce");
    describe_gauge!(TRACKING_TRANSACTIONS, Unit::Count, "Mined intents that are not final");
    describe_gauge!(
        TRACKING_OLDEST_AGE_SECONDS,
        Unit::Seconds,
        "Age of the oldest mined nonce that is not final"
    );
    describe_gauge!(INTERNAL_QUEUE_DEPTH, Unit::Count, "Entries in internal queues of this process");
    describe_counter!(INTERNAL_QUEUE_DROPPED_TOTAL, "Entries dropped because an internal queue was full");
    describe_counter!(INTERNAL_QUEUE_WAITS_TOTAL, "Requests that waited for a full internal queue");
    describe_gauge!(LANES, Unit::Count, "Submitters this process owns");
    describe_gauge!(PROTECTED_SUBMITTERS, Unit::Count, "Submitters in PROTECT");
    describe_gauge!(
        LANE_BLOCKED_SECONDS,
        Unit::Seconds,
        "Longest time that the head of a queue has been blocked"
    );
    describe_gauge!(SUSPECT_SUBMITTERS, Unit::Count, "Submitters with a consumed nonce that is unexplained");
    describe_gauge!(SHARED_SUBMITTERS, Unit::Count, "Submitters with a shared key");
    describe_counter!(EXTERNAL_NONCES_TOTAL, "Nonces of shared keys used by external transactions");
    describe_counter!(POLICY_REFUSED_TOTAL, "Intents refused by a submitter's policy, by rule");
    describe_gauge!(STUCK_TRANSACTIONS, Unit::Count, "Transactions unmined for too long");
    describe_gauge!(SUBMITTER_BALANCE_LOW, Unit::Count, "Submitters below balance.low");
    describe_counter!(DUTY_RUNS_TOTAL, "Runs of scheduled duties by result");
    describe_histogram!(RPC_REQUEST_SECONDS, Unit::Seconds, "JSON-RPC calls by method");
    describe_histogram!(RPC_BATCH_SIZE, Unit::Count, "JSON-RPC calls per HTTP request");
    describe_counter!(RPC_ERRORS_TOTAL, "JSON-RPC requests without a response, by kind");
    describe_gauge!(
        RPC_NODE_HEALTHY,
        Unit::Count,
        "Whether a node is reachable, on the correct chain and at the head"
    );
    describe_gauge!(RPC_NODE_LAG_BLOCKS, Unit::Count, "Blocks a node is behind the best node of its chain");
    describe_counter!(TX_SUBMIT_UNKNOWN_TOTAL, "Unclassified responses to a broadcast");
    describe_counter!(MEMPOOL_DIAGNOSES_TOTAL, "Mempool look-ups of unmined transactions by result");
    describe_counter!(MEMPOOL_ACTIONS_TOTAL, "Actions triggered by a mempool diagnosis, by action");
    describe_counter!(SIGNER_REQUESTS_TOTAL, "Requests to remote signers by kind and result");
    describe_histogram!(SIGNER_REQUEST_SECONDS, Unit::Seconds, "Requests to remote signers by kind");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_metric_is_rendered_with_its_buckets() {
        let handle = install_metrics(Program::Api);
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
