"""Value types that several modules share."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal, NamedTuple

__all__ = [
    "ENDS",
    "Delay",
    "Lag",
    "Maintained",
    "Metrics",
    "OnConflict",
    "Receipt",
    "Sent",
    "Settled",
    "State",
    "Until",
    "Wait",
]

#: A delay: seconds, a timedelta, or an aware datetime.
Delay = int | float | dt.timedelta | dt.datetime

#: Until when a message holds its unique key: its first delivery, its end, or a length of time.
Until = Literal["started", "done"] | float | dt.timedelta

#: What a send does if another message holds its unique key.
OnConflict = Literal["skip", "replace", "delay"]


class End(NamedTuple):
    """What a terminal state means."""

    #: The words of the admin's timeline.
    words: str
    is_success: bool = False
    is_failure: bool = False
    #: The tables that have a column for the number of these messages: ``State.counter``.
    counted_in: tuple[Literal["history", "rollup"], ...] = ()


class State(str, Enum):
    """The state of a message, with the names of FastStream's SQL broker.

    PENDING, SCHEDULED, PROCESSING and RETRYABLE messages are in the queue. All other states are
    terminal: these messages are in the archive.

    >>> State.FAILED.is_failure, State.CANCELLED.is_failure
    (True, False)
    """

    _value_: str
    #: What the state means if it is terminal, else None.
    end: End | None

    PENDING = "PENDING"  # readable, never read
    SCHEDULED = "SCHEDULED"  # sent with a delay, never read
    PROCESSING = "PROCESSING"  # leased, until its visibility timeout expires
    RETRYABLE = "RETRYABLE"  # waits for its next delivery
    COMPLETED = "COMPLETED", End("Completed", is_success=True, counted_in=("history", "rollup"))
    FAILED = "FAILED", End("Failed for good", is_failure=True, counted_in=("history", "rollup"))
    CANCELLED = "CANCELLED", End("Cancelled")
    # A send with the same unique key took its place.
    REPLACED = "REPLACED", End("Replaced")
    # It was read only after ``expires_at``.
    EXPIRED = "EXPIRED", End("Expired, not handled in time", counted_in=("history",))

    def __new__(cls, value: str, end: End | None = None) -> State:
        """Make a member that is the string ``value``."""
        state = str.__new__(cls, value)
        state._value_, state.end = value, end
        return state

    @classmethod
    def _missing_(cls, value: object) -> None:
        """Raise a ValueError that says what to do."""
        raise ValueError(
            f"{value!r} is not a state that this version knows: a newer version may have written "
            f"it. Upgrade django_pgqueue in this process"
        )

    def __str__(self) -> str:
        return self._value_

    @property
    def is_terminal(self) -> bool:
        """Whether messages in this state are in the archive."""
        return self.end is not None

    @property
    def is_success(self) -> bool:
        return self.end is not None and self.end.is_success

    @property
    def is_failure(self) -> bool:
        return self.end is not None and self.end.is_failure

    @property
    def is_of_attempt(self) -> bool:
        """Whether an attempt ended the message: a success or a failure."""
        return self.is_success or self.is_failure

    @property
    def counter(self) -> str:
        """The name of the state's counters, and its value in URLs of the admin."""
        return self._value_.lower()

    @property
    def label(self) -> str:
        """The state in words, as the admin shows it."""
        return self.counter.replace("_", " ")


#: The states of archived messages.
ENDS = tuple(state for state in State if state.is_terminal)


def counted_in(table: Literal["history", "rollup"]) -> list[State]:
    """Return the terminal states that have a counter in a table.

    >>> [state.counter for state in counted_in("rollup")]
    ['completed', 'failed']
    """
    return [state for state in ENDS if state.end and table in state.end.counted_in]


def end_choices() -> list[tuple[str, str]]:
    """Return the choices of a field with a terminal state.

    A migration refers to this function, so a new state needs no migration.
    """
    return [(state.value, state.value.title()) for state in ENDS]


class Batch(NamedTuple):
    """Messages that a read leased together, as one row: their lowest id, and their number."""

    head: int
    size: int


class Receipt(NamedTuple):
    """The proof of one delivery of a message. A reader needs it to settle the message.

    Its fields are the message's id, the number of the delivery, and the time of the delivery in
    microseconds since 1970. Once the message is read again, an earlier receipt changes nothing.

    >>> str(Receipt(id=7, read_ct=2, read_at=1790000000000000))
    '7:2:1790000000000000'
    """

    id: int
    read_ct: int
    read_at: int = 0

    @property
    def batch(self) -> Batch | None:
        """The batch that the message was leased in, if known."""
        return None

    def __str__(self) -> str:
        return f"{self.id}:{self.read_ct}:{self.read_at}"


class BatchReceipt(Receipt):
    """A receipt with its batch. It equals the same receipt without a batch."""

    batch: Batch | None = None

    def __repr__(self) -> str:
        return f"Receipt(id={self.id}, read_ct={self.read_ct}, read_at={self.read_at})"


def receipt_of(id: int, read_ct: int, read_at: int, batch: Batch | None) -> Receipt:
    """Return the receipt of a message that was read, with its batch, if any."""
    if batch is None:
        return Receipt(id, read_ct, read_at)
    # Does what calling the class does, in half the time.
    receipt = tuple.__new__(BatchReceipt, (id, read_ct, read_at))
    receipt.batch = batch
    return receipt


class Sent(int):
    """The id that a send returns, with ``conflict``: what its unique key has changed.

    - None: a message was sent, and none was replaced. So it is for a send without a key.
    - ``"skipped"``: nothing was sent. The id is that of the message that holds the key.
    - ``"replaced"``: the message replaced one that was waiting.
    - ``"delayed"``: the same as ``"replaced"``, but the delay started again.

    >>> sent = Sent.of(41, "skipped")
    >>> sent, sent.conflict
    (41, 'skipped')
    """

    conflict: Literal["skipped", "replaced", "delayed"] | None = None

    @classmethod
    def of(cls, id: int, conflict: Any) -> Sent:
        """Return a Sent with this id and conflict."""
        sent = cls(id)
        sent.conflict = conflict
        return sent


def was_skipped(sent: int) -> bool:
    """Whether a send returned this id without sending, because a message held the unique key."""
    return isinstance(sent, Sent) and sent.conflict == "skipped"


class Settled(list[int]):
    """A list of the ids that an operation changed.

    ``lost`` has the given receipts and ids that changed nothing: their messages were read again or
    settled since, or are not in the queue.

    >>> done = Settled([1, 2], lost=[3])
    >>> done == [1, 2], done.lost
    (True, [3])
    """

    def __init__(self, ids: Iterable[int] = (), *, lost: Iterable[Receipt | int] = ()) -> None:
        super().__init__(ids)
        self.lost: list[Receipt | int] = list(lost)


class Lag(NamedTuple):
    """How far a subscription is behind its source.

    >>> Lag(messages=12, is_estimate=False, seconds=3.5, lost=0).messages
    12
    """

    #: How many of the source's messages it has not read yet.
    messages: int
    #: Whether that number is an estimate, because there are more than ``EXACT_COUNT_LIMIT``.
    is_estimate: bool
    #: How long ago the first of them was sent, in seconds. None without any.
    seconds: float | None
    #: How many messages it has lost since it began: they left the source after ``keep_for``.
    lost: int


class Wait(NamedTuple):
    """Why a message is not delivered now, and until when at least.

    ``reason`` is one of ``scheduled``, ``retry``, ``group`` (behind other messages of its group:
    the group is FIFO, or has only a rate and its heads have not started), ``group_limit``,
    ``group_rate``, ``group_paused``, ``limit``, ``rate`` and ``queue_paused``. It is None if the
    message is in flight, or if the next read would find it. ``until`` is None if the time is not
    known.
    """

    reason: str | None
    until: dt.datetime | None


@dataclass(frozen=True)
class Metrics:
    """The message counts of one queue at one moment.

    - ``length``: the messages in the queue. ``ready``, ``in_flight``, ``delayed`` and ``waiting``
      count those of them in this place.
    - ``visible``: the ready and due messages, which a read could lease now.
    - ``archived``: the messages that are done.
    - ``total``: every message ever sent, as in PGMQ, including popped, purged and rolled back
      ones. It comes from the server's statistics, which lag by seconds. After a crash it starts
      again from the number of existing messages.
    - ``oldest_age``, ``newest_age``: seconds since the send; None when the queue is empty.
    - ``blocked``: the number of messages that are not delivered now, by the reason that
      :class:`Wait` names. Reasons without a message are left out.
    - ``unread``: the messages of a subscription's source that it has not read, with those that it
      will skip. ``ready`` includes them, and ``total`` is that of the source.
    - ``lost``: the messages that a subscription has lost, since it did not read them in time
      (``keep_for``).
    - ``position_lost``: whether the subscription's reads raise
      :class:`~django_pgqueue.errors.PositionLost`. Then nobody knows what is unread, and ``ready``
      has only its own messages.

    Small counts are exact. Counts that would take long are estimates from PostgreSQL's statistics:
    then ``exact`` is False, and ``estimated`` names the estimated counts.
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
    blocked: Mapping[str, int] = field(default_factory=dict, hash=False)
    exact: bool = True
    estimated: tuple[str, ...] = ()
    unread: int = 0
    lost: int = 0
    position_lost: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        told = {"scraped_at": self.scraped_at.isoformat(), "estimated": list(self.estimated)}
        return {**self.__dict__, **told}


@dataclass(frozen=True)
class Maintained:
    """The result of :meth:`maintain` for one queue.

    - ``before``: messages archived before this time were removed; None without a retention, or if a
      receiver of ``retention_due`` refused (``refused``).
    - ``partitions_made``, ``partitions_dropped``: the numbers of partitions.
    - ``dropped``: messages removed with their partitions.
    - ``pruned``: messages removed row by row.
    - ``held``: messages that are old enough, but wait for an export.
    - ``foreign_lakes``: paths of lakes that were exported from another server. While there is one,
      nothing is removed.
    - ``stragglers``: old partitions that stay because one of their messages is not archived.
    - ``busy``: steps left to the next round because other sessions used the tables.
    - ``stay_in_default``: ranges of time whose messages stay in the default partition.
    - ``keys``: removed unique keys, which no message held any more.
    - ``error``: why the maintenance failed, if it did.
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
        """Archived messages that were removed, with their partitions or row by row."""
        return self.dropped + self.pruned

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        before = None if self.before is None else self.before.isoformat()
        return {**self.__dict__, "before": before, "seconds": round(self.seconds, 3)}
