-- The complete schema.
--
-- Times are the database's. Addresses and hashes are bytes; the views at the end show them as 0x text (docs/adr/0040). There are no
-- foreign keys: none may point at submitter_lease, because the key-share lock of an insert would make SKIP LOCKED skip a busy submitter,
-- and the fenced statements join the rows they need.

-- Chains and submitters.

CREATE TABLE chain (
    chain_id      BIGINT PRIMARY KEY,
    genesis_hash  BYTEA NOT NULL,
    first_seen_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT chain_genesis_has_32_bytes CHECK (octet_length(genesis_hash) = 32)
);
COMMENT ON TABLE chain IS 'A chain as it was first used. Another genesis hash under the same id means that the chain was reset.';
COMMENT ON COLUMN chain.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN chain.genesis_hash IS 'Hash of block 0 when this deployment first used the chain, 32 bytes.';
COMMENT ON COLUMN chain.first_seen_at IS 'When that was.';

CREATE TABLE submitter (
    chain_id      BIGINT NOT NULL,
    submitter     BYTEA NOT NULL,
    signer        TEXT NOT NULL,
    status        TEXT NOT NULL DEFAULT 'ACTIVE',
    status_reason TEXT,
    max_in_flight INT,
    shared        BOOLEAN NOT NULL DEFAULT FALSE,
    low_level     BOOLEAN NOT NULL DEFAULT FALSE,
    created_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    updated_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chain_id, submitter),
    CONSTRAINT submitter_address_has_20_bytes CHECK (octet_length(submitter) = 20),
    CONSTRAINT submitter_status_is_known CHECK (status IN ('ACTIVE', 'PAUSED')),
    CONSTRAINT submitter_window_is_positive CHECK (max_in_flight > 0)
);
COMMENT ON TABLE submitter IS 'One address on one chain. Announced by a worker that can sign for it; paused and resumed by an operator.';
COMMENT ON COLUMN submitter.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN submitter.submitter IS 'Address, 20 bytes.';
COMMENT ON COLUMN submitter.signer IS 'Kind of signer that announced it: keystore, raw_key, json_rpc, clef, http, aws_kms, gcp_kms.';
COMMENT ON COLUMN submitter.status IS 'ACTIVE, or PAUSED: open transactions are tracked until they are final, no new nonce is assigned.';
COMMENT ON COLUMN submitter.status_reason IS 'Why it is paused.';
COMMENT ON COLUMN submitter.max_in_flight IS 'Window of this submitter; null: the configured one.';
COMMENT ON COLUMN submitter.shared IS 'Others also use the key (nonce.strict.enabled = false): their nonces are skipped.';
COMMENT ON COLUMN submitter.low_level IS 'Its nonces are assigned by the low-level API only, not to requests of the queue.';
COMMENT ON COLUMN submitter.created_at IS 'First announcement.';
COMMENT ON COLUMN submitter.updated_at IS 'Last change of signer, status, window or mode.';

-- Leases and cursors.

CREATE TABLE submitter_lease (
    chain_id           BIGINT NOT NULL,
    submitter          BYTEA NOT NULL,
    owner              TEXT,
    fencing_token      BIGINT NOT NULL DEFAULT 0,
    lease_id           UUID,
    expires_at         TIMESTAMPTZ NOT NULL DEFAULT '-infinity',
    wake_at            TIMESTAMPTZ,
    wake_pause_seconds INT NOT NULL DEFAULT 0,
    blocked_at         TIMESTAMPTZ,
    blocked_seq        BIGINT,
    updated_at         TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chain_id, submitter),
    CONSTRAINT submitter_lease_submitter_has_20_bytes CHECK (octet_length(submitter) = 20)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200);
COMMENT ON TABLE submitter_lease IS 'The current owner of a submitter. Locked first by every fenced write. No index on expires_at and updated_at: renewals must stay heap-only.';
COMMENT ON COLUMN submitter_lease.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN submitter_lease.submitter IS 'Address, 20 bytes.';
COMMENT ON COLUMN submitter_lease.owner IS 'Id of the worker that owns it; null while it is free.';
COMMENT ON COLUMN submitter_lease.fencing_token IS 'Increases by one with each acquisition; 0 before the first.';
COMMENT ON COLUMN submitter_lease.lease_id IS 'Random for each acquisition; the fence compares it. Null while it is free.';
COMMENT ON COLUMN submitter_lease.expires_at IS 'Until when no other worker may claim it. For liveness only; safety comes from the row lock.';
COMMENT ON COLUMN submitter_lease.wake_at IS 'Its queue is blocked and the lease was released: not claimed before this time while slots are scarce. For scheduling only.';
COMMENT ON COLUMN submitter_lease.wake_pause_seconds IS 'The last such pause. Doubles from 1 to 60; 0 after a release for another reason.';
COMMENT ON COLUMN submitter_lease.blocked_at IS 'When it was released because its queue was blocked. A submitter that an operator has changed since is claimed at once.';
COMMENT ON COLUMN submitter_lease.blocked_seq IS 'The last queued intent at that time. With a later one it is claimed at once.';
COMMENT ON COLUMN submitter_lease.updated_at IS 'When the lease was last claimed, renewed, released or woken. Informational.';

CREATE TABLE submitter_nonce_cursor (
    chain_id        BIGINT NOT NULL,
    submitter       BYTEA NOT NULL,
    start_nonce     BIGINT NOT NULL,
    next_nonce      BIGINT NOT NULL,
    open_from       BIGINT NOT NULL DEFAULT 0,
    has_open        BOOLEAN GENERATED ALWAYS AS (open_from < next_nonce) STORED,
    in_flight_tx_id UUID,
    in_flight_nonce BIGINT,
    in_flight_state TEXT NOT NULL DEFAULT 'IDLE',
    protect_reason  TEXT,
    max_in_flight   INT NOT NULL,
    delegated       BOOLEAN NOT NULL DEFAULT FALSE,
    suspect_reason  TEXT,
    suspect_since   TIMESTAMPTZ,
    below_block     BIGINT,
    below_hash      BYTEA,
    above_block     BIGINT,
    above_hash      BYTEA,
    above_count     BIGINT,
    fencing_token   BIGINT NOT NULL,
    updated_at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chain_id, submitter),
    CONSTRAINT cursor_submitter_has_20_bytes CHECK (octet_length(submitter) = 20),
    CONSTRAINT cursor_state_is_known CHECK (in_flight_state IN ('IDLE', 'IN_FLIGHT', 'PROTECT')),
    CONSTRAINT cursor_protect_has_reason CHECK ((in_flight_state = 'PROTECT') = (protect_reason IS NOT NULL)),
    CONSTRAINT cursor_in_flight_is_whole CHECK ((in_flight_tx_id IS NULL) = (in_flight_nonce IS NULL)),
    CONSTRAINT cursor_idle_has_none CHECK (in_flight_state <> 'IDLE' OR in_flight_nonce IS NULL),
    CONSTRAINT cursor_in_flight_has_one CHECK (in_flight_state <> 'IN_FLIGHT' OR in_flight_nonce IS NOT NULL),
    CONSTRAINT cursor_in_flight_is_below_next CHECK (in_flight_nonce < next_nonce),
    CONSTRAINT cursor_in_flight_is_open CHECK (in_flight_nonce >= open_from),
    CONSTRAINT cursor_open_is_below_next CHECK (open_from <= next_nonce),
    CONSTRAINT cursor_next_is_after_start CHECK (next_nonce >= start_nonce AND start_nonce >= 0),
    CONSTRAINT cursor_suspicion_is_whole CHECK ((suspect_reason IS NULL) = (suspect_since IS NULL)),
    CONSTRAINT cursor_below_has_block CHECK (below_hash IS NULL OR below_block IS NOT NULL),
    CONSTRAINT cursor_above_is_whole CHECK
        ((above_block IS NULL) = (above_hash IS NULL) AND (above_block IS NULL) = (above_count IS NULL)),
    CONSTRAINT cursor_hashes_have_32_bytes CHECK (octet_length(below_hash) = 32 AND octet_length(above_hash) = 32)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 200);
CREATE INDEX submitter_nonce_cursor_open ON submitter_nonce_cursor (chain_id, submitter) WHERE has_open;
COMMENT ON TABLE submitter_nonce_cursor IS 'The position of a submitter''s nonce sequence. Written behind the fence only.';
COMMENT ON COLUMN submitter_nonce_cursor.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN submitter_nonce_cursor.submitter IS 'Address, 20 bytes.';
COMMENT ON COLUMN submitter_nonce_cursor.start_nonce IS 'First nonce of the sequence: the chain''s transaction count at the first use or at the last adoption.';
COMMENT ON COLUMN submitter_nonce_cursor.next_nonce IS 'The nonce that the next intent gets. Never decreases.';
COMMENT ON COLUMN submitter_nonce_cursor.open_from IS 'No intent below this nonce is open: a lower bound, and equal to next_nonce if none is open.';
COMMENT ON COLUMN submitter_nonce_cursor.has_open IS 'Intents with a nonce are open; for the index of those cursors.';
COMMENT ON COLUMN submitter_nonce_cursor.in_flight_tx_id IS 'The intent with the oldest nonce of the window.';
COMMENT ON COLUMN submitter_nonce_cursor.in_flight_nonce IS 'Oldest nonce of the window.';
COMMENT ON COLUMN submitter_nonce_cursor.in_flight_state IS 'IDLE, IN_FLIGHT, or PROTECT: stopped until an operator releases or adopts.';
COMMENT ON COLUMN submitter_nonce_cursor.protect_reason IS 'Why it is in PROTECT.';
COMMENT ON COLUMN submitter_nonce_cursor.max_in_flight IS 'The window when the last nonce was assigned.';
COMMENT ON COLUMN submitter_nonce_cursor.delegated IS 'The account had delegated code (EIP-7702) when the lane last checked: nodes accept one transaction at a time.';
COMMENT ON COLUMN submitter_nonce_cursor.suspect_reason IS 'Why the submitter is SUSPECT: the chain counts a nonce, and no node shows the transaction that consumed it. No new nonces while it is set.';
COMMENT ON COLUMN submitter_nonce_cursor.suspect_since IS 'Since when. Informational.';
COMMENT ON COLUMN submitter_nonce_cursor.below_block IS 'The last known block at which the chain counted no more transactions than open_from.';
COMMENT ON COLUMN submitter_nonce_cursor.below_hash IS 'Its hash, 32 bytes; null if the block was final.';
COMMENT ON COLUMN submitter_nonce_cursor.above_block IS 'The first known block at which the chain counted more transactions than are explained.';
COMMENT ON COLUMN submitter_nonce_cursor.above_hash IS 'Its hash, 32 bytes: the bound is valid only while this block is canonical.';
COMMENT ON COLUMN submitter_nonce_cursor.above_count IS 'The transaction count at that block.';
COMMENT ON COLUMN submitter_nonce_cursor.fencing_token IS 'Token of the owner that wrote last.';
COMMENT ON COLUMN submitter_nonce_cursor.updated_at IS 'Time of the last write.';

-- Intents and attempts.

CREATE TABLE managed_tx (
    tx_id               UUID PRIMARY KEY,
    seq                 BIGINT GENERATED ALWAYS AS IDENTITY,
    chain_id            BIGINT NOT NULL,
    submitter           BYTEA NOT NULL,
    request_id          TEXT NOT NULL,
    payload             JSONB NOT NULL,
    payload_hash        BYTEA NOT NULL,
    not_before          TIMESTAMPTZ,
    deadline            TIMESTAMPTZ,
    state               TEXT NOT NULL DEFAULT 'QUEUED',
    queued              BOOLEAN GENERATED ALWAYS AS (state = 'QUEUED') STORED,
    sub_state           TEXT,
    blocked_since       TIMESTAMPTZ,
    nonce               BIGINT,
    tx_hash             BYTEA,
    replaced_by_hash    BYTEA,
    ending              TEXT,
    ending_reason       TEXT,
    ending_code         TEXT,
    submit_attempts     INT NOT NULL DEFAULT 0,
    last_submit_at      TIMESTAMPTZ,
    next_resubmit_at    TIMESTAMPTZ,
    last_error          TEXT,
    error               JSONB,
    last_mempool_diag   JSONB,
    receipt             JSONB,
    block_number        BIGINT,
    block_hash          BYTEA,
    confirmations       JSONB,
    confirmation_hashes BYTEA,
    mined_send_at       TIMESTAMPTZ,
    mined_send_class    TEXT,
    prepared_at         TIMESTAMPTZ,
    submitted_at        TIMESTAMPTZ,
    tracking_at         TIMESTAMPTZ,
    history             JSONB,
    confirmed_at        TIMESTAMPTZ,
    finished_at         TIMESTAMPTZ,
    fencing_token       BIGINT,
    trace_context       TEXT,
    created_at          TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    updated_at          TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT managed_tx_request_is_unique UNIQUE (chain_id, submitter, request_id),
    CONSTRAINT managed_tx_request_id_length CHECK (length(request_id) BETWEEN 1 AND 200),
    CONSTRAINT managed_tx_submitter_has_20_bytes CHECK (octet_length(submitter) = 20),
    CONSTRAINT managed_tx_hashes_have_32_bytes CHECK
        (octet_length(tx_hash) = 32 AND octet_length(replaced_by_hash) = 32 AND octet_length(block_hash) = 32),
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
    CONSTRAINT managed_tx_worked_on_has_token CHECK (state = 'QUEUED' OR fencing_token IS NOT NULL),
    CONSTRAINT managed_tx_ending_is_known CHECK (ending IN ('CANCELLED', 'FAILED')),
    CONSTRAINT managed_tx_ending_has_reason CHECK ((ending IS NULL) = (ending_reason IS NULL)),
    CONSTRAINT managed_tx_error_has_code CHECK
        (error IS NULL OR coalesce(jsonb_typeof(error -> 'code') = 'string', FALSE)),
    CONSTRAINT managed_tx_confirmations_are_final CHECK
        (confirmations IS NULL OR (finished_at IS NOT NULL AND block_number IS NOT NULL)),
    -- 64 blocks with the transaction's own, which has columns.
    CONSTRAINT managed_tx_confirmations_are_few CHECK (confirmation_hashes IS NULL
        OR (confirmations IS NOT NULL AND octet_length(confirmation_hashes) % 32 = 0
            AND octet_length(confirmation_hashes) BETWEEN 32 AND 63 * 32)),
    CONSTRAINT managed_tx_history_is_bounded CHECK (jsonb_array_length(history) <= 64),
    CONSTRAINT managed_tx_mined_send_is_whole CHECK ((mined_send_at IS NULL) = (mined_send_class IS NULL)),
    CONSTRAINT managed_tx_mined_send_is_final CHECK (mined_send_at IS NULL OR finished_at IS NOT NULL)
    -- Space in the page for the two or three versions that follow the first: docs/adr/0017.
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0.05);
-- No index contains state, finished_at, or another column that changes after the nonce is assigned: state changes stay heap-only.
CREATE UNIQUE INDEX managed_tx_nonce_is_unique ON managed_tx (chain_id, submitter, nonce) WHERE nonce IS NOT NULL;
CREATE INDEX managed_tx_queue ON managed_tx (chain_id, submitter, seq) WHERE queued;
CREATE INDEX managed_tx_blocked ON managed_tx (chain_id, submitter, seq) WHERE queued AND blocked_since IS NOT NULL;
CREATE INDEX managed_tx_by_submitter ON managed_tx (chain_id, submitter, tx_id);
COMMENT ON TABLE managed_tx IS 'One intent. The API inserts it QUEUED; everything after that is written by the owner of the submitter''s lease.';
COMMENT ON COLUMN managed_tx.tx_id IS 'Opaque id for the client; ordered by time (UUID version 7).';
COMMENT ON COLUMN managed_tx.seq IS 'Order within a submitter''s queue.';
COMMENT ON COLUMN managed_tx.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN managed_tx.submitter IS 'Address of the sender, 20 bytes.';
COMMENT ON COLUMN managed_tx.request_id IS 'The client''s idempotency key, unique for each submitter.';
COMMENT ON COLUMN managed_tx.payload IS 'The validated request in canonical form.';
COMMENT ON COLUMN managed_tx.payload_hash IS 'SHA-256 of the canonical payload: distinguishes a repeated request from a different one.';
COMMENT ON COLUMN managed_tx.not_before IS 'Gets no nonce before this time; does not delay the rest of the queue.';
COMMENT ON COLUMN managed_tx.deadline IS 'Cancelled if it is not mined by then.';
COMMENT ON COLUMN managed_tx.state IS 'See docs/state-machine.md.';
COMMENT ON COLUMN managed_tx.queued IS 'State QUEUED, for the index of the queue: with an index on the state itself every state change would write to all indexes.';
COMMENT ON COLUMN managed_tx.sub_state IS 'Why it waits, for example waiting_funds, waiting_signer.';
COMMENT ON COLUMN managed_tx.blocked_since IS 'QUEUED: since when it gets no nonce because funds, fee, node or signer are missing. Null otherwise.';
COMMENT ON COLUMN managed_tx.nonce IS 'Assigned together with the signed bytes; never shown to clients.';
COMMENT ON COLUMN managed_tx.tx_hash IS 'Hash of the current attempt, or of the one that was mined; 32 bytes.';
COMMENT ON COLUMN managed_tx.replaced_by_hash IS 'Hash of the attempt that consumed the nonce instead, once that is final; 32 bytes.';
COMMENT ON COLUMN managed_tx.ending IS 'Its final state if a placeholder consumes its nonce: CANCELLED or FAILED. Null while its effect is wanted.';
COMMENT ON COLUMN managed_tx.ending_reason IS 'Why its effect is no longer wanted.';
COMMENT ON COLUMN managed_tx.ending_code IS 'The error code of ending_reason.';
COMMENT ON COLUMN managed_tx.submit_attempts IS 'Number of sends claimed so far, including the first.';
COMMENT ON COLUMN managed_tx.last_submit_at IS 'When the last send was claimed.';
COMMENT ON COLUMN managed_tx.next_resubmit_at IS 'When the same bytes are sent again; advanced before each resend.';
COMMENT ON COLUMN managed_tx.last_error IS 'The last error of a node or signer, or the reason of a failure.';
COMMENT ON COLUMN managed_tx.error IS 'Details of last_error: its code and, for a revert, the returned bytes (at most 1 KiB) and their number. Null without an error.';
COMMENT ON COLUMN managed_tx.last_mempool_diag IS 'Last mempool diagnosis. Informational.';
COMMENT ON COLUMN managed_tx.receipt IS 'Receipt as last read, without the fields that have columns: block_number, block_hash, tx_hash.';
COMMENT ON COLUMN managed_tx.block_number IS 'Height of the receipt''s block.';
COMMENT ON COLUMN managed_tx.block_hash IS 'Hash of the receipt''s block, 32 bytes; must stay canonical.';
COMMENT ON COLUMN managed_tx.confirmations IS 'What made it final, written once with that state: rule (a depth, safe or finalized), count (blocks from its own to the head at that moment), finalBlock (the chain''s safe or finalized block at that moment). Null before, and if it was never mined.';
COMMENT ON COLUMN managed_tx.confirmation_hashes IS 'Hashes of the blocks on top of block_number that made it final, 32 bytes each, concatenated in their order; at most 63. Null if there are none.';
COMMENT ON COLUMN managed_tx.mined_send_at IS 'One more send of the mined bytes, in addition to those recorded in tx_attempt: it was final before the next write, so this needs no write of its own.';
COMMENT ON COLUMN managed_tx.mined_send_class IS 'Class of the response to that send.';
COMMENT ON COLUMN managed_tx.prepared_at IS 'When the nonce was assigned.';
COMMENT ON COLUMN managed_tx.submitted_at IS 'When SUBMITTED was written directly after IN_FLIGHT. Null if it was not, or if history has it.';
COMMENT ON COLUMN managed_tx.tracking_at IS 'When TRACKING was first written, directly after IN_FLIGHT or SUBMITTED. Null if it was not, or if history has it.';
COMMENT ON COLUMN managed_tx.history IS 'State changes after that and before the final state that are not the regular sequence, in order, as [state, time]; the newest 64. Null if there are none.';
COMMENT ON COLUMN managed_tx.confirmed_at IS 'When the required depth was reached.';
COMMENT ON COLUMN managed_tx.finished_at IS 'When a final state was reached.';
COMMENT ON COLUMN managed_tx.fencing_token IS 'Token of the owner that wrote last.';
COMMENT ON COLUMN managed_tx.trace_context IS 'W3C traceparent of the request that created it.';
COMMENT ON COLUMN managed_tx.created_at IS 'When it was accepted.';
COMMENT ON COLUMN managed_tx.updated_at IS 'Last change.';

CREATE TABLE tx_attempt (
    attempt_id    UUID NOT NULL,
    tx_id         UUID NOT NULL,
    ordinal       INT NOT NULL,
    chain_id      BIGINT NOT NULL,
    submitter     BYTEA NOT NULL,
    nonce         BIGINT NOT NULL,
    kind          TEXT NOT NULL,
    raw_tx        BYTEA NOT NULL,
    tx_hash       BYTEA NOT NULL,
    gas_params    JSONB NOT NULL,
    sends         INT,
    first_sent_at TIMESTAMPTZ,
    last_sent_at  TIMESTAMPTZ,
    last_outcome  TEXT,
    last_answer   TEXT,
    displaced_at  TIMESTAMPTZ,
    fencing_token BIGINT NOT NULL,
    created_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    -- An intent has few attempts; one of them is found by the intent's id.
    CONSTRAINT tx_attempt_pkey PRIMARY KEY (tx_id, ordinal),
    CONSTRAINT tx_attempt_hash_is_unique UNIQUE (chain_id, tx_hash),
    CONSTRAINT tx_attempt_submitter_has_20_bytes CHECK (octet_length(submitter) = 20),
    CONSTRAINT tx_attempt_hash_has_32_bytes CHECK (octet_length(tx_hash) = 32),
    CONSTRAINT tx_attempt_kind_is_known CHECK (kind IN ('ORIGINAL', 'REPLACEMENT', 'PLACEHOLDER')),
    CONSTRAINT tx_attempt_ordinal_is_positive CHECK (ordinal > 0),
    CONSTRAINT tx_attempt_sends_are_positive CHECK (sends > 0)
) WITH (fillfactor = 90);
CREATE UNIQUE INDEX tx_attempt_original_is_unique ON tx_attempt (tx_id) WHERE kind = 'ORIGINAL' AND displaced_at IS NULL;
COMMENT ON TABLE tx_attempt IS 'Signed bytes. Committed before they are sent: the first ones together with the nonce, others later for the same nonce.';
COMMENT ON COLUMN tx_attempt.attempt_id IS 'Id of the attempt.';
COMMENT ON COLUMN tx_attempt.tx_id IS 'Its intent. An intent has at most one ORIGINAL that is not displaced: it never gets a second nonce.';
COMMENT ON COLUMN tx_attempt.ordinal IS 'Order in which the attempts of an intent were committed: 1, 2, … Written behind the fence.';
COMMENT ON COLUMN tx_attempt.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN tx_attempt.submitter IS 'Address of the sender, 20 bytes.';
COMMENT ON COLUMN tx_attempt.nonce IS 'Nonce in the bytes.';
COMMENT ON COLUMN tx_attempt.kind IS 'ORIGINAL, REPLACEMENT (same intent, other fee) or PLACEHOLDER (only consumes the nonce).';
COMMENT ON COLUMN tx_attempt.raw_tx IS 'The signed transaction, as it is sent to a node.';
COMMENT ON COLUMN tx_attempt.tx_hash IS 'Its hash, 32 bytes.';
COMMENT ON COLUMN tx_attempt.gas_params IS 'Fees and gas limit it was signed with.';
COMMENT ON COLUMN tx_attempt.sends IS 'Number of recorded sends, answered or not. Null: none is recorded; see managed_tx.mined_send_at.';
COMMENT ON COLUMN tx_attempt.first_sent_at IS 'The first recorded send, answered or not. Null if the intent was final before anything else had to be written; see managed_tx.mined_send_at.';
COMMENT ON COLUMN tx_attempt.last_sent_at IS 'The last recorded send, answered or not; null like first_sent_at.';
COMMENT ON COLUMN tx_attempt.last_outcome IS 'Class of the last response of a node to a send; null like first_sent_at, or if no node has answered.';
COMMENT ON COLUMN tx_attempt.last_answer IS 'Text of the last response of a node; null if it accepted the bytes, or if no node has answered.';
COMMENT ON COLUMN tx_attempt.displaced_at IS 'When an external transaction with the same nonce was accepted as final: these bytes can never be mined.';
COMMENT ON COLUMN tx_attempt.fencing_token IS 'Token of the owner that signed it.';
COMMENT ON COLUMN tx_attempt.created_at IS 'When it was committed, by the database''s clock. Informational: ordinal is the order.';

-- Requests about intents, reservations, external nonces.

CREATE TABLE tx_request (
    request_no    BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tx_id         UUID NOT NULL,
    chain_id      BIGINT NOT NULL,
    submitter     BYTEA NOT NULL,
    action        TEXT NOT NULL,
    reason        TEXT NOT NULL,
    actor         TEXT NOT NULL,
    requested_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    applied_at    TIMESTAMPTZ,
    fencing_token BIGINT,
    outcome       TEXT,
    refused       BOOLEAN NOT NULL DEFAULT FALSE,
    CONSTRAINT tx_request_submitter_has_20_bytes CHECK (octet_length(submitter) = 20),
    CONSTRAINT tx_request_action_is_known CHECK (action IN ('cancel', 'speed_up', 'rebroadcast')),
    CONSTRAINT tx_request_reason_is_given CHECK (length(reason) BETWEEN 1 AND 1000)
);
CREATE INDEX tx_request_by_tx ON tx_request (tx_id);
CREATE INDEX tx_request_pending ON tx_request (chain_id, submitter) WHERE applied_at IS NULL;
-- A request that is repeated while one is pending returns the pending one.
CREATE UNIQUE INDEX tx_request_pending_is_unique ON tx_request (tx_id, action) WHERE applied_at IS NULL;
COMMENT ON TABLE tx_request IS 'Requests about an accepted intent, executed by the lane that owns its submitter.';
COMMENT ON COLUMN tx_request.request_no IS 'Order of the requests.';
COMMENT ON COLUMN tx_request.tx_id IS 'The intent.';
COMMENT ON COLUMN tx_request.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN tx_request.submitter IS 'Address, 20 bytes.';
COMMENT ON COLUMN tx_request.action IS 'cancel, speed_up or rebroadcast.';
COMMENT ON COLUMN tx_request.reason IS 'The reason as given in the request.';
COMMENT ON COLUMN tx_request.actor IS 'Who made the request, as far as the API knows.';
COMMENT ON COLUMN tx_request.requested_at IS 'When it was made.';
COMMENT ON COLUMN tx_request.applied_at IS 'When it was finished: for a speed-up with the commit of its attempt, or of the refusal. Null while it is pending.';
COMMENT ON COLUMN tx_request.fencing_token IS 'Token of the owner that finished it, or that has seen it and is working on it.';
COMMENT ON COLUMN tx_request.outcome IS 'The result, or why it was refused.';
COMMENT ON COLUMN tx_request.refused IS 'The lane checked it and changed nothing.';

CREATE TABLE nonce_reservation (
    tx_id           UUID PRIMARY KEY,
    chain_id        BIGINT NOT NULL,
    submitter       BYTEA NOT NULL,
    via             TEXT NOT NULL,
    owner           UUID NOT NULL,
    reserve_seconds FLOAT8 NOT NULL,
    wanted_until    TIMESTAMPTZ NOT NULL,
    answer_payload  JSONB,
    answer_raw      BYTEA,
    gave_up         TEXT,
    answered_at     TIMESTAMPTZ,
    state           TEXT NOT NULL DEFAULT 'REQUESTED',
    nonce           BIGINT,
    expires_at      TIMESTAMPTZ,
    noted_at        TIMESTAMPTZ,
    settled_at      TIMESTAMPTZ,
    fencing_token   BIGINT,
    requested_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT nonce_reservation_submitter_has_20_bytes CHECK (octet_length(submitter) = 20),
    CONSTRAINT nonce_reservation_via_is_known CHECK (via IN ('with_nonce', 'low_level')),
    CONSTRAINT nonce_reservation_time_is_positive CHECK (reserve_seconds > 0),
    CONSTRAINT nonce_reservation_state_is_known CHECK (state IN ('REQUESTED', 'RESERVED', 'USED', 'RECYCLABLE')),
    CONSTRAINT nonce_reservation_nonce_iff_given CHECK
        ((state <> 'REQUESTED') = (nonce IS NOT NULL AND expires_at IS NOT NULL AND fencing_token IS NOT NULL)),
    CONSTRAINT nonce_reservation_one_answer CHECK
        (num_nonnulls(answer_payload, answer_raw, gave_up) = CASE WHEN answered_at IS NULL THEN 0 ELSE 1 END),
    CONSTRAINT nonce_reservation_used_has_answer CHECK
        (state <> 'USED' OR answer_payload IS NOT NULL OR answer_raw IS NOT NULL),
    CONSTRAINT nonce_reservation_settled_iff_over CHECK ((settled_at IS NOT NULL) = (state IN ('USED', 'RECYCLABLE')))
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX nonce_reservation_nonce_is_unique ON nonce_reservation (chain_id, submitter, nonce) WHERE state = 'RESERVED';
CREATE INDEX nonce_reservation_pending ON nonce_reservation (chain_id, submitter)
    WHERE state = 'RESERVED' AND answered_at IS NOT NULL AND noted_at IS NULL;
COMMENT ON TABLE nonce_reservation IS 'A nonce reserved for a client program. The client requests and answers; the lane assigns the nonce and decides.';
COMMENT ON COLUMN nonce_reservation.tx_id IS 'The intent that has the nonce; also the id of the reservation.';
COMMENT ON COLUMN nonce_reservation.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN nonce_reservation.submitter IS 'Address, 20 bytes.';
COMMENT ON COLUMN nonce_reservation.via IS 'with_nonce or low_level.';
COMMENT ON COLUMN nonce_reservation.owner IS 'Random for each call: only a client that knows it may answer.';
COMMENT ON COLUMN nonce_reservation.reserve_seconds IS 'How long the nonce shall stay reserved, at most nonce.max_reservation.';
COMMENT ON COLUMN nonce_reservation.wanted_until IS 'Renewed by a client that waits; after this time no nonce is assigned.';
COMMENT ON COLUMN nonce_reservation.answer_payload IS 'The client''s transaction for the nonce, in canonical form; the worker signs it.';
COMMENT ON COLUMN nonce_reservation.answer_raw IS 'The transaction as the client signed it. Not an attempt: the lane checks it first.';
COMMENT ON COLUMN nonce_reservation.gave_up IS 'Why the client no longer needs the nonce.';
COMMENT ON COLUMN nonce_reservation.answered_at IS 'When the client answered or gave up.';
COMMENT ON COLUMN nonce_reservation.state IS 'REQUESTED, RESERVED, USED (its transaction is recorded) or RECYCLABLE (the placeholder consumes the nonce).';
COMMENT ON COLUMN nonce_reservation.nonce IS 'Shown to the client; its placeholder was recorded in the same commit.';
COMMENT ON COLUMN nonce_reservation.expires_at IS 'Later answers are refused.';
COMMENT ON COLUMN nonce_reservation.noted_at IS 'When the lane marked an answer that it cannot use yet as seen.';
COMMENT ON COLUMN nonce_reservation.settled_at IS 'When it became USED or RECYCLABLE.';
COMMENT ON COLUMN nonce_reservation.fencing_token IS 'Token of the owner that wrote last.';
COMMENT ON COLUMN nonce_reservation.requested_at IS 'When it was requested.';

CREATE TABLE external_nonce (
    chain_id      BIGINT NOT NULL,
    submitter     BYTEA NOT NULL,
    first_nonce   BIGINT NOT NULL,
    last_nonce    BIGINT NOT NULL,
    cause         TEXT NOT NULL,
    fencing_token BIGINT NOT NULL,
    noted_at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chain_id, submitter, first_nonce, cause),
    CONSTRAINT external_nonce_submitter_has_20_bytes CHECK (octet_length(submitter) = 20),
    CONSTRAINT external_nonce_range_is_sound CHECK (0 <= first_nonce AND first_nonce <= last_nonce),
    CONSTRAINT external_nonce_cause_is_known CHECK (cause IN ('STEPPED_OVER', 'DISPLACED'))
);
COMMENT ON TABLE external_nonce IS 'Nonces of a shared submitter that are left to external senders. Rows remain when the submitter becomes strict again: the audit needs them.';
COMMENT ON COLUMN external_nonce.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN external_nonce.submitter IS 'Address, 20 bytes.';
COMMENT ON COLUMN external_nonce.first_nonce IS 'First nonce of the range.';
COMMENT ON COLUMN external_nonce.last_nonce IS 'Last nonce of the range.';
COMMENT ON COLUMN external_nonce.cause IS 'STEPPED_OVER: the chain or its mempool was ahead of the sequence. DISPLACED: an intent had the nonce and lost it.';
COMMENT ON COLUMN external_nonce.fencing_token IS 'Token of the owner that recorded it.';
COMMENT ON COLUMN external_nonce.noted_at IS 'When it was recorded.';

-- Blocks and events.

CREATE TABLE chain_block (
    chain_id    BIGINT NOT NULL,
    number      BIGINT NOT NULL,
    hash        BYTEA NOT NULL,
    parent_hash BYTEA NOT NULL,
    seen_at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chain_id, number),
    CONSTRAINT chain_block_hashes_have_32_bytes CHECK (octet_length(hash) = 32 AND octet_length(parent_hash) = 32)
);
COMMENT ON TABLE chain_block IS 'Recent canonical blocks, stored by one elected worker for each chain. Used to count and list confirmations.';
COMMENT ON COLUMN chain_block.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN chain_block.number IS 'Height.';
COMMENT ON COLUMN chain_block.hash IS 'Hash of the canonical block at that height, 32 bytes.';
COMMENT ON COLUMN chain_block.parent_hash IS 'Hash of its parent, 32 bytes.';
COMMENT ON COLUMN chain_block.seen_at IS 'When it was first seen as canonical.';

CREATE TABLE outbox_event (
    event_id   BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    chain_id   BIGINT NOT NULL,
    submitter  BYTEA NOT NULL,
    tx_id      UUID,
    kind       TEXT NOT NULL,
    data       JSONB NOT NULL,
    created_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT outbox_event_submitter_has_20_bytes CHECK (octet_length(submitter) = 20)
);
COMMENT ON TABLE outbox_event IS 'Domain events, written in the commit of the state change if a delivering events mode is on.';
COMMENT ON COLUMN outbox_event.event_id IS 'Order within a transaction. Not the order of commits.';
COMMENT ON COLUMN outbox_event.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN outbox_event.submitter IS 'Address, 20 bytes.';
COMMENT ON COLUMN outbox_event.tx_id IS 'Intent; null for events of a submitter.';
COMMENT ON COLUMN outbox_event.kind IS 'For example tx.confirmed.';
COMMENT ON COLUMN outbox_event.data IS 'Body of the event; never a nonce.';
COMMENT ON COLUMN outbox_event.created_at IS 'When it was written.';

-- Audit of operators and policies, API keys.

CREATE TABLE audit_log (
    audit_id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    chain_id      BIGINT NOT NULL,
    submitter     BYTEA NOT NULL,
    action        TEXT NOT NULL,
    reason        TEXT NOT NULL,
    actor         TEXT NOT NULL,
    taken_by      BYTEA,
    taken_block   BIGINT,
    requested_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    applied_at    TIMESTAMPTZ,
    fencing_token BIGINT,
    outcome       TEXT,
    refused       BOOLEAN NOT NULL DEFAULT FALSE,
    CONSTRAINT audit_log_submitter_has_20_bytes CHECK (octet_length(submitter) = 20),
    CONSTRAINT audit_log_action_is_known CHECK (action IN ('pause', 'resume', 'release', 'adopt')),
    CONSTRAINT audit_log_reason_is_given CHECK (length(reason) BETWEEN 1 AND 1000),
    CONSTRAINT audit_log_taken_by_is_whole CHECK ((taken_by IS NULL) = (taken_block IS NULL)),
    CONSTRAINT audit_log_taken_by_is_for_adopt CHECK (taken_by IS NULL OR action = 'adopt'),
    CONSTRAINT audit_log_taken_by_has_32_bytes CHECK (octet_length(taken_by) = 32)
);
CREATE INDEX audit_log_pending ON audit_log (chain_id, submitter) WHERE applied_at IS NULL;
COMMENT ON TABLE audit_log IS 'Requests of operators and their results. Release and adopt are executed by the lane, behind the fence.';
COMMENT ON COLUMN audit_log.audit_id IS 'Order of the requests.';
COMMENT ON COLUMN audit_log.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN audit_log.submitter IS 'Address, 20 bytes.';
COMMENT ON COLUMN audit_log.action IS 'pause, resume, release or adopt.';
COMMENT ON COLUMN audit_log.reason IS 'The reason as given by the operator.';
COMMENT ON COLUMN audit_log.actor IS 'Who made the request, as far as the API knows.';
COMMENT ON COLUMN audit_log.taken_by IS 'adopt: hash of the transaction that consumed a nonce, as given by the operator, 32 bytes. Verified by the worker.';
COMMENT ON COLUMN audit_log.taken_block IS 'The block that contains it, as given by the operator.';
COMMENT ON COLUMN audit_log.requested_at IS 'When it was made.';
COMMENT ON COLUMN audit_log.applied_at IS 'When it was executed; null while it waits for the lane.';
COMMENT ON COLUMN audit_log.fencing_token IS 'Token of the owner that executed it.';
COMMENT ON COLUMN audit_log.outcome IS 'The result, or why it was refused.';
COMMENT ON COLUMN audit_log.refused IS 'The lane checked it and changed nothing.';

-- The policies themselves are in the configuration of the workers, where nobody with access to the database only can change them.
CREATE TABLE policy_audit (
    entry_no      BIGINT GENERATED ALWAYS AS IDENTITY,
    chain_id      BIGINT NOT NULL,
    submitter     BYTEA NOT NULL,
    tx_id         UUID NOT NULL,
    request_id    TEXT NOT NULL,
    decision      TEXT NOT NULL,
    rule          TEXT NOT NULL,
    recipient     BYTEA,
    selector      BYTEA,
    value         NUMERIC(78, 0) NOT NULL,
    limit_value   NUMERIC(78, 0),
    day           DATE NOT NULL,
    day_total     NUMERIC(78, 0),
    worker_id     TEXT NOT NULL,
    fencing_token BIGINT NOT NULL,
    decided_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT policy_audit_pkey PRIMARY KEY (entry_no),
    CONSTRAINT policy_audit_addresses_have_20_bytes CHECK (octet_length(submitter) = 20 AND octet_length(recipient) = 20),
    CONSTRAINT policy_audit_decision_is_known CHECK (decision IN ('REFUSED', 'COUNTED')),
    CONSTRAINT policy_audit_rule_is_known CHECK (rule IN ('allow', 'deploy', 'max_value', 'max_value_per_day')),
    CONSTRAINT policy_audit_selector_has_four_bytes CHECK (octet_length(selector) = 4),
    CONSTRAINT policy_audit_values_are_not_negative CHECK (value >= 0 AND limit_value >= 0 AND day_total >= 0),
    -- The cap itself: a write that would exceed it fails, together with the nonce of the same commit.
    CONSTRAINT policy_audit_count_is_within_its_cap CHECK (decision <> 'COUNTED' OR
        (rule = 'max_value_per_day' AND value > 0 AND limit_value IS NOT NULL AND day_total IS NOT NULL
         AND day_total >= value AND day_total <= limit_value))
);
-- Two counts cannot start from the same total, whoever writes them. Also finds the last total of a day.
CREATE UNIQUE INDEX policy_audit_sums_are_unique ON policy_audit (chain_id, submitter, day, day_total) WHERE decision = 'COUNTED';
-- An intent that lost its nonce and gets another on the same day is counted once.
CREATE UNIQUE INDEX policy_audit_counts_once_a_day ON policy_audit (tx_id, day) WHERE decision = 'COUNTED';
CREATE INDEX policy_audit_by_submitter ON policy_audit (chain_id, submitter, entry_no);
CREATE INDEX policy_audit_by_tx ON policy_audit (tx_id);
COMMENT ON TABLE policy_audit IS 'Decisions of submitters'' policies about intents: every refusal, and everything that counts towards a day''s cap. Append-only: neither program may change or delete a row, and a trigger refuses it for everybody else. Remains when the intent is pruned.';
COMMENT ON COLUMN policy_audit.entry_no IS 'Order of the decisions of one submitter.';
COMMENT ON COLUMN policy_audit.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN policy_audit.submitter IS 'Address whose policy it is, 20 bytes.';
COMMENT ON COLUMN policy_audit.tx_id IS 'The intent. It may be pruned before this row.';
COMMENT ON COLUMN policy_audit.request_id IS 'The client''s idempotency key of the intent.';
COMMENT ON COLUMN policy_audit.decision IS 'REFUSED: it was not signed. COUNTED: it got a nonce in the same commit, and its value counts.';
COMMENT ON COLUMN policy_audit.rule IS 'The key of the policy that decided.';
COMMENT ON COLUMN policy_audit.recipient IS 'The called address, 20 bytes; null for a deployment.';
COMMENT ON COLUMN policy_audit.selector IS 'First four bytes of the call data; null if there are fewer, or for a deployment.';
COMMENT ON COLUMN policy_audit.value IS 'Value of the transaction in wei.';
COMMENT ON COLUMN policy_audit.limit_value IS 'Limit of the rule in wei, as the worker was configured; null for rules without a number.';
COMMENT ON COLUMN policy_audit.day IS 'The day in UTC, by the database''s clock.';
COMMENT ON COLUMN policy_audit.day_total IS 'COUNTED: wei of the day, including this one. REFUSED by max_value_per_day: wei of the day without it. Null otherwise.';
COMMENT ON COLUMN policy_audit.worker_id IS 'Id of the worker that decided.';
COMMENT ON COLUMN policy_audit.fencing_token IS 'Its fencing token.';
COMMENT ON COLUMN policy_audit.decided_at IS 'When it was written.';

CREATE TABLE api_key (
    key_id       TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    secret_hash  BYTEA NOT NULL,
    scopes       TEXT[] NOT NULL,
    submitters   TEXT[],
    rate_limit   FLOAT8,
    rate_burst   INT,
    created_at   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    expires_at   TIMESTAMPTZ,
    revoked_at   TIMESTAMPTZ,
    last_used_at TIMESTAMPTZ,
    CONSTRAINT api_key_id_is_hex CHECK (key_id ~ '^[0-9a-f]{16}$'),
    CONSTRAINT api_key_name_length CHECK (length(name) BETWEEN 1 AND 100),
    CONSTRAINT api_key_hash_is_sha256 CHECK (length(secret_hash) = 32),
    CONSTRAINT api_key_scopes_are_known CHECK
        (cardinality(scopes) > 0 AND scopes <@ ARRAY['tx:write', 'tx:read', 'admin']),
    -- A key with an empty list would be useless; a very long list would make queries too long.
    CONSTRAINT api_key_submitters_are_few CHECK (cardinality(submitters) BETWEEN 1 AND 100),
    CONSTRAINT api_key_submitters_are_addresses CHECK
        (array_to_string(submitters, ' ', '?') ~ '^[1-9][0-9]*:0x[0-9a-f]{40}( [1-9][0-9]*:0x[0-9a-f]{40})*$'),
    CONSTRAINT api_key_rate_is_positive CHECK (rate_limit > 0 AND rate_burst > 0)
);
COMMENT ON TABLE api_key IS 'One key of a client of the API. Its rights never change: another key is created instead. Rows are never deleted, so that revoking the last key does not open the API again.';
COMMENT ON COLUMN api_key.key_id IS 'Random; the part of the key that is not secret.';
COMMENT ON COLUMN api_key.name IS 'Name of the key, chosen when it was created.';
COMMENT ON COLUMN api_key.secret_hash IS 'SHA-256 of the secret. A slower hash would not help: the secret has 256 random bits.';
COMMENT ON COLUMN api_key.scopes IS 'Its rights: tx:write, tx:read, admin. None implies another.';
COMMENT ON COLUMN api_key.submitters IS 'Submitters it is limited to, as text: chain id, colon, 0x address in lower case. Null: all.';
COMMENT ON COLUMN api_key.rate_limit IS 'Requests per second at each API process; null: api.rate_limit.';
COMMENT ON COLUMN api_key.rate_burst IS 'Burst size; null: api.rate_burst.';
COMMENT ON COLUMN api_key.created_at IS 'When it was created.';
COMMENT ON COLUMN api_key.expires_at IS 'From when it is refused; null: never.';
COMMENT ON COLUMN api_key.revoked_at IS 'When it was revoked. Every later request is refused.';
COMMENT ON COLUMN api_key.last_used_at IS 'About when it was last used; written at most once a minute.';

-- Workers and duties.

CREATE TABLE worker (
    worker_id  TEXT PRIMARY KEY,
    signer_set TEXT NOT NULL,
    lanes      INT NOT NULL DEFAULT 0,
    max_leases INT NOT NULL,
    started_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    seen_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE worker IS 'Heartbeats of worker processes: how many share the work. For liveness only.';
COMMENT ON COLUMN worker.worker_id IS 'Id of the worker (worker.id).';
COMMENT ON COLUMN worker.signer_set IS 'Fingerprint of the chains and addresses it can serve; workers with the same set share them evenly.';
COMMENT ON COLUMN worker.lanes IS 'Number of submitters it owned at the last heartbeat.';
COMMENT ON COLUMN worker.max_leases IS 'Number of submitters it may own at once.';
COMMENT ON COLUMN worker.started_at IS 'Its first heartbeat.';
COMMENT ON COLUMN worker.seen_at IS 'Its last heartbeat.';

CREATE TABLE duty_lease (
    duty       TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    expires_at TIMESTAMPTZ NOT NULL,
    last_run   TIMESTAMPTZ NOT NULL DEFAULT '-infinity'
);
COMMENT ON TABLE duty_lease IS 'One owner for each duty: cron duties, and the head of each chain.';
COMMENT ON COLUMN duty_lease.duty IS 'Name of the duty.';
COMMENT ON COLUMN duty_lease.owner IS 'Id of the worker that owns it.';
COMMENT ON COLUMN duty_lease.expires_at IS 'Until when it owns it.';
COMMENT ON COLUMN duty_lease.last_run IS 'Scheduled time of the last run, so that a hand-over repeats none.';

-- Guards.
--
-- They apply to every writer, psql included. The guards of hot tables are AFTER triggers with a condition: a BEFORE trigger would lock
-- the row once more, and the function runs only to report what is wrong (docs/adr/0017).

CREATE FUNCTION managed_tx_move_allowed(from_state TEXT, to_state TEXT) RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT from_state = to_state OR CASE from_state
        WHEN 'QUEUED' THEN to_state IN ('IN_FLIGHT', 'FAILED', 'CANCELLED')
        WHEN 'IN_FLIGHT' THEN to_state IN ('SUBMITTED', 'TRACKING', 'STUCK', 'PROTECT', 'CONFIRMED', 'FAILED', 'CANCELLED')
        WHEN 'SUBMITTED' THEN to_state IN ('TRACKING', 'STUCK', 'PROTECT', 'CONFIRMED', 'FAILED', 'CANCELLED')
        WHEN 'TRACKING' THEN to_state IN ('SUBMITTED', 'STUCK', 'PROTECT', 'CONFIRMED', 'FAILED', 'CANCELLED')
        WHEN 'STUCK' THEN to_state IN ('SUBMITTED', 'TRACKING', 'PROTECT', 'CONFIRMED', 'FAILED', 'CANCELLED')
        WHEN 'PROTECT' THEN to_state IN ('SUBMITTED', 'TRACKING', 'QUEUED')
        ELSE FALSE END
$$;
COMMENT ON FUNCTION managed_tx_move_allowed IS 'The state machine of an intent; the same as TxState::may_become and docs/state-machine.md.';

CREATE FUNCTION submitter_is_shared(of_chain BIGINT, of_submitter BYTEA) RETURNS BOOLEAN
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM submitter s WHERE s.chain_id = of_chain AND s.submitter = of_submitter AND s.shared)
$$;
COMMENT ON FUNCTION submitter_is_shared IS 'Whether the guards allow a submitter to skip nonces.';

CREATE FUNCTION managed_tx_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fencing_token < OLD.fencing_token OR (NEW.fencing_token IS NULL AND OLD.fencing_token IS NOT NULL) THEN
        RAISE EXCEPTION 'managed_tx %: token % is older than %', OLD.tx_id, NEW.fencing_token, OLD.fencing_token
            USING ERRCODE = 'GL001';
    END IF;
    IF NOT managed_tx_move_allowed(OLD.state, NEW.state) THEN
        RAISE EXCEPTION 'managed_tx %: cannot go from % to %', OLD.tx_id, OLD.state, NEW.state USING ERRCODE = 'GL002';
    END IF;
    IF NEW.nonce IS DISTINCT FROM OLD.nonce AND OLD.nonce IS NOT NULL AND NEW.state <> 'QUEUED' THEN
        RAISE EXCEPTION 'managed_tx %: has nonce % and cannot get %', OLD.tx_id, OLD.nonce, NEW.nonce
            USING ERRCODE = 'GL003';
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION managed_tx_guard IS 'Fencing tokens never decrease, states follow the state machine, a nonce is never changed.';
CREATE TRIGGER managed_tx_guard AFTER UPDATE ON managed_tx FOR EACH ROW
    WHEN (OLD.fencing_token > NEW.fencing_token
          OR (OLD.fencing_token IS NOT NULL AND NEW.fencing_token IS NULL)
          OR NOT managed_tx_move_allowed(OLD.state, NEW.state)
          OR (OLD.nonce IS NOT NULL AND OLD.nonce IS DISTINCT FROM NEW.nonce AND NEW.state <> 'QUEUED'))
    EXECUTE FUNCTION managed_tx_guard();

-- A strict sequence assigns its nonces one after the other. The first assigned nonce is the cursor's, so the oldest open one is not
-- above it; only an adoption, which starts the sequence again, may move the cursor otherwise. The submitter's row is read only if a
-- strict submitter would be refused.
CREATE FUNCTION submitter_nonce_cursor_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    address TEXT := '0x' || encode(OLD.submitter, 'hex');
BEGIN
    IF NEW.fencing_token < OLD.fencing_token THEN
        RAISE EXCEPTION 'cursor of %: token % is older than %', address, NEW.fencing_token, OLD.fencing_token
            USING ERRCODE = 'GL001';
    END IF;
    IF NEW.next_nonce < OLD.next_nonce THEN
        RAISE EXCEPTION 'cursor of %: next nonce cannot decrease from % to %', address, OLD.next_nonce, NEW.next_nonce
            USING ERRCODE = 'GL003';
    END IF;
    -- Checked when a nonce is assigned, not when the window slides: a reorg may re-open more intents than the window allows. The
    -- window of a shared submitter contains external nonces and is counted by its lane.
    IF NEW.next_nonce > OLD.next_nonce AND NEW.in_flight_state = 'IN_FLIGHT'
        AND NEW.next_nonce - NEW.in_flight_nonce > NEW.max_in_flight
        AND NOT submitter_is_shared(OLD.chain_id, OLD.submitter) THEN
        RAISE EXCEPTION 'cursor of %: % nonces open, % allowed', address,
            NEW.next_nonce - NEW.in_flight_nonce, NEW.max_in_flight USING ERRCODE = 'GL004';
    END IF;
    IF NEW.next_nonce > OLD.next_nonce AND NEW.start_nonce = OLD.start_nonce
        AND (NEW.in_flight_nonce IS NULL OR NEW.in_flight_nonce > OLD.next_nonce)
        AND NOT submitter_is_shared(OLD.chain_id, OLD.submitter) THEN
        RAISE EXCEPTION 'cursor of %: a strict sequence cannot skip from % to %', address, OLD.next_nonce,
            NEW.next_nonce USING ERRCODE = 'GL005';
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION submitter_nonce_cursor_guard IS 'Fencing tokens and next_nonce never decrease; a strict sequence respects its window and skips no nonce.';
CREATE TRIGGER submitter_nonce_cursor_guard AFTER UPDATE ON submitter_nonce_cursor FOR EACH ROW
    WHEN (OLD.fencing_token > NEW.fencing_token
          OR OLD.next_nonce > NEW.next_nonce
          OR (OLD.next_nonce < NEW.next_nonce
              AND (NEW.next_nonce - NEW.in_flight_nonce > NEW.max_in_flight
                   OR NEW.in_flight_nonce IS NULL
                   OR NEW.in_flight_nonce > OLD.next_nonce)))
    EXECUTE FUNCTION submitter_nonce_cursor_guard();

-- A sequence may start with its first nonces assigned, in one commit.
CREATE FUNCTION submitter_nonce_cursor_first_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
DECLARE
    address TEXT := '0x' || encode(NEW.submitter, 'hex');
BEGIN
    IF submitter_is_shared(NEW.chain_id, NEW.submitter) THEN
        RETURN NEW;
    END IF;
    IF NEW.next_nonce - NEW.in_flight_nonce > NEW.max_in_flight THEN
        RAISE EXCEPTION 'cursor of %: % nonces open, % allowed', address,
            NEW.next_nonce - NEW.in_flight_nonce, NEW.max_in_flight USING ERRCODE = 'GL004';
    END IF;
    RAISE EXCEPTION 'cursor of %: a strict sequence cannot skip from % to %', address, NEW.start_nonce,
        NEW.next_nonce USING ERRCODE = 'GL005';
END $$;
COMMENT ON FUNCTION submitter_nonce_cursor_first_guard IS 'A new strict sequence respects its window and starts at its start nonce.';
CREATE TRIGGER submitter_nonce_cursor_first_guard AFTER INSERT ON submitter_nonce_cursor FOR EACH ROW
    WHEN (NEW.next_nonce - NEW.in_flight_nonce > NEW.max_in_flight
          OR (NEW.next_nonce > NEW.start_nonce AND NEW.in_flight_nonce IS DISTINCT FROM NEW.start_nonce))
    EXECUTE FUNCTION submitter_nonce_cursor_first_guard();

CREATE FUNCTION submitter_lease_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fencing_token < OLD.fencing_token THEN
        RAISE EXCEPTION 'lease of %: token cannot decrease from % to %', '0x' || encode(OLD.submitter, 'hex'),
            OLD.fencing_token, NEW.fencing_token USING ERRCODE = 'GL001';
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION submitter_lease_guard IS 'Fencing tokens never decrease.';
CREATE TRIGGER submitter_lease_guard BEFORE UPDATE OF fencing_token ON submitter_lease
    FOR EACH ROW EXECUTE FUNCTION submitter_lease_guard();

CREATE FUNCTION external_nonce_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NOT submitter_is_shared(NEW.chain_id, NEW.submitter) THEN
        RAISE EXCEPTION 'external nonces of %: it is strict', '0x' || encode(NEW.submitter, 'hex') USING ERRCODE = 'GL005';
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION external_nonce_guard IS 'Only shared submitters have external nonces.';
CREATE TRIGGER external_nonce_guard BEFORE INSERT ON external_nonce FOR EACH ROW EXECUTE FUNCTION external_nonce_guard();

CREATE FUNCTION nonce_reservation_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fencing_token < OLD.fencing_token OR (NEW.fencing_token IS NULL AND OLD.fencing_token IS NOT NULL) THEN
        RAISE EXCEPTION 'reservation %: token % is older than %', OLD.tx_id, NEW.fencing_token, OLD.fencing_token
            USING ERRCODE = 'GL001';
    END IF;
    IF NEW.nonce IS DISTINCT FROM OLD.nonce AND OLD.nonce IS NOT NULL THEN
        RAISE EXCEPTION 'reservation %: has nonce % and cannot get %', OLD.tx_id, OLD.nonce, NEW.nonce USING ERRCODE = 'GL003';
    END IF;
    IF NEW.state = OLD.state THEN
        RETURN NEW;
    END IF;
    IF NOT ((OLD.state = 'REQUESTED' AND NEW.state = 'RESERVED')
            OR (OLD.state = 'RESERVED' AND NEW.state IN ('USED', 'RECYCLABLE'))) THEN
        RAISE EXCEPTION 'reservation %: cannot go from % to %', OLD.tx_id, OLD.state, NEW.state USING ERRCODE = 'GL002';
    END IF;
    -- A reserved nonce has the bytes that consume it; a used one has those of the client's transaction.
    IF NEW.state IN ('RESERVED', 'USED') AND NOT EXISTS (
        SELECT 1 FROM tx_attempt a
        WHERE a.tx_id = NEW.tx_id AND a.nonce = NEW.nonce
          AND a.kind = CASE NEW.state WHEN 'RESERVED' THEN 'PLACEHOLDER' ELSE 'ORIGINAL' END) THEN
        RAISE EXCEPTION 'reservation %: % without its bytes', OLD.tx_id, NEW.state USING ERRCODE = 'GL006';
    END IF;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION nonce_reservation_guard IS 'Fencing tokens never decrease, a nonce is never changed, states follow their order, and every state has its recorded bytes.';
CREATE TRIGGER nonce_reservation_guard BEFORE UPDATE ON nonce_reservation FOR EACH ROW EXECUTE FUNCTION nonce_reservation_guard();

CREATE FUNCTION policy_audit_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'policy_audit is append-only' USING ERRCODE = 'GL007';
END $$;
COMMENT ON FUNCTION policy_audit_guard IS 'Refuses every change of a row. To delete old rows, the owner of the table disables the trigger.';
CREATE TRIGGER policy_audit_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON policy_audit
    FOR EACH STATEMENT EXECUTE FUNCTION policy_audit_guard();

-- Views for people: addresses and hashes as 0x text.
--
-- The programs do not use them. A condition on a hex column reads the whole table; for an index, compare the table's column with '\x…'.

CREATE VIEW v_submitter AS
SELECT chain_id, '0x' || encode(submitter, 'hex') AS submitter, signer, status, status_reason, max_in_flight, shared, low_level,
       created_at, updated_at
FROM submitter;
COMMENT ON VIEW v_submitter IS 'Table submitter with addresses as text.';

CREATE VIEW v_submitter_lease AS
SELECT chain_id, '0x' || encode(submitter, 'hex') AS submitter, owner, fencing_token, lease_id, expires_at, wake_at,
       wake_pause_seconds, blocked_at, blocked_seq, updated_at
FROM submitter_lease;
COMMENT ON VIEW v_submitter_lease IS 'Table submitter_lease with addresses as text.';

CREATE VIEW v_submitter_nonce_cursor AS
SELECT chain_id, '0x' || encode(submitter, 'hex') AS submitter, start_nonce, next_nonce, open_from, has_open, in_flight_tx_id,
       in_flight_nonce, in_flight_state, protect_reason, max_in_flight, delegated, suspect_reason, suspect_since, below_block,
       '0x' || encode(below_hash, 'hex') AS below_hash, above_block, '0x' || encode(above_hash, 'hex') AS above_hash, above_count,
       fencing_token, updated_at
FROM submitter_nonce_cursor;
COMMENT ON VIEW v_submitter_nonce_cursor IS 'Table submitter_nonce_cursor with addresses and hashes as text.';

CREATE VIEW v_managed_tx AS
SELECT t.tx_id, t.seq, t.chain_id, '0x' || encode(t.submitter, 'hex') AS submitter, t.request_id, t.payload,
       '0x' || encode(t.payload_hash, 'hex') AS payload_hash, t.not_before, t.deadline, t.state, t.sub_state, t.blocked_since, t.nonce,
       '0x' || encode(t.tx_hash, 'hex') AS tx_hash, '0x' || encode(t.replaced_by_hash, 'hex') AS replaced_by_hash, t.ending,
       t.ending_reason, t.ending_code, t.submit_attempts, t.last_submit_at, t.next_resubmit_at, t.last_error, t.error,
       (SELECT a.gas_params FROM tx_attempt a WHERE a.tx_id = t.tx_id ORDER BY a.ordinal DESC LIMIT 1) AS last_gas_params,
       t.last_mempool_diag, t.receipt, t.block_number, '0x' || encode(t.block_hash, 'hex') AS block_hash, t.confirmations,
       ARRAY(SELECT '0x' || encode(substr(t.confirmation_hashes, first, 32), 'hex')
             FROM generate_series(1, octet_length(t.confirmation_hashes), 32) AS first
             ORDER BY first) AS confirmation_hashes,
       t.mined_send_at, t.mined_send_class, t.prepared_at, t.submitted_at, t.tracking_at, t.history, t.confirmed_at, t.finished_at,
       t.fencing_token, t.trace_context, t.created_at, t.updated_at
FROM managed_tx t;
COMMENT ON VIEW v_managed_tx IS 'Table managed_tx with addresses and hashes as text.';
COMMENT ON COLUMN v_managed_tx.last_gas_params IS 'Fees and gas limit of the newest attempt (largest ordinal).';
COMMENT ON COLUMN v_managed_tx.confirmation_hashes IS 'Hashes of the blocks on top of block_number that made it final, in their order.';

CREATE VIEW v_tx_attempt AS
SELECT attempt_id, tx_id, ordinal, chain_id, '0x' || encode(submitter, 'hex') AS submitter, nonce, kind,
       '0x' || encode(tx_hash, 'hex') AS tx_hash, gas_params, sends, first_sent_at, last_sent_at, last_outcome, last_answer,
       displaced_at, fencing_token, created_at
FROM tx_attempt;
COMMENT ON VIEW v_tx_attempt IS 'Table tx_attempt with addresses and hashes as text, without the signed bytes.';

CREATE VIEW v_external_nonce AS
SELECT chain_id, '0x' || encode(submitter, 'hex') AS submitter, first_nonce, last_nonce, cause, fencing_token, noted_at
FROM external_nonce;
COMMENT ON VIEW v_external_nonce IS 'Table external_nonce with addresses as text.';

CREATE VIEW v_chain_block AS
SELECT chain_id, number, '0x' || encode(hash, 'hex') AS hash, '0x' || encode(parent_hash, 'hex') AS parent_hash, seen_at
FROM chain_block;
COMMENT ON VIEW v_chain_block IS 'Table chain_block with hashes as text.';

CREATE VIEW v_audit_log AS
SELECT audit_id, chain_id, '0x' || encode(submitter, 'hex') AS submitter, action, reason, actor,
       '0x' || encode(taken_by, 'hex') AS taken_by, taken_block, requested_at, applied_at, fencing_token, outcome, refused
FROM audit_log;
COMMENT ON VIEW v_audit_log IS 'Table audit_log with addresses and hashes as text.';

CREATE VIEW v_policy_audit AS
SELECT entry_no, chain_id, '0x' || encode(submitter, 'hex') AS submitter, tx_id, request_id, decision, rule,
       '0x' || encode(recipient, 'hex') AS recipient, '0x' || encode(selector, 'hex') AS selector, value, limit_value, day, day_total,
       worker_id, fencing_token, decided_at
FROM policy_audit;
COMMENT ON VIEW v_policy_audit IS 'Table policy_audit with addresses and selectors as text.';

-- The columns of a view have the comments of its table, without the number of bytes.
DO $$
DECLARE
    shown RECORD;
BEGIN
    FOR shown IN
        SELECT v.relname AS view_name, a.attname AS column_name,
               regexp_replace(col_description(t.oid, b.attnum), '[,;] (20|32) bytes', '') AS comment
        FROM pg_class v
        JOIN pg_class t ON t.relnamespace = v.relnamespace AND t.relkind = 'r' AND 'v_' || t.relname = v.relname
        JOIN pg_attribute a ON a.attrelid = v.oid AND a.attnum > 0
        JOIN pg_attribute b ON b.attrelid = t.oid AND b.attname = a.attname
        WHERE v.relkind = 'v' AND v.relnamespace = current_schema()::REGNAMESPACE AND col_description(v.oid, a.attnum) IS NULL
    LOOP
        EXECUTE format('COMMENT ON COLUMN %I.%I IS %L', shown.view_name, shown.column_name, shown.comment);
    END LOOP;
END $$;

-- Roles.
--
-- What each program may do: a role for the API and one for workers. Neither can log in. Operators create users that are members of
-- them (docs/operations.md), or continue with one role for everything.

-- Roles belong to the whole server: another database, or a concurrent migration, may have created them.
DO $$
DECLARE
    wanted TEXT;
BEGIN
    FOREACH wanted IN ARRAY ARRAY['gapless_api', 'gapless_worker'] LOOP
        BEGIN
            IF NOT EXISTS (SELECT 1 FROM pg_roles WHERE rolname = wanted) THEN
                EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
            END IF;
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN
                NULL;
            WHEN insufficient_privilege THEN
                RAISE NOTICE 'role % was not created: the migrating user may not. Create it, then: SELECT gapless_grant_roles()', wanted;
        END;
    END LOOP;
END $$;

-- A function, because it is called again: when roles are created manually after this migration, and by every migration that adds
-- something that a program reads or writes (which replaces it first). Granting twice is harmless.
CREATE FUNCTION gapless_grant_roles() RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gapless_api') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO gapless_api', current_schema());
        GRANT SELECT ON _sqlx_migrations, api_key, audit_log, chain_block, managed_tx, submitter, submitter_nonce_cursor, tx_request
            TO gapless_api;
        GRANT SELECT ON v_audit_log, v_chain_block, v_managed_tx, v_submitter, v_submitter_nonce_cursor TO gapless_api;
        -- Not the signed bytes.
        GRANT SELECT (tx_id, ordinal, nonce, kind, tx_hash, gas_params, first_sent_at, last_sent_at, last_outcome, sends, last_answer,
                      displaced_at, created_at)
            ON tx_attempt TO gapless_api;
        GRANT SELECT (tx_id, ordinal, nonce, kind, tx_hash, gas_params, first_sent_at, last_sent_at, last_outcome, sends, last_answer,
                      displaced_at, created_at)
            ON v_tx_attempt TO gapless_api;
        -- The other columns have their defaults: a row is QUEUED, and has no nonce.
        GRANT INSERT (tx_id, chain_id, submitter, request_id, payload, payload_hash, not_before, deadline, trace_context)
            ON managed_tx TO gapless_api;
        GRANT INSERT (chain_id, submitter, tx_id, kind, data) ON outbox_event TO gapless_api;
        GRANT UPDATE (status, status_reason, updated_at) ON submitter TO gapless_api;
        GRANT INSERT (chain_id, submitter, action, reason, actor, applied_at, outcome, taken_by, taken_block) ON audit_log TO gapless_api;
        -- The update changes nothing: a repeated request finds the pending one with it.
        GRANT INSERT (tx_id, chain_id, submitter, action, reason, actor), UPDATE (action) ON tx_request TO gapless_api;
        GRANT UPDATE (last_used_at) ON api_key TO gapless_api;
    ELSE
        RAISE NOTICE 'there is no role gapless_api';
    END IF;
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gapless_worker') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO gapless_worker', current_schema());
        GRANT SELECT ON _sqlx_migrations, audit_log, chain, chain_block, duty_lease, external_nonce, managed_tx, nonce_reservation,
            outbox_event, policy_audit, submitter, submitter_lease, submitter_nonce_cursor, tx_attempt, tx_request, worker
            TO gapless_worker;
        GRANT SELECT ON v_audit_log, v_chain_block, v_external_nonce, v_managed_tx, v_policy_audit, v_submitter, v_submitter_lease,
            v_submitter_nonce_cursor, v_tx_attempt
            TO gapless_worker;
        -- No insert: intents are requested by others. Who requested what, and when, cannot be changed.
        GRANT UPDATE (state, sub_state, nonce, tx_hash, replaced_by_hash, ending, ending_reason, ending_code, submit_attempts,
                      last_submit_at, next_resubmit_at, last_error, error, last_mempool_diag, receipt, block_number,
                      block_hash, confirmations, confirmation_hashes, prepared_at, confirmed_at, finished_at, fencing_token, updated_at,
                      payload, deadline, blocked_since, submitted_at, tracking_at, history, mined_send_at, mined_send_class),
              DELETE
            ON managed_tx TO gapless_worker;
        GRANT INSERT, UPDATE (first_sent_at, last_sent_at, last_outcome, sends, last_answer, displaced_at), DELETE
            ON tx_attempt TO gapless_worker;
        GRANT INSERT, UPDATE ON submitter_nonce_cursor, submitter_lease TO gapless_worker;
        GRANT INSERT (chain_id, submitter, signer, shared, low_level), UPDATE (signer, shared, low_level, updated_at)
            ON submitter TO gapless_worker;
        GRANT INSERT (chain_id, submitter, action, reason, actor), UPDATE (applied_at, fencing_token, outcome, refused)
            ON audit_log TO gapless_worker;
        GRANT UPDATE (applied_at, fencing_token, outcome, refused), DELETE ON tx_request TO gapless_worker;
        GRANT UPDATE (state, nonce, expires_at, noted_at, settled_at, fencing_token), DELETE ON nonce_reservation TO gapless_worker;
        GRANT INSERT, DELETE ON external_nonce TO gapless_worker;
        GRANT INSERT ON outbox_event, chain TO gapless_worker;
        GRANT INSERT, UPDATE, DELETE ON chain_block, worker TO gapless_worker;
        GRANT INSERT, UPDATE ON duty_lease TO gapless_worker;
        -- No update, no delete; decided_at is the database's time.
        GRANT INSERT (chain_id, submitter, tx_id, request_id, decision, rule, recipient, selector, value, limit_value, day, day_total,
                      worker_id, fencing_token)
            ON policy_audit TO gapless_worker;
    ELSE
        RAISE NOTICE 'there is no role gapless_worker';
    END IF;
END $$;
COMMENT ON FUNCTION gapless_grant_roles IS 'Grants gapless_api and gapless_worker the privileges that those programs need, and no others. Run it as the owner of the tables; it may be repeated.';

SELECT gapless_grant_roles();
