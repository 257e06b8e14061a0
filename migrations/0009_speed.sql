-- Fewer bytes for each move of an intent. PostgreSQL writes a new version of a row into its page (HOT), and touches no index, if no
-- indexed column changes: so no index knows of `state` and `finished_at`, and guards judge after the row is written, because
-- a trigger before it locks the row once more. Why this is safe: docs/adr/0017.

-- In the order in which workers write them: one that is at work is waited for, and does not wait for this.
LOCK TABLE submitter_nonce_cursor, managed_tx, tx_attempt IN ACCESS EXCLUSIVE MODE;

-- What waits for a nonce. Changes with the nonce only, or with the end of an intent that never had one.
ALTER TABLE managed_tx ADD COLUMN queued BOOLEAN GENERATED ALWAYS AS (state = 'QUEUED') STORED;
COMMENT ON COLUMN managed_tx.queued IS 'State QUEUED, for the index of the queue: an index over the state itself would make every move touch all indexes.';
DROP INDEX managed_tx_queue;
CREATE INDEX managed_tx_queue ON managed_tx (chain_id, submitter, seq) WHERE queued;

-- What is open lies between two nonces of the cursor: found by the index of the nonces.
ALTER TABLE submitter_nonce_cursor ADD COLUMN open_from BIGINT NOT NULL DEFAULT 0;
UPDATE submitter_nonce_cursor c
SET open_from = coalesce(
    (SELECT min(t.nonce) FROM managed_tx t
     WHERE t.chain_id = c.chain_id AND t.submitter = c.submitter AND t.nonce IS NOT NULL AND t.finished_at IS NULL),
    c.next_nonce);
ALTER TABLE submitter_nonce_cursor
    ADD COLUMN has_open BOOLEAN GENERATED ALWAYS AS (open_from < next_nonce) STORED,
    ADD CONSTRAINT cursor_open_is_below_next CHECK (open_from <= next_nonce),
    ADD CONSTRAINT cursor_in_flight_is_open CHECK (in_flight_nonce >= open_from);
COMMENT ON COLUMN submitter_nonce_cursor.open_from IS 'No intent below this nonce is open: a lower bound, and equal to next_nonce when none is open.';
COMMENT ON COLUMN submitter_nonce_cursor.has_open IS 'Intents with a nonce are open, for the index of those cursors.';
CREATE INDEX submitter_nonce_cursor_open ON submitter_nonce_cursor (chain_id, submitter) WHERE has_open;
DROP INDEX managed_tx_open;
DROP INDEX managed_tx_finished;

-- Room on the page for the two or three versions that follow the first.
ALTER TABLE managed_tx SET (fillfactor = 30);

-- What other columns or other tables say is not written twice.
COMMENT ON COLUMN managed_tx.receipt IS 'Receipt as last read, without what has a column: block_number, block_hash, tx_hash.';
COMMENT ON COLUMN managed_tx.last_gas_params IS 'Not written any more: tx_attempt.gas_params has them.';

-- Attempts are always looked for by their intent.
ALTER TABLE tx_attempt DROP CONSTRAINT tx_attempt_pkey;
ALTER TABLE tx_attempt ADD PRIMARY KEY (tx_id, attempt_id);
DROP INDEX tx_attempt_by_tx;
COMMENT ON COLUMN tx_attempt.first_sent_at IS 'First answer of a node to a send; may lag behind the send itself. Null if it was mined before anything else had to be written.';
COMMENT ON COLUMN tx_attempt.last_sent_at IS 'Last answer of a node to a send; null as above.';
COMMENT ON COLUMN tx_attempt.last_outcome IS 'Class of that answer; null as above.';

-- The same guards as before. A condition costs next to nothing; the function runs only to say what is wrong.
DROP TRIGGER managed_tx_guard ON managed_tx;
CREATE TRIGGER managed_tx_guard AFTER UPDATE ON managed_tx FOR EACH ROW
    WHEN (OLD.fencing_token > NEW.fencing_token
          OR (OLD.fencing_token IS NOT NULL AND NEW.fencing_token IS NULL)
          OR NOT managed_tx_move_allowed(OLD.state, NEW.state)
          OR (OLD.nonce IS NOT NULL AND OLD.nonce IS DISTINCT FROM NEW.nonce AND NEW.state <> 'QUEUED'))
    EXECUTE FUNCTION managed_tx_guard();
DROP TRIGGER submitter_nonce_cursor_guard ON submitter_nonce_cursor;
CREATE TRIGGER submitter_nonce_cursor_guard AFTER UPDATE ON submitter_nonce_cursor FOR EACH ROW
    WHEN (OLD.fencing_token > NEW.fencing_token
          OR OLD.next_nonce > NEW.next_nonce
          OR (OLD.next_nonce < NEW.next_nonce
              AND (NEW.next_nonce - NEW.in_flight_nonce > NEW.max_in_flight
                   OR NEW.in_flight_nonce IS NULL
                   OR NEW.in_flight_nonce > OLD.next_nonce)))
    EXECUTE FUNCTION submitter_nonce_cursor_guard();

-- A sequence may begin with its first nonces given, in one commit. Then it obeys the window, and begins at its beginning.
CREATE FUNCTION submitter_nonce_cursor_first_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF submitter_is_shared(NEW.chain_id, NEW.submitter) THEN
        RETURN NEW;
    END IF;
    IF NEW.next_nonce - NEW.in_flight_nonce > NEW.max_in_flight THEN
        RAISE EXCEPTION 'cursor of %: % nonces open, % allowed', NEW.submitter,
            NEW.next_nonce - NEW.in_flight_nonce, NEW.max_in_flight USING ERRCODE = 'GL004';
    END IF;
    RAISE EXCEPTION 'cursor of %: a strict sequence cannot skip from % to %', NEW.submitter, NEW.start_nonce,
        NEW.next_nonce USING ERRCODE = 'GL005';
END $$;
CREATE TRIGGER submitter_nonce_cursor_first_guard AFTER INSERT ON submitter_nonce_cursor FOR EACH ROW
    WHEN (NEW.next_nonce - NEW.in_flight_nonce > NEW.max_in_flight
          OR (NEW.next_nonce > NEW.start_nonce AND NEW.in_flight_nonce IS DISTINCT FROM NEW.start_nonce))
    EXECUTE FUNCTION submitter_nonce_cursor_first_guard();
