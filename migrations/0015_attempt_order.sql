-- The order of an intent's attempts is a number that is written behind the fence. Times are for people: the clock of a database can
-- be set back, and a standby that takes over can be behind.

LOCK TABLE tx_attempt IN ACCESS EXCLUSIVE MODE;

ALTER TABLE tx_attempt ADD COLUMN ordinal INT;

-- What is there: by owner first, because tokens only grow; the times of one owner are the best that is known.
UPDATE tx_attempt a
SET ordinal = o.ordinal
FROM (
    SELECT tx_id, attempt_id,
           row_number() OVER (PARTITION BY tx_id ORDER BY fencing_token, created_at, attempt_id) AS ordinal
    FROM tx_attempt
) o
WHERE a.tx_id = o.tx_id AND a.attempt_id = o.attempt_id;

-- As many indexes as before: attempts of one intent are few, and found by its id.
ALTER TABLE tx_attempt DROP CONSTRAINT tx_attempt_pkey;
ALTER TABLE tx_attempt ADD CONSTRAINT tx_attempt_pkey PRIMARY KEY (tx_id, ordinal);
ALTER TABLE tx_attempt ADD CONSTRAINT tx_attempt_ordinal_is_positive CHECK (ordinal > 0);
COMMENT ON COLUMN tx_attempt.ordinal IS 'Order in which the attempts of an intent were committed: 1, 2, … Written behind the fence.';
COMMENT ON COLUMN tx_attempt.created_at IS 'When it was committed, by the clock of the database. Orders nothing.';

-- Programs of the release before do not name it. They are behind the fence as well, so that nobody else counts at the same time.
CREATE FUNCTION tx_attempt_count() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    SELECT coalesce(max(a.ordinal), 0) + 1 INTO NEW.ordinal FROM tx_attempt a WHERE a.tx_id = NEW.tx_id;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION tx_attempt_count IS 'Numbers an attempt of a program that does not know ordinals.';
CREATE TRIGGER tx_attempt_count BEFORE INSERT ON tx_attempt
    FOR EACH ROW WHEN (NEW.ordinal IS NULL) EXECUTE FUNCTION tx_attempt_count();

-- A request that takes longer than one commit: its owner has seen it, and nobody needs to be woken for it.
COMMENT ON COLUMN tx_request.applied_at IS 'When it was dealt with: of a speed-up, with the commit of its attempt, or of the refusal. Null while it waits.';
COMMENT ON COLUMN tx_request.fencing_token IS 'Token of the owner that dealt with it, or that has seen it and is working on it.';
