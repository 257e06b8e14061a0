-- Requests through JSON-RPC: until when they may begin, and the nonce that the client expects. Only adds.

ALTER TABLE managed_tx ADD COLUMN start_by TIMESTAMPTZ;
ALTER TABLE managed_tx ADD COLUMN expected_nonce BIGINT;
COMMENT ON COLUMN managed_tx.start_by IS 'No nonce is assigned after this time; null: no limit. It does not apply to an intent that had a nonce.';
COMMENT ON COLUMN managed_tx.expected_nonce IS 'The client expects this nonce; with any other the intent fails without a nonce. Null: any.';

-- The new columns are the last ones; everything else is as before.
CREATE OR REPLACE VIEW v_managed_tx AS
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
       t.fencing_token, t.trace_context, t.created_at, t.updated_at, t.start_by, t.expected_nonce
FROM managed_tx t;
COMMENT ON COLUMN v_managed_tx.start_by IS 'No nonce is assigned after this time; null: no limit. It does not apply to an intent that had a nonce.';
COMMENT ON COLUMN v_managed_tx.expected_nonce IS 'The client expects this nonce; with any other the intent fails without a nonce. Null: any.';

CREATE FUNCTION gapless_grants_0006() RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gapless_api') THEN
        GRANT INSERT (start_by, expected_nonce) ON managed_tx TO gapless_api;
        -- An attempt is found by its hash. Still not the signed bytes.
        GRANT SELECT (chain_id, submitter) ON tx_attempt TO gapless_api;
    END IF;
END $$;
COMMENT ON FUNCTION gapless_grants_0006 IS 'Rights of the roles on what migration 6 made. Called by gapless_grant_roles().';

SELECT gapless_grant_roles();
