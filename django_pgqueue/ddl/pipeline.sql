-- Tables of the Spark pipeline.

-- Rows of an uncommitted write, under the token of the task that wrote them, in pieces of COPY's
-- text format: staging adds little to the cost of sending. A server crash empties the table; the
-- write then sends nothing, and Spark runs it again.
CREATE UNLOGGED TABLE pgqueue_staging (
    token uuid NOT NULL,
    place integer NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    lines bytea NOT NULL,
    PRIMARY KEY (token, place)
);

-- Not compressed, since the lines are read once and soon.
ALTER TABLE pgqueue_staging ALTER lines SET STORAGE EXTERNAL;

-- The last version that each application has written. Writing it again changes nothing.
CREATE TABLE pgqueue_spark_txn (
    app_id text PRIMARY KEY,
    version bigint NOT NULL,
    sent bigint NOT NULL,
    committed_at timestamptz NOT NULL DEFAULT statement_timestamp()
);

-- The last batch of a stream that consumes queues, if it was not simply served and archived: how
-- often it was served, how many of its messages the tasks read last (NULL: all), and whether what
-- became of them is written.
CREATE TABLE pgqueue_stream (
    id text PRIMARY KEY,
    number bigint NOT NULL,
    tries integer NOT NULL,
    served integer,
    acknowledged boolean NOT NULL DEFAULT false,
    tried_at timestamptz NOT NULL DEFAULT statement_timestamp()
);

-- Messages of such batches that the function of a sink refused, and errors that it raised for a
-- message that was alone in its batch. They are deleted with the batch's acknowledgement.
CREATE TABLE pgqueue_refusal (
    message_id bigint PRIMARY KEY,
    refused boolean NOT NULL,
    error text NOT NULL,
    told_at timestamptz NOT NULL DEFAULT statement_timestamp()
);

-- Archived messages of transactions below the mark may be gone. Retention raises a queue's mark. So
-- does dropping the queue; its mark remains, with its name.
CREATE TABLE pgqueue_purge_mark (
    queue_id integer PRIMARY KEY,
    below_xid bigint NOT NULL,
    dropped text NOT NULL DEFAULT '',
    purged_at timestamptz NOT NULL DEFAULT statement_timestamp()
);

-- Reverse

DROP TABLE IF EXISTS {schema}.pgqueue_staging, {schema}.pgqueue_spark_txn,
    {schema}.pgqueue_stream, {schema}.pgqueue_refusal, {schema}.pgqueue_purge_mark;
