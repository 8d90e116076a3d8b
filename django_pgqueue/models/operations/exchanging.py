"""What is done, for what is to do: the last batch's ack and the next read in one commit."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any

from django.db import connections, transaction

from django_pgqueue import arguments, queries
from django_pgqueue.models.operations.base import Ahead, MessageT, twin
from django_pgqueue.models.operations.batches import by_lease, members, note
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
        features: Any = connections[found.alias].features
        good = arguments.newest(receipts)
        ways = by_lease(good)
        together = ways[0][1] if len(ways) == 1 else {}
        by_one = sum(map(len, together.values())) == len(good) or not any(
            receipt.batch is not None and receipt.batch.folded for receipt in good
        )
        if ids or not by_one or features.uses_server_side_binding:
            # That takes several statements, and a bound one cannot be two.
            with transaction.atomic(using=found.alias):
                settled = self.archive(found, [*receipts, *ids])
                return settled, self.lease(found, vt=vt, qty=qty)
        if not receipts:
            return Settled(), self.lease(found, vt=vt, qty=qty)
        if together:
            ahead = Ahead(ways[0][0], {**members(together), "ran": 0}, {})
        else:
            fence = arguments.fence(list(good))
            ahead = Ahead("archive", {**fence, "ran": 0}, queries.fence(fence))
        messages = self.lease(found, vt=vt, qty=qty, ahead=ahead)
        done = note(together, ahead.rows or ())
        if len(done) < len(good):
            # What stood in a lease that was unfolded meanwhile.
            done |= set(self.archive(found, [r for r in good if r.id not in done]))
        return Settled(sorted(done), lost=lost(receipts, good, done)), messages

    aarchive_and_read = twin(archive_and_read)
