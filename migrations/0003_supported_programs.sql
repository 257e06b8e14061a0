-- Which programs may use this schema. Only adds.

CREATE TABLE schema_support (
    only_row       BOOLEAN PRIMARY KEY DEFAULT TRUE,
    oldest_program TEXT NOT NULL,
    CONSTRAINT schema_support_has_one_row CHECK (only_row)
);
COMMENT ON TABLE schema_support IS 'One row: which programs may use this schema (docs/operate/upgrade.md). Read by programs at their start, since version 0.2.0.';
COMMENT ON COLUMN schema_support.only_row IS 'Always true: the table has one row.';
COMMENT ON COLUMN schema_support.oldest_program IS 'Programs of an older version must not be started. Raised before the schema is contracted.';
INSERT INTO schema_support (oldest_program) VALUES ('0.1.0');

-- No secret, and programs that reserve nonces have roles of their own.
GRANT SELECT ON schema_support TO PUBLIC;

-- Roles: from here on, a migration has a function of its own for the rights that it adds (gapless_grants_0004, …), and
-- gapless_grant_roles() calls all of them in order.

ALTER FUNCTION gapless_grant_roles() RENAME TO gapless_grants_0002;
COMMENT ON FUNCTION gapless_grants_0002 IS 'Rights of the roles on what migrations 1 and 2 made. Called by gapless_grant_roles().';

CREATE FUNCTION gapless_grant_roles() RETURNS VOID LANGUAGE plpgsql AS $$
DECLARE
    grants TEXT;
BEGIN
    FOR grants IN
        SELECT p.oid::REGPROC::TEXT
        FROM pg_proc p
        JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = current_schema() AND p.proname ~ '^gapless_grants_[0-9]+$' AND p.pronargs = 0
          -- Only those of the migrations: before PostgreSQL 15 every user may create functions in the schema public.
          AND p.proowner = (SELECT c.relowner FROM pg_class c WHERE c.oid = 'managed_tx'::REGCLASS)
        ORDER BY p.proname
    LOOP
        EXECUTE format('SELECT %s()', grants);
    END LOOP;
END $$;
COMMENT ON FUNCTION gapless_grant_roles IS 'Grants gapless_api and gapless_worker the privileges that those programs need, and no others. Run it as the owner of the tables; it may be repeated.';

SELECT gapless_grant_roles();
