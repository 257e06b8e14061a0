-- The history of an intent: how often each attempt was sent and what was answered, and when its states changed. No row of its own and
-- no write of its own: all of it goes with commits that happen anyway. docs/adr/0034.

ALTER TABLE tx_attempt
    ADD COLUMN sends INT,
    ADD COLUMN last_answer TEXT,
    ADD CONSTRAINT tx_attempt_sends_are_positive CHECK (sends > 0);
COMMENT ON COLUMN tx_attempt.sends IS 'How often it was sent, answered or not, as far as that is noted. Null: not noted, or written by an earlier version; see managed_tx.mined_send_at.';
COMMENT ON COLUMN tx_attempt.last_answer IS 'The last answer of a node in its words; null if it took the bytes, or none has answered.';
COMMENT ON COLUMN tx_attempt.first_sent_at IS 'The first send that is noted, answered or not. Null if it was final before anything else had to be written; see managed_tx.mined_send_at.';
COMMENT ON COLUMN tx_attempt.last_sent_at IS 'The last send that is noted, answered or not; null as above.';
COMMENT ON COLUMN tx_attempt.last_outcome IS 'Class of the last answer of a node to a send; null as above, or if none has answered.';

ALTER TABLE managed_tx
    ADD COLUMN submitted_at TIMESTAMPTZ,
    ADD COLUMN tracking_at TIMESTAMPTZ,
    ADD COLUMN history JSONB,
    ADD COLUMN mined_send_at TIMESTAMPTZ,
    ADD COLUMN mined_send_class TEXT,
    ADD CONSTRAINT managed_tx_history_is_bounded CHECK (jsonb_array_length(history) <= 64),
    ADD CONSTRAINT managed_tx_mined_send_is_whole CHECK ((mined_send_at IS NULL) = (mined_send_class IS NULL)),
    ADD CONSTRAINT managed_tx_mined_send_is_final CHECK (mined_send_at IS NULL OR finished_at IS NOT NULL);
COMMENT ON COLUMN managed_tx.submitted_at IS 'When SUBMITTED was written, straight after IN_FLIGHT. Null if it was not, or if history has it.';
COMMENT ON COLUMN managed_tx.tracking_at IS 'When TRACKING was written for the first time, straight after IN_FLIGHT or SUBMITTED. Null as above.';
COMMENT ON COLUMN managed_tx.history IS 'What came after that and before the final state, and is not the straight way: states and when they were written, in their order, as [state, time]; the newest 64. Null if there was nothing.';
COMMENT ON COLUMN managed_tx.mined_send_at IS 'One more send of the bytes that were mined, beyond what tx_attempt has noted: it was final before the next write, and this needed none of its own.';
COMMENT ON COLUMN managed_tx.mined_send_class IS 'Class of the answer to that send.';

CREATE OR REPLACE FUNCTION gapless_grant_roles() RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gapless_api') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO gapless_api', current_schema());
        GRANT SELECT ON _sqlx_migrations, api_key, audit_log, chain_block, managed_tx, submitter, submitter_nonce_cursor, tx_request
            TO gapless_api;
        -- Not the signed bytes.
        GRANT SELECT (tx_id, ordinal, nonce, kind, tx_hash, gas_params, first_sent_at, last_sent_at, last_outcome, sends, last_answer,
                      displaced_at, created_at)
            ON tx_attempt TO gapless_api;
        -- What it cannot name has its default: a row is QUEUED, and has no nonce.
        GRANT INSERT (tx_id, chain_id, submitter, request_id, payload, payload_hash, not_before, deadline, trace_context)
            ON managed_tx TO gapless_api;
        GRANT INSERT (chain_id, submitter, tx_id, kind, data) ON outbox_event TO gapless_api;
        GRANT UPDATE (status, status_reason, updated_at) ON submitter TO gapless_api;
        GRANT INSERT (chain_id, submitter, action, reason, actor, applied_at, outcome, taken_by, taken_block) ON audit_log TO gapless_api;
        -- The update changes nothing: it is how a repeated request finds the one that waits.
        GRANT INSERT (tx_id, chain_id, submitter, action, reason, actor), UPDATE (action) ON tx_request TO gapless_api;
        GRANT UPDATE (last_used_at) ON api_key TO gapless_api;
    ELSE
        RAISE NOTICE 'there is no role gapless_api';
    END IF;
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gapless_worker') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO gapless_worker', current_schema());
        GRANT SELECT ON _sqlx_migrations, audit_log, chain, chain_block, duty_lease, foreign_nonce, managed_tx, nonce_reservation,
            outbox_event, submitter, submitter_lease, submitter_nonce_cursor, tx_attempt, tx_request, worker_node
            TO gapless_worker;
        -- No insert: what is to be sent is asked for by others. Who asked for what, and when, is not its to change.
        GRANT UPDATE (state, sub_state, nonce, tx_hash, replaced_by_hash, ending, ending_reason, ending_code, submit_attempts,
                      last_submit_at, next_resubmit_at, last_error, error, last_gas_params, last_mempool_diag, receipt, block_number,
                      block_hash, confirmations, prepared_at, confirmed_at, finished_at, fencing_token, updated_at, payload, deadline,
                      blocked_since, submitted_at, tracking_at, history, mined_send_at, mined_send_class),
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
        GRANT INSERT, DELETE ON foreign_nonce TO gapless_worker;
        GRANT INSERT ON outbox_event, chain TO gapless_worker;
        GRANT INSERT, UPDATE, DELETE ON chain_block, worker_node TO gapless_worker;
        GRANT INSERT, UPDATE ON duty_lease TO gapless_worker;
        -- No update, no delete. When it was decided is the database's word.
        GRANT SELECT,
              INSERT (chain_id, submitter, tx_id, request_id, decision, rule, recipient, selector, value, limit_value, day, day_total,
                      node_id, fencing_token)
            ON policy_audit TO gapless_worker;
    ELSE
        RAISE NOTICE 'there is no role gapless_worker';
    END IF;
END $$;

SELECT gapless_grant_roles();
