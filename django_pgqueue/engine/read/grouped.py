"""Reading FIFO groups: several messages of one group at once.

In a group nothing is leased while an earlier message is in flight, delayed or waiting to retry,
whichever read is used, and by which process. A message without a group is one by itself.
"""

from __future__ import annotations

import datetime as dt

from django_pgqueue import arguments
from django_pgqueue.engine.read.reading import lease
from django_pgqueue.engine.rows import Delivery, deliveries
from django_pgqueue.engine.session import OpenQueue
from django_pgqueue.errors import InvalidArgument

__all__ = ["group_by_group", "in_rounds", "read_grouped", "read_grouped_rr"]


def read_grouped(
    queue: OpenQueue,
    *,
    vt: float | dt.timedelta | None = None,
    qty: int = 1,
    in_transaction: bool = False,
) -> list[Delivery]:
    """Lease up to ``qty`` messages: all there are of the first group, then of the next.

    The list is group by group, the messages of each in their order: work through it in that order.
    When their leases run out, the first of the group is delivered again, and the rest waits behind
    it. ``vt``, ``qty`` (which cannot be None) and ``in_transaction`` are as for ``read``.

    >>> [message.group for message in queue("orders").read_grouped(qty=3)]
    ['customer 1', 'customer 1', 'customer 2']

    Raises QueueNotFound, InvalidArgument, TransactionRefused.
    """
    if not in_transaction:
        queue.refuse_transaction("read_grouped")
    return group_by_group(queue, vt, qty)


def read_grouped_rr(
    queue: OpenQueue,
    *,
    vt: float | dt.timedelta | None = None,
    qty: int = 1,
    in_transaction: bool = False,
) -> list[Delivery]:
    """Lease up to ``qty`` messages in rounds: one of each group, then the second of each.

    The list is in that order; otherwise as :func:`read_grouped`.

    >>> [message.group for message in queue("orders").read_grouped_rr(qty=3)]
    ['customer 1', 'customer 2', 'customer 1']

    Raises QueueNotFound, InvalidArgument, TransactionRefused.
    """
    if not in_transaction:
        queue.refuse_transaction("read_grouped_rr")
    return in_rounds(queue, vt, qty)


def group_by_group(queue: OpenQueue, vt: float | dt.timedelta | None, qty: int) -> list[Delivery]:
    found: list[Delivery] = []
    missing = _number(qty)
    while missing > 0:
        [(number,)] = queue.run("read/heads_needed", {"qty": missing})
        # Without heads yet the first read brings them up.
        heads = lease(queue, vt=vt, qty=number or 1)
        if not heads:
            break
        followers = _follow(queue, heads, vt, missing - len(heads), in_rounds=False)
        missing -= len(heads) + len(followers)
        behind: dict[str | None, list[Delivery]] = {}
        for follower in followers:
            behind.setdefault(follower.group_key, []).append(follower)
        for head in heads:
            found += [head, *behind.get(head.group_key, ())]
    return found


def in_rounds(queue: OpenQueue, vt: float | dt.timedelta | None, qty: int) -> list[Delivery]:
    heads = lease(queue, vt=vt, qty=_number(qty))
    return heads + _follow(queue, heads, vt, qty - len(heads), in_rounds=True)


def _follow(
    queue: OpenQueue,
    heads: list[Delivery],
    vt: float | dt.timedelta | None,
    qty: int,
    *,
    in_rounds: bool,
) -> list[Delivery]:
    """Lease messages behind heads that this reader just leased."""
    heads = [head for head in heads if head.group_key is not None]
    if qty < 1 or not heads:
        return []
    params = {
        **arguments.fence([head.receipt for head in heads]),
        "vt": arguments.duration(queue.visibility_timeout if vt is None else vt),
        "qty": qty,
        "max_deliveries": queue.max_deliveries,
        "in_rounds": in_rounds,
    }
    return deliveries(queue.run("read/follow", params))


def _number(qty: int | None) -> int:
    number = arguments.quantity(qty)
    if number is None:
        raise InvalidArgument("qty must be a number: a batch of groups has an end")
    return number
