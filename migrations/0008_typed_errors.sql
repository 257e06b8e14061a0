-- Typed errors: beside the words of `last_error` a code that programs can decide by, and the bytes of a revert.

ALTER TABLE managed_tx
    ADD COLUMN error JSONB,
    ADD COLUMN ending_code TEXT,
    ADD CONSTRAINT managed_tx_error_has_code CHECK
        (error IS NULL OR coalesce(jsonb_typeof(error -> 'code') = 'string', FALSE));
COMMENT ON COLUMN managed_tx.error IS 'What goes with last_error: its code and, for a revert, the bytes returned (at most 1 KiB of them) and how many there were. Null without an error, and in rows from before there were codes.';
COMMENT ON COLUMN managed_tx.ending_code IS 'The code that goes with ending_reason.';
