"""The maintenance lease: only the process that holds it runs maintenance in a database.

It is a row with an expiry, not a lock: it works through any pooler, and expires if its holder dies.
"""

from __future__ import annotations

import os
import socket
from typing import Any
from uuid import UUID

from django.db import connections

from django_pgqueue.engine.statements import load


def hold(token: UUID, seconds: float, *, using: str) -> bool:
    """Take or renew the lease for ``seconds``. Returns False if another token holds it."""
    process = f"{socket.gethostname()}:{os.getpid()}"
    params: dict[str, Any] = {"token": token, "process": process, "seconds": seconds}
    with connections[using].cursor() as cursor:
        cursor.execute(load("hold", __package__), params)
        return bool(cursor.rowcount)


def leave(token: UUID, *, using: str) -> None:
    """End the lease, if this token holds it."""
    with connections[using].cursor() as cursor:
        cursor.execute(
            "UPDATE pgqueue_maintenance SET until = statement_timestamp() WHERE token = %s", [token]
        )
