-- Tables of the Spark pipeline.

-- Rows of an uncommitted write, in pieces of COPY's text format, so that staging costs little. The
-- token identifies the task that wrote them. A server crash empties the table; the write then sends
-- nothing, and Spark runs it again.
CREATE UNLOGGED TABLE pgqueue_staging (
    token uuid NOT NULL,
    place integer NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    lines bytea NOT NULL,
    PRIMARY KEY (token, place)
);

-- Stored without compression, since the lines are read once and soon.
ALTER TABLE pgqueue_staging ALTER lines SET STORAGE EXTERNAL;

-- The last version that each application has written. Writing that version again changes nothing.
CREATE TABLE pgqueue_spark_txn (
    app_id text PRIMARY KEY,
    version bigint NOT NULL,
    sent bigint NOT NULL,
    committed_at timestamptz NOT NULL DEFAULT statement_timestamp()
);

-- The last batch of a stream that consumes queues, if it was served again or not archived as a
-- whole. tries: how often it was served. served: how many of its messages the tasks read the last
-- time (NULL: all). acknowledged: whether the messages' outcomes are written.
CREATE TABLE pgqueue_stream (
    id text PRIMARY KEY,
    number bigint NOT NULL,
    tries integer NOT NULL,
    served integer,
    acknowledged boolean NOT NULL DEFAULT false,
    tried_at timestamptz NOT NULL DEFAULT statement_timestamp()
);

-- Messages of pgqueue_stream's batches that a sink's function refused, or that were alone in their
-- batch when the function raised an error. Rows are deleted when the batch is acknowledged.
CREATE TABLE pgqueue_refusal (
    message_id bigint PRIMARY KEY,
    refused boolean NOT NULL,
    error text NOT NULL,
    told_at timestamptz NOT NULL DEFAULT statement_timestamp()
);

-- Archived messages of transactions below the mark may be gone. Retention raises a queue's mark,
-- and so does dropping the queue. The mark of a dropped queue remains, with its name.
CREATE TABLE pgqueue_purge_mark (
    queue_id integer PRIMARY KEY,
    below_xid bigint NOT NULL,
    dropped text NOT NULL DEFAULT '',
    purged_at timestamptz NOT NULL DEFAULT statement_timestamp()
);
