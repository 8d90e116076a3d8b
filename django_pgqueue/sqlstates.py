"""The codes by which PostgreSQL says what went wrong; those that the package acts on."""

from __future__ import annotations

__all__ = [
    "CHECK_VIOLATION",
    "DEADLOCK",
    "LOCK_NOT_AVAILABLE",
    "QUERY_CANCELED",
    "SERIALIZATION_FAILURE",
    "UNDEFINED_TABLE",
    "sqlstate",
]

CHECK_VIOLATION = "23514"
DEADLOCK = "40P01"
LOCK_NOT_AVAILABLE = "55P03"
QUERY_CANCELED = "57014"
SERIALIZATION_FAILURE = "40001"
UNDEFINED_TABLE = "42P01"


def sqlstate(error: BaseException) -> str | None:
    """The code of an error of Django's, which has the driver's error as its cause."""
    return getattr(error.__cause__, "sqlstate", None)
