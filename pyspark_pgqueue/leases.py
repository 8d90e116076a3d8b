"""Leases of messages: to take them out of a queue, keep them, and say that they are done.

By the statements of the queue itself, as every client runs them. Their files are links in ``sql``,
since a cluster has this package without ``django_pgqueue``.
"""

from __future__ import annotations

import datetime as dt
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import groupby
from typing import Any, NamedTuple

import psycopg

__all__ = ["Backlog", "Deliveries", "OpenQueue", "Receipt", "open_queues"]

#: The most messages that one statement leases.
CHUNK = 2_000
#: Of a read with a limit in bytes: messages that are leased before their size is known.
FIRST_CHUNK = 16
#: The most rechecks, or messages to set back, that one statement takes on.
BATCH = 1_000

_HOT = ("ready", "deferred", "lease", "waiting", "group", "recheck", "next_heads")


class Receipt(NamedTuple):
    """One delivery: settling it changes nothing once the message was delivered again."""

    id: int
    read_ct: int
    read_at: int  # microseconds since 1970


@dataclass(frozen=True)
class Deliveries:
    """The deliveries of one queue in one batch, in a form that is short as text.

    >>> told = Deliveries.of(7, [Receipt(1, 1, 5), Receipt(2, 1, 5), Receipt(9, 2, 5)])
    >>> told.parts
    ('1@5:1-2', '2@5:9')
    >>> [receipt.id for receipt in told]
    [1, 2, 9]
    """

    queue_id: int
    #: How often and when they were delivered, and ranges of ids.
    parts: tuple[str, ...]
    #: Whether there are messages of groups.
    grouped: bool = False

    @classmethod
    def of(cls, queue_id: int, receipts: Iterable[Receipt], grouped: bool = False) -> Deliveries:
        ids: dict[tuple[int, int], list[int]] = defaultdict(list)
        for receipt in receipts:
            ids[receipt.read_ct, receipt.read_at].append(receipt.id)
        parts = (f"{ct}@{at}:{_ranges(sorted(found))}" for (ct, at), found in ids.items())
        return cls(queue_id, tuple(parts), grouped)

    @property
    def count(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Receipt]:
        for part in self.parts:
            delivery, _, ranges = part.partition(":")
            read_ct, _, read_at = delivery.partition("@")
            for each in ranges.split(","):
                first, _, last = each.partition("-")
                for pk in range(int(first), int(last or first) + 1):
                    yield Receipt(pk, int(read_ct), int(read_at))


def _ranges(ids: Sequence[int]) -> str:
    found = []
    # Ids that follow one another are as far from their places.
    for _, run in groupby(enumerate(ids), key=lambda pair: pair[1] - pair[0]):
        members = [pk for _, pk in run]
        found.append(str(members[0]) + (f"-{members[-1]}" if len(members) > 1 else ""))
    return ",".join(found)


class Backlog(NamedTuple):
    """How many messages could be read now, and the age of the queue's oldest in seconds."""

    messages: int
    seconds: float


class _Delivery(NamedTuple):
    note: str | None
    id: int
    read_ct: int
    read_at: int
    size: int | None
    group_key: str | None

    @property
    def receipt(self) -> Receipt:
        return Receipt(self.id, self.read_ct, self.read_at)


@dataclass(frozen=True)
class OpenQueue:
    """One queue and its settings."""

    id: int
    name: str
    unlogged: bool
    visibility_timeout: int
    max_deliveries: int
    dead_letter_queue_id: int | None
    paused: bool

    def lease(
        self,
        connection: psycopg.Connection[Any],
        vt: dt.timedelta,
        most: int,
        most_bytes: int | None = None,
    ) -> Deliveries:
        """Lease up to ``most`` messages, or until their bodies have ``most_bytes``.

        Bytes are a soft limit: they are known when a message is leased. Of a group several are
        leased at once, as long as none of them is in flight.
        """
        taken: list[_Delivery] = []
        while len(taken) < most:
            size = sum(delivery.size or 0 for delivery in taken)
            room = min(most - len(taken), CHUNK)
            if most_bytes is not None:
                if size >= most_bytes:
                    break
                each = size / len(taken) if taken else 0
                room = min(room, int((most_bytes - size) / each) + 1 if each else FIRST_CHUNK)
            heads = self._read(connection, vt, room, most_bytes is not None)
            if not heads:
                break
            taken += heads
            grouped = [head for head in heads if head.group_key is not None]
            if grouped and len(heads) < room:
                taken += self._follow(
                    connection, vt, grouped, room - len(heads), most_bytes is not None
                )
        return Deliveries.of(
            self.id,
            (delivery.receipt for delivery in taken),
            any(delivery.group_key is not None for delivery in taken),
        )

    def _read(
        self, connection: psycopg.Connection[Any], vt: dt.timedelta, qty: int, sized: bool
    ) -> list[_Delivery]:
        """Heads of groups, and messages without one; put right what the read finds on its way."""
        taken: list[_Delivery] = []
        heed, rechecks_left, again = True, False, True
        while again and len(taken) < qty:
            values = {
                "vt": vt,
                "qty": qty - len(taken),
                "heed": heed,
                "max_deliveries": self.max_deliveries,
                "conditional": None,
                "process_id": None,
            }
            found = self._deliveries(connection, "read/read", values, sized)
            taken += [delivery for delivery in found if delivery.note is None]
            notes = {delivery.note for delivery in found}
            exhausted = [d.receipt for d in found if d.note == "exhausted"]
            if exhausted:
                self._end(connection, exhausted)
            moved = "blocked" in notes and self._run(
                connection, "groups/set_back", {"batch": BATCH}
            )
            again = bool(exhausted or moved)
            if "recheck" in notes:
                values = {"batch": BATCH, "groups": BATCH, "alone": True}
                [(_heads, rechecked)] = self._run(connection, "groups/promote", values)
                rechecks_left, heed, again = rechecked == BATCH, False, True
            elif not again and rechecks_left:
                rechecks_left, heed, again = False, True, True
        return taken

    def _follow(
        self,
        connection: psycopg.Connection[Any],
        vt: dt.timedelta,
        heads: Sequence[_Delivery],
        qty: int,
        sized: bool,
    ) -> list[_Delivery]:
        values = {
            **_fence([head.receipt for head in heads]),
            "vt": vt,
            "qty": qty,
            "max_deliveries": self.max_deliveries,
            "process_id": None,
            "in_rounds": False,
        }
        return self._deliveries(connection, "read/follow", values, sized)

    def _deliveries(
        self,
        connection: psycopg.Connection[Any],
        statement: str,
        values: Mapping[str, Any],
        sized: bool,
    ) -> list[_Delivery]:
        # Bodies are for the executors; here their sizes stand for them, if anything does.
        size = "to_jsonb(octet_length(body::text))" if sized else "NULL::jsonb"
        message = (
            f"(SELECT id, enqueued_at, {size} AS body, NULL::jsonb AS headers, scheduled_at "
            f"FROM pgqueue_message_q{self.id})"
        )
        rows = self._run(connection, statement, values, message=message, any_body="true")
        return [
            _Delivery(note, pk, read_ct, read_at, body, group_key)
            for note, pk, read_ct, read_at, body, _headers, _at, _priority, group_key, *_ in rows
        ]

    def _end(self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]) -> None:
        """Their deliveries have run out: to the dead-letter queue, or to the archive as failed."""
        values: dict[str, Any] = {**_fence(receipts), "ran": 0, "errors": None}
        target = self.dead_letter_queue_id
        if target is None:
            self._run(connection, "settle/fail", values)
            return
        self._run(
            connection,
            "settle/dead_letter",
            {**values, "source": self.name, "reason": "max_deliveries"},
            dead_queue_id=target,
            dead_message=f"pgqueue_message_q{target}",
        )

    def extend(
        self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt], vt: dt.timedelta
    ) -> None:
        """Keep leases for so long from now on, those that are still ours."""
        values = {**_fence(receipts), "at": None, "after": vt}
        self._run(connection, "settle/set_vt", values)

    def archive(self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]) -> int:
        """Done: to the archive. Returns how many were delivered to others as well, since their
        leases ran out before."""
        values = {**_fence(receipts), "ran": 1, "results": None}
        left = {receipt.id: receipt for receipt in receipts}
        for (pk,) in self._run(connection, "settle/archive", values):
            del left[pk]
        if not left:
            return 0
        before = self._run(
            connection, "settle/settled_before", _fence(list(left.values())), to_archive="true"
        )
        return len(left) - len(before)

    def backlog(self, connection: psycopg.Connection[Any], limit: int) -> Backlog:
        """Counted up to a limit."""
        [row] = self._run(connection, "metrics/metrics", {"limit": limit}, of=self.id)
        ready, waiting, _begun, _later, _deferred, _leased, due, _held, _delayed, oldest, *_ = row
        return Backlog(ready + waiting + due, float(oldest or 0.0))

    def newest(self, connection: psycopg.Connection[Any]) -> int:
        """The id of the newest message, queued or archived."""
        [(pk,)] = self._execute(connection, "SELECT coalesce(max(id), 0) FROM {message}", {})
        return int(pk)

    def has_any_up_to(self, connection: psycopg.Connection[Any], pk: int) -> bool:
        """Whether a message up to this id could be read now."""
        [(found,)] = self._execute(connection, _ANY_UP_TO, {"pk": pk})
        return bool(found)

    def groups_of(
        self, connection: psycopg.Connection[Any], receipts: Sequence[Receipt]
    ) -> dict[int, str]:
        """The groups of those messages that are in one."""
        rows = self._execute(
            connection,
            "SELECT id, group_key FROM {message} "
            "WHERE id = ANY(%(ids)s::bigint[]) AND group_key IS NOT NULL",
            {"ids": _fence(receipts)["ids"]},
        )
        return dict(rows)

    def _run(
        self,
        connection: psycopg.Connection[Any],
        statement: str,
        values: Mapping[str, Any],
        **names: object,
    ) -> list[tuple[Any, ...]]:
        return self._execute(connection, _text(statement), values, **names)

    def _execute(
        self,
        connection: psycopg.Connection[Any],
        text: str,
        values: Mapping[str, Any],
        **names: object,
    ) -> list[tuple[Any, ...]]:
        twin = "_unlogged" if self.unlogged else ""
        tables = {
            **{part: f"pgqueue_{part}{twin}" for part in _HOT},
            "queue_id": self.id,
            "message": f"pgqueue_message_q{self.id}",
            "archive": f"pgqueue_archive_q{self.id}",
        }
        rendered = text.format_map(_Names({**tables, **names}))
        return connection.execute(rendered, values).fetchall()


_ANY_UP_TO = """
SELECT EXISTS (SELECT FROM {ready} WHERE queue_id = {queue_id} AND id <= %(pk)s)
    OR EXISTS (SELECT FROM {deferred} WHERE queue_id = {queue_id} AND id <= %(pk)s
               AND vt <= statement_timestamp())
    OR EXISTS (SELECT FROM {lease} WHERE queue_id = {queue_id} AND head <= %(pk)s
               AND vt <= statement_timestamp())
    OR EXISTS (SELECT FROM {recheck} WHERE queue_id = {queue_id} AND id <= %(pk)s)
"""


class _Names(dict[str, object]):
    """The names in a text; one with a slash stands for the text of a file."""

    def __missing__(self, name: str) -> str:
        if "/" not in name:
            raise KeyError(name)
        return _text(name).format_map(self).rstrip()


@cache
def _text(name: str) -> str:
    return files("pyspark_pgqueue").joinpath("sql", f"{name}.sql").read_text(encoding="utf-8")


def _fence(receipts: Sequence[Receipt]) -> dict[str, str]:
    """Receipts as array literals, as the statements take them."""
    columns = zip(("ids", "read_cts", "read_ats"), zip(*receipts, strict=True), strict=True)
    return {name: "{" + ",".join(map(str, values)) + "}" for name, values in columns}


def open_queues(connection: psycopg.Connection[Any], queue_ids: Iterable[int]) -> list[OpenQueue]:
    """Queues with their settings; those that were dropped are left out."""
    rows = connection.execute(
        "SELECT id, name, unlogged, visibility_timeout, max_deliveries, dead_letter_queue_id, "
        "paused FROM pgqueue_queue WHERE id = ANY(%s) ORDER BY name",
        [list(queue_ids)],
    )
    return [OpenQueue(*row) for row in rows]
