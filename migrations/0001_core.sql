-- The core schema. Time is always the database's; addresses and hashes are lower-case 0x text, so that psql shows
-- what a block explorer shows. Foreign keys are absent on purpose: none may point at submitter_lease (an insert's
-- key-share lock would make SKIP LOCKED skip a busy submitter), and the fenced statements join the rows they need.

CREATE TABLE chain (
    chain_id      BIGINT PRIMARY KEY,
    genesis_hash  TEXT NOT NULL,
    first_seen_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE chain IS 'A chain as first seen; a different genesis under the same id means the chain was reset.';
COMMENT ON COLUMN chain.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN chain.genesis_hash IS 'Hash of block 0 when this deployment first met the chain.';
COMMENT ON COLUMN chain.first_seen_at IS 'When that was.';

CREATE TABLE submitter (
    chain_id      BIGINT NOT NULL,
    submitter     TEXT NOT NULL,
    signer        TEXT NOT NULL,
    status        TEXT NOT NULL DEFAULT 'ACTIVE',
    status_reason TEXT,
    max_in_flight INT,
    created_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    updated_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chain_id, submitter),
    CONSTRAINT submitter_address_is_lower_case CHECK (submitter ~ '^0x[0-9a-f]{40}$'),
    CONSTRAINT submitter_status_is_known CHECK (status IN ('ACTIVE', 'PAUSED')),
    CONSTRAINT submitter_window_is_positive CHECK (max_in_flight > 0)
);
COMMENT ON TABLE submitter IS 'One address on one chain. Announced by a worker that can sign for it; paused and resumed by an operator.';
COMMENT ON COLUMN submitter.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN submitter.submitter IS 'Address, lower-case 0x hex.';
COMMENT ON COLUMN submitter.signer IS 'Kind of signer that announced it: keystore, raw_key.';
COMMENT ON COLUMN submitter.status IS 'ACTIVE, or PAUSED: open transactions are still followed, no new nonce is given.';
COMMENT ON COLUMN submitter.status_reason IS 'Why it is paused.';
COMMENT ON COLUMN submitter.max_in_flight IS 'Window of this submitter; null means the configured one.';
COMMENT ON COLUMN submitter.created_at IS 'First announcement.';
COMMENT ON COLUMN submitter.updated_at IS 'Last change of status or window.';

CREATE TABLE submitter_lease (
    chain_id      BIGINT NOT NULL,
    submitter     TEXT NOT NULL,
    owner_node    TEXT,
    fencing_token BIGINT NOT NULL DEFAULT 0,
    lease_id      UUID,
    expires_at    TIMESTAMPTZ NOT NULL DEFAULT '-infinity',
    PRIMARY KEY (chain_id, submitter)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE submitter_lease IS 'Who owns a submitter now. Locked first by every protected write. No index on expires_at: renewals must stay HOT.';
COMMENT ON COLUMN submitter_lease.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN submitter_lease.submitter IS 'Address, lower-case 0x hex.';
COMMENT ON COLUMN submitter_lease.owner_node IS 'Worker process that owns it; null while free.';
COMMENT ON COLUMN submitter_lease.fencing_token IS 'Grows by one with each acquisition; 0 before the first.';
COMMENT ON COLUMN submitter_lease.lease_id IS 'Random per acquisition: what the fence compares. Null while free.';
COMMENT ON COLUMN submitter_lease.expires_at IS 'Until when nobody else may take it. Liveness only; safety is the row lock.';

CREATE TABLE submitter_nonce_cursor (
    chain_id        BIGINT NOT NULL,
    submitter       TEXT NOT NULL,
    start_nonce     BIGINT NOT NULL,
    next_nonce      BIGINT NOT NULL,
    in_flight_tx_id UUID,
    in_flight_nonce BIGINT,
    in_flight_state TEXT NOT NULL DEFAULT 'IDLE',
    protect_reason  TEXT,
    max_in_flight   INT NOT NULL,
    fencing_token   BIGINT NOT NULL,
    updated_at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chain_id, submitter),
    CONSTRAINT cursor_state_is_known CHECK (in_flight_state IN ('IDLE', 'IN_FLIGHT', 'PROTECT')),
    CONSTRAINT cursor_protect_has_reason CHECK ((in_flight_state = 'PROTECT') = (protect_reason IS NOT NULL)),
    CONSTRAINT cursor_in_flight_is_whole CHECK ((in_flight_tx_id IS NULL) = (in_flight_nonce IS NULL)),
    CONSTRAINT cursor_idle_has_none CHECK (in_flight_state <> 'IDLE' OR in_flight_nonce IS NULL),
    CONSTRAINT cursor_in_flight_has_one CHECK (in_flight_state <> 'IN_FLIGHT' OR in_flight_nonce IS NOT NULL),
    CONSTRAINT cursor_in_flight_is_below_next CHECK (in_flight_nonce < next_nonce),
    CONSTRAINT cursor_next_is_after_start CHECK (next_nonce >= start_nonce AND start_nonce >= 0)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE submitter_nonce_cursor IS 'Where a submitter''s sequence stands. Written behind the fence only.';
COMMENT ON COLUMN submitter_nonce_cursor.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN submitter_nonce_cursor.submitter IS 'Address, lower-case 0x hex.';
COMMENT ON COLUMN submitter_nonce_cursor.start_nonce IS 'First nonce of the sequence: what the chain counted at first use or at the last adoption.';
COMMENT ON COLUMN submitter_nonce_cursor.next_nonce IS 'Nonce the next intent gets. Never falls.';
COMMENT ON COLUMN submitter_nonce_cursor.in_flight_tx_id IS 'Intent that holds the oldest nonce of the window.';
COMMENT ON COLUMN submitter_nonce_cursor.in_flight_nonce IS 'Oldest nonce of the window.';
COMMENT ON COLUMN submitter_nonce_cursor.in_flight_state IS 'IDLE, IN_FLIGHT, or PROTECT: stopped until an operator releases it.';
COMMENT ON COLUMN submitter_nonce_cursor.protect_reason IS 'What was seen when it stopped.';
COMMENT ON COLUMN submitter_nonce_cursor.max_in_flight IS 'Window in force when the last nonce was given.';
COMMENT ON COLUMN submitter_nonce_cursor.fencing_token IS 'Token of the owner that wrote last.';
COMMENT ON COLUMN submitter_nonce_cursor.updated_at IS 'When.';

CREATE TABLE managed_tx (
    tx_id             UUID PRIMARY KEY,
    seq               BIGINT GENERATED ALWAYS AS IDENTITY,
    chain_id          BIGINT NOT NULL,
    submitter         TEXT NOT NULL,
    request_id        TEXT NOT NULL,
    payload           JSONB NOT NULL,
    payload_hash      BYTEA NOT NULL,
    not_before        TIMESTAMPTZ,
    deadline          TIMESTAMPTZ,
    state             TEXT NOT NULL DEFAULT 'QUEUED',
    sub_state         TEXT,
    nonce             BIGINT,
    tx_hash           TEXT,
    replaced_by_hash  TEXT,
    submit_attempts   INT NOT NULL DEFAULT 0,
    last_submit_at    TIMESTAMPTZ,
    next_resubmit_at  TIMESTAMPTZ,
    last_error        TEXT,
    last_gas_params   JSONB,
    last_mempool_diag JSONB,
    receipt           JSONB,
    block_number      BIGINT,
    block_hash        TEXT,
    confirmations     JSONB,
    prepared_at       TIMESTAMPTZ,
    confirmed_at      TIMESTAMPTZ,
    finished_at       TIMESTAMPTZ,
    fencing_token     BIGINT,
    trace_context     TEXT,
    created_at        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    updated_at        TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT managed_tx_request_is_unique UNIQUE (chain_id, submitter, request_id),
    CONSTRAINT managed_tx_request_id_length CHECK (length(request_id) BETWEEN 1 AND 200),
    CONSTRAINT managed_tx_state_is_known CHECK (state IN
        ('QUEUED', 'IN_FLIGHT', 'SUBMITTED', 'TRACKING', 'STUCK', 'PROTECT', 'CONFIRMED', 'FAILED', 'CANCELLED')),
    CONSTRAINT managed_tx_nonce_iff_needed CHECK (CASE
        WHEN state = 'QUEUED' THEN nonce IS NULL
        WHEN state IN ('FAILED', 'CANCELLED') THEN TRUE
        ELSE nonce IS NOT NULL END),
    CONSTRAINT managed_tx_finished_iff_terminal CHECK
        ((finished_at IS NOT NULL) = (state IN ('CONFIRMED', 'FAILED', 'CANCELLED'))),
    CONSTRAINT managed_tx_confirmed_iff_state CHECK ((confirmed_at IS NOT NULL) = (state = 'CONFIRMED')),
    CONSTRAINT managed_tx_tracked_has_receipt CHECK
        (state NOT IN ('TRACKING', 'CONFIRMED') OR (receipt IS NOT NULL AND block_number IS NOT NULL AND block_hash IS NOT NULL)),
    CONSTRAINT managed_tx_worked_on_has_token CHECK (state = 'QUEUED' OR fencing_token IS NOT NULL)
) WITH (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX managed_tx_nonce_is_unique ON managed_tx (chain_id, submitter, nonce) WHERE nonce IS NOT NULL;
CREATE INDEX managed_tx_queue ON managed_tx (chain_id, submitter, seq) WHERE state = 'QUEUED';
CREATE INDEX managed_tx_open ON managed_tx (chain_id, submitter, nonce) WHERE finished_at IS NULL AND nonce IS NOT NULL;
CREATE INDEX managed_tx_finished ON managed_tx (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX managed_tx_by_submitter ON managed_tx (chain_id, submitter, tx_id);
COMMENT ON TABLE managed_tx IS 'One intent. The API inserts it QUEUED; everything after that is written by the owner of the submitter''s lease.';
COMMENT ON COLUMN managed_tx.tx_id IS 'Opaque id given to the client; time-ordered (UUID version 7).';
COMMENT ON COLUMN managed_tx.seq IS 'Order within a submitter''s queue.';
COMMENT ON COLUMN managed_tx.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN managed_tx.submitter IS 'Sender address, lower-case 0x hex.';
COMMENT ON COLUMN managed_tx.request_id IS 'The client''s idempotency key, unique per submitter.';
COMMENT ON COLUMN managed_tx.payload IS 'The validated intent in canonical form.';
COMMENT ON COLUMN managed_tx.payload_hash IS 'SHA-256 of the canonical payload: tells a repeated request from a different one.';
COMMENT ON COLUMN managed_tx.not_before IS 'Not eligible before; does not hold up the queue.';
COMMENT ON COLUMN managed_tx.deadline IS 'Cancelled if it has no nonce by then.';
COMMENT ON COLUMN managed_tx.state IS 'See docs/state-machine.md.';
COMMENT ON COLUMN managed_tx.sub_state IS 'Why it waits, for example waiting_funds, waiting_signer.';
COMMENT ON COLUMN managed_tx.nonce IS 'Given together with the signed bytes; never shown to clients.';
COMMENT ON COLUMN managed_tx.tx_hash IS 'Hash of the current attempt, or of the one that was mined.';
COMMENT ON COLUMN managed_tx.replaced_by_hash IS 'Hash of the attempt that took the nonce instead, once that is decided.';
COMMENT ON COLUMN managed_tx.submit_attempts IS 'Sends claimed so far, the first included.';
COMMENT ON COLUMN managed_tx.last_submit_at IS 'When the last send was claimed.';
COMMENT ON COLUMN managed_tx.next_resubmit_at IS 'When the same bytes are due again; moved on before each resend.';
COMMENT ON COLUMN managed_tx.last_error IS 'The node''s or the signer''s last complaint, or the reason of a failure.';
COMMENT ON COLUMN managed_tx.last_gas_params IS 'Fees and gas limit of the current attempt.';
COMMENT ON COLUMN managed_tx.last_mempool_diag IS 'Last mempool diagnosis (advice only).';
COMMENT ON COLUMN managed_tx.receipt IS 'Receipt as last read.';
COMMENT ON COLUMN managed_tx.block_number IS 'Height of the receipt''s block.';
COMMENT ON COLUMN managed_tx.block_hash IS 'Hash of the receipt''s block; must stay canonical.';
COMMENT ON COLUMN managed_tx.confirmations IS 'Confirming blocks as last notified (newFork contract).';
COMMENT ON COLUMN managed_tx.prepared_at IS 'When the nonce was given.';
COMMENT ON COLUMN managed_tx.confirmed_at IS 'When the required depth was reached.';
COMMENT ON COLUMN managed_tx.finished_at IS 'When a terminal state was reached.';
COMMENT ON COLUMN managed_tx.fencing_token IS 'Token of the owner that wrote last.';
COMMENT ON COLUMN managed_tx.trace_context IS 'W3C traceparent of the request that created it.';
COMMENT ON COLUMN managed_tx.created_at IS 'When it was accepted.';
COMMENT ON COLUMN managed_tx.updated_at IS 'Last change.';

CREATE TABLE tx_attempt (
    attempt_id    UUID PRIMARY KEY,
    tx_id         UUID NOT NULL,
    chain_id      BIGINT NOT NULL,
    submitter     TEXT NOT NULL,
    nonce         BIGINT NOT NULL,
    kind          TEXT NOT NULL,
    raw_tx        BYTEA NOT NULL,
    tx_hash       TEXT NOT NULL,
    gas_params    JSONB NOT NULL,
    first_sent_at TIMESTAMPTZ,
    last_sent_at  TIMESTAMPTZ,
    last_outcome  TEXT,
    displaced_at  TIMESTAMPTZ,
    fencing_token BIGINT NOT NULL,
    created_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT tx_attempt_kind_is_known CHECK (kind IN ('ORIGINAL', 'REPLACEMENT', 'PLACEHOLDER')),
    CONSTRAINT tx_attempt_hash_is_unique UNIQUE (chain_id, tx_hash)
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX tx_attempt_original_is_unique ON tx_attempt (tx_id) WHERE kind = 'ORIGINAL' AND displaced_at IS NULL;
CREATE INDEX tx_attempt_by_tx ON tx_attempt (tx_id);
COMMENT ON TABLE tx_attempt IS 'Signed bytes. Inserted, in the commit that gives the nonce, before they leave the process.';
COMMENT ON COLUMN tx_attempt.attempt_id IS 'Id of the attempt.';
COMMENT ON COLUMN tx_attempt.tx_id IS 'Intent it serves. A live intent has one ORIGINAL: it is never given a second nonce.';
COMMENT ON COLUMN tx_attempt.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN tx_attempt.submitter IS 'Sender address, lower-case 0x hex.';
COMMENT ON COLUMN tx_attempt.nonce IS 'Nonce in the bytes.';
COMMENT ON COLUMN tx_attempt.kind IS 'ORIGINAL, REPLACEMENT (same intent, other fee) or PLACEHOLDER (consumes the nonce only).';
COMMENT ON COLUMN tx_attempt.raw_tx IS 'The signed transaction, as it goes to the node.';
COMMENT ON COLUMN tx_attempt.tx_hash IS 'Its hash.';
COMMENT ON COLUMN tx_attempt.gas_params IS 'Fees and gas limit it was signed with.';
COMMENT ON COLUMN tx_attempt.first_sent_at IS 'First answer of a node to a send; may lag behind the send itself.';
COMMENT ON COLUMN tx_attempt.last_sent_at IS 'Last answer of a node to a send.';
COMMENT ON COLUMN tx_attempt.last_outcome IS 'Class of that answer.';
COMMENT ON COLUMN tx_attempt.displaced_at IS 'When an operator declared the bytes dead because the nonce is finally someone else''s.';
COMMENT ON COLUMN tx_attempt.fencing_token IS 'Token of the owner that signed it.';
COMMENT ON COLUMN tx_attempt.created_at IS 'When it was committed.';

CREATE TABLE chain_block (
    chain_id    BIGINT NOT NULL,
    number      BIGINT NOT NULL,
    hash        TEXT NOT NULL,
    parent_hash TEXT NOT NULL,
    seen_at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chain_id, number)
);
COMMENT ON TABLE chain_block IS 'Recent canonical blocks, kept by one elected worker per chain. Confirmations are derived from it.';
COMMENT ON COLUMN chain_block.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN chain_block.number IS 'Height.';
COMMENT ON COLUMN chain_block.hash IS 'Canonical hash at that height.';
COMMENT ON COLUMN chain_block.parent_hash IS 'Its parent.';
COMMENT ON COLUMN chain_block.seen_at IS 'When it was first seen as canonical.';

CREATE TABLE outbox_event (
    event_id   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid        XID8 NOT NULL DEFAULT pg_current_xact_id(),
    chain_id   BIGINT NOT NULL,
    submitter  TEXT NOT NULL,
    tx_id      UUID,
    kind       TEXT NOT NULL,
    data       JSONB NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox_event IS 'Domain events, written in the transaction of the state change when a delivering mode is on.';
COMMENT ON COLUMN outbox_event.event_id IS 'Order within a transaction.';
COMMENT ON COLUMN outbox_event.xid IS 'Writing transaction: readers stay below the xmin horizon, so that order of commit is order of reading.';
COMMENT ON COLUMN outbox_event.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN outbox_event.submitter IS 'Address, lower-case 0x hex.';
COMMENT ON COLUMN outbox_event.tx_id IS 'Intent; null for events of a submitter.';
COMMENT ON COLUMN outbox_event.kind IS 'For example tx.confirmed.';
COMMENT ON COLUMN outbox_event.data IS 'Body of the event; never a nonce.';
COMMENT ON COLUMN outbox_event.created_at IS 'When.';

CREATE TABLE audit_log (
    audit_id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    chain_id      BIGINT NOT NULL,
    submitter     TEXT NOT NULL,
    action        TEXT NOT NULL,
    reason        TEXT NOT NULL,
    actor         TEXT NOT NULL,
    requested_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    applied_at    TIMESTAMPTZ,
    fencing_token BIGINT,
    outcome       TEXT,
    refused       BOOLEAN NOT NULL DEFAULT FALSE,
    CONSTRAINT audit_log_action_is_known CHECK (action IN ('pause', 'resume', 'release', 'adopt')),
    CONSTRAINT audit_log_reason_is_given CHECK (length(reason) BETWEEN 1 AND 1000)
);
CREATE INDEX audit_log_pending ON audit_log (chain_id, submitter) WHERE applied_at IS NULL;
COMMENT ON TABLE audit_log IS 'What operators asked for, and what came of it. Release and adopt are carried out by the lane, behind the fence.';
COMMENT ON COLUMN audit_log.audit_id IS 'Order.';
COMMENT ON COLUMN audit_log.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN audit_log.submitter IS 'Address, lower-case 0x hex.';
COMMENT ON COLUMN audit_log.action IS 'pause, resume, release or adopt.';
COMMENT ON COLUMN audit_log.reason IS 'The operator''s words.';
COMMENT ON COLUMN audit_log.actor IS 'Who asked, as far as the API knows.';
COMMENT ON COLUMN audit_log.requested_at IS 'When it was asked.';
COMMENT ON COLUMN audit_log.applied_at IS 'When it was carried out; null while it waits for the lane.';
COMMENT ON COLUMN audit_log.fencing_token IS 'Token of the owner that carried it out.';
COMMENT ON COLUMN audit_log.outcome IS 'What it led to, or why it was refused.';
COMMENT ON COLUMN audit_log.refused IS 'The lane looked into it and changed nothing.';

CREATE TABLE worker_node (
    node_id    TEXT PRIMARY KEY,
    signer_set TEXT NOT NULL,
    lanes      INT NOT NULL DEFAULT 0,
    max_leases INT NOT NULL,
    started_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    seen_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE worker_node IS 'Heartbeats of worker processes: how many share the work. Liveness only.';
COMMENT ON COLUMN worker_node.node_id IS 'Process.';
COMMENT ON COLUMN worker_node.signer_set IS 'Fingerprint of the chains and addresses it can serve; workers with the same set share alike.';
COMMENT ON COLUMN worker_node.lanes IS 'Submitters it owned at the last heartbeat.';
COMMENT ON COLUMN worker_node.max_leases IS 'Submitters it may own at once.';
COMMENT ON COLUMN worker_node.started_at IS 'When it started.';
COMMENT ON COLUMN worker_node.seen_at IS 'Last heartbeat.';

CREATE TABLE duty_lease (
    duty       TEXT PRIMARY KEY,
    owner_node TEXT NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    last_run   TIMESTAMPTZ NOT NULL DEFAULT '-infinity'
);
COMMENT ON TABLE duty_lease IS 'One holder per duty (cron duties, head of a chain).';
COMMENT ON COLUMN duty_lease.duty IS 'Name of the duty.';
COMMENT ON COLUMN duty_lease.owner_node IS 'Worker that holds it.';
COMMENT ON COLUMN duty_lease.expires_at IS 'Until when.';
COMMENT ON COLUMN duty_lease.last_run IS 'Scheduled time of the last run, so that a hand-over repeats none.';
