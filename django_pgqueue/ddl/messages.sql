-- Messages and their outcomes, partitioned by queue. A message's row is never updated: the tables
-- of live.sql hold its state. In an outcome's row only the column failure is updated. Columns are
-- ordered by alignment, widest first.

-- Domains limit values: a session caches a domain's check, but reads a table's CHECK constraints
-- for each INSERT (2 us instead of 13 us per send).

-- The range of Python's datetime, less a day at each end for time zones.
CREATE DOMAIN pgqueue_time AS timestamptz CONSTRAINT pgqueue_time_range
    CHECK (VALUE >= '0001-01-02 00:00:00+00' AND VALUE < '9999-12-31 00:00:00+00');

CREATE DOMAIN pgqueue_priority AS smallint CONSTRAINT pgqueue_priority_range
    CHECK (VALUE BETWEEN -100 AND 100);

-- A group or unique key; Python's limit is the same. Keys of live messages are indexed, and an index
-- entry holds 2,704 bytes at most.
CREATE DOMAIN pgqueue_key AS text CONSTRAINT pgqueue_key_length
    CHECK (length(VALUE) BETWEEN 1 AND 255);

-- JSON whose text is at most 512 MB. 1e100000 takes 16 bytes as jsonb and 100 kB as text: with some
-- thousands of such numbers, every statement that returns them would fail. Values below 64 kB
-- cannot reach the limit, unless they were compressed in another table.
CREATE DOMAIN pgqueue_json AS jsonb CONSTRAINT pgqueue_json_length
    CHECK (pg_column_size(VALUE) < 65536 AND pg_column_compression(VALUE) IS NULL
           OR octet_length(VALUE::text) <= 536870912);

CREATE SEQUENCE pgqueue_message_id_seq AS bigint;

CREATE TABLE pgqueue_message (
    id bigint NOT NULL DEFAULT nextval('pgqueue_message_id_seq'),
    enqueued_at pgqueue_time NOT NULL DEFAULT statement_timestamp(),
    scheduled_at pgqueue_time,
    -- A message that was not delivered by then is archived as EXPIRED.
    expires_at pgqueue_time,
    -- The sending transaction's id. Not xid8: PostgreSQL 15 has no BRIN operator class for that
    -- type.
    enqueued_xid bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
    -- The kind of the failure (engine/errors.sql) and the source queue, in dead letters only.
    failure bigint,
    queue_id integer NOT NULL,
    source_id integer,
    priority pgqueue_priority NOT NULL DEFAULT 0,
    group_key pgqueue_key,
    unique_key pgqueue_key,
    headers pgqueue_json,
    body pgqueue_json,
    -- id is the first column, so that a look-up by id alone does not scan every partition.
    PRIMARY KEY (id, queue_id, enqueued_at)
) PARTITION BY LIST (queue_id);

-- For reading the table as a log, up to the oldest transaction that is still running.
CREATE INDEX pgqueue_message_xid_idx ON pgqueue_message
    USING brin (enqueued_xid) WITH (autosummarize = on);

ALTER SEQUENCE pgqueue_message_id_seq OWNED BY pgqueue_message.id;

-- Bodies are large and read once. lz4, if the server has it, is much faster than pglz.
DO $$
BEGIN
    IF (SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression') THEN
        ALTER TABLE pgqueue_message ALTER body SET COMPRESSION lz4, ALTER headers SET COMPRESSION lz4;
    END IF;
END
$$;

CREATE TABLE pgqueue_archive (
    id bigint NOT NULL,
    enqueued_at timestamptz NOT NULL,
    first_read_at timestamptz,
    last_read_at timestamptz,
    archived_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    -- The archiving transaction.
    archive_xid bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
    -- The kind of the failure, in failed messages only. NULL after the message was sent again.
    failure bigint,
    queue_id integer NOT NULL,
    read_ct integer NOT NULL,
    attempts integer NOT NULL,
    state text NOT NULL,
    error text,
    result jsonb,
    PRIMARY KEY (id, queue_id, enqueued_at)
) PARTITION BY LIST (queue_id);

CREATE INDEX pgqueue_archive_xid_idx ON pgqueue_archive
    USING brin (archive_xid) WITH (autosummarize = on);

-- With these indexes, index-only scans list and group failed messages and dead letters of any age.
CREATE INDEX pgqueue_archive_failed_idx ON pgqueue_archive (archived_at, id) INCLUDE (failure, queue_id)
    WHERE state = 'FAILED';
CREATE INDEX pgqueue_message_dead_idx ON pgqueue_message (enqueued_at, id)
    INCLUDE (failure, source_id, queue_id) WHERE headers ? 'x-dead-letter';

-- Reverse

-- Deletes all queues. Partitions are dropped with their parents. Wake-up sequences and the
-- functions of unfinished conversions are found by their names.
DO $$
DECLARE
    object text;
BEGIN
    FOR object IN
        SELECT 'SEQUENCE ' || oid::regclass FROM pg_class
        WHERE relkind = 'S' AND relnamespace = '{schema}'::regnamespace
          AND relname ~ '^pgqueue_wake_q[0-9]+$'
        UNION ALL
        SELECT 'FUNCTION ' || oid::regprocedure || ' CASCADE' FROM pg_proc
        WHERE pronamespace = '{schema}'::regnamespace
          AND proname ~ '^pgqueue_bound_q[0-9]+$'
    LOOP
        EXECUTE 'DROP ' || object;
    END LOOP;
END
$$;
