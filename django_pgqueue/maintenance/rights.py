"""The owner and the grants of a table that takes another one's place."""

from __future__ import annotations

from typing import Any

__all__ = ["copy"]


def copy(cursor: Any, source: str, target: str) -> None:
    """Give a table the owner and the grants of another one."""
    _copy_owner(cursor, source, target)
    cursor.execute(
        "SELECT format('GRANT %%s ON %%s TO %%s%%s', a.privilege_type, %s::text, "
        "CASE a.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(a.grantee)) END, "
        "CASE WHEN a.is_grantable THEN ' WITH GRANT OPTION' ELSE '' END) "
        "FROM pg_class c CROSS JOIN aclexplode(c.relacl) a "
        "WHERE c.oid = %s::regclass AND a.grantee <> c.relowner",
        [target, source],
    )
    for (grant,) in cursor.fetchall():
        cursor.execute(grant)


def _copy_owner(cursor: Any, source: str, target: str) -> None:
    cursor.execute(
        "SELECT format('ALTER TABLE %%s OWNER TO %%I', %s::text, pg_get_userbyid(s.relowner)) "
        "FROM pg_class s JOIN pg_class t ON t.relowner <> s.relowner "
        "WHERE s.oid = %s::regclass AND t.oid = %s::regclass",
        [target, source, target],
    )
    for (statement,) in cursor.fetchall():
        cursor.execute(statement)
