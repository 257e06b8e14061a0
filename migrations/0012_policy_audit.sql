-- What policies of submitters decided: every refusal, and everything that counted against a day's cap. The policies themselves are
-- not here but in the workers' configuration, where nobody who has only the database can change them.

CREATE TABLE policy_audit (
    entry_no      BIGINT GENERATED ALWAYS AS IDENTITY,
    chain_id      BIGINT NOT NULL,
    submitter     TEXT NOT NULL,
    tx_id         UUID NOT NULL,
    request_id    TEXT NOT NULL,
    decision      TEXT NOT NULL,
    rule          TEXT NOT NULL,
    recipient     TEXT,
    selector      TEXT,
    value         NUMERIC(78, 0) NOT NULL,
    limit_value   NUMERIC(78, 0),
    day           DATE NOT NULL,
    day_total     NUMERIC(78, 0),
    node_id       TEXT NOT NULL,
    fencing_token BIGINT NOT NULL,
    decided_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT policy_audit_pkey PRIMARY KEY (entry_no),
    CONSTRAINT policy_audit_decision_is_known CHECK (decision IN ('REFUSED', 'COUNTED')),
    CONSTRAINT policy_audit_rule_is_known CHECK (rule IN ('allow', 'deploy', 'max_value', 'max_value_per_day')),
    CONSTRAINT policy_audit_selector_has_four_bytes CHECK (selector ~ '^0x[0-9a-f]{8}$'),
    CONSTRAINT policy_audit_values_are_not_negative CHECK (value >= 0 AND limit_value >= 0 AND day_total >= 0),
    -- The cap itself: a write that would pass it fails, and the nonce that it came with.
    CONSTRAINT policy_audit_count_is_within_its_cap CHECK (decision <> 'COUNTED' OR
        (rule = 'max_value_per_day' AND value > 0 AND limit_value IS NOT NULL AND day_total IS NOT NULL
         AND day_total >= value AND day_total <= limit_value))
);

-- Two counts cannot start from the same sum, whatever their writers believe of themselves. Also finds the last sum of a day.
CREATE UNIQUE INDEX policy_audit_sums_are_unique ON policy_audit (chain_id, submitter, day, day_total) WHERE decision = 'COUNTED';
-- An intent that lost its nonce and gets another on the same day is counted once.
CREATE UNIQUE INDEX policy_audit_counts_once_a_day ON policy_audit (tx_id, day) WHERE decision = 'COUNTED';
CREATE INDEX policy_audit_by_submitter ON policy_audit (chain_id, submitter, entry_no);
CREATE INDEX policy_audit_by_tx ON policy_audit (tx_id);

COMMENT ON TABLE policy_audit IS 'What the policy of a submitter decided about an intent. Append-only: neither program may change or delete a row, and a trigger refuses it to everybody else. Stays when the intent is pruned.';
COMMENT ON COLUMN policy_audit.entry_no IS 'Order of the decisions of one submitter.';
COMMENT ON COLUMN policy_audit.chain_id IS 'Chain of the submitter.';
COMMENT ON COLUMN policy_audit.submitter IS 'Whose policy it was, in lower case.';
COMMENT ON COLUMN policy_audit.tx_id IS 'The intent. No foreign key: it may be pruned before this row.';
COMMENT ON COLUMN policy_audit.request_id IS 'What its client called it.';
COMMENT ON COLUMN policy_audit.decision IS 'REFUSED: it was not signed. COUNTED: it was given a nonce, in the same transaction, and its value counts.';
COMMENT ON COLUMN policy_audit.rule IS 'The key of the policy that decided.';
COMMENT ON COLUMN policy_audit.recipient IS 'The address that was to be called; null for a deployment.';
COMMENT ON COLUMN policy_audit.selector IS 'First four bytes of the call data; null if there are fewer, or if it is a deployment.';
COMMENT ON COLUMN policy_audit.value IS 'Wei of the transaction.';
COMMENT ON COLUMN policy_audit.limit_value IS 'Wei that the rule allowed at that time, as the worker was configured; null for rules without a number.';
COMMENT ON COLUMN policy_audit.day IS 'The day in UTC, by the database''s clock.';
COMMENT ON COLUMN policy_audit.day_total IS 'COUNTED: wei of the day, this one included. REFUSED by max_value_per_day: wei of the day without it. Else null.';
COMMENT ON COLUMN policy_audit.node_id IS 'The worker that decided.';
COMMENT ON COLUMN policy_audit.fencing_token IS 'Its period of ownership.';
COMMENT ON COLUMN policy_audit.decided_at IS 'When it was written.';

CREATE FUNCTION policy_audit_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'policy_audit is append-only' USING ERRCODE = 'GL007';
END $$;
COMMENT ON FUNCTION policy_audit_guard IS 'Refuses every change of a row that is written. Whoever has to delete old rows, as the owner, disables the trigger.';
CREATE TRIGGER policy_audit_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON policy_audit
    FOR EACH STATEMENT EXECUTE FUNCTION policy_audit_guard();

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
        GRANT INSERT (chain_id, submitter, action, reason, actor, applied_at, outcome) ON audit_log TO gapless_api;
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
                      block_hash, confirmations, prepared_at, confirmed_at, finished_at, fencing_token, updated_at, payload, deadline),
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
