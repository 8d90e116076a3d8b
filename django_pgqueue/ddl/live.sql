-- Each live message has its state in one row of one table: ready (readable, never read), deferred
-- (scheduled, leased or waiting to retry), lease (leased together with other messages), or waiting
-- (behind the head of its FIFO group).
--
-- All queues share these tables. So there are few indexes and no DDL per queue, and no plan grows
-- with the number of queues.
--
-- Each key includes the message's whole key, (id, queue_id, enqueued_at): reads must not fail if
-- messages of two queues have the same id, or if an id was sent twice.
--
-- Each table has a replica identity: without one, a publication FOR ALL TABLES refuses each
-- DELETE. The old row is logged only where wal_level is logical.
--
-- Nearly all rows are short-lived, so vacuum.sql makes autovacuum frequent and fast.

CREATE TABLE pgqueue_ready (
    id bigint NOT NULL,
    -- The order among messages of one priority. For a message without a group, its id << 20. The
    -- head of a group gets a turn between those of the latest message and of the next one when it
    -- becomes the head (next_turn.sql).
    turn bigint NOT NULL,
    enqueued_at timestamptz NOT NULL,
    queue_id integer NOT NULL,
    priority smallint NOT NULL,
    group_key text
) WITH (autovacuum_vacuum_threshold = 1000, {vacuum});

-- The order of reads. Both columns ascend, so that one row comparison finds the rows after a
-- position. The index is not unique, since an id may occur twice. Because of its expression it
-- cannot be a replica identity.
CREATE INDEX pgqueue_ready_key ON pgqueue_ready (queue_id, (-priority), turn);

ALTER TABLE pgqueue_ready REPLICA IDENTITY FULL;

CREATE TABLE pgqueue_deferred (
    id bigint NOT NULL,
    vt timestamptz NOT NULL,
    enqueued_at timestamptz NOT NULL,
    first_read_at timestamptz,
    last_read_at timestamptz,
    queue_id integer NOT NULL,
    read_ct integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    process_id integer,
    priority smallint NOT NULL,
    state text NOT NULL,
    group_key text,
    -- The last error that an attempt reported.
    error text,
    PRIMARY KEY (id, queue_id, enqueued_at)
) WITH (
    -- The low fillfactor leaves space for updates. It also makes full scans look expensive to the
    -- planner, even after a peak, when nearly all rows are dead.
    fillfactor = 50, autovacuum_vacuum_threshold = 1000, {vacuum}
);

CREATE INDEX pgqueue_deferred_vt_idx ON pgqueue_deferred (queue_id, vt);

-- Counts what is in flight, for the limit of a whole queue. Only a query that says LIKE uses it. With
-- =, a query for messages by their ids could choose it too, if planned while few were in flight.
CREATE INDEX pgqueue_deferred_in_flight ON pgqueue_deferred (queue_id, vt)
    WHERE state LIKE 'PROCESSING';

-- Batch leases: one row for the messages of one priority that a read took from ready, instead of a
-- row of deferred, with two index entries, for each message. A statement on a single message first
-- unfolds the lease into rows of deferred. All messages of a lease were delivered once, at read_at.
CREATE TABLE pgqueue_lease (
    head bigint NOT NULL,
    tail bigint NOT NULL,
    vt timestamptz NOT NULL,
    read_at timestamptz NOT NULL,
    queue_id integer NOT NULL,
    process_id integer,
    priority smallint NOT NULL,
    -- The ids of the messages that are still leased, in order, and when each message was sent.
    ids bigint[] NOT NULL,
    enqueued_ats timestamptz[] NOT NULL,
    PRIMARY KEY (head, queue_id, read_at)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 100, {vacuum});

-- Stored without compression, since the rows are short-lived.
ALTER TABLE pgqueue_lease ALTER ids SET STORAGE EXTERNAL, ALTER enqueued_ats SET STORAGE EXTERNAL;

CREATE INDEX pgqueue_lease_vt_idx ON pgqueue_lease (queue_id, vt);

-- Finds a message's lease by the message's id.
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
    group_key text NOT NULL,
    error text
) WITH (autovacuum_vacuum_threshold = 1000, {vacuum});

CREATE UNIQUE INDEX pgqueue_waiting_key ON pgqueue_waiting (queue_id, group_key, id, enqueued_at);

ALTER TABLE pgqueue_waiting REPLICA IDENTITY USING INDEX pgqueue_waiting_key;

-- The slots of groups, each with its head, and the followers leased in one batch with the head. A
-- FIFO group has one slot, which is also the group's lock. slots.sql explains other groups.
CREATE TABLE pgqueue_group (
    head bigint,  -- NULL: the slot is empty
    turn bigint,  -- the head's turn, if the head is in ready
    queue_id integer NOT NULL,
    slot smallint NOT NULL DEFAULT 0,
    priority smallint NOT NULL,
    group_key text NOT NULL,
    followers bigint[],
    -- No head may start in the slot before this time. NULL without a rate; infinity if the group
    -- is paused or has too many heads.
    free_at timestamptz,
    PRIMARY KEY (queue_id, group_key, slot)
) WITH (fillfactor = 70, autovacuum_vacuum_threshold = 1000, {vacuum});

-- The lowest 20 bits of the heads' turns. They begin again after a million heads; until the next
-- send, new heads are then read before those that have waited.
CREATE SEQUENCE pgqueue_turn_seq MAXVALUE 1048575 CYCLE OWNED BY pgqueue_group.turn;

-- Groups that may need a new head. Every send to a group inserts a row, and so do settling
-- statements that find the group locked. Readers process the rows. Rows are never updated, so no
-- sender waits.
CREATE TABLE pgqueue_recheck (
    -- The id of the group's first message in the send, or the one that the next message will have.
    id bigint NOT NULL,
    queue_id integer NOT NULL,
    group_key text NOT NULL
) WITH (autovacuum_vacuum_threshold = 1000, {vacuum});

CREATE INDEX pgqueue_recheck_idx ON pgqueue_recheck (queue_id, id);

ALTER TABLE pgqueue_recheck REPLICA IDENTITY FULL;

-- Unique keys, each with the last message that was sent with it. claim_keys.sql determines whether
-- the message still holds the key.
CREATE TABLE pgqueue_claim (
    id bigint NOT NULL,
    -- When the window ends. For other kinds, when maintenance next checks whether the key is held.
    until timestamptz NOT NULL,
    -- When the key's first message was sent; a message that replaces another keeps this time.
    first_at timestamptz NOT NULL,
    queue_id integer NOT NULL,
    priority smallint NOT NULL,
    -- Until when the message holds the key: 'window', 'started' or 'done'.
    kind text NOT NULL,
    unique_key text NOT NULL,
    group_key text,
    PRIMARY KEY (queue_id, unique_key)
) WITH (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000);

-- The kind comes first, so that the planner never finds a single key by this index.
CREATE INDEX pgqueue_claim_until_idx ON pgqueue_claim (kind, queue_id, until);

-- The unlogged queues whose messages the server still has. A crash empties this table together with
-- the partitions of those queues; clear_lost.sql then deletes their rows from the tables above.
CREATE UNLOGGED TABLE pgqueue_unlogged (queue_id integer PRIMARY KEY);

-- Every live message with its state. For people; sends and reads do not use it. State and vt tell
-- the message's place (engine/places.sql), except for rows of waiting.
CREATE VIEW pgqueue_live AS
    SELECT id, queue_id, 'PENDING'::text AS state, enqueued_at AS vt, 0 AS read_ct, 0 AS attempts,
           priority, group_key, enqueued_at, NULL::timestamptz AS first_read_at,
           NULL::timestamptz AS last_read_at, NULL::integer AS process_id, turn
    FROM pgqueue_ready
    UNION ALL
    SELECT id, queue_id, state, vt, read_ct, attempts,
           priority, group_key, enqueued_at, first_read_at, last_read_at, process_id, id << 20
    FROM pgqueue_deferred
    UNION ALL
    SELECT m.id, queue_id, 'PROCESSING', vt, 1, 0,
           priority, NULL, m.enqueued_at, read_at, read_at, process_id, m.id << 20
    FROM pgqueue_lease CROSS JOIN LATERAL unnest(ids, enqueued_ats) AS m (id, enqueued_at)
    UNION ALL
    SELECT id, queue_id, CASE WHEN read_ct > 0 THEN 'RETRYABLE' WHEN vt > statement_timestamp()
                THEN 'SCHEDULED' ELSE 'PENDING' END, coalesce(vt, enqueued_at), read_ct, attempts,
           priority, group_key, enqueued_at, first_read_at, last_read_at, NULL, id << 20
    FROM pgqueue_waiting;
