-- Shared keys: submitters whose key others use as well. And what is known of accounts with delegated code (EIP-7702).

ALTER TABLE submitter ADD COLUMN shared BOOLEAN NOT NULL DEFAULT FALSE;
COMMENT ON COLUMN submitter.shared IS 'Others use the key as well (nonce.strict.enabled = false): their nonces are stepped over.';

ALTER TABLE submitter_nonce_cursor ADD COLUMN delegated BOOLEAN NOT NULL DEFAULT FALSE;
COMMENT ON COLUMN submitter_nonce_cursor.delegated IS 'The account has delegated code (EIP-7702), as the lane last saw: nodes take one transaction at a time.';

CREATE TABLE foreign_nonce (
    chain_id      BIGINT NOT NULL,
    submitter     TEXT NOT NULL,
    first_nonce   BIGINT NOT NULL,
    last_nonce    BIGINT NOT NULL,
    cause         TEXT NOT NULL,
    fencing_token BIGINT NOT NULL,
    noted_at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (chain_id, submitter, first_nonce, cause),
    CONSTRAINT foreign_nonce_range_is_sound CHECK (0 <= first_nonce AND first_nonce <= last_nonce),
    CONSTRAINT foreign_nonce_cause_is_known CHECK (cause IN ('STEPPED_OVER', 'DISPLACED'))
);
COMMENT ON TABLE foreign_nonce IS 'Nonces of a shared submitter that are left to others. Kept when the submitter becomes strict again: the audit needs them.';
COMMENT ON COLUMN foreign_nonce.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN foreign_nonce.submitter IS 'Address, lower-case 0x hex.';
COMMENT ON COLUMN foreign_nonce.first_nonce IS 'First nonce of the range.';
COMMENT ON COLUMN foreign_nonce.last_nonce IS 'Last nonce of the range.';
COMMENT ON COLUMN foreign_nonce.cause IS 'STEPPED_OVER: the chain or its mempool was ahead of the sequence. DISPLACED: an intent had it and lost it.';
COMMENT ON COLUMN foreign_nonce.fencing_token IS 'Token of the owner that noted it.';
COMMENT ON COLUMN foreign_nonce.noted_at IS 'When.';

CREATE FUNCTION submitter_is_shared(of_chain BIGINT, of_submitter TEXT) RETURNS BOOLEAN
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (SELECT 1 FROM submitter s WHERE s.chain_id = of_chain AND s.submitter = of_submitter AND s.shared)
$$;
COMMENT ON FUNCTION submitter_is_shared IS 'Whether the guards may let a submitter step over nonces.';

CREATE FUNCTION foreign_nonce_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NOT submitter_is_shared(NEW.chain_id, NEW.submitter) THEN
        RAISE EXCEPTION 'foreign nonces of %: it is strict', NEW.submitter USING ERRCODE = 'GL005';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER foreign_nonce_guard BEFORE INSERT ON foreign_nonce FOR EACH ROW EXECUTE FUNCTION foreign_nonce_guard();

-- As before, and: a strict sequence gives its nonces one after the other. The first that is given is the cursor's, so the
-- oldest open one is not above it; only an adoption, which begins the sequence anew, may move the cursor otherwise.
-- The submitter's row is read only where a strict one would be refused.
CREATE OR REPLACE FUNCTION submitter_nonce_cursor_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fencing_token < OLD.fencing_token THEN
        RAISE EXCEPTION 'cursor of %: token % is older than %', OLD.submitter, NEW.fencing_token, OLD.fencing_token
            USING ERRCODE = 'GL001';
    END IF;
    IF NEW.next_nonce < OLD.next_nonce THEN
        RAISE EXCEPTION 'cursor of %: next nonce cannot fall from % to %', OLD.submitter, OLD.next_nonce, NEW.next_nonce
            USING ERRCODE = 'GL003';
    END IF;
    -- Checked when a nonce is given, not when the window slides: a reorg may re-open more than the window holds. The
    -- window of a shared submitter has nonces of others in it and is counted by its lane.
    IF NEW.next_nonce > OLD.next_nonce AND NEW.in_flight_state = 'IN_FLIGHT'
        AND NEW.next_nonce - NEW.in_flight_nonce > NEW.max_in_flight
        AND NOT submitter_is_shared(OLD.chain_id, OLD.submitter) THEN
        RAISE EXCEPTION 'cursor of %: % nonces open, % allowed', OLD.submitter,
            NEW.next_nonce - NEW.in_flight_nonce, NEW.max_in_flight USING ERRCODE = 'GL004';
    END IF;
    IF NEW.next_nonce > OLD.next_nonce AND NEW.start_nonce = OLD.start_nonce
        AND (NEW.in_flight_nonce IS NULL OR NEW.in_flight_nonce > OLD.next_nonce)
        AND NOT submitter_is_shared(OLD.chain_id, OLD.submitter) THEN
        RAISE EXCEPTION 'cursor of %: a strict sequence cannot skip from % to %', OLD.submitter, OLD.next_nonce,
            NEW.next_nonce USING ERRCODE = 'GL005';
    END IF;
    RETURN NEW;
END $$;
