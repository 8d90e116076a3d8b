"""The owner and the grants of a table that takes another one's place."""

from __future__ import annotations

from typing import Any

from django_pgqueue.ddl import grants

__all__ = ["copy"]


def copy(cursor: Any, source: str, target: str) -> None:
    """Give a table the owner and the grants of another one."""
    _copy_owner(cursor, source, target)
    grants.copy(cursor, source, target)


def _copy_owner(cursor: Any, source: str, target: str) -> None:
    cursor.execute(
        "SELECT format('ALTER TABLE %%s OWNER TO %%I', %s::text, pg_get_userbyid(s.relowner)) "
        "FROM pg_class s JOIN pg_class t ON t.relowner <> s.relowner "
        "WHERE s.oid = %s::regclass AND t.oid = %s::regclass",
        [target, source, target],
    )
    for (statement,) in cursor.fetchall():
        cursor.execute(statement)
