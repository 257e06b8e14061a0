-- Requests through JSON-RPC: until when they may begin, and the nonce that the client expects. Only adds.

ALTER TABLE managed_tx ADD COLUMN start_by TIMESTAMPTZ;
ALTER TABLE managed_tx ADD COLUMN expected_nonce BIGINT;
COMMENT ON COLUMN managed_tx.start_by IS 'No nonce is assigned after this time; null: no limit. It does not apply to an intent that had a nonce.';
COMMENT ON COLUMN managed_tx.expected_nonce IS 'The client expects this nonce; with any other the intent fails without a nonce. Null: any.';

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
