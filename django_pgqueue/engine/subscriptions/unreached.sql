-- Part that other statements include: whether a message names a transaction that this system has not
-- reached yet.
enqueued_xid >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint
      AND enqueued_xid IS DISTINCT FROM pg_current_xact_id_if_assigned()::text::bigint
