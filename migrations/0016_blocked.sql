-- Since when the head of a queue is blocked: it waits for funds, a fee, a node or a signer.

ALTER TABLE managed_tx
    ADD COLUMN blocked_since TIMESTAMPTZ;
COMMENT ON COLUMN managed_tx.blocked_since IS 'QUEUED: since when it gets no nonce because funds, fee, node or signer are missing. Null otherwise.';
-- Small: most rows are never in it, and their moves do not touch it.
CREATE INDEX managed_tx_blocked ON managed_tx (chain_id, submitter, seq) WHERE queued AND blocked_since IS NOT NULL;

CREATE OR REPLACE FUNCTION gapless_grant_roles() RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gapless_api') THEN
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO gapless_api', current_schema());
        GRANT SELECT ON _sqlx_migrations, api_key, audit_log, chain_block, managed_tx, submitter, submitter_nonce_cursor, tx_request
            TO gapless_api;
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
                      blocked_since),
              DELETE
            ON managed_tx TO gapless_worker;
        GRANT INSERT, UPDATE (first_sent_at, last_sent_at, last_outcome, displaced_at), DELETE ON tx_attempt TO gapless_worker;
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
