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
    RETURN $2 IS NOT NULL AND pgmq._settle(q.id, '{operation}', ARRAY[$2 + q.base]) <> '{}';
END
$$;
