-- A migration of its own: migration 6 locks the table for reads too, and building an index reads all of it. Only adds.

-- Requests without a limit, which are all others, are not in it.
CREATE INDEX managed_tx_start_by ON managed_tx (start_by) WHERE queued AND start_by IS NOT NULL;
