"""Reads that lease several messages of a FIFO group at once.

No read leases a message of a FIFO group while an earlier one is in flight with another reader,
delayed, or waiting for its next attempt. A message without a group counts as a group of one.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

from django_pgqueue.engine import arguments
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.read.reading import lease, take_in_time, terms
from django_pgqueue.engine.rows import Deliveries, Delivery, deliveries
from django_pgqueue.engine.subscriptions.reading import refuse_groups
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.types import Receipt

__all__ = ["follow", "read_grouped", "read_grouped_rr"]


def read_grouped(
    queue: OpenQueue,
    *,
    vt: float | dt.timedelta | None = None,
    qty: int = 1,
    in_transaction: bool = False,
) -> Deliveries:
    """Lease up to ``qty`` messages: all of the first group, then all of the next.

    The list is in the order of groups, and in each group in order of id: process it in that order.
    When the leases expire, only the first message of each group is delivered again; the others wait
    behind it. ``vt``, ``qty`` (which cannot be None) and ``in_transaction`` are as for ``read``.

    >>> [message.group for message in queue("orders").read_grouped(qty=3)]
    ['customer 1', 'customer 1', 'customer 2']

    Raises QueueNotFound, InvalidArgument, TransactionRefused.
    """
    refuse_groups(queue, "read_grouped")
    if not in_transaction:
        queue.refuse_transaction("read_grouped")
    found = Deliveries()
    missing = _number(qty)
    while missing > 0:
        [(number,)] = queue.run("read/heads_needed", {"qty": missing})
        # At least 1: a read also gives heads to groups that lack one.
        heads = lease(queue, vt=vt, qty=number or 1)
        found.add_ended(heads)
        if not heads:
            break
        followers = follow(
            queue, _receipts(heads), vt=vt, qty=missing - len(heads), in_rounds=False
        )
        found.add_ended(followers)
        missing -= len(heads) + len(followers)
        behind: dict[str | None, list[Delivery]] = {}
        for follower in followers:
            behind.setdefault(follower.group_key, []).append(follower)
        for head in heads:
            found += [head, *behind.get(head.group_key, ())]
    return found


def read_grouped_rr(
    queue: OpenQueue,
    *,
    vt: float | dt.timedelta | None = None,
    qty: int = 1,
    in_transaction: bool = False,
) -> Deliveries:
    """Lease up to ``qty`` messages in rounds: one of each group, then the second of each.

    The list is in that order. Arguments are as for :func:`read_grouped`.

    >>> [message.group for message in queue("orders").read_grouped_rr(qty=3)]
    ['customer 1', 'customer 2', 'customer 1']

    Raises QueueNotFound, InvalidArgument, TransactionRefused.
    """
    refuse_groups(queue, "read_grouped_rr")
    if not in_transaction:
        queue.refuse_transaction("read_grouped_rr")
    found = lease(queue, vt=vt, qty=_number(qty))
    followers = follow(queue, _receipts(found), vt=vt, qty=qty - len(found))
    found += followers
    found.add_ended(followers)
    return found


def follow(
    queue: OpenQueue,
    heads: Sequence[Receipt],
    *,
    vt: float | dt.timedelta | None = None,
    qty: int = 1,
    max_deliveries: int | None = None,
    process_id: int | None = None,
    in_rounds: bool = True,
    **names: Any,
) -> Deliveries:
    """Lease up to ``qty`` messages that wait behind heads of FIFO groups.

    A follower's receipt is valid until the follower or its head is delivered again.

    Arguments:
        heads: receipts of messages that this caller has just leased.
        vt, max_deliveries, process_id, names: as for
            :func:`~django_pgqueue.engine.read.reading.lease`.
        in_rounds: one of each group, then the second of each; else group by group.

    Raises InvalidArgument.
    """
    heads, most = arguments.receipts(heads), _number(qty)
    if not most or not heads or queue.source_id is not None:
        return Deliveries()
    params = {
        **arguments.fence(heads),
        **terms(queue, vt, most, None, max_deliveries, process_id),
        "in_rounds": in_rounds,
    }
    taken = Deliveries()
    take_in_time(queue, taken, deliveries(queue.run("read/follow", params, **names)))
    return taken


def _receipts(heads: Sequence[Delivery]) -> list[Receipt]:
    return [head.receipt for head in heads if head.group_key is not None]


def _number(qty: int | None) -> int:
    number = arguments.quantity(qty)
    if number is None:
        raise InvalidArgument("qty must be a number, not None: a read of groups needs a limit")
    return number
