"""Leases of whole batches: settled together as one row, or unfolded into a row for each message.

A read that takes many messages writes one row of ``lease`` in place of as many rows of
``deferred``. Its receipts know their batch, so that an ack of most of it is a look at one row.
Whatever is meant for single messages, or for a few, unfolds the batch first, in the same round
trip: from there on each message is a row of ``deferred``, as if it had been read alone.
"""

from __future__ import annotations

import time
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

from django_pgqueue import arguments, queries
from django_pgqueue.models.operations.base import Ahead, MessageT, Operations
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Batch, Receipt

__all__ = ["Batches"]

#: An ack of less than such a part of a lease would cost more to write than to unfold it once.
_SHARE = 4


class Batches(Operations[MessageT]):
    """How an operation finds what receipts and ids stand for, wherever that is."""

    def _by_receipts(
        self,
        operation: str,
        queue: Queue,
        receipts: Sequence[Receipt],
        params: Mapping[str, Any],
        tables: Mapping[str, object] | None = None,
    ) -> set[int]:
        """Run an operation on deliveries, one receipt a message; returns the ids it was done to.

        Lists in ``params`` have a value for each receipt.
        """
        done: set[int] = set()
        if operation == "archive":
            for way, together in _by_lease(receipts):
                _, rows = self._run(way, queue, None, {**params, **_members(together)})
                done |= note(receipts, rows)
        if late := [receipt for receipt in receipts if receipt.id not in done]:
            folded = {r.batch for r in late if r.batch is not None and r.batch.folded}
            ahead = None
            if folded:
                heads = sorted(batch.head for batch in folded)
                ahead = self._unfolding("given", {"heads": arguments.array(heads)})
            done |= self._by_row(operation, queue, receipts, late, params, tables, ahead)
            for batch in folded:
                batch.folded = False
        # A receipt that was stored knows nothing of its batch.
        lost = [r for r in receipts if r.id not in done and r.read_ct == 1]
        if lost and self._unfold(queue, "ids", {"ids": arguments.array(r.id for r in lost)}):
            done |= self._by_row(operation, queue, receipts, lost, params, tables)
        return done

    @staticmethod
    def _archiving(receipts: Sequence[Receipt]) -> Ahead | None:
        """The one statement that archives them; None when it takes several."""
        if ways := _by_lease(receipts):
            way, together = ways[0]
            alone = sum(map(len, together.values())) == len(receipts)
            return Ahead(way, {**_members(together), "ran": 0}, {}) if alone else None
        if any(receipt.batch is not None and receipt.batch.folded for receipt in receipts):
            return None
        fence = arguments.fence(receipts)
        return Ahead("archive", {**fence, "ran": 0}, queries.fence(fence))

    def _by_row(
        self,
        operation: str,
        queue: Queue,
        receipts: Sequence[Receipt],
        chosen: Sequence[Receipt],
        params: Mapping[str, Any],
        tables: Mapping[str, object] | None,
        ahead: Ahead | None = None,
    ) -> set[int]:
        if len(chosen) < len(receipts):
            params = narrowed(params, receipts, set(chosen))
        fence = arguments.fence(chosen)
        _, rows = self._run(
            operation,
            queue,
            None,
            {**params, **fence},
            {**(tables or {}), **queries.fence(fence)},
            ahead,
        )
        return {row[0] for row in rows}

    def _by_ids(
        self,
        operation: str,
        queue: Queue,
        ids: Sequence[int],
        params: Mapping[str, Any],
        tables: Mapping[str, object] | None = None,
    ) -> set[int]:
        """Run an operation on messages whatever state they are in; returns the ids it found."""
        given = {"ids": arguments.array(ids)}
        ahead = self._unfolding("ids", given)
        _, rows = self._run(operation, queue, None, {**params, **given}, tables, ahead)
        return {row[0] for row in rows}

    def _unfold_due(self, queue: Queue, qty: int | None) -> int:
        """Unfold leases that ran out, about as many as it takes for ``qty`` messages."""
        batches = None if qty is None else 1 + qty // 32
        return self._unfold(queue, "due", {"batches": batches})

    def _unfold(self, queue: Queue, which: str, params: Mapping[str, Any]) -> int:
        ahead = self._unfolding(which, params)
        _, [(count,)] = self._run(ahead.name, queue, None, ahead.params, ahead.tables)
        return int(count)

    @staticmethod
    def _unfolding(which: str, params: Mapping[str, Any]) -> Ahead:
        return Ahead("unfold", params, {"heads": queries.Part(f"unfold_{which}")})


def _by_lease(receipts: Iterable[Receipt]) -> list[tuple[str, dict[Batch, list[int]]]]:
    """Of which batches enough is done to archive it by their leases, and by which statement.

    A lease that ran out may have been unfolded by somebody else.
    """
    ids: dict[Batch, list[int]] = {}
    now = time.monotonic()
    for receipt in receipts:
        batch = receipt.batch
        if batch is not None and batch.folded and now < batch.ends:
            ids.setdefault(batch, []).append(receipt.id)
    if not ids:
        return []
    whole = {batch: of_it for batch, of_it in ids.items() if len(of_it) >= batch.left}
    part = {
        batch: of_it
        for batch, of_it in ids.items()
        if len(of_it) < batch.left <= len(of_it) * _SHARE
    }
    ways = [("archive_batch", whole), ("archive_part", part)]
    return [(way, together) for way, together in ways if together]


def _members(together: Mapping[Batch, list[int]]) -> dict[str, Any]:
    """The parameters of archive_batch.sql that say what is done of which lease.

    In the order of their heads: all who lock several leases do so in one order.
    """
    heads = sorted((batch.head, ids) for batch, ids in together.items())
    return {
        "heads": arguments.array(head for head, _ in heads),
        "members": arguments.array(f'"{arguments.array(sorted(ids))}"' for _, ids in heads),
    }


def note(receipts: Iterable[Receipt], rows: Iterable[Sequence[Any]]) -> set[int]:
    """Keep in mind what is left of the leases; returns the ids that were archived."""
    done = {row[0] for row in rows}
    for receipt in receipts:
        if receipt.batch is not None and receipt.id in done:
            receipt.batch.left -= 1
    return done


def narrowed(
    params: Mapping[str, Any], receipts: Sequence[Receipt], chosen: Container[Receipt]
) -> dict[str, Any]:
    """The same parameters, their lists for the chosen ones of the receipts alone."""
    places = [place for place, receipt in enumerate(receipts) if receipt in chosen]
    return {
        name: [value[place] for place in places] if type(value) is list else value
        for name, value in params.items()
    }
