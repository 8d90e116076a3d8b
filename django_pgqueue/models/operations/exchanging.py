"""What is done, for what is to do: the last batch's ack and the next read in one commit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable

from django.db import transaction

from django_pgqueue import arguments
from django_pgqueue.models.operations.base import MessageT, twin
from django_pgqueue.models.operations.batches import note
from django_pgqueue.models.operations.reading import Reading
from django_pgqueue.models.operations.settling import Settling, Target, lost
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Settled

__all__ = ["Exchanging"]


class Exchanging(Reading[MessageT], Settling[MessageT]):
    """Archive and read at once."""

    def archive_and_read(
        self,
        queue: str | Queue,
        receipts_or_ids: Target | Iterable[Target],
        *,
        vt: float | dt.timedelta | None = None,
        qty: int | None = 1,
        using: str | None = None,
    ) -> tuple[Settled, list[MessageT]]:
        """Archive what was done and read what comes next: :meth:`archive`, then :meth:`read`.

        Both go in one round trip and one commit, which is what most of a small batch's time is
        spent on. When it fails, nothing is archived and nothing read. The arguments are those of
        the two; returned is what each of them would return. With nothing to archive it is a read.

        >>> done = []
        >>> while True:
        ...     settled, batch = Message.objects.archive_and_read("orders", done, qty=100)
        ...     if not batch:
        ...         break
        ...     done = [message for message in batch if handle(message)]

        Raises QueueNotFound, InvalidArgument, TransactionRefused.
        """
        found = self.resolve(queue, using)
        self._refuse_transaction(found.alias, "archive_and_read")
        receipts, ids = arguments.targets(receipts_or_ids)
        good = list(arguments.newest(receipts))
        ahead = self._archiving(good) if good else None
        if ids or (good and ahead is None):
            with transaction.atomic(using=found.alias):
                settled = self.archive(found, [*receipts, *ids])
                return settled, self.lease(found, vt=vt, qty=qty)
        messages = self.lease(found, vt=vt, qty=qty, ahead=ahead)
        done = note(good, ahead.rows or ()) if ahead else set()
        if late := [receipt for receipt in good if receipt.id not in done]:
            # What stood in a lease that somebody unfolded meanwhile.
            done |= set(self.archive(found, late))
        return Settled(sorted(done), lost=lost(receipts, good, done)), messages

    aarchive_and_read = twin(archive_and_read)
