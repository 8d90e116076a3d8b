"""Connections that come from a pool, and have to go back to it."""

from __future__ import annotations

from django.db import connections

__all__ = ["give_back_pooled", "uses_pools"]


def uses_pools() -> bool:
    """Whether any of the databases has a pool."""
    return any(each.get("OPTIONS", {}).get("pool") for each in connections.settings.values())


def give_back_pooled() -> None:
    """Return this thread's pooled connections, so that others can have them."""
    for connection in connections.all(initialized_only=True):
        if connection.settings_dict.get("OPTIONS", {}).get("pool"):
            connection.close()
