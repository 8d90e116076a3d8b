"""Settling by receipt or by id: archive, delete, a new visibility timeout.

By receipt (or by a message that was read, which has one) an operation is fenced: when the message
was read again since, nothing changes, and the receipt is in the result's ``lost``. By bare id it
acts on the message whatever its state, as PGMQ does: a tool for operators.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from django_pgqueue import arguments
from django_pgqueue.engine.leases.batches import archive_batches, unfold
from django_pgqueue.engine.queue import OpenQueue
from django_pgqueue.types import Receipt, Settled, State

__all__ = ["archive", "by_receipts", "cancel", "delete", "erase", "hold", "purge", "set_vt"]

PURGE_BATCH = 50_000


class Received(Protocol):
    """A message that was read."""

    @property
    def receipt(self) -> Receipt: ...


Target = Receipt | int | Received


def archive(
    queue: OpenQueue, receipts_or_ids: Target | Iterable[Target], *, in_flight: bool = True
) -> Settled:
    """Done: move messages from the queue to the archive, as COMPLETED.

    Takes a receipt, a message that was read, an id, or a list of them. Returns the ids that were
    archived; the others are in ``.lost``. ``in_flight=False`` leaves alone messages given by id
    that a consumer holds.

    >>> [message] = queue("orders").read()
    >>> queue("orders").archive(message)
    [1]

    Raises QueueNotFound, InvalidArgument.
    """
    params = {"ran": 0, "results": None, "state": State.COMPLETED.value, "reason": None}
    return _settle(queue, "archive", receipts_or_ids, params, in_flight)


def cancel(
    queue: OpenQueue,
    receipts_or_ids: Target | Iterable[Target],
    *,
    reason: str | None = None,
    in_flight: bool = True,
) -> Settled:
    """Call messages off: move them to the archive as CANCELLED, whatever state they are in.

    A message that waits is not read any more. A consumer that has one loses its lease: the
    handler's outcome changes nothing, and a transactional handler is rolled back. The handler is
    told when its lease is next extended: ``context.cancelled`` is true then, and an async handler
    is cancelled.

    Returns the ids that were cancelled; ids that are not in the queue (any more) are in ``.lost``.

    Arguments:
        reason: kept in the archive as the error; None: nothing.
        in_flight: False leaves alone messages that a consumer holds; they are in ``.lost``.

    >>> queue("orders").cancel([7, 8])
    [7, 8]

    Raises QueueNotFound, InvalidArgument.
    """
    receipts, ids = arguments.targets(receipts_or_ids)
    every = list(dict.fromkeys([*(receipt.id for receipt in receipts), *ids]))
    params = {
        "ran": 0,
        "results": None,
        "state": State.CANCELLED.value,
        "reason": arguments.text(reason, "reason"),
    }
    return _settle(queue, "archive", every, params, in_flight)


def delete(
    queue: OpenQueue, receipts_or_ids: Target | Iterable[Target], *, in_flight: bool = True
) -> Settled:
    """Delete messages from the queue for good, bodies too. The archive is not touched.

    Arguments and result are as for :func:`archive`.

    >>> queue("orders").delete([2, 3])
    [2, 3]

    Raises QueueNotFound, InvalidArgument.
    """
    return _settle(queue, "delete", receipts_or_ids, {}, in_flight)


def set_vt(
    queue: OpenQueue,
    receipts_or_ids: Target | Iterable[Target],
    vt: float | dt.timedelta | dt.datetime,
    *,
    in_flight: bool = True,
) -> Settled:
    """Make messages readable ``vt`` from now (seconds, timedelta or an aware datetime).

    Counted from now and not from the old timeout; counts no delivery. Longer extends a lease, zero
    gives the message back at once. Messages, result and ``in_flight`` are as for :func:`archive`.

    >>> queue("orders").set_vt(message, 120)
    [1]

    Raises QueueNotFound, InvalidArgument.
    """
    moment = arguments.moment(vt, "vt")
    if moment == {"at": None, "after": None}:
        arguments.duration(vt)
        moment["after"] = dt.timedelta(0)
    return _settle(queue, "set_vt", receipts_or_ids, moment, in_flight)


def hold(
    queue: OpenQueue, receipts: Iterable[Receipt], vt: float | dt.timedelta, *, more: int = 0
) -> Settled:
    """Extend leases that the caller holds, and count ``more`` deliveries.

    For a reader that repeats a batch. Followers of FIFO groups that were set back when the leases
    had expired return behind their heads, unless others had the heads since. Receipts that are
    valid afterwards have a ``read_ct`` higher by ``more``.

    >>> hold(orders, [message.receipt], 60)
    [1]

    Raises InvalidArgument.
    """
    params = {"vt": arguments.duration(vt, least=0), "more": more}
    return by_receipts(queue, "hold", arguments.receipts(receipts), params)


def erase(queue: OpenQueue, ids: Iterable[int]) -> list[int]:
    """Delete messages in whatever state, the archive included; returns the ids found."""
    ids = arguments.ids(ids)
    unfold(queue, ids)
    return sorted(pk for (pk,) in queue.run("settle/erase", {"ids": arguments.array(ids)}))


def purge(queue: OpenQueue, *, progress: Any = None) -> int:
    """Delete every live message, ready, delayed or in flight; returns how many.

    The archive stays. Waits for no other transaction: messages that one holds locked are skipped.
    Outside a transaction it goes in steps, which stay done when it is interrupted. ``progress`` is
    called with the count so far.

    >>> queue("orders").purge()
    12

    Raises QueueNotFound.
    """
    purged = 0
    while True:
        batch: int
        [(batch,)] = queue.run("settle/purge", {"batch": PURGE_BATCH})
        purged += batch
        if progress is not None and batch:
            progress(purged)
        if not batch:
            return purged


def by_receipts(
    queue: OpenQueue,
    operation: str,
    receipts: Sequence[Receipt],
    params: Mapping[str, Any],
    each: Mapping[str, Mapping[Receipt, Any]] | None = None,
    **names: object,
) -> Settled:
    """Run an operation on deliveries.

    Arguments:
        params: values for all of them.
        each: values for each of them, which travel as a list.
        names: names in the statement's text.
    """
    good = arguments.newest(receipts)
    done: set[int] = set()

    def run(chosen: list[Receipt]) -> None:
        lists = {name: [of.get(r) for r in chosen] for name, of in (each or {}).items()}
        values = {**params, **arguments.fence(chosen), **lists}
        text = queue.text(f"settle/{operation}", **names)
        done.update(pk for (pk,) in queue.runner.run(text, values))

    if operation == "archive" and not each:
        done |= archive_batches(queue, good, params["ran"])
    if left := [receipt for receipt in good if receipt.id not in done]:
        run(left)
    # A message that was read once may be in a batch lease, or was until a moment ago.
    if left := [r for r in good if r.id not in done and r.read_ct == 1]:
        unfold(queue, [receipt.id for receipt in left])
        run(left)
    newest = set(good)
    return Settled(
        [receipt.id for receipt in good if receipt.id in done],
        lost=[r for r in receipts if not (r.id in done and r in newest)],
    )


def _settle(
    queue: OpenQueue,
    operation: str,
    receipts_or_ids: Target | Iterable[Target],
    params: dict[str, Any],
    in_flight: bool,
) -> Settled:
    receipts, ids = arguments.targets(receipts_or_ids)
    settled = by_receipts(queue, operation, receipts, params) if receipts else Settled()
    if not ids:
        return Settled(sorted(settled), lost=settled.lost)
    unfold(queue, ids)
    done, missing = list(settled), ids
    # A bare id may be on its way from ready to leased at this moment: its delete waits for that and
    # finds nothing in the old place. A second look finds it in the new one.
    for _attempt in range(2):
        if missing:
            values = {**params, "ids": arguments.array(missing), "in_flight": bool(in_flight)}
            found = {pk for (pk,) in queue.run(f"settle/{operation}_by_id", values)}
            done += sorted(found)
            missing = [pk for pk in missing if pk not in found]
    return Settled(done, lost=[*settled.lost, *missing])
