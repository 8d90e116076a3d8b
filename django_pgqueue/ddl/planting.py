"""Who may plant functions where our statements look them up, and which were planted.

Statements of the engine run with the session's search path, and PostgreSQL calls the function or
operator whose argument types match best, whatever its schema. So a role that may create functions
in a schema of that path can have them run by whoever sends or reads, a superuser too.
"""

from __future__ import annotations

from typing import Any

__all__ = ["may_plant", "planted"]

# The schemas in which our statements look up names: that of our tables, the session's, and pgmq.
_SCHEMAS = """
    SELECT n.oid, n.nspname, n.nspowner, n.nspacl,
           (SELECT relowner FROM pg_class WHERE oid = to_regclass('pgqueue_message')) AS keeper
    FROM pg_namespace n
    WHERE n.oid = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('pgqueue_message'))
       OR n.nspname = ANY(current_schemas(false)) OR n.nspname = 'pgmq'
"""

# Trusted are superusers, and the owners of the schema and of our tables, with the members of these.
# Role 0 is PUBLIC.
_UNTRUSTED = """
    CASE {role} WHEN 0 THEN true ELSE NOT pg_has_role({role}, s.nspowner, 'USAGE')
                                  AND NOT pg_has_role({role}, s.keeper, 'USAGE') END
"""


def may_plant(cursor: Any) -> list[tuple[str, str, str, bool]]:
    """Return (schema, role, owner of our tables, whether that owner needs CREATE of its own).

    There is an entry for each role that may create objects in one of the schemas, and is neither a
    superuser nor the owner of the schema or of our tables. The names are quoted; PUBLIC stands for
    all roles. The owner needs CREATE of its own if it has that right by PUBLIC only.
    """
    untrusted = _UNTRUSTED.format(role="a.grantee")
    cursor.execute(
        f"""
        SELECT quote_ident(s.nspname),
               CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END,
               quote_ident(pg_get_userbyid(s.keeper)),
               a.grantee = 0 AND NOT pg_has_role(s.keeper, s.nspowner, 'USAGE') AND NOT EXISTS (
                   SELECT FROM aclexplode(s.nspacl) own
                   WHERE own.grantee = s.keeper AND own.privilege_type = 'CREATE')
        FROM ({_SCHEMAS}) s CROSS JOIN LATERAL aclexplode(s.nspacl) a
        WHERE a.privilege_type = 'CREATE' AND {untrusted} ORDER BY 1, 2
        """
    )
    return list(cursor.fetchall())


def planted(cursor: Any) -> list[tuple[str, str, str]]:
    """Return (FUNCTION or OPERATOR, signature, owner) of each that a statement of ours may call.

    These have the name of one of PostgreSQL's or of ours, are in one of the schemas, and belong to
    a role that is neither a superuser nor the owner of the schema or of our tables.
    """
    function, operator = _UNTRUSTED.format(role="p.proowner"), _UNTRUSTED.format(role="o.oprowner")
    cursor.execute(
        f"""
        SELECT CASE p.prokind WHEN 'a' THEN 'AGGREGATE' ELSE 'FUNCTION' END,
               format('%I.%I(%s)', s.nspname, p.proname,
                      pg_get_function_identity_arguments(p.oid)),
               quote_ident(pg_get_userbyid(p.proowner))
        FROM ({_SCHEMAS}) s JOIN pg_proc p ON p.pronamespace = s.oid
        WHERE {function} AND (s.nspname = 'pgmq' OR starts_with(p.proname, 'pgqueue_') OR EXISTS (
            SELECT FROM pg_proc c
            WHERE c.proname = p.proname AND c.pronamespace = 'pg_catalog'::regnamespace))
        UNION ALL
        SELECT 'OPERATOR',
               format('%I.%s (%s, %s)', s.nspname, o.oprname,
                      CASE o.oprleft WHEN 0 THEN 'NONE' ELSE format_type(o.oprleft, NULL) END,
                      format_type(o.oprright, NULL)),
               quote_ident(pg_get_userbyid(o.oprowner))
        FROM ({_SCHEMAS}) s JOIN pg_operator o ON o.oprnamespace = s.oid
        WHERE {operator} AND EXISTS (
            SELECT FROM pg_operator c
            WHERE c.oprname = o.oprname AND c.oprnamespace = 'pg_catalog'::regnamespace)
        ORDER BY 1, 2
        """
    )
    return list(cursor.fetchall())
