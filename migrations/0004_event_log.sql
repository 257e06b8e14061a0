-- Events: whether they are recorded, their ordered log, and its head. Only adds.

CREATE TABLE event_recording (
    only_row    BOOLEAN PRIMARY KEY DEFAULT TRUE,
    enabled     BOOLEAN NOT NULL,
    by_operator BOOLEAN NOT NULL DEFAULT FALSE,
    changed_by  TEXT NOT NULL,
    changed_at  TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT event_recording_has_one_row CHECK (only_row)
);
COMMENT ON TABLE event_recording IS 'One row: whether state changes write events. Read in the commit of each change, so that all programs agree.';
COMMENT ON COLUMN event_recording.only_row IS 'Always true: the table has one row.';
COMMENT ON COLUMN event_recording.enabled IS 'Whether events are recorded.';
COMMENT ON COLUMN event_recording.by_operator IS 'An operator decided (gapless events enable, disable): the configuration of a program no longer changes it.';
COMMENT ON COLUMN event_recording.changed_by IS 'Who changed it last.';
COMMENT ON COLUMN event_recording.changed_at IS 'When it was changed last.';
INSERT INTO event_recording (enabled, changed_by) VALUES (FALSE, 'migration');

-- No secret, and programs that reserve nonces have roles of their own.
GRANT SELECT ON event_recording TO PUBLIC;

-- Without NOT NULL, so that existing rows are not rewritten. They get their id in the log.
ALTER TABLE outbox_event ADD COLUMN id UUID;
ALTER TABLE outbox_event ALTER COLUMN id SET DEFAULT gen_random_uuid();
COMMENT ON COLUMN outbox_event.id IS 'Id of the event for consumers; never changes. Null in rows older than migration 4.';
-- An event of a webhook has no submitter.
ALTER TABLE outbox_event ALTER COLUMN chain_id DROP NOT NULL;
ALTER TABLE outbox_event ALTER COLUMN submitter DROP NOT NULL;
COMMENT ON COLUMN outbox_event.chain_id IS 'EIP-155 chain id; null without a submitter.';
COMMENT ON COLUMN outbox_event.submitter IS 'Address, 20 bytes; null for events of a webhook.';
COMMENT ON TABLE outbox_event IS 'Events that are not in event_log yet, written in the commit of the state change while event_recording is enabled.';
COMMENT ON COLUMN outbox_event.event_id IS 'Order of the writes of one submitter. Not the order of commits.';

CREATE TABLE event_log (
    position   BIGINT NOT NULL,
    id         UUID NOT NULL,
    chain_id   BIGINT,
    submitter  BYTEA,
    tx_id      UUID,
    request_id TEXT,
    kind       TEXT NOT NULL,
    data       JSONB NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (position),
    CONSTRAINT event_log_submitter_has_a_chain CHECK ((chain_id IS NULL) = (submitter IS NULL))
) PARTITION BY RANGE (position);
CREATE INDEX event_log_of_tx ON event_log (tx_id, position) WHERE tx_id IS NOT NULL;
-- Costs next to nothing to maintain, and times increase with positions.
CREATE INDEX event_log_by_time ON event_log USING brin (created_at);
COMMENT ON TABLE event_log IS 'Events in the order in which consumers read them. Partitions are added and dropped by the sequencer.';
COMMENT ON COLUMN event_log.position IS 'Consecutive. Of one submitter, in the order of its commits.';
COMMENT ON COLUMN event_log.id IS 'Id of the event for consumers; never changes.';
COMMENT ON COLUMN event_log.chain_id IS 'EIP-155 chain id; null without a submitter.';
COMMENT ON COLUMN event_log.submitter IS 'Address, 20 bytes; null for events of a webhook.';
COMMENT ON COLUMN event_log.tx_id IS 'Intent; null for events of a submitter.';
COMMENT ON COLUMN event_log.request_id IS 'Request id of the intent; null if the intent was pruned before.';
COMMENT ON COLUMN event_log.kind IS 'For example tx.confirmed.';
COMMENT ON COLUMN event_log.data IS 'Body of the event; never a nonce.';
COMMENT ON COLUMN event_log.created_at IS 'When the state change was written.';

CREATE VIEW v_event AS
SELECT position, NULL::BIGINT AS event_id, id, chain_id, '0x' || encode(submitter, 'hex') AS submitter, tx_id, kind, data, created_at
FROM event_log
UNION ALL
SELECT NULL, event_id, id, chain_id, '0x' || encode(submitter, 'hex'), tx_id, kind, data, created_at
FROM outbox_event;
COMMENT ON VIEW v_event IS 'Events with addresses as text: those in event_log, and those in outbox_event that have no position yet.';
COMMENT ON COLUMN v_event.position IS 'Position in event_log; null before it is there.';
COMMENT ON COLUMN v_event.event_id IS 'Id in outbox_event; null if it is in event_log.';
COMMENT ON COLUMN v_event.id IS 'Id of the event for consumers.';
COMMENT ON COLUMN v_event.chain_id IS 'EIP-155 chain id.';
COMMENT ON COLUMN v_event.submitter IS 'Address as text.';
COMMENT ON COLUMN v_event.tx_id IS 'Intent; null for events of a submitter.';
COMMENT ON COLUMN v_event.kind IS 'For example tx.confirmed.';
COMMENT ON COLUMN v_event.data IS 'Body of the event; never a nonce.';
COMMENT ON COLUMN v_event.created_at IS 'When the state change was written.';

CREATE TABLE event_partition (
    first_position BIGINT PRIMARY KEY,
    end_position   BIGINT NOT NULL,
    added_at       BIGINT NOT NULL,
    created_at     TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT event_partition_has_positions CHECK (end_position > first_position)
);
COMMENT ON TABLE event_partition IS 'Partitions of event_log. That from position n is the table event_log_n.';
COMMENT ON COLUMN event_partition.first_position IS 'Lowest position.';
COMMENT ON COLUMN event_partition.end_position IS 'First position after it.';
COMMENT ON COLUMN event_partition.added_at IS 'Position of the newest event when it was added.';
COMMENT ON COLUMN event_partition.created_at IS 'When it was added.';

CREATE TABLE event_head (
    only_row       BOOLEAN PRIMARY KEY DEFAULT TRUE,
    epoch          TEXT NOT NULL,
    database_id    TEXT NOT NULL,
    first_position BIGINT NOT NULL DEFAULT 1,
    end_position   BIGINT NOT NULL DEFAULT 1,
    outbox_floor   BIGINT NOT NULL DEFAULT 0,
    CONSTRAINT event_head_has_one_row CHECK (only_row),
    CONSTRAINT event_head_epoch_is_an_identifier CHECK (epoch ~ '^[0-9a-f]{8}$')
);
COMMENT ON TABLE event_head IS 'One row: the ends of event_log. Locked, but rarely updated, by whoever adds positions: they follow the highest one in event_log.';
COMMENT ON COLUMN event_head.only_row IS 'Always true: the table has one row.';
COMMENT ON COLUMN event_head.epoch IS 'First part of every cursor. A new one after a restore or a failover, because positions may be assigned again.';
COMMENT ON COLUMN event_head.database_id IS 'The database and its timeline to which the epoch belongs, as gapless_database_id() returns it.';
COMMENT ON COLUMN event_head.first_position IS 'Lowest position that is not dropped.';
COMMENT ON COLUMN event_head.end_position IS 'First position without a partition.';
COMMENT ON COLUMN event_head.outbox_floor IS 'No event up to this event_id is in the outbox or will be: it is searched from here.';

CREATE FUNCTION gapless_database_id() RETURNS TEXT LANGUAGE SQL STABLE AS $$
    SELECT (SELECT system_identifier FROM pg_control_system())
        || '/' || left(pg_walfile_name(pg_current_wal_lsn()), 8)
        || '/' || 'event_head'::REGCLASS::OID
$$;
COMMENT ON FUNCTION gapless_database_id IS 'Differs after a restore from a dump, a recovery to a point in time and a failover: the cluster, its timeline, and the table event_head.';

CREATE FUNCTION gapless_event_position() RETURNS BIGINT LANGUAGE SQL STABLE AS $$
    SELECT coalesce((SELECT max(position) FROM event_log), (SELECT first_position - 1 FROM event_head))
$$;
COMMENT ON FUNCTION gapless_event_position IS 'Position of the newest event; 0 if there was none.';

CREATE FUNCTION gapless_new_epoch_name() RETURNS TEXT LANGUAGE SQL VOLATILE AS $$
    SELECT left(replace(gen_random_uuid()::TEXT, '-', ''), 8)
$$;
COMMENT ON FUNCTION gapless_new_epoch_name IS 'A random epoch.';

INSERT INTO event_head (epoch, database_id) VALUES (gapless_new_epoch_name(), gapless_database_id());

-- The programs own no tables. These functions run with the rights of the owner, and find only what is in this schema.
DO $create$
DECLARE
    rights TEXT := format('SECURITY DEFINER SET search_path = %I, pg_temp', current_schema());
BEGIN
    EXECUTE $define$
    CREATE FUNCTION gapless_renew_event_epoch(forced BOOLEAN) RETURNS TEXT LANGUAGE plpgsql $define$ || rights || $define$ AS $$
    DECLARE
        current_id TEXT := gapless_database_id();
        result     TEXT;
    BEGIN
        UPDATE event_head
        -- Ids of the outbox may be assigned again too.
        SET epoch = gapless_new_epoch_name(), database_id = current_id, outbox_floor = 0
        WHERE forced OR database_id <> current_id;
        SELECT epoch INTO result FROM event_head;
        RETURN result;
    END $$
    $define$;

    EXECUTE $define$
    CREATE FUNCTION gapless_add_event_partition(size BIGINT) RETURNS BIGINT LANGUAGE plpgsql $define$ || rights || $define$ AS $$
    DECLARE
        first_free BIGINT;
        new_end    BIGINT;
    BEGIN
        SELECT end_position INTO first_free FROM event_head FOR UPDATE;
        new_end := first_free + least(greatest(size, 1000), 1000000);
        EXECUTE format('CREATE TABLE %I (LIKE event_log INCLUDING ALL)', 'event_log_' || first_free);
        EXECUTE format('COMMENT ON TABLE %I IS %L', 'event_log_' || first_free, 'Partition of event_log.');
        EXECUTE format('ALTER TABLE event_log ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                       'event_log_' || first_free, first_free, new_end);
        INSERT INTO event_partition (first_position, end_position, added_at)
        VALUES (first_free, new_end, gapless_event_position());
        UPDATE event_head SET end_position = new_end;
        RETURN new_end;
    END $$
    $define$;

    -- Every reader of the log waits while a partition is dropped. Should somebody read for long, it is not dropped now.
    EXECUTE $define$
    CREATE FUNCTION gapless_drop_event_partitions(retention INTERVAL) RETURNS INT LANGUAGE plpgsql
        SET lock_timeout = '100ms' $define$ || rights || $define$ AS $$
    DECLARE
        newest  BIGINT;
        oldest  event_partition;
        dropped INT := 0;
    BEGIN
        PERFORM FROM event_head FOR UPDATE;
        newest := gapless_event_position();
        LOOP
            SELECT * INTO oldest FROM event_partition ORDER BY first_position LIMIT 1;
            EXIT WHEN NOT FOUND OR oldest.end_position > newest;
            -- Neither written nor, as the next partition shows, readable within that time.
            EXIT WHEN NOT EXISTS (
                SELECT 1 FROM event_log l, event_partition p
                WHERE l.position = oldest.end_position - 1 AND l.created_at < clock_timestamp() - retention
                  AND p.first_position = oldest.end_position AND p.created_at < clock_timestamp() - retention);
            EXECUTE format('DROP TABLE %I', 'event_log_' || oldest.first_position);
            DELETE FROM event_partition WHERE first_position = oldest.first_position;
            UPDATE event_head SET first_position = oldest.end_position;
            dropped := dropped + 1;
        END LOOP;
        RETURN dropped;
    END $$
    $define$;
END $create$;
COMMENT ON FUNCTION gapless_renew_event_epoch IS 'The epoch; a new one if the database is not the one of the epoch, or if forced.';
COMMENT ON FUNCTION gapless_add_event_partition IS 'Adds a partition of this many positions, 1,000 to 1,000,000, to event_log.';
COMMENT ON FUNCTION gapless_drop_event_partitions IS 'Drops the oldest partitions whose newest event is older. Returns their number.';
REVOKE EXECUTE ON FUNCTION gapless_renew_event_epoch(BOOLEAN), gapless_add_event_partition(BIGINT),
    gapless_drop_event_partitions(INTERVAL) FROM PUBLIC;

SELECT gapless_add_event_partition(1000);

CREATE FUNCTION gapless_grants_0004() RETURNS VOID LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gapless_api') THEN
        GRANT SELECT ON event_head, event_log TO gapless_api;
        GRANT UPDATE (enabled, changed_by, changed_at) ON event_recording TO gapless_api;
        GRANT EXECUTE ON FUNCTION gapless_renew_event_epoch(BOOLEAN) TO gapless_api;
    END IF;
    IF EXISTS (SELECT 1 FROM pg_roles WHERE rolname = 'gapless_worker') THEN
        GRANT SELECT, DELETE ON outbox_event TO gapless_worker;
        GRANT SELECT ON SEQUENCE outbox_event_event_id_seq TO gapless_worker;
        GRANT SELECT, INSERT ON event_log TO gapless_worker;
        GRANT SELECT ON event_partition, v_event TO gapless_worker;
        GRANT SELECT, UPDATE (outbox_floor) ON event_head TO gapless_worker;
        GRANT UPDATE (enabled, changed_by, changed_at) ON event_recording TO gapless_worker;
        GRANT EXECUTE ON FUNCTION gapless_renew_event_epoch(BOOLEAN), gapless_add_event_partition(BIGINT),
            gapless_drop_event_partitions(INTERVAL) TO gapless_worker;
    END IF;
END $$;
COMMENT ON FUNCTION gapless_grants_0004 IS 'Rights of the roles on what migration 4 made. Called by gapless_grant_roles().';

SELECT gapless_grant_roles();
