-- Replacement: an intent may be told to end without its effect, and clients may ask for that.

ALTER TABLE managed_tx
    ADD COLUMN ending TEXT,
    ADD COLUMN ending_reason TEXT,
    ADD CONSTRAINT managed_tx_ending_is_known CHECK (ending IN ('CANCELLED', 'FAILED')),
    ADD CONSTRAINT managed_tx_ending_has_reason CHECK ((ending IS NULL) = (ending_reason IS NULL));
COMMENT ON COLUMN managed_tx.ending IS 'How it ends if a placeholder takes its nonce: CANCELLED or FAILED. Null while it is meant to happen.';
COMMENT ON COLUMN managed_tx.ending_reason IS 'Why it is meant to end so.';

CREATE TABLE tx_request (
    request_no    BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tx_id         UUID NOT NULL,
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
    CONSTRAINT tx_request_action_is_known CHECK (action IN ('cancel', 'speed_up', 'rebroadcast')),
    CONSTRAINT tx_request_reason_is_given CHECK (length(reason) BETWEEN 1 AND 1000)
);
CREATE INDEX tx_request_pending ON tx_request (chain_id, submitter) WHERE applied_at IS NULL;
COMMENT ON TABLE tx_request IS 'What was asked about an accepted intent, carried out by the lane that owns its submitter.';
COMMENT ON COLUMN tx_request.request_no IS 'Order.';
COMMENT ON COLUMN tx_request.tx_id IS 'The intent.';
COMMENT ON COLUMN tx_request.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN tx_request.submitter IS 'Address, lower-case 0x hex.';
COMMENT ON COLUMN tx_request.action IS 'cancel, speed_up or rebroadcast.';
COMMENT ON COLUMN tx_request.reason IS 'The words of whoever asked.';
COMMENT ON COLUMN tx_request.actor IS 'Who asked, as far as the API knows.';
COMMENT ON COLUMN tx_request.requested_at IS 'When it was asked.';
COMMENT ON COLUMN tx_request.applied_at IS 'When the lane dealt with it; null while it waits.';
COMMENT ON COLUMN tx_request.fencing_token IS 'Token of the owner that dealt with it.';
COMMENT ON COLUMN tx_request.outcome IS 'What it led to, or why it was refused.';
COMMENT ON COLUMN tx_request.refused IS 'The lane looked into it and changed nothing.';

COMMENT ON COLUMN submitter.signer IS 'Kind of signer that announced it: keystore, raw_key, json_rpc, clef, http.';
COMMENT ON TABLE tx_attempt IS 'Signed bytes. Committed before they leave the process: the first ones together with the nonce, others later for the same nonce.';
COMMENT ON COLUMN managed_tx.deadline IS 'Cancelled if it is not mined by then.';
CREATE INDEX tx_request_by_tx ON tx_request (tx_id);
