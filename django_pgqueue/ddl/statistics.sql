-- Statistics of the table deferred, from rows that are removed again. Autovacuum takes none before a
-- minute has passed, nor from an empty table. Without statistics, the planner assumes that one row
-- in 200 has a given id. An ack then seems to cost so much that a server with JIT compiles it first:
-- 400 ms instead of 0.3.

INSERT INTO {schema}.pgqueue_deferred
    (id, vt, enqueued_at, first_read_at, last_read_at, queue_id, read_ct, priority, state)
SELECT n, statement_timestamp(), statement_timestamp(), statement_timestamp(),
       statement_timestamp(), 0, 1, 0, 'PROCESSING'
FROM generate_series(1, 100) AS n;

ANALYZE {schema}.pgqueue_deferred;

TRUNCATE {schema}.pgqueue_deferred;
