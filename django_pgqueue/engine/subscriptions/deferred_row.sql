-- Part that other statements include: a row of deferred for each message that becomes the subscription's
-- own. One that its sender has delayed (early) was leased before its time, and waits for it.
INSERT INTO pgqueue_deferred (id, vt, enqueued_at, first_read_at, last_read_at,
                            queue_id, read_ct, process_id, priority, state)
    SELECT id, CASE WHEN early THEN scheduled_at ELSE vt END, enqueued_at,
           CASE WHEN NOT early THEN read_at END, CASE WHEN NOT early THEN read_at END, {queue_id},
           CASE WHEN early THEN 0 ELSE 1 END, CASE WHEN NOT early THEN process_id END, priority,
           CASE WHEN early THEN 'SCHEDULED' ELSE 'PROCESSING' END
