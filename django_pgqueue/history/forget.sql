DELETE FROM pgqueue_history WHERE ctid = ANY(ARRAY(
    SELECT ctid FROM pgqueue_history
    WHERE seconds = %(seconds)s AND bucket < %(before)s LIMIT (SELECT %(batch)s::bigint)))
