-- Types and tables that only the first installation makes; a later one keeps them.

CREATE TYPE pgmq.message_record AS (
    msg_id bigint, read_ct integer, enqueued_at timestamptz, last_read_at timestamptz, vt timestamptz,
    message jsonb, headers jsonb
);
CREATE TYPE pgmq.queue_record AS (
    queue_name varchar, is_partitioned boolean, is_unlogged boolean, created_at timestamptz
);
CREATE TYPE pgmq.metrics_result AS (
    queue_name text, queue_length bigint, newest_msg_age_sec integer, oldest_msg_age_sec integer,
    total_messages bigint, scrape_time timestamptz, queue_visible_length bigint,
    default_partition_length bigint
);

-- Queues that were made or dropped through this schema. If created_at is not that of the queue, the
-- row belongs to an earlier queue with this id. No foreign key, since tests truncate pgqueue_queue.
CREATE TABLE pgmq.own_queue (
    queue_id integer PRIMARY KEY,
    created_at timestamptz NOT NULL,
    -- msg_id = id - base, so that the msg_ids of a new queue begin at 1.
    base bigint NOT NULL DEFAULT 0,
    -- Whether a client dropped the queue: then maintenance drops its tables.
    dropped boolean NOT NULL DEFAULT false
);

-- Returns the regular expression of a topic pattern. Unlike in AMQP, * matches one or more
-- characters other than dots, and # matches any characters, or none.
CREATE FUNCTION pgmq.topic_regex(pattern text) RETURNS text LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp AS $$
    SELECT '^' || replace(replace(replace($1, '.', '\.'), '*', '[^.]+'), '#', '.*') || '$'
$$;

CREATE TABLE pgmq.topic_bindings (
    pattern text NOT NULL,
    queue_name text NOT NULL,
    bound_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    compiled_regex text GENERATED ALWAYS AS (pgmq.topic_regex(pattern)) STORED,
    UNIQUE (pattern, queue_name)
);
