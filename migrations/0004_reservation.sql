-- Reservations: a nonce that a caller's own code sees before there is a transaction for it. Its placeholder is on disk first.

ALTER TABLE submitter ADD COLUMN low_level BOOLEAN NOT NULL DEFAULT FALSE;
COMMENT ON COLUMN submitter.low_level IS 'Its nonces are given by the low-level hook alone, and not to requests of the queue.';
COMMENT ON COLUMN submitter.updated_at IS 'Last change of signer, status, window or mode.';

CREATE TABLE nonce_reservation (
    tx_id          UUID PRIMARY KEY,
    chain_id       BIGINT NOT NULL,
    submitter      TEXT NOT NULL,
    via            TEXT NOT NULL,
    owner          UUID NOT NULL,
    hold_seconds   FLOAT8 NOT NULL,
    wanted_until   TIMESTAMPTZ NOT NULL,
    answer_payload JSONB,
    answer_raw     BYTEA,
    gave_up        TEXT,
    answered_at    TIMESTAMPTZ,
    state          TEXT NOT NULL DEFAULT 'REQUESTED',
    nonce          BIGINT,
    expires_at     TIMESTAMPTZ,
    noted_at       TIMESTAMPTZ,
    settled_at     TIMESTAMPTZ,
    fencing_token  BIGINT,
    requested_at   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT nonce_reservation_via_is_known CHECK (via IN ('with_nonce', 'low_level')),
    CONSTRAINT nonce_reservation_hold_is_positive CHECK (hold_seconds > 0),
    CONSTRAINT nonce_reservation_state_is_known CHECK (state IN ('REQUESTED', 'RESERVED', 'USED', 'RECYCLABLE')),
    CONSTRAINT nonce_reservation_nonce_iff_given CHECK
        ((state <> 'REQUESTED') = (nonce IS NOT NULL AND expires_at IS NOT NULL AND fencing_token IS NOT NULL)),
    CONSTRAINT nonce_reservation_one_answer CHECK
        (num_nonnulls(answer_payload, answer_raw, gave_up) = CASE WHEN answered_at IS NULL THEN 0 ELSE 1 END),
    CONSTRAINT nonce_reservation_used_has_answer CHECK
        (state <> 'USED' OR answer_payload IS NOT NULL OR answer_raw IS NOT NULL),
    CONSTRAINT nonce_reservation_settled_iff_over CHECK ((settled_at IS NOT NULL) = (state IN ('USED', 'RECYCLABLE')))
) WITH (fillfactor = 80);
CREATE UNIQUE INDEX nonce_reservation_nonce_is_unique ON nonce_reservation (chain_id, submitter, nonce) WHERE state = 'RESERVED';
CREATE INDEX nonce_reservation_pending ON nonce_reservation (chain_id, submitter)
    WHERE state = 'RESERVED' AND answered_at IS NOT NULL AND noted_at IS NULL;
COMMENT ON TABLE nonce_reservation IS 'A nonce held for code outside of the worker. The caller asks and answers; the lane gives the nonce and decides.';
COMMENT ON COLUMN nonce_reservation.tx_id IS 'The intent that carries it; names the reservation as well.';
COMMENT ON COLUMN nonce_reservation.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN nonce_reservation.submitter IS 'Address, lower-case 0x hex.';
COMMENT ON COLUMN nonce_reservation.via IS 'with_nonce, or low_level.';
COMMENT ON COLUMN nonce_reservation.owner IS 'Random per call: only who knows it may answer.';
COMMENT ON COLUMN nonce_reservation.hold_seconds IS 'How long the caller wants to hold the nonce; nonce.max_hold bounds it.';
COMMENT ON COLUMN nonce_reservation.wanted_until IS 'A caller that waits moves it on; once it has passed, no nonce is given.';
COMMENT ON COLUMN nonce_reservation.answer_payload IS 'The transaction the caller wants at the nonce, in canonical form; the worker signs it.';
COMMENT ON COLUMN nonce_reservation.answer_raw IS 'The transaction as the caller signed it. Not an attempt: the lane checks it first.';
COMMENT ON COLUMN nonce_reservation.gave_up IS 'Why the caller wants the nonce no more.';
COMMENT ON COLUMN nonce_reservation.answered_at IS 'When the caller answered or gave up.';
COMMENT ON COLUMN nonce_reservation.state IS 'REQUESTED, RESERVED (held), USED (its transaction is recorded) or RECYCLABLE (the placeholder consumes it).';
COMMENT ON COLUMN nonce_reservation.nonce IS 'Shown to the caller; its placeholder was recorded in the same commit.';
COMMENT ON COLUMN nonce_reservation.expires_at IS 'Later answers do not count.';
COMMENT ON COLUMN nonce_reservation.noted_at IS 'When the lane took note of an answer that it cannot decide on yet.';
COMMENT ON COLUMN nonce_reservation.settled_at IS 'When it was used, or given up.';
COMMENT ON COLUMN nonce_reservation.fencing_token IS 'Token of the owner that wrote last.';
COMMENT ON COLUMN nonce_reservation.requested_at IS 'When it was asked for.';

CREATE FUNCTION nonce_reservation_guard() RETURNS TRIGGER LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.fencing_token < OLD.fencing_token OR (NEW.fencing_token IS NULL AND OLD.fencing_token IS NOT NULL) THEN
        RAISE EXCEPTION 'reservation %: token % is older than %', OLD.tx_id, NEW.fencing_token, OLD.fencing_token
            USING ERRCODE = 'GL001';
    END IF;
    IF NEW.nonce IS DISTINCT FROM OLD.nonce AND OLD.nonce IS NOT NULL THEN
        RAISE EXCEPTION 'reservation %: has nonce % and cannot get %', OLD.tx_id, OLD.nonce, NEW.nonce USING ERRCODE = 'GL003';
    END IF;
    IF NEW.state = OLD.state THEN
        RETURN NEW;
    END IF;
    IF NOT ((OLD.state = 'REQUESTED' AND NEW.state = 'RESERVED')
            OR (OLD.state = 'RESERVED' AND NEW.state IN ('USED', 'RECYCLABLE'))) THEN
        RAISE EXCEPTION 'reservation %: cannot go from % to %', OLD.tx_id, OLD.state, NEW.state USING ERRCODE = 'GL002';
    END IF;
    -- A nonce that is shown has the bytes that consume it; one that is used has those of the caller's transaction.
    IF NEW.state IN ('RESERVED', 'USED') AND NOT EXISTS (
        SELECT 1 FROM tx_attempt a
        WHERE a.tx_id = NEW.tx_id AND a.nonce = NEW.nonce
          AND a.kind = CASE NEW.state WHEN 'RESERVED' THEN 'PLACEHOLDER' ELSE 'ORIGINAL' END) THEN
        RAISE EXCEPTION 'reservation %: % without its bytes', OLD.tx_id, NEW.state USING ERRCODE = 'GL006';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER nonce_reservation_guard BEFORE UPDATE ON nonce_reservation FOR EACH ROW EXECUTE FUNCTION nonce_reservation_guard();
