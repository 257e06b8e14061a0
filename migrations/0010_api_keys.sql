-- Keys of the API's clients. A key is shown once, when it is made; here is what it takes to recognise it and what it may do.

CREATE TABLE api_key (
    key_id       TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    secret_hash  BYTEA NOT NULL,
    scopes       TEXT[] NOT NULL,
    submitters   TEXT[],
    rate_limit   FLOAT8,
    rate_burst   INT,
    created_at   TIMESTAMPTZ NOT NULL DEFAULT clock_timestamp(),
    expires_at   TIMESTAMPTZ,
    revoked_at   TIMESTAMPTZ,
    last_used_at TIMESTAMPTZ,
    CONSTRAINT api_key_id_is_hex CHECK (key_id ~ '^[0-9a-f]{16}$'),
    CONSTRAINT api_key_name_length CHECK (length(name) BETWEEN 1 AND 100),
    CONSTRAINT api_key_hash_is_sha256 CHECK (length(secret_hash) = 32),
    CONSTRAINT api_key_scopes_are_known CHECK
        (cardinality(scopes) > 0 AND scopes <@ ARRAY['tx:write', 'tx:read', 'admin']),
    -- A list that is empty would be a key for nothing; one that is too long, a query that is too long.
    CONSTRAINT api_key_submitters_are_few CHECK (cardinality(submitters) BETWEEN 1 AND 100),
    CONSTRAINT api_key_submitters_are_addresses CHECK
        (array_to_string(submitters, ' ', '?') ~ '^[1-9][0-9]*:0x[0-9a-f]{40}( [1-9][0-9]*:0x[0-9a-f]{40})*$'),
    CONSTRAINT api_key_rate_is_positive CHECK (rate_limit > 0 AND rate_burst > 0)
);
COMMENT ON TABLE api_key IS 'One key of a client of the API. Its rights never change: another key is made instead. Rows are kept, so that revoking the last key does not open the API again.';
COMMENT ON COLUMN api_key.key_id IS 'Random; the part of the key that is not secret.';
COMMENT ON COLUMN api_key.name IS 'Whose it is, in the words of whoever made it.';
COMMENT ON COLUMN api_key.secret_hash IS 'SHA-256 of the secret, which has 256 random bits: there is nothing to guess that a slower hash would protect.';
COMMENT ON COLUMN api_key.scopes IS 'What it may do: tx:write, tx:read, admin. None implies another.';
COMMENT ON COLUMN api_key.submitters IS 'Submitters it is limited to, as chain id, colon, address in lower case. Null: all.';
COMMENT ON COLUMN api_key.rate_limit IS 'Requests per second it may make at each API process; null means api.rate_limit.';
COMMENT ON COLUMN api_key.rate_burst IS 'Requests it may make at once; null means api.rate_burst.';
COMMENT ON COLUMN api_key.created_at IS 'When it was made.';
COMMENT ON COLUMN api_key.expires_at IS 'From when it is refused; null: never.';
COMMENT ON COLUMN api_key.revoked_at IS 'When it was revoked. Every request that comes later is refused.';
COMMENT ON COLUMN api_key.last_used_at IS 'About when it was last used; written once a minute at the most.';
