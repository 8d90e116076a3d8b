"""Settling: say what became of a message that was read."""

from __future__ import annotations

import datetime as dt
from collections.abc import Container, Iterable, Sequence
from typing import Any

from django.db import models

from django_pgqueue import arguments
from django_pgqueue.models.operations.base import MessageT, twin
from django_pgqueue.models.operations.batches import Batches
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Receipt, Settled, State

__all__ = ["Settling", "Target", "lost"]

Target = Receipt | int | models.Model


class Settling(Batches[MessageT]):
    """Archive, delete and set_vt.

    By receipt (or by a message that was read, which has one) they are fenced: when the message
    was read again since, nothing changes, and the receipt is in the result's ``lost``. By bare
    id they act on whatever stands there, as PGMQ does: a tool for operators.
    """

    def archive(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        *,
        using: str | None = None,
    ) -> Settled:
        """Done: move messages from the queue to the archive, as COMPLETED.

        Returns the ids that were archived; what was not is in ``.lost``.

        >>> [message] = Message.objects.read("orders")
        >>> Message.objects.archive("orders", message.receipt)
        [1]

        Raises QueueNotFound, InvalidArgument.
        """
        params = {"ran": 0, "state": State.COMPLETED.value}
        return self._settle("archive", queue, using, receipts_or_ids, params)

    def cancel(
        self,
        queue: str | Queue,
        ids: Target | Iterable[Target],
        *,
        using: str | None = None,
    ) -> Settled:
        """Call messages off: move them to the archive as CANCELLED, whatever state they are in.

        What waits is not read any more. What a consumer holds is no longer its own: whatever the
        handler's outcome, it changes nothing, and a transactional handler is rolled back. The
        handler is told when its lease is next extended: ``context.cancelled`` is true then, and an
        async handler is cancelled.

        Returns the ids that were cancelled; what is not in the queue (any more) is in ``.lost``.

        >>> Message.objects.cancel("orders", [7, 8])
        [7, 8]

        Raises QueueNotFound, InvalidArgument.
        """
        receipts, bare = arguments.targets(ids)
        every = list(dict.fromkeys([*(receipt.id for receipt in receipts), *bare]))
        params = {"ran": 0, "state": State.CANCELLED.value}
        return self._settle("archive", queue, using, every, params)

    def delete(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        *,
        using: str | None = None,
    ) -> Settled:
        """Delete messages from the queue for good, bodies too. The archive is not touched.

        Returns the ids that were deleted; what was not is in ``.lost``.

        >>> Message.objects.delete("orders", [2, 3])
        [2, 3]

        Raises QueueNotFound, InvalidArgument.
        """
        return self._settle("delete", queue, using, receipts_or_ids, {})

    def set_vt(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        vt: float | dt.timedelta | dt.datetime,
        *,
        using: str | None = None,
    ) -> Settled:
        """Make messages readable ``vt`` from now (seconds, timedelta or an aware datetime).

        Counted from now and not from the old timeout; counts no delivery. Longer extends a
        lease, zero gives the message back at once.

        >>> Message.objects.set_vt("orders", message.receipt, 120)
        [1]

        Raises QueueNotFound, InvalidArgument.
        """
        moment = arguments.moment(vt, "vt")
        if moment == {"at": None, "after": None}:
            arguments.duration(vt)
            moment["after"] = dt.timedelta(0)
        return self._settle("set_vt", queue, using, receipts_or_ids, moment)

    def erase(self, queue: str | Queue, ids: list[int], *, using: str | None = None) -> list[int]:
        """Delete messages wherever they stand, the archive included; returns the ids found."""
        return sorted(self._by_ids("erase", self.resolve(queue, using), ids, {}))

    def _settle(
        self,
        operation: str,
        queue: str | Queue,
        using: str | None,
        receipts_or_ids: Target | Iterable[Target],
        params: dict[str, Any],
    ) -> Settled:
        receipts, ids = arguments.targets(receipts_or_ids)
        found = self.resolve(queue, using)
        done: list[int] = []
        good = arguments.newest(receipts)
        if good:
            done += sorted(self._by_receipts(operation, found, list(good), params))
        late = lost(receipts, good, done)
        missing = ids
        # A bare id may be on its way from ready to leased at this moment: its delete waits for
        # that and finds nothing in the old place. A second look finds it in the new one.
        for _attempt in range(2):
            if missing:
                by_id = self._by_ids(f"{operation}_by_id", found, missing, params)
                done += sorted(by_id)
                missing = [pk for pk in missing if pk not in by_id]
        return Settled(done, lost=[*late, *missing])

    aarchive = twin(archive)
    acancel = twin(cancel)
    adelete = twin(delete)
    aset_vt = twin(set_vt)


def lost(
    receipts: Sequence[Receipt], good: Container[Receipt], done: Iterable[int]
) -> list[Receipt]:
    """Which receipts came too late: their messages were read again since, or settled already."""
    settled = set(done)
    if len(settled) == len(receipts):
        return []
    return [r for r in receipts if r.id not in settled or r not in good]
