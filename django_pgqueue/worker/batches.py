"""The batches whose members have ended in this process, and their counts."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Any

from django.db import connections

from django_pgqueue import signals
from django_pgqueue.engine.sqlstates import is_conflict
from django_pgqueue.models import Batch
from django_pgqueue.queues.batch import TOGETHER, id_in
from django_pgqueue.worker.announcer import send

#: The pause between two counts: its least and greatest seconds, and how many times the last count's
#: time. One count finds all members that have ended meanwhile, and counting takes a small part of
#: the time. A count that left something is followed by a pause as long as it was.
_SHORTEST, _LONGEST, _PART = 0.02, 0.5, 5
#: How long a count begins with further batches, in seconds.
_SECONDS = 0.3
#: The seconds after which batches whose count failed are looked at again, at the latest.
_LOOK = 10.0


class EndedBatches:
    """The batches, by database. Any thread may add to them, and the ticker counts them."""

    def __init__(self) -> None:
        #: Set when there is something to take.
        self.awake = threading.Event()
        self._lock = threading.Lock()
        self._ids: dict[str, set[int]] = {}
        #: The ids of queues in which messages have ended whose headers are not known.
        self._queues: dict[str, set[int]] = {}
        #: When the next count may begin, by time.monotonic().
        self._next_at = 0.0
        #: How many counts in a row found only batches that others had locked.
        self._in_vain = 0

    @property
    def pause(self) -> float:
        """The seconds to wait before the next count, so that more members end."""
        return max(0.0, self._next_at - time.monotonic())

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

    def count(self, sender: str) -> bool:
        """Count the batches, for a time. Returns whether there were some.

        Those that are left, that another process has locked, or that have more to count, are noted
        again. ``sender`` names the loop if a count fails.
        """
        began = time.monotonic()
        taken = self.take()
        in_vain, has_more = bool(taken), False
        for alias, (ids, queues) in taken.items():
            try:
                ids |= Batch.objects.open_of(queues, using=alias)
                counted, left = self._count(alias, ids)
            except Exception as error:
                in_vain = False
                if is_conflict(error):
                    self.put(alias, ids)
                    continue
                connections[alias].close()
                about: dict[str, Any] = {"operation": "batches", "error": error, "wait": _LOOK}
                send(signals.database_failed, sender, **about)
                continue  # the next look finds them
            in_vain &= bool(ids) and not counted
            if left:
                self.put(alias, left)
                has_more = True
        self._in_vain = min(self._in_vain + 1, 10) if in_vain else 0
        now = time.monotonic()
        pause = max(_SHORTEST * 2**self._in_vain, (1 if has_more else _PART) * (now - began))
        self._next_at = now + min(pause, _LONGEST)
        return bool(taken)

    def _count(self, alias: str, ids: set[int]) -> tuple[int, set[int]]:
        """Count batches, for a time. Returns how many were not locked, and those that are left."""
        until, counted, left = time.monotonic() + _SECONDS, 0, sorted(ids)
        while left and time.monotonic() < until:
            chosen, left = left[:TOGETHER], left[TOGETHER:]
            again = Batch.objects.count_some(chosen, using=alias)
            counted += len(chosen) - len(again.locked)
            left += again.more
            if again.locked:
                self.put(alias, again.locked)
        return counted, set(left)

    def _put(self, noted: dict[str, set[int]], alias: str, ids: Iterable[int]) -> None:
        with self._lock:
            noted.setdefault(alias, set()).update(ids)
        self.awake.set()
