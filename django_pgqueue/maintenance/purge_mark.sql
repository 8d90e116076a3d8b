-- Raises a queue's purge mark: outcomes of transactions below it may have been removed.
INSERT INTO pgqueue_purge_mark AS p (queue_id, below_xid) VALUES ({queue_id}, %(below_xid)s)
ON CONFLICT (queue_id) DO UPDATE
SET below_xid = greatest(p.below_xid, excluded.below_xid), purged_at = DEFAULT
RETURNING below_xid
