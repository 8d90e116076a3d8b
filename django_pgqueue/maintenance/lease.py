"""The lease of the process that does maintenance: one at a time in a database.

It is a row with an end and no lock, so that it works through any pooler, and ends by itself when
its holder falls silent.
"""

from __future__ import annotations

import os
import socket
from typing import Any
from uuid import UUID

from django.db import connections

from django_pgqueue.engine.statements import load

__all__ = ["hold", "leave"]


def hold(token: UUID, seconds: float, *, using: str) -> bool:
    """Hold the lease for this many seconds from now; False when another process has it.

    ``token`` names the holder: the same token keeps the lease, again and again.
    """
    params: dict[str, Any] = {
        "token": token,
        "process": f"{socket.gethostname()}:{os.getpid()}",
        "seconds": seconds,
    }
    with connections[using].cursor() as cursor:
        cursor.execute(load("hold", __package__), params)
        return bool(cursor.rowcount)


def leave(token: UUID, *, using: str) -> None:
    """End the lease if it is this token's, so that another process takes it at once."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_maintenance SET until = statement_timestamp() WHERE token = %s", [token]
        )
