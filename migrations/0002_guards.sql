-- Guards that hold even for psql: states move only along the machine, tokens never fall, nonces are never taken back.

CREATE FUNCTION managed_tx_move_allowed(from_state TEXT, to_state TEXT) RETURNS BOOLEAN
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT from_state = to_state OR CASE from_state
        WHEN 'QUEUED' THEN to_state IN ('IN_FLIGHT', 'FAILED', 'CANCELLED')
        WHEN 'IN_FLIGHT' THEN to_state IN ('SUBMITTED', 'TRACKING', 'STUCK', 'PROTECT', 'CONFIRMED', 'FAILED', 'CANCELLED')
        WHEN 'SUBMITTED' THEN to_state IN ('TRACKING', 'STUCK', 'PROTECT', 'CONFIRMED', 'FAILED', 'CANCELLED')
        WHEN 'TRACKING' THEN to_state IN ('SUBMITTED', 'STUCK', 'PROTECT', 'CONFIRMED', 'FAILED', 'CANCELLED')
        WHEN 'STUCK' THEN to_state IN ('SUBMITTED', 'TRACKING', 'PROTECT', 'CONFIRMED', 'FAILED', 'CANCELLED')
        WHEN 'PROTECT' THEN to_state IN ('SUBMITTED', 'TRACKING', 'QUEUED')
        ELSE FALSE END
$$;
COMMENT ON FUNCTION managed_tx_move_allowed IS 'The state machine of an intent; the same as TxState::may_become and docs/state-machine.md.';

CREATE FUNCTION managed_tx_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fencing_token < OLD.fencing_token OR (NEW.fencing_token IS NULL AND OLD.fencing_token IS NOT NULL) THEN
        RAISE EXCEPTION 'managed_tx %: token % is older than %', OLD.tx_id, NEW.fencing_token, OLD.fencing_token
            USING ERRCODE = 'GL001';
    END IF;
    IF NOT managed_tx_move_allowed(OLD.state, NEW.state) THEN
        RAISE EXCEPTION 'managed_tx %: cannot go from % to %', OLD.tx_id, OLD.state, NEW.state USING ERRCODE = 'GL002';
    END IF;
    IF NEW.nonce IS DISTINCT FROM OLD.nonce AND OLD.nonce IS NOT NULL AND NEW.state <> 'QUEUED' THEN
        RAISE EXCEPTION 'managed_tx %: has nonce % and cannot get %', OLD.tx_id, OLD.nonce, NEW.nonce
            USING ERRCODE = 'GL003';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER managed_tx_guard BEFORE UPDATE ON managed_tx FOR EACH ROW EXECUTE FUNCTION managed_tx_guard();

CREATE FUNCTION submitter_nonce_cursor_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fencing_token < OLD.fencing_token THEN
        RAISE EXCEPTION 'cursor of %: token % is older than %', OLD.submitter, NEW.fencing_token, OLD.fencing_token
            USING ERRCODE = 'GL001';
    END IF;
    IF NEW.next_nonce < OLD.next_nonce THEN
        RAISE EXCEPTION 'cursor of %: next nonce cannot fall from % to %', OLD.submitter, OLD.next_nonce, NEW.next_nonce
            USING ERRCODE = 'GL003';
    END IF;
    -- Checked when a nonce is given, not when the window slides: a reorg may re-open more than the window holds.
    IF NEW.next_nonce > OLD.next_nonce AND NEW.in_flight_state = 'IN_FLIGHT'
        AND NEW.next_nonce - NEW.in_flight_nonce > NEW.max_in_flight THEN
        RAISE EXCEPTION 'cursor of %: % nonces open, % allowed', OLD.submitter,
            NEW.next_nonce - NEW.in_flight_nonce, NEW.max_in_flight USING ERRCODE = 'GL004';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER submitter_nonce_cursor_guard BEFORE UPDATE ON submitter_nonce_cursor
    FOR EACH ROW EXECUTE FUNCTION submitter_nonce_cursor_guard();

CREATE FUNCTION submitter_lease_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fencing_token < OLD.fencing_token THEN
        RAISE EXCEPTION 'lease of %: token cannot fall from % to %', OLD.submitter, OLD.fencing_token, NEW.fencing_token
            USING ERRCODE = 'GL001';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER submitter_lease_guard BEFORE UPDATE OF fencing_token ON submitter_lease
    FOR EACH ROW EXECUTE FUNCTION submitter_lease_guard();
