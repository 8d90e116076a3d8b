-- Row-level security of four shared tables: a role sees and writes only the rows of queues on which
-- it has rights. A consumer runs schedules and bulk actions with the consumer's rights, not with
-- those of the role that wrote them. So a role may write only schedules and bulk actions that it
-- could run itself. The tables' owner bypasses every policy. Sends, reads and archives use none of
-- these tables.

-- Whether the caller has a right on the messages of a queue: on the parent table, which covers all
-- queues, or on the queue's own table. For SELECT and INSERT the column body is tested, since they
-- may be granted by column. to_regclass returns NULL for a queue that is gone. The search path is
-- the caller's, so each name is qualified (wake.sql).
CREATE FUNCTION {schema}.pgqueue_may(queue_number integer, privilege text) RETURNS boolean
LANGUAGE sql STABLE PARALLEL SAFE AS $$
    SELECT coalesce(
        CASE privilege WHEN 'DELETE'::text THEN
            pg_catalog.has_table_privilege(
                pg_catalog.to_regclass('{schema}.pgqueue_message')::oid, privilege)
            OR pg_catalog.has_table_privilege(pg_catalog.to_regclass(pg_catalog.concat(
                '{schema}.pgqueue_message_q'::text, queue_number))::oid, privilege)
        ELSE
            pg_catalog.has_column_privilege(
                pg_catalog.to_regclass('{schema}.pgqueue_message')::oid, 'body'::text, privilege)
            OR pg_catalog.has_column_privilege(pg_catalog.to_regclass(pg_catalog.concat(
                '{schema}.pgqueue_message_q'::text, queue_number))::oid, 'body'::text, privilege)
        END, false)
$$;

ALTER TABLE {schema}.pgqueue_attempt ENABLE ROW LEVEL SECURITY;
ALTER TABLE {schema}.pgqueue_schedule ENABLE ROW LEVEL SECURITY;
ALTER TABLE {schema}.pgqueue_bulk_action ENABLE ROW LEVEL SECURITY;
ALTER TABLE {schema}.pgqueue_bulk_action_part ENABLE ROW LEVEL SECURITY;

CREATE POLICY pgqueue_attempt_of_queue ON {schema}.pgqueue_attempt
    USING ({schema}.pgqueue_may(queue_id, 'SELECT'));

-- Consumers declare and send the schedules of queues that they may send to.
CREATE POLICY pgqueue_schedule_of_queue ON {schema}.pgqueue_schedule
    USING ({schema}.pgqueue_may(queue_id, 'SELECT') OR {schema}.pgqueue_may(queue_id, 'INSERT'))
    WITH CHECK ({schema}.pgqueue_may(queue_id, 'INSERT'));

-- A target is the queue that a bulk action sends to, if not the messages' own. A target that was
-- dropped is permitted, so that the bulk action can be ended as failed.
CREATE POLICY pgqueue_bulk_action_of_queue ON {schema}.pgqueue_bulk_action
    USING ({schema}.pgqueue_may(queue_id, 'SELECT'))
    WITH CHECK ({schema}.pgqueue_may(queue_id, 'DELETE') AND NOT EXISTS (
        SELECT FROM {schema}.pgqueue_queue q
        WHERE lower(q.name) = lower(target) AND NOT {schema}.pgqueue_may(q.id, 'INSERT')));

-- Permits the parts of bulk actions that the role sees: the policy above applies in the subquery.
CREATE POLICY pgqueue_bulk_action_part_of_queue ON {schema}.pgqueue_bulk_action_part
    USING (EXISTS (SELECT FROM {schema}.pgqueue_bulk_action b WHERE b.id = bulk_action_id));

-- Reverse

DROP POLICY IF EXISTS pgqueue_bulk_action_part_of_queue ON {schema}.pgqueue_bulk_action_part;
DROP POLICY IF EXISTS pgqueue_bulk_action_of_queue ON {schema}.pgqueue_bulk_action;
DROP POLICY IF EXISTS pgqueue_schedule_of_queue ON {schema}.pgqueue_schedule;
DROP POLICY IF EXISTS pgqueue_attempt_of_queue ON {schema}.pgqueue_attempt;
-- Only for two tables: the same migration drops the other two.
ALTER TABLE {schema}.pgqueue_schedule DISABLE ROW LEVEL SECURITY;
ALTER TABLE {schema}.pgqueue_attempt DISABLE ROW LEVEL SECURITY;
