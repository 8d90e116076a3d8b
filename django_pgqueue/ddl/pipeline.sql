-- Tables of the pipeline.

-- Rows of a write that is not committed yet, under the token of the task that wrote them: pieces
-- of text as COPY takes it, so that staging costs little beside sending. A crash of the server
-- empties it; the write notices, sends nothing and runs again.
CREATE UNLOGGED TABLE pgqueue_staging (
    token uuid NOT NULL,
    place integer NOT NULL,
    staged_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    lines bytea NOT NULL,
    PRIMARY KEY (token, place)
);

-- Read once and soon: not worth compressing.
ALTER TABLE pgqueue_staging ALTER lines SET STORAGE EXTERNAL;

-- The last version that each application has written: the same one again changes nothing.
CREATE TABLE pgqueue_spark_txn (
    app_id text PRIMARY KEY,
    version bigint NOT NULL,
    sent bigint NOT NULL,
    committed_at timestamptz NOT NULL DEFAULT statement_timestamp()
);

-- Archived messages of transactions below it may be gone. Retention raises it, and so does a
-- drop of the queue, whose mark stays and keeps the name.
CREATE TABLE pgqueue_purge_mark (
    queue_id integer PRIMARY KEY,
    below_xid bigint NOT NULL,
    dropped text NOT NULL DEFAULT '',
    purged_at timestamptz NOT NULL DEFAULT statement_timestamp()
);

-- Reverse

DROP TABLE IF EXISTS {schema}.pgqueue_staging, {schema}.pgqueue_spark_txn, {schema}.pgqueue_purge_mark;
