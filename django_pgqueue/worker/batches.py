"""The batches whose members have ended in this process, until the ticker counts them."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from django_pgqueue.queues.batch import id_in


class EndedBatches:
    """The batches, by database. Any thread may add to them, and the ticker takes them."""

    def __init__(self) -> None:
        #: Set when there is something to take.
        self.awake = threading.Event()
        self._lock = threading.Lock()
        self._ids: dict[str, set[int]] = {}
        #: The ids of queues in which messages have ended whose headers are not known.
        self._queues: dict[str, set[int]] = {}

    def note(self, alias: str, headers: Iterable[Any]) -> None:
        """Note the batches of messages whose outcomes are written, as their headers name them."""
        if ids := {pk for pk in map(id_in, headers) if pk is not None}:
            self.put(alias, ids)

    def note_queue(self, alias: str, queue_id: int) -> None:
        """Note that a read has ended messages of a queue: exhausted ones, or expired ones."""
        self._put(self._queues, alias, [queue_id])

    def put(self, alias: str, ids: Iterable[int]) -> None:
        """Note batches by their ids."""
        self._put(self._ids, alias, ids)

    def take(self) -> dict[str, tuple[set[int], set[int]]]:
        """Return the ids that were noted, of batches and of queues, by database; forget them."""
        with self._lock:
            ids, queues = dict(self._ids), dict(self._queues)
            self._ids.clear()
            self._queues.clear()
        return {
            alias: (ids.get(alias, set()), queues.get(alias, set()))
            for alias in ids.keys() | queues.keys()
        }

    def _put(self, noted: dict[str, set[int]], alias: str, ids: Iterable[int]) -> None:
        with self._lock:
            noted.setdefault(alias, set()).update(ids)
        self.awake.set()
