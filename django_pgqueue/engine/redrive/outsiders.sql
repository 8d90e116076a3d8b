-- The roles that may write to this dead-letter queue but not to the source queue: they could forge a
-- header. A right on the parent table is a right on all queues. Grantee 0 is PUBLIC.
SELECT DISTINCT CASE w.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(w.grantee) END
FROM pg_class c
CROSS JOIN LATERAL (
    SELECT e.grantee, e.privilege_type
    FROM aclexplode(coalesce(c.relacl, acldefault('r', c.relowner))) e
    UNION ALL
    SELECT e.grantee, e.privilege_type FROM pg_attribute t, aclexplode(t.attacl) e
    WHERE t.attrelid = c.oid) w
WHERE c.oid = '{message}'::regclass AND w.privilege_type IN ('INSERT', 'UPDATE')
  AND NOT has_column_privilege(w.grantee, '{source_message}'::regclass, 'body', 'INSERT')
  AND NOT has_column_privilege(w.grantee, 'pgqueue_message'::regclass, 'body', 'INSERT')
ORDER BY 1
