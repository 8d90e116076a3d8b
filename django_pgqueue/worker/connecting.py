"""What reaches a database of Django's without Django."""

from __future__ import annotations

from typing import Any

from django.db import connections

__all__ = ["parameters"]

# What comes of its answer and is meant for psycopg, or for a pool.
_NOT_FOR_LIBPQ = ("cursor_factory", "context", "prepare_threshold", "pool")


def parameters(alias: str) -> dict[str, Any]:
    """What libpq has to be told, by name."""
    # Django's wrapper knows which options are its own, and may have to start the server first.
    found = connections[alias].get_connection_params()
    return {
        name: value
        for name, value in found.items()
        if name not in _NOT_FOR_LIBPQ and value not in ("", None)
    }
