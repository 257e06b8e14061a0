-- Why a transaction waits: which chains the live workers serve, which of them are halted, and since when a submitter is paused or in
-- PROTECT. Only adds: programs of the previous version neither read nor write any of it. What they do not write is null, which means
-- "not stated", never "no".

-- Workers and the chains they serve.

ALTER TABLE worker ADD COLUMN chains BIGINT[], ADD COLUMN expires_at TIMESTAMPTZ;
COMMENT ON COLUMN worker.chains IS 'Chain ids it serves. Null: its version does not state them.';
COMMENT ON COLUMN worker.expires_at IS 'It counts as gone after this time without another heartbeat. Null, or before seen_at: its version does not state it.';

CREATE TABLE chain_halt (
    chain_id  BIGINT NOT NULL,
    worker_id TEXT NOT NULL,
    reason    TEXT NOT NULL,
    since     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chain_id, worker_id)
);
COMMENT ON TABLE chain_halt IS 'A worker sends nothing to a chain that it serves. Counts only while the worker is live. Written when a halt begins, changes or ends.';
COMMENT ON COLUMN chain_halt.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN chain_halt.worker_id IS 'Id of the worker that found the problem.';
COMMENT ON COLUMN chain_halt.reason IS 'The problem, for example that the nodes serve another chain.';
COMMENT ON COLUMN chain_halt.since IS 'Since when the chain is halted: the time of the first live worker that found it.';

-- Since when a submitter is paused. A trigger, so that programs of the previous version keep it correct too.

ALTER TABLE submitter ADD COLUMN status_since TIMESTAMPTZ;
COMMENT ON COLUMN submitter.status_since IS 'Last change of status. Null: it never changed.';
UPDATE submitter SET status_since = updated_at WHERE status <> 'ACTIVE';

CREATE FUNCTION submitter_note_status() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    NEW.status_since := clock_timestamp();
    RETURN NEW;
END $$;
COMMENT ON FUNCTION submitter_note_status IS 'Writes the time of a change of status.';
CREATE TRIGGER submitter_note_status BEFORE UPDATE OF status ON submitter FOR EACH ROW
    WHEN (OLD.status IS DISTINCT FROM NEW.status)
    EXECUTE FUNCTION submitter_note_status();

-- Since when a submitter is in PROTECT. No trigger: the cursor is written with every nonce, and a BEFORE trigger would lock its row once
-- more (docs/adr/0017). Null in all other states, so it takes no space.

ALTER TABLE submitter_nonce_cursor ADD COLUMN protect_since TIMESTAMPTZ;
COMMENT ON COLUMN submitter_nonce_cursor.protect_since IS 'Since when it is in PROTECT. Null otherwise, or if the version of the worker does not write it.';
UPDATE submitter_nonce_cursor SET protect_since = updated_at WHERE in_flight_state = 'PROTECT';

-- The views of the changed tables. A new column of a view can only be its last.

CREATE OR REPLACE VIEW v_submitter AS
SELECT chain_id, '0x' || encode(submitter, 'hex') AS submitter, signer, status, status_reason, max_in_flight, shared, low_level,
       created_at, updated_at, status_since
FROM submitter;
COMMENT ON COLUMN v_submitter.status_since IS 'Last change of status. Null: it never changed.';

CREATE OR REPLACE VIEW v_submitter_nonce_cursor AS
SELECT chain_id, '0x' || encode(submitter, 'hex') AS submitter, start_nonce, next_nonce, open_from, has_open, in_flight_tx_id,
       in_flight_nonce, in_flight_state, protect_reason, max_in_flight, delegated, suspect_reason, suspect_since, below_block,
       '0x' || encode(below_hash, 'hex') AS below_hash, above_block, '0x' || encode(above_hash, 'hex') AS above_hash, above_count,
       fencing_token, updated_at, protect_since
FROM submitter_nonce_cursor;
COMMENT ON COLUMN v_submitter_nonce_cursor.protect_since IS 'Since when it is in PROTECT. Null otherwise, or if the version of the worker does not write it.';

-- Roles: the same as before, and for the API the workers, the halted chains, and who serves a submitter.

CREATE OR REPLACE FUNCTION gapless_grant_roles() RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gapless_api') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO gapless_api', current_schema());
        GRANT SELECT ON _sqlx_migrations, api_key, audit_log, chain_block, chain_halt, managed_tx, submitter, submitter_nonce_cursor,
            tx_request, worker
            TO gapless_api;
        -- Who serves a submitter, and since when nobody does. Not lease_id and fencing_token: they are the workers'.
        GRANT SELECT (chain_id, submitter, owner, expires_at, updated_at) ON submitter_lease TO gapless_api;
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
        GRANT SELECT ON _sqlx_migrations, audit_log, chain, chain_block, chain_halt, duty_lease, external_nonce, managed_tx,
            nonce_reservation, outbox_event, policy_audit, submitter, submitter_lease, submitter_nonce_cursor, tx_attempt, tx_request,
            worker
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
        GRANT INSERT, UPDATE, DELETE ON chain_block, chain_halt, worker TO gapless_worker;
        GRANT INSERT, UPDATE ON duty_lease TO gapless_worker;
        -- No update, no delete; decided_at is the database's time.
        GRANT INSERT (chain_id, submitter, tx_id, request_id, decision, rule, recipient, selector, value, limit_value, day, day_total,
                      worker_id, fencing_token)
            ON policy_audit TO gapless_worker;
    ELSE
        RAISE NOTICE 'there is no role gapless_worker';
    END IF;
END $$;

SELECT gapless_grant_roles();
