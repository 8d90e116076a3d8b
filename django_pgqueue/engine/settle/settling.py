"""Settle messages by receipt or by id: archive, cancel, delete, set the visibility timeout.

An operation by receipt, or by a message that was read, is fenced: if the message was read again
since, the operation changes nothing, and the result's ``lost`` has the receipt. An operation by id,
a tool for operators, changes the message in any place, as PGMQ's functions do.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from django_pgqueue.audit import GIVEN
from django_pgqueue.engine import arguments
from django_pgqueue.engine.audit.entry import Entry, record_settled, records_settled, unrecorded
from django_pgqueue.engine.leases.batches import archive_batches, unfold
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.subscriptions import leases
from django_pgqueue.engine.subscriptions.positions import skip_unread
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
    """Complete messages: move them from the queue to the archive.

    Takes a receipt, a message that was read, an id, or a list of them. Returns the ids that were
    archived; the others are in ``.lost``. ``in_flight=False`` skips a message that is given by id
    if a consumer holds it.

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
    """Cancel messages: move them to the archive as CANCELLED, from any place.

    A consumer that holds a message loses its lease: the handler's outcome is discarded, and a
    transactional handler is rolled back. When the consumer next tries to extend the lease,
    ``context.cancelled`` becomes true and an async handler is cancelled.

    Returns the ids that were cancelled; ids that are not in the queue are in ``.lost``.

    Arguments:
        reason: stored in the archive as the error.
        in_flight: False skips messages that a consumer holds; they are in ``.lost``.

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
    """Delete messages from the queue, with their bodies. Archived messages stay.

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

    Counts from now, not from the old timeout. Zero gives a leased message back at once. No delivery
    is counted. Messages, result and ``in_flight`` are as for :func:`archive`.

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
    """Extend the leases of deliveries, and count ``more`` deliveries of their messages.

    For a reader that processes a batch again. A follower that went back to waiting when its lease
    expired is leased again, unless its head was delivered again since. The receipts that are valid
    afterwards have a ``read_ct`` that is higher by ``more``.

    >>> hold(orders, [message.receipt], 60)
    [1]

    Raises InvalidArgument.
    """
    params = {"vt": arguments.duration(vt, least=0), "more": more}
    return by_receipts(queue, "hold", arguments.receipts(receipts), params)


def erase(queue: OpenQueue, ids: Iterable[int]) -> list[int]:
    """Delete messages, live or archived. Returns the ids that were found.

    The queue's subscriptions do not get them any more. Their copies and dead letters of these
    messages are erased, too, each with an entry in the audit log.
    """
    ids = arguments.ids(ids)
    readers = queue.run("settle/readers")
    if not readers:
        return _erase(queue, ids)
    with queue.transaction():
        queue.runner.run(_ERASING, {"on": "on"})
        erased = _erase(queue, ids)
        queue.runner.run(_ERASING, {"on": ""})
        for name, dead_letter_queue in readers:
            reader = queue.find(name)
            record_settled(reader, "discard", _erase(reader, ids))
            if dead_letter_queue is not None:
                letters = queue.find(dead_letter_queue)
                params = {"ids": arguments.array(ids), "reader": reader.id}
                found = [pk for (pk,) in letters.run("settle/copies", params)]
                if found:
                    record_settled(letters, "discard", erase(letters, found))
    return erased


# Whether messages that leave a source are erased, so that its subscriptions get no copies.
_ERASING = "SELECT set_config('pgqueue.erase', %(on)s, true)"


def _erase(queue: OpenQueue, ids: list[int]) -> list[int]:
    unfold(queue, ids)
    params = {"ids": arguments.array(ids), "in_flight": True}
    return sorted(pk for (pk,) in queue.run("settle/erase", params))


def purge(queue: OpenQueue, *, progress: Any = None) -> int:
    """Delete every live message, ready, delayed or in flight. Returns how many.

    Archived messages stay. Messages that another transaction has locked are skipped. Outside a
    transaction it commits in steps, which an interruption does not undo. ``progress`` is called
    with the count so far. A subscription also passes over all unread messages of its source, which
    count, too; they stay in the source.

    >>> queue("orders").purge()
    12

    Raises QueueNotFound.
    """
    purged = 0
    entry = Entry(queue, "purge", {})
    if queue.source_id is not None:
        with entry.transaction():
            purged = skip_unread(queue)
            entry.add(purged)
        if progress is not None and purged:
            progress(purged)
    while True:
        batch: int
        with entry.transaction():
            [(batch,)] = queue.run("settle/purge", {"batch": PURGE_BATCH})
            entry.add(batch)
        purged += batch
        if progress is not None and batch:
            progress(purged)
        if not batch:
            entry.end()
            return purged


def by_receipts(
    queue: OpenQueue,
    operation: str,
    receipts: Sequence[Receipt],
    params: Mapping[str, Any],
    each: Mapping[str, Mapping[Receipt, Any]] | None = None,
    **names: object,
) -> Settled:
    """Run a fenced statement for receipts. Returns the ids that it changed, and the lost receipts.

    Arguments:
        operation: the name of the statement.
        params: its parameters.
        each: parameters that have a value for each receipt.
        names: values of placeholders in its text.
    """
    good = arguments.newest(receipts)
    done: set[int] = set()

    def run(chosen: list[Receipt]) -> None:
        lists = {name: [of.get(r) for r in chosen] for name, of in (each or {}).items()}
        values = {**params, **arguments.fence(chosen), **lists}
        text = queue.text(f"settle/{operation}", **names)
        done.update(pk for (pk,) in queue.runner.run(text, values))

    if queue.source_id is not None:
        done |= leases.settle(queue, operation, good, params)
        if operation == "archive" and not queue.archive_completed:
            operation = "delete"
    elif operation == "archive":
        done |= archive_batches(queue, good, ran=params["ran"], results=params["results"])
    if left := [receipt for receipt in good if receipt.id not in done]:
        run(left)
    # A message that was read once may be in a batch lease that still exists or was just unfolded.
    # That of a subscription may have been split while the statement waited: once more finds it.
    for _attempt in range(1 if queue.source_id is None else 2):
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
    if ids and GIVEN.get() is not None and records_settled():
        with queue.transaction(), unrecorded():
            settled = _settle(queue, operation, [*receipts, *ids], params, in_flight)
            cancels = params.get("state") == State.CANCELLED.value
            record_settled(queue, "cancel" if cancels else operation, settled)
            return settled
    settled = by_receipts(queue, operation, receipts, params) if receipts else Settled()
    if not ids:
        return Settled(sorted(settled), lost=settled.lost)
    unfold(queue, ids)
    done, missing = list(settled), ids
    # If a reader is leasing the message just now, the statement waits for that reader, and then
    # finds no row where the message was. A second run finds it leased.
    for attempt in range(2):
        if missing and attempt and queue.source_id is not None:
            unfold(queue, missing)
        if missing:
            values = {**params, "ids": arguments.array(missing), "in_flight": bool(in_flight)}
            found = {pk for (pk,) in queue.run(f"settle/{operation}_by_id", values)}
            done += sorted(found)
            missing = [pk for pk in missing if pk not in found]
    return Settled(done, lost=[*settled.lost, *missing])
