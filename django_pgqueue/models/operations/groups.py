"""Reading FIFO groups: the head of each, or several messages of one group at once."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django_pgqueue import arguments
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models.operations.base import MessageT, twin
from django_pgqueue.models.operations.reading import Reading
from django_pgqueue.models.queue import Queue

__all__ = ["Groups"]


class Groups(Reading[MessageT]):
    """Read by groups.

    In a group nothing is given out while an earlier message is in flight, delayed or waiting to
    retry, whichever read is used, and by whom. A message without a group is one by itself.
    """

    def read_grouped(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        in_transaction: bool = False,
        using: str | None = None,
    ) -> list[MessageT]:
        """Lease up to ``qty`` messages: as many as there are of the first group, then the next.

        The list is group by group, the messages of each in their order: work through it in that
        order. Leases that run out are given out again from the first of the group on, the rest
        waits behind it.

        >>> [message.group for message in Message.objects.read_grouped("orders", qty=3)]
        ['customer 1', 'customer 1', 'customer 2']

        Raises QueueNotFound, InvalidArgument, TransactionRefused.
        """
        found = self.resolve(queue, using)
        if not in_transaction:
            self._refuse_transaction(found.alias, "read_grouped")
        return self._group_by_group(found, vt, qty)

    def read_grouped_rr(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        in_transaction: bool = False,
        using: str | None = None,
    ) -> list[MessageT]:
        """Lease up to ``qty`` messages in rounds: one of each group, then the second of each.

        The list is in that order, otherwise as for :meth:`read_grouped`.

        >>> [message.group for message in Message.objects.read_grouped_rr("orders", qty=3)]
        ['customer 1', 'customer 2', 'customer 1']
        """
        found = self.resolve(queue, using)
        if not in_transaction:
            self._refuse_transaction(found.alias, "read_grouped_rr")
        return self._in_rounds(found, vt, qty)

    def read_grouped_head(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        in_transaction: bool = False,
        using: str | None = None,
    ) -> list[MessageT]:
        """Lease at most one message of each group. A plain :meth:`read` does the same.

        >>> [message.group for message in Message.objects.read_grouped_head("orders", qty=3)]
        ['customer 1', 'customer 2']
        """
        found = self.resolve(queue, using)
        if not in_transaction:
            self._refuse_transaction(found.alias, "read_grouped_head")
        return self.lease(found, vt=vt, qty=_number(qty))

    def read_grouped_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        using: str | None = None,
    ) -> list[MessageT]:
        """:meth:`read_grouped`, and when there is nothing wait for it as ``read_with_poll`` does.

        >>> Message.objects.read_grouped_with_poll("orders", qty=10, max_poll_seconds=0)
        []
        """
        found = self.resolve(queue, using)
        return self._poll(
            found,
            "read_grouped_with_poll",
            lambda: self._group_by_group(found, vt, qty),
            qty,
            max_poll_seconds,
            poll_interval_ms,
        )

    def read_grouped_rr_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        using: str | None = None,
    ) -> list[MessageT]:
        """:meth:`read_grouped_rr`, and when there is nothing wait for it.

        >>> Message.objects.read_grouped_rr_with_poll("orders", qty=10, max_poll_seconds=0)
        []
        """
        found = self.resolve(queue, using)
        return self._poll(
            found,
            "read_grouped_rr_with_poll",
            lambda: self._in_rounds(found, vt, qty),
            qty,
            max_poll_seconds,
            poll_interval_ms,
        )

    def read_grouped_head_with_poll(
        self,
        queue: str | Queue,
        *,
        vt: float | dt.timedelta | None = None,
        qty: int = 1,
        max_poll_seconds: float = 5,
        poll_interval_ms: float = 100,
        using: str | None = None,
    ) -> list[MessageT]:
        """:meth:`read_grouped_head`, and when there is nothing wait for it.

        >>> Message.objects.read_grouped_head_with_poll("orders", qty=10, max_poll_seconds=0)
        []
        """
        found = self.resolve(queue, using)
        return self._poll(
            found,
            "read_grouped_head_with_poll",
            lambda: self.lease(found, vt=vt, qty=_number(qty)),
            qty,
            max_poll_seconds,
            poll_interval_ms,
        )

    def _group_by_group(
        self, queue: Queue, vt: float | dt.timedelta | None, qty: int
    ) -> list[MessageT]:
        messages: list[Any] = []
        missing = _number(qty)
        while missing > 0:
            _, [(heads,)] = self._run("heads", queue, None, {"qty": missing})
            # None yet: the first read brings them up.
            batch: list[Any] = self.lease(queue, vt=vt, qty=heads or 1)
            if not batch:
                break
            missing -= len(batch)
            followers = self._follow(queue, batch, vt, missing, in_rounds=False)
            missing -= len(followers)
            behind: dict[str | None, list[Any]] = {}
            for follower in list[Any](followers):
                behind.setdefault(follower.group_key, []).append(follower)
            for head in batch:
                messages += [head, *behind.get(head.group_key, ())]
        return messages

    def _in_rounds(self, queue: Queue, vt: float | dt.timedelta | None, qty: int) -> list[MessageT]:
        heads = self.lease(queue, vt=vt, qty=_number(qty))
        followers = self._follow(queue, heads, vt, qty - len(heads), in_rounds=True)
        return heads + followers

    def _follow(
        self,
        queue: Queue,
        heads: list[Any],
        vt: float | dt.timedelta | None,
        qty: int,
        *,
        in_rounds: bool,
    ) -> list[MessageT]:
        heads = [head for head in heads if head.group_key is not None]
        if qty < 1 or not heads:
            return []
        seconds = queue.visibility_timeout if vt is None else vt
        params: dict[str, Any] = {
            "ids": arguments.array([head.id for head in heads]),
            "receipts": arguments.array([head.receipt for head in heads]),
            "vt": arguments.duration(seconds),
            "qty": qty,
            "worker": None,
            "max_deliveries": queue.max_deliveries,
            "in_rounds": in_rounds,
        }
        _, rows = self._run("follow", queue, None, params)
        return self._messages(queue, rows)

    aread_grouped = twin(read_grouped)
    aread_grouped_rr = twin(read_grouped_rr)
    aread_grouped_head = twin(read_grouped_head)
    aread_grouped_with_poll = twin(read_grouped_with_poll)
    aread_grouped_rr_with_poll = twin(read_grouped_rr_with_poll)
    aread_grouped_head_with_poll = twin(read_grouped_head_with_poll)


def _number(qty: int | None) -> int:
    number = arguments.quantity(qty)
    if number is None:
        raise InvalidArgument("qty must be a number: a batch of groups has an end")
    return number
