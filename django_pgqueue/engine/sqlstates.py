"""The PostgreSQL error codes that the package handles."""

from __future__ import annotations

CHECK_VIOLATION = "23514"
DEADLOCK = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
QUERY_CANCELED = "57014"
READ_ONLY = "25006"
SERIALIZATION_FAILURE = "40001"
UNDEFINED_TABLE = "42P01"

# The codes that mean that a queue was dropped: PostgreSQL's, and that of our trigger.
_GONE = (UNDEFINED_TABLE, "PQ404")


def sqlstate(error: BaseException) -> str | None:
    """Return the code of a psycopg error, or of a Django error that was raised from one."""
    return getattr(error, "sqlstate", None) or getattr(error.__cause__, "sqlstate", None)


def is_conflict(error: BaseException) -> bool:
    """Whether the server rolled the transaction back because of another transaction."""
    return sqlstate(error) in (DEADLOCK, SERIALIZATION_FAILURE)


def is_gone(error: BaseException) -> bool:
    """Whether this error means that a queue was dropped."""
    return sqlstate(error) in _GONE
