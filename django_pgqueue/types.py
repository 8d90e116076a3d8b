"""The frozen values that travel through the package."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

__all__ = [
    "Batch",
    "BatchReceipt",
    "Delay",
    "Maintained",
    "Metrics",
    "Receipt",
    "Settled",
    "State",
]

#: Seconds, a duration, or the aware moment itself.
Delay = int | float | dt.timedelta | dt.datetime


class State(str, Enum):
    """The state of a message, in the words of FastStream's SQL broker.

    PENDING, SCHEDULED, PROCESSING and RETRYABLE messages are in the queue; COMPLETED, FAILED and
    CANCELLED ones are in the archive.
    """

    PENDING = "PENDING"  # may be read, never was
    SCHEDULED = "SCHEDULED"  # sent with a delay that may not be over
    PROCESSING = "PROCESSING"  # leased: in flight until its visibility timeout
    RETRYABLE = "RETRYABLE"  # given back, waits for its next delivery
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    def __str__(self) -> str:
        return self.value


class Batch(NamedTuple):
    """The messages that one read leased together as one row: the lowest of their ids, and how
    many."""

    head: int
    size: int


class Receipt(NamedTuple):
    """One delivery of one message: a reader shows it to settle the message.

    The delivery count and the moment of the delivery, in microseconds since 1970, are the fence.
    Once the message is read again, whatever came between, an operation by an earlier receipt
    changes nothing.

    >>> str(Receipt(id=7, read_ct=2, read_at=1790000000000000))
    '7:2:1790000000000000'
    """

    id: int
    read_ct: int
    read_at: int = 0

    @property
    def batch(self) -> Batch | None:
        """The batch that the message was read in, where that is known."""
        return None

    def __str__(self) -> str:
        return f"{self.id}:{self.read_ct}:{self.read_at}"


class BatchReceipt(Receipt):
    """A receipt that knows in which batch its message was read: equal to one that does not."""

    batch: Batch | None = None

    def __repr__(self) -> str:
        return f"Receipt(id={self.id}, read_ct={self.read_ct}, read_at={self.read_at})"


class Settled(list[int]):
    """The ids that an operation changed.

    ``lost`` holds the receipts and ids that it was asked for and did not find. ``before`` holds
    receipts whose deliveries an earlier call had settled: its answer was lost, and the call
    repeated. A plain list of ids otherwise:

    >>> done = Settled([1, 2], lost=[3])
    >>> done == [1, 2], done.lost
    (True, [3])
    """

    def __init__(
        self,
        ids: Iterable[int] = (),
        *,
        lost: Iterable[Receipt | int] = (),
        before: Iterable[Receipt] = (),
    ) -> None:
        super().__init__(ids)
        self.lost: list[Receipt | int] = list(lost)
        self.before: list[Receipt] = list(before)


@dataclass(frozen=True)
class Metrics:
    """How much one queue holds at one moment.

    ``length`` is every message in the queue: ``ready`` (never read), ``in_flight`` (leased),
    ``delayed`` (scheduled or waiting to retry, not due) and ``waiting`` (behind another message
    of their FIFO group). ``visible`` is what a read could take
    now: the ready ones and those that are due again. ``archived`` counts the messages that are
    done. ``total`` is every message ever sent, those popped, purged or rolled back too, as in
    PGMQ; it comes from the server's statistics, lags by seconds, and starts again from what is
    there after a crash. Ages are in seconds since a message was sent, None when the queue is empty.

    Counts are exact while they are small. Where counting would take long the count of ready or
    archived messages is an estimate from PostgreSQL's statistics, and ``exact`` is False.
    """

    queue_name: str
    length: int
    ready: int
    in_flight: int
    delayed: int
    waiting: int
    visible: int
    oldest_age: float | None
    newest_age: float | None
    archived: int
    total: int
    scraped_at: dt.datetime
    exact: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, the moment as text: ready for JSON."""
        return {**self.__dict__, "scraped_at": self.scraped_at.isoformat()}


@dataclass(frozen=True)
class Maintained:
    """The result of :meth:`maintain` for one queue.

    ``before`` is the moment before which archived messages were old enough to go; None without a
    retention, or when a listener of ``retention_due`` ``refused``. Archived messages went with
    their partitions (``dropped``, with ``partitions_dropped``) or row by row (``pruned``);
    ``held`` is how many more wait for an export. ``foreign_lakes`` are the paths of lakes that were
    exported from another server: as long as there is one, nothing is removed. ``stragglers`` counts
    partitions of which all is old but for a message that is not archived; ``busy``, steps that were
    left to the next time because others used the tables. ``stay_in_default`` counts ranges of time
    whose messages stay in the default partition. ``keys`` are dedup keys whose window was over.
    ``error`` says why it failed, if it did.
    """

    queue_name: str
    before: dt.datetime | None = None
    refused: bool = False
    partitions_made: int = 0
    partitions_dropped: int = 0
    dropped: int = 0
    pruned: int = 0
    held: int = 0
    foreign_lakes: tuple[str, ...] = ()
    stragglers: int = 0
    busy: int = 0
    stay_in_default: int = 0
    keys: int = 0
    seconds: float = 0.0
    error: str = ""

    @property
    def removed(self) -> int:
        """Archived messages that are gone, in either way."""
        return self.dropped + self.pruned

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, the moment as text: ready for JSON."""
        before = None if self.before is None else self.before.isoformat()
        return {**self.__dict__, "before": before, "seconds": round(self.seconds, 3)}
