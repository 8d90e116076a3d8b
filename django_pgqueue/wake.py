"""Waiting for a notification, on a connection of Django's that is between transactions.

A notification is a hint, never the truth: it can be late, be lost, or not be had at all behind
a pooler in transaction mode. So a wait always has an end.
"""

from __future__ import annotations

import contextlib
import time
from types import TracebackType
from typing import Any

from django.db import DatabaseError

__all__ = ["CHANNEL", "THROTTLE", "Listening"]

#: The one channel; the payload is the name of a queue that got messages.
CHANNEL = "pgqueue"
#: Seconds after a notification in which a queue sends no other one. Waits should stay short until
#: then, so that a read finds messages without a notification of their own, and grow step by step
#: after that: a sender may commit long after its notification was throttled.
THROTTLE = 0.02


class Listening:
    """LISTEN for as long as the block lasts.

    ::

        with Listening(connection) as listening:
            listening.wait(0.1)
    """

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def __enter__(self) -> Listening:
        with self._connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        return self

    def wait(self, seconds: float) -> bool:
        """Wait for a notification, up to that many seconds; whether one came."""
        if self._connection.in_atomic_block:
            # Inside a test's transaction nothing can arrive.
            time.sleep(seconds)
            return False
        notifies = self._connection.connection.notifies(timeout=seconds, stop_after=1)
        return any(True for _ in notifies)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # A connection that broke listens to nothing any more.
        with contextlib.suppress(DatabaseError), self._connection.cursor() as cursor:
            cursor.execute(f"UNLISTEN {CHANNEL}")
