"""The rows that statements return, as named tuples."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from typing import Any, NamedTuple

from django_pgqueue.types import Batch, Receipt, Wait, receipt_of

__all__ = [
    "AGAIN",
    "BLOCKED",
    "EARLY",
    "EXHAUSTED",
    "EXPIRED",
    "FOREIGN",
    "OWN",
    "RECHECK",
    "Deliveries",
    "Delivery",
    "deliveries",
]

# A row with one of these notes is not a delivery but work for the reader.
#: The message had expired when it was leased.
EXPIRED = "expired"
#: The message has no deliveries left.
EXHAUSTED = "exhausted"
#: The message is due, but is not the head of its group.
BLOCKED = "blocked"
#: Not a message: some groups may lack a head, and their next messages may precede the ready ones.
RECHECK = "recheck"


#: Of a subscription: its sender has delayed the message.
EARLY = "early"
#: Not a message: other messages may follow, which the statement did not look for.
AGAIN = "again"
#: Not a message: some of the subscription's own messages are due.
OWN = "own"
#: Not a message: the subscription's position does not belong to this database system.
FOREIGN = "foreign"


class Delivery(NamedTuple):
    """A row of a read: a message, or a note for the reader.

    Bodies and headers are JSON text. Times of type int are microseconds since 1970, which are
    fetched faster than timestamps.
    """

    note: str | None
    id: int
    read_ct: int
    #: When the message was read. Together with ``read_ct`` it identifies the delivery.
    read_at: int
    enqueued_at: dt.datetime
    priority: int
    group_key: str | None
    attempts: int
    vt: int
    first_read_at: int | None
    # The columns of columns.py with ``read``, in the same order.
    body: str | None
    headers: str | None
    #: The end of the delay that the sender asked for.
    scheduled_at: dt.datetime | None
    #: When the message expires.
    expires_at: int | None
    #: The message's turn among ready messages. Only read_ready.sql returns it.
    turn: int = 0
    #: The batch that shares one lease row with this message, if any.
    batch: Batch | None = None
    #: Why the message is not delivered now. Only peek_blocked.sql returns it.
    wait: Wait | None = None

    @property
    def receipt(self) -> Receipt:
        return receipt_of(self.id, self.read_ct, self.read_at, self.batch)


class Deliveries(list[Delivery]):
    """The messages that a read leased, and those that it ended instead."""

    def __init__(self, found: Iterable[Delivery] = ()) -> None:
        super().__init__(found)
        #: The receipts of messages that the read failed, because they had no deliveries left.
        self.exhausted: list[Receipt] = []
        #: The ids of messages that the read archived as EXPIRED.
        self.expired: list[int] = []

    def add_ended(self, other: Deliveries) -> None:
        """Add the messages that another read ended."""
        self.exhausted += other.exhausted
        self.expired += other.expired


def deliveries(rows: Iterable[tuple[Any, ...]]) -> list[Delivery]:
    """Convert the rows of a read to named tuples."""
    return [Delivery(*row) for row in rows]
