"""The contestants of the scenario ``limits``: a worker with a cap and a rate, as far as it has
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from benchmarks import peers

__all__ = ["BUSY", "CAP", "NEWCOMER", "RATE", "Worker"]

#: Handlers at once of one key.
CAP = 5
#: Starts of one key a second, with a burst of one.
RATE = 20
#: The key with a backlog, and one whose messages should not wait for it.
BUSY, NEWCOMER = "busy", "newcomer"


class Worker(peers.Worker):
    """``mode`` is ``cap`` or ``rate``, the limit that applies. A message is the arguments of
    ``runs.handle``.
    """

    #: Shown in the results: how it sets each limit that it has, and why it lacks the other.
    limits: ClassVar[dict[str, str]]
    none: ClassVar[dict[str, str]] = {}
    cap = CAP
    #: The processes of a measurement, and the handlers at once of each.
    processes, threads = 4, 4

    def send(self, mode: str, messages: Sequence[dict[str, Any]]) -> None:
        """Send messages of one key, with the documented call for many."""
        raise NotImplementedError
