CREATE OR REPLACE FUNCTION pgmq.{operation}(queue_name text, msg_ids bigint[]) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
DECLARE
    q pgmq._opened := pgmq._open($1);
BEGIN
    RETURN QUERY SELECT d - q.base
    FROM unnest(pgmq._settle(q.id, '{operation}', pgmq._ids(q.base, $2))) d ORDER BY 1;
END
$$;

CREATE OR REPLACE FUNCTION pgmq.{operation}(queue_name text, msg_id bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    q pgmq._opened := pgmq._open($1);
BEGIN
    RETURN CASE WHEN $2 <= 9223372036854775807 - q.base
                THEN pgmq._settle(q.id, '{operation}', ARRAY[$2 + q.base]) <> '{}' ELSE false END;
END
$$;
