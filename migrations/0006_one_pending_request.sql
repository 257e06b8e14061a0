-- A request about an intent that is repeated while it waits joins the one that waits: repeating costs neither a row nor
-- another look of the lane.

UPDATE tx_request r
SET applied_at = clock_timestamp(), outcome = 'joined an earlier request'
WHERE r.applied_at IS NULL
  AND EXISTS (
      SELECT 1 FROM tx_request e
      WHERE e.tx_id = r.tx_id AND e.action = r.action AND e.applied_at IS NULL AND e.request_no < r.request_no);

CREATE UNIQUE INDEX tx_request_pending_is_unique ON tx_request (tx_id, action) WHERE applied_at IS NULL;
