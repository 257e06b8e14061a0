-- Submitters that can only wait give their lease back when slots are scarce; when they are looked at again.

ALTER TABLE submitter_lease
    ADD COLUMN wake_at TIMESTAMPTZ,
    ADD COLUMN wake_pause_seconds INT NOT NULL DEFAULT 0,
    ADD COLUMN blocked_at TIMESTAMPTZ,
    ADD COLUMN blocked_seq BIGINT;
COMMENT ON COLUMN submitter_lease.wake_at IS 'Its queue is blocked and the lease was given back: not claimed before this while slots are scarce. Schedules; decides nothing.';
COMMENT ON COLUMN submitter_lease.wake_pause_seconds IS 'The last such pause. Doubles from 1 to 60; 0 once the lease was given back for another reason.';
COMMENT ON COLUMN submitter_lease.blocked_at IS 'When it was given back so. A submitter that an operator has changed since is claimed at once.';
COMMENT ON COLUMN submitter_lease.blocked_seq IS 'The last queued intent at that time. With a later one it is claimed at once.';
