-- The message, its narrow companions and the archive. Released: never edit, add a tables_v2.sql.
--
-- A message row is written once and never rewritten. What happens to it is told by narrow rows
-- beside it: in ready (may be read, never was), in deferred (scheduled, leased or waiting to
-- retry) or in archive (done). Columns stand in order of alignment, widest first.

CREATE SEQUENCE pgqueue_message_id_seq AS bigint;

CREATE TABLE pgqueue_message (
    id bigint NOT NULL DEFAULT nextval('pgqueue_message_id_seq'),
    enqueued_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    -- The sender's transaction, so that the table can be read as a log: see archive_xid.
    enqueued_xid bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
    scheduled_at timestamptz,
    queue_id integer NOT NULL,
    priority smallint NOT NULL DEFAULT 0 CHECK (priority BETWEEN -100 AND 100),
    group_key text,
    dedup_key text,
    headers jsonb,
    body jsonb,
    -- id first: a look-up by id alone must not scan every leaf.
    PRIMARY KEY (id, queue_id, enqueued_at)
) PARTITION BY LIST (queue_id);

ALTER SEQUENCE pgqueue_message_id_seq OWNED BY pgqueue_message.id;

-- Bodies are large and read once: lz4 costs a fraction of pglz, where the server has it.
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
    -- bigint, not xid8: PostgreSQL 15 has no BRIN operator class for xid8.
    archive_xid bigint NOT NULL DEFAULT (pg_current_xact_id()::text::bigint),
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

-- The hot tables are shared by all queues: one small set of indexes led by queue_id, no DDL and
-- no plan that grows with the number of queues. Their twins for unlogged queues are emptied by
-- a crash together with the unlogged leaves, so that no row is left without its message.

CREATE TABLE pgqueue_ready (
    id bigint NOT NULL,
    enqueued_at timestamptz NOT NULL,
    queue_id integer NOT NULL,
    priority smallint NOT NULL,
    group_key text
) WITH (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

-- In the order of reading, both ascending: so one comparison of rows tells what comes after.
CREATE UNIQUE INDEX pgqueue_ready_key ON pgqueue_ready (queue_id, (-priority), id);

CREATE TABLE pgqueue_deferred (
    id bigint NOT NULL PRIMARY KEY,
    vt timestamptz NOT NULL,
    enqueued_at timestamptz NOT NULL,
    first_read_at timestamptz,
    last_read_at timestamptz,
    queue_id integer NOT NULL,
    read_ct integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    worker integer,
    priority smallint NOT NULL,
    state text NOT NULL,
    group_key text
) WITH (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

CREATE INDEX pgqueue_deferred_vt_idx ON pgqueue_deferred (queue_id, vt);

-- What one read took out of ready at once, as long as it is dealt with together: one row in place
-- of as many in deferred, each with two index entries. Whatever concerns a single message of it
-- first unfolds it into those. All of a lease were delivered once, at read_at.
CREATE TABLE pgqueue_lease (
    head bigint NOT NULL PRIMARY KEY,
    tail bigint NOT NULL,
    vt timestamptz NOT NULL,
    read_at timestamptz NOT NULL,
    queue_id integer NOT NULL,
    worker integer,
    priority smallint NOT NULL,
    -- What is left of it, in the order of ids, each with the time it was sent at.
    ids bigint[] NOT NULL,
    enqueued_ats timestamptz[] NOT NULL
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 100,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

-- They go as soon as they are done: no time is spent on making long ones shorter.
ALTER TABLE pgqueue_lease ALTER ids SET STORAGE EXTERNAL, ALTER enqueued_ats SET STORAGE EXTERNAL;

CREATE INDEX pgqueue_lease_vt_idx ON pgqueue_lease (queue_id, vt);

-- Which one has a message of which nothing but the id is known.
CREATE INDEX pgqueue_lease_span_idx ON pgqueue_lease USING gist (int8range(head, tail, '[]'));

-- FIFO groups. Only a group's head is in ready or deferred; the rest wait here, in order.
CREATE TABLE pgqueue_waiting (
    id bigint NOT NULL,
    vt timestamptz,
    enqueued_at timestamptz NOT NULL,
    first_read_at timestamptz,
    last_read_at timestamptz,
    queue_id integer NOT NULL,
    read_ct integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    priority smallint NOT NULL,
    group_key text NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

CREATE UNIQUE INDEX pgqueue_waiting_key ON pgqueue_waiting (queue_id, group_key, id);

-- One row a group that has a head: its lock, who the head is, and who was leased in one batch
-- behind it.
CREATE TABLE pgqueue_group (
    head bigint NOT NULL,
    queue_id integer NOT NULL,
    priority smallint NOT NULL,
    group_key text NOT NULL,
    followers bigint[],
    PRIMARY KEY (queue_id, group_key)
) WITH (
    fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

-- "Look whether this group has a head": left by every send and by whoever could not look itself,
-- taken up by the readers. Appended to without conflict, so that no sender waits for another.
CREATE TABLE pgqueue_recheck (
    id bigint NOT NULL,
    queue_id integer NOT NULL,
    group_key text NOT NULL
) WITH (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0, vacuum_truncate = off
);

CREATE INDEX pgqueue_recheck_idx ON pgqueue_recheck (queue_id, id);

-- Which message has which dedup key, and until when that counts.
CREATE TABLE pgqueue_dedup (
    id bigint NOT NULL,
    until timestamptz NOT NULL,
    queue_id integer NOT NULL,
    dedup_key text NOT NULL,
    PRIMARY KEY (queue_id, dedup_key)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

CREATE INDEX pgqueue_dedup_until_idx ON pgqueue_dedup (queue_id, until);

CREATE UNLOGGED TABLE pgqueue_ready_unlogged (LIKE pgqueue_ready INCLUDING ALL);
CREATE UNLOGGED TABLE pgqueue_deferred_unlogged (LIKE pgqueue_deferred INCLUDING ALL);
CREATE UNLOGGED TABLE pgqueue_lease_unlogged (LIKE pgqueue_lease INCLUDING ALL);
CREATE UNLOGGED TABLE pgqueue_waiting_unlogged (LIKE pgqueue_waiting INCLUDING ALL);
CREATE UNLOGGED TABLE pgqueue_group_unlogged (LIKE pgqueue_group INCLUDING ALL);
CREATE UNLOGGED TABLE pgqueue_recheck_unlogged (LIKE pgqueue_recheck INCLUDING ALL);
CREATE UNLOGGED TABLE pgqueue_dedup_unlogged (LIKE pgqueue_dedup INCLUDING ALL);

-- Every live message with its state, whichever table says so: for people, not for the hot path.
CREATE VIEW pgqueue_live AS
    SELECT id, queue_id, 'PENDING'::text AS state, enqueued_at AS vt, 0 AS read_ct, 0 AS attempts,
           priority, group_key, enqueued_at, NULL::timestamptz AS first_read_at,
           NULL::timestamptz AS last_read_at, NULL::integer AS worker
    FROM pgqueue_ready
    UNION ALL
    SELECT id, queue_id, 'PENDING', enqueued_at, 0, 0,
           priority, group_key, enqueued_at, NULL, NULL, NULL
    FROM pgqueue_ready_unlogged
    UNION ALL
    SELECT id, queue_id, state, vt, read_ct, attempts,
           priority, group_key, enqueued_at, first_read_at, last_read_at, worker
    FROM pgqueue_deferred
    UNION ALL
    SELECT id, queue_id, state, vt, read_ct, attempts,
           priority, group_key, enqueued_at, first_read_at, last_read_at, worker
    FROM pgqueue_deferred_unlogged
    UNION ALL
    SELECT m.id, queue_id, 'PROCESSING', vt, 1, 0,
           priority, NULL, m.enqueued_at, read_at, read_at, worker
    FROM pgqueue_lease CROSS JOIN LATERAL unnest(ids, enqueued_ats) AS m (id, enqueued_at)
    UNION ALL
    SELECT m.id, queue_id, 'PROCESSING', vt, 1, 0,
           priority, NULL, m.enqueued_at, read_at, read_at, worker
    FROM pgqueue_lease_unlogged CROSS JOIN LATERAL unnest(ids, enqueued_ats) AS m (id, enqueued_at)
    UNION ALL
    SELECT id, queue_id, CASE WHEN read_ct > 0 THEN 'RETRYABLE' WHEN vt > statement_timestamp()
                THEN 'SCHEDULED' ELSE 'PENDING' END, coalesce(vt, enqueued_at), read_ct, attempts,
           priority, group_key, enqueued_at, first_read_at, last_read_at, NULL
    FROM pgqueue_waiting
    UNION ALL
    SELECT id, queue_id, CASE WHEN read_ct > 0 THEN 'RETRYABLE' WHEN vt > statement_timestamp()
                THEN 'SCHEDULED' ELSE 'PENDING' END, coalesce(vt, enqueued_at), read_ct, attempts,
           priority, group_key, enqueued_at, first_read_at, last_read_at, NULL
    FROM pgqueue_waiting_unlogged;
