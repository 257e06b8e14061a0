-- What made an intent final is kept with it: blocks are kept for a while only, and settings change. When a lease was last changed.
-- Comments that promised what no program does.

-- Written once, by the commit that makes the intent final. Rows that were final before stay without.
ALTER TABLE managed_tx
    ADD CONSTRAINT managed_tx_confirmations_are_final CHECK
        (confirmations IS NULL OR (finished_at IS NOT NULL AND block_number IS NOT NULL)),
    -- 64 with the transaction's own block, which has columns.
    ADD CONSTRAINT managed_tx_confirmations_are_few CHECK (jsonb_array_length(confirmations -> 'above') <= 63);
COMMENT ON COLUMN managed_tx.confirmations IS 'What made it final, written once with that state: rule (a depth, safe or finalized), count (blocks from its own to the head of that moment), finalBlock (the chain''s safe or finalized block of that moment), above (hashes of the blocks on top of block_number, in their order, at most 63). Null before, if it was never mined, and in rows of earlier versions.';

-- Renewals stay heap-only: no index knows of it.
ALTER TABLE submitter_lease ADD COLUMN updated_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp();
COMMENT ON COLUMN submitter_lease.updated_at IS 'When the lease was last taken, renewed, given back or woken. For people; decides nothing.';

COMMENT ON COLUMN outbox_event.xid IS 'The transaction that wrote it. Orders nothing: a transaction with a smaller id may write to a submitter, and commit, after one with a larger id.';
