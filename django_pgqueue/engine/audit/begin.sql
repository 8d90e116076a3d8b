-- Write an entry of the audit log. Returns its id.
SELECT pgqueue_audit(%(operation)s, %(queue_id)s, %(queue)s, %(arguments)s::jsonb,
                     %(count)s::bigint, %(actor)s::jsonb, %(ended)s)
