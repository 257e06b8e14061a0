-- Webhooks, and what is stored of their deliveries. Only adds.

CREATE TABLE outlet (
    outlet_id       UUID PRIMARY KEY,
    kind            TEXT NOT NULL,
    epoch           TEXT NOT NULL,
    position        BIGINT NOT NULL,
    reset_id        UUID,
    reset_reason    TEXT,
    owner           TEXT,
    lease_id        UUID,
    expires_at      TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    failing_since   TIMESTAMPTZ,
    last_error      TEXT,
    last_error_at   TIMESTAMPTZ,
    last_success_at TIMESTAMPTZ,
    CONSTRAINT outlet_kind_is_known CHECK (kind IN ('WEBHOOK')),
    CONSTRAINT outlet_epoch_is_an_identifier CHECK (epoch ~ '^[0-9a-f]{8}$'),
    CONSTRAINT outlet_reset_has_a_reason CHECK ((reset_id IS NULL) = (reset_reason IS NULL)),
    CONSTRAINT outlet_reset_reason_is_known CHECK (reset_reason IN ('epoch', 'retention')),
    CONSTRAINT outlet_error_has_a_time CHECK ((last_error IS NULL) = (last_error_at IS NULL))
-- Updated often; free space in each page keeps new row versions next to the old ones.
) WITH (fillfactor = 50);
COMMENT ON TABLE outlet IS 'A consumer that workers deliver events to: its cursor, its lease and its health. Written by the worker that has the lease.';
COMMENT ON COLUMN outlet.outlet_id IS 'Id of the webhook.';
COMMENT ON COLUMN outlet.kind IS 'WEBHOOK.';
COMMENT ON COLUMN outlet.epoch IS 'Epoch of the position.';
COMMENT ON COLUMN outlet.position IS 'All events up to here are delivered or exhausted, except those of submitters in outlet_submitter.';
COMMENT ON COLUMN outlet.reset_id IS 'Id of a reset notice that is not delivered yet.';
COMMENT ON COLUMN outlet.reset_reason IS 'Reason of that notice: epoch or retention.';
COMMENT ON COLUMN outlet.owner IS 'Worker that has, or last had, the lease; null if it was given back.';
COMMENT ON COLUMN outlet.lease_id IS 'Random, new with each claim. Every write of the owner checks it.';
COMMENT ON COLUMN outlet.expires_at IS 'When the lease ends unless it is renewed. Without an owner: since when.';
COMMENT ON COLUMN outlet.failing_since IS 'Time of the first failure after the last success; null if the last delivery succeeded.';
COMMENT ON COLUMN outlet.last_error IS 'The last failure, for people.';
COMMENT ON COLUMN outlet.last_error_at IS 'When it happened.';
COMMENT ON COLUMN outlet.last_success_at IS 'When a delivery last succeeded.';

CREATE TABLE webhook (
    webhook_id             UUID PRIMARY KEY,
    key_id                 TEXT,
    url                    TEXT NOT NULL,
    description            TEXT NOT NULL DEFAULT '',
    chain_id               BIGINT,
    submitter              BYTEA,
    tx_id                  UUID,
    kinds                  TEXT[],
    secret_key_id          TEXT NOT NULL,
    secret                 BYTEA NOT NULL,
    previous_secret_key_id TEXT,
    previous_secret        BYTEA,
    previous_secret_until  TIMESTAMPTZ,
    disabled_reason        TEXT,
    disabled_at            TIMESTAMPTZ,
    revision               BIGINT NOT NULL DEFAULT 1,
    created_at             TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT webhook_url_length CHECK (length(url) BETWEEN 1 AND 4096),
    CONSTRAINT webhook_description_length CHECK (length(description) <= 200),
    CONSTRAINT webhook_submitter_is_an_address CHECK (length(submitter) = 20),
    CONSTRAINT webhook_submitter_has_a_chain CHECK (submitter IS NULL OR chain_id IS NOT NULL),
    CONSTRAINT webhook_previous_secret_is_complete CHECK
        ((previous_secret IS NULL) = (previous_secret_key_id IS NULL) AND (previous_secret IS NULL) = (previous_secret_until IS NULL)),
    CONSTRAINT webhook_disabled_reason_is_known CHECK (disabled_reason IN ('requested', 'gone', 'failing', 'key_revoked')),
    CONSTRAINT webhook_disabled_has_a_time CHECK ((disabled_reason IS NULL) = (disabled_at IS NULL))
);
COMMENT ON TABLE webhook IS 'A URL that events are delivered to.';
COMMENT ON COLUMN webhook.webhook_id IS 'Id, also of its row in outlet.';
COMMENT ON COLUMN webhook.key_id IS 'The API key that created it: it gets what the key may see, and is disabled with the key. Null: created without keys, gets everything.';
COMMENT ON COLUMN webhook.url IS 'Where deliveries go. May contain a token of the receiver: not for logs.';
COMMENT ON COLUMN webhook.description IS 'Note of the user.';
COMMENT ON COLUMN webhook.chain_id IS 'Filter; null: all.';
COMMENT ON COLUMN webhook.submitter IS 'Filter, an address of 20 bytes; null: all.';
COMMENT ON COLUMN webhook.tx_id IS 'Filter; null: all.';
COMMENT ON COLUMN webhook.kinds IS 'Filter, types of events; null: all.';
COMMENT ON COLUMN webhook.secret_key_id IS 'Key of events.webhook.key_file that encrypted the secret.';
COMMENT ON COLUMN webhook.secret IS 'Encrypted signing secret (XChaCha20-Poly1305, with the id of the webhook as additional data).';
COMMENT ON COLUMN webhook.previous_secret_key_id IS 'The same for the secret before the last rotation.';
COMMENT ON COLUMN webhook.previous_secret IS 'Encrypted secret before the last rotation.';
COMMENT ON COLUMN webhook.previous_secret_until IS 'Until then deliveries are signed with both secrets.';
COMMENT ON COLUMN webhook.disabled_reason IS 'Null: enabled. requested: by a user. gone: the receiver answered 410. failing: all deliveries failed for events.webhook.disable_after. key_revoked: its API key was revoked or has expired.';
COMMENT ON COLUMN webhook.disabled_at IS 'When it was disabled.';
COMMENT ON COLUMN webhook.revision IS 'Increased by each change, so that its worker notices.';
COMMENT ON COLUMN webhook.created_at IS 'When it was created.';

CREATE TABLE outlet_submitter (
    outlet_id       UUID NOT NULL,
    chain_id        BIGINT NOT NULL,
    submitter       BYTEA NOT NULL,
    position        BIGINT NOT NULL,
    attempts        INT NOT NULL,
    next_attempt_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (outlet_id, chain_id, submitter)
);
COMMENT ON TABLE outlet_submitter IS 'A submitter whose events an outlet could not take as fast as those of others: its own cursor, until it has caught up.';
COMMENT ON COLUMN outlet_submitter.outlet_id IS 'The outlet.';
COMMENT ON COLUMN outlet_submitter.chain_id IS 'EIP-155 chain id; 0 for events without a submitter.';
COMMENT ON COLUMN outlet_submitter.submitter IS 'Address, 20 bytes; empty for events without a submitter.';
COMMENT ON COLUMN outlet_submitter.position IS 'All events of this submitter up to here are delivered or exhausted.';
COMMENT ON COLUMN outlet_submitter.attempts IS 'Failed attempts at its next event.';
COMMENT ON COLUMN outlet_submitter.next_attempt_at IS 'When the next attempt is made.';

CREATE TABLE webhook_delivery (
    webhook_id  UUID NOT NULL,
    event_id    UUID NOT NULL,
    delivery_no BIGINT GENERATED ALWAYS AS IDENTITY,
    position    BIGINT,
    chain_id    BIGINT,
    submitter   BYTEA,
    tx_id       UUID,
    kind        TEXT NOT NULL,
    state       TEXT NOT NULL,
    attempts    INT NOT NULL DEFAULT 0,
    first_at    TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    last_at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    next_at     TIMESTAMPTZ,
    status_code INT,
    error       TEXT,
    duration_ms INT NOT NULL DEFAULT 0,
    PRIMARY KEY (webhook_id, event_id),
    CONSTRAINT webhook_delivery_state_is_known CHECK (state IN ('PENDING', 'RETRYING', 'DELIVERED', 'EXHAUSTED')),
    CONSTRAINT webhook_delivery_submitter_has_a_chain CHECK ((chain_id IS NULL) = (submitter IS NULL))
);
CREATE INDEX webhook_delivery_newest ON webhook_delivery (webhook_id, delivery_no);
CREATE INDEX webhook_delivery_not_delivered ON webhook_delivery (webhook_id, state, delivery_no) WHERE state <> 'DELIVERED';
CREATE INDEX webhook_delivery_delivered ON webhook_delivery (last_at) WHERE state = 'DELIVERED';
CREATE INDEX webhook_delivery_others ON webhook_delivery (last_at) WHERE state <> 'DELIVERED';
COMMENT ON TABLE webhook_delivery IS 'The attempts to deliver one event to one webhook. Old rows are deleted.';
COMMENT ON COLUMN webhook_delivery.webhook_id IS 'The webhook.';
COMMENT ON COLUMN webhook_delivery.event_id IS 'Id of the event, which is the webhook-id of every attempt.';
COMMENT ON COLUMN webhook_delivery.delivery_no IS 'Order of the list.';
COMMENT ON COLUMN webhook_delivery.position IS 'Position of the event in event_log when it was delivered; null for test events and notices.';
COMMENT ON COLUMN webhook_delivery.chain_id IS 'EIP-155 chain id; null without a submitter.';
COMMENT ON COLUMN webhook_delivery.submitter IS 'Address, 20 bytes; null for events without one.';
COMMENT ON COLUMN webhook_delivery.tx_id IS 'Intent of the event, if any.';
COMMENT ON COLUMN webhook_delivery.kind IS 'Type of the event.';
COMMENT ON COLUMN webhook_delivery.state IS 'PENDING: asked for, not tried yet. RETRYING: failed, tried again at next_at. DELIVERED. EXHAUSTED: the last attempt failed.';
COMMENT ON COLUMN webhook_delivery.attempts IS 'Attempts made, with those of replays.';
COMMENT ON COLUMN webhook_delivery.first_at IS 'First attempt.';
COMMENT ON COLUMN webhook_delivery.last_at IS 'Last attempt.';
COMMENT ON COLUMN webhook_delivery.next_at IS 'Next attempt, if there is one.';
COMMENT ON COLUMN webhook_delivery.status_code IS 'Status of the last answer; null if there was none.';
COMMENT ON COLUMN webhook_delivery.error IS 'Why the last attempt failed, for people; null if it succeeded.';
COMMENT ON COLUMN webhook_delivery.duration_ms IS 'How long the last attempt took.';

CREATE TABLE webhook_replay (
    webhook_id      UUID NOT NULL,
    event_id        UUID NOT NULL,
    replay_no       BIGINT GENERATED ALWAYS AS IDENTITY,
    position        BIGINT,
    chain_id        BIGINT,
    submitter       BYTEA,
    attempts        INT NOT NULL DEFAULT 0,
    next_attempt_at TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (webhook_id, event_id),
    CONSTRAINT webhook_replay_submitter_has_a_chain CHECK ((chain_id IS NULL) = (submitter IS NULL))
);
COMMENT ON TABLE webhook_replay IS 'Events that a user asked to deliver again, and test events. Deleted when delivered or exhausted.';
COMMENT ON COLUMN webhook_replay.webhook_id IS 'The webhook.';
COMMENT ON COLUMN webhook_replay.event_id IS 'Id of the event.';
COMMENT ON COLUMN webhook_replay.replay_no IS 'Increases with each request, so that the worker notices.';
COMMENT ON COLUMN webhook_replay.position IS 'Position of the event in event_log; null: a test event, which is in no log.';
COMMENT ON COLUMN webhook_replay.chain_id IS 'EIP-155 chain id; null without a submitter.';
COMMENT ON COLUMN webhook_replay.submitter IS 'Address, 20 bytes; null for events without one.';
COMMENT ON COLUMN webhook_replay.attempts IS 'Failed attempts.';
COMMENT ON COLUMN webhook_replay.next_attempt_at IS 'When the next attempt is made.';

CREATE FUNCTION gapless_grants_0005() RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gapless_api') THEN
        GRANT SELECT, INSERT, DELETE ON webhook TO gapless_api;
        GRANT UPDATE (url, description, chain_id, submitter, tx_id, kinds, secret_key_id, secret, previous_secret_key_id,
            previous_secret, previous_secret_until, disabled_reason, disabled_at, revision) ON webhook TO gapless_api;
        GRANT SELECT, INSERT, DELETE, UPDATE (failing_since) ON outlet TO gapless_api;
        GRANT SELECT, DELETE, UPDATE (next_attempt_at) ON outlet_submitter TO gapless_api;
        GRANT SELECT, INSERT, UPDATE (state) ON webhook_delivery TO gapless_api;
        GRANT SELECT, INSERT, DELETE, UPDATE (replay_no, attempts, next_attempt_at) ON webhook_replay TO gapless_api;
    END IF;
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gapless_worker') THEN
        GRANT SELECT, UPDATE (disabled_reason, disabled_at, revision) ON webhook TO gapless_worker;
        GRANT SELECT, UPDATE ON outlet TO gapless_worker;
        GRANT SELECT, INSERT, UPDATE, DELETE ON outlet_submitter, webhook_delivery TO gapless_worker;
        GRANT SELECT, UPDATE (attempts, next_attempt_at), DELETE ON webhook_replay TO gapless_worker;
        GRANT SELECT (key_id, submitters, expires_at, revoked_at) ON api_key TO gapless_worker;
    END IF;
END $$;
COMMENT ON FUNCTION gapless_grants_0005 IS 'Rights of the roles on what migration 5 made. Called by gapless_grant_roles().';

SELECT gapless_grant_roles();
