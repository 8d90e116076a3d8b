"""Failures: failed messages and dead letters, grouped by similar errors."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from django.db import connections
from django.http import HttpRequest

from django_pgqueue.admin.access import queues_for
from django_pgqueue.admin.search import LARGE, LOOK, Extent
from django_pgqueue.models import Queue

__all__ = ["Failures", "Group", "Members", "fingerprint"]

#: Characters of an error's first line that are compared, and how many distinct lines are read.
LENGTH, KINDS = 200, 5000
#: How a bare traceback begins.
TRACEBACK = "Traceback (most recent call last)"
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|“[^”]*”|<[^<>]*>")
# Quoted names stay: the key that is missing, the constraint that was violated.
_NAME = re.compile(r"'[A-Za-z_.]+'|\"[A-Za-z_][\w.]*\"", re.ASCII)
# Words with a digit: numbers, times, and ids with hexadecimal parts.
_NUMBER = re.compile(r"[0-9a-fA-F]*\d[\w]*(?:[-.:,/][0-9a-fA-F]*\d[\w]*)*")


@lru_cache(maxsize=4096)
def normal(error: str) -> str:
    """The line that names an error, with numbers, ids and quoted text replaced; quoted names stay.

    That line is the first one, and the last one of a traceback.

    >>> normal("KeyError: 'price' of order 4711 (3f2a-77b1), 0.3 s, for 'Ann B.'")
    "KeyError: 'price' of order # (#), # s, for …"
    >>> normal("Traceback (most recent call last):\\n  File 'a.py'\\nTimeoutError: 3 s\\n")
    'TimeoutError: # s'
    """
    line = error[:LENGTH].partition("\n")[0]
    if error.startswith(TRACEBACK):
        line = error.rstrip("\n ")[-LENGTH:].rpartition("\n")[2]
    return " ".join(_NUMBER.sub("#", _QUOTED.sub(_name, line)).split())


def _name(quoted: re.Match[str]) -> str:
    return quoted[0] if _NAME.fullmatch(quoted[0]) else "…"


def fingerprint(error: str) -> str:
    """A hash that is equal for errors with the same :func:`normal` text.

    >>> fingerprint("no order 7") == fingerprint("no order 12\\nTraceback")
    True
    """
    return hashlib.blake2s(normal(error).encode(), digest_size=8).hexdigest()


# Senders can set the header to any text, so it must be checked.
_ID = re.compile(r"[0-9]{1,18}")

# The line that names an error, with all digits set to 0, so that most errors that differ only in
# numbers become one row. The server cuts the text, so that a page never gets whole errors.
_TEXT = f"""translate(
    CASE WHEN starts_with({{0}}, '{TRACEBACK}')
         THEN substring(right(rtrim({{0}}, E'\\n '), {LENGTH}) FROM '[^\\n]*$')
         ELSE split_part(left({{0}}, {LENGTH}), E'\\n', 1) END,
    '123456789', '000000000')"""

# Only the newest failed messages, and the newest of dead-letter queues, are read. OFFSET 0 keeps
# the planner from joining the whole archive.
_FAILED = f"""
    SELECT a.id, a.queue_id, a.archived_at AS at, false AS dead,
           a.id = ANY(%(again)s::bigint[]) AS again,
           {_TEXT.format("coalesce(a.error, '')")} AS text
    FROM (SELECT id, queue_id, archived_at, error FROM pgqueue_archive
          WHERE queue_id = ANY(%(queues)s::int[]) AND state = 'FAILED' ORDER BY id DESC
          LIMIT (SELECT %(look)s::bigint)) a
    WHERE a.archived_at >= statement_timestamp() - %(window)s::interval
      AND (%(asked_at)s::timestamptz IS NULL OR a.archived_at <= %(asked_at)s)"""
_DEAD = f"""
    SELECT m.id, m.queue_id, m.enqueued_at AS at, true AS dead, false AS again,
           {_TEXT.format("coalesce(m.headers #>> '{x-dead-letter,error}', '')")} AS text
    FROM (SELECT id, queue_id, enqueued_at, headers FROM pgqueue_message
          WHERE queue_id = ANY(%(dead)s::int[]) ORDER BY id DESC
          LIMIT (SELECT %(look)s::bigint)) m
    WHERE m.enqueued_at >= statement_timestamp() - %(window)s::interval
      AND (%(asked_at)s::timestamptz IS NULL OR m.enqueued_at <= %(asked_at)s)
      AND CASE WHEN pg_column_size(m.headers) <= {LARGE} THEN m.headers ? 'x-dead-letter'
               ELSE false END
      AND NOT EXISTS (SELECT FROM pgqueue_archive a WHERE a.id = m.id AND a.queue_id = m.queue_id
                      AND a.enqueued_at = m.enqueued_at OFFSET 0)"""


# The original ids of the newest messages that are replays.
_AGAIN = f"""
    SELECT m.headers ->> 'x-replay-of'
    FROM (SELECT enqueued_at, headers FROM pgqueue_message ORDER BY id DESC
          LIMIT (SELECT %(look)s::bigint)) m
    WHERE m.enqueued_at >= statement_timestamp() - %(window)s::interval
      AND CASE WHEN pg_column_size(m.headers) <= {LARGE} THEN m.headers ? 'x-replay-of'
               ELSE false END"""


@dataclass
class Group:
    """Failures with one fingerprint."""

    fingerprint: str
    text: str
    count: int = 0
    first: dt.datetime | None = None
    last: dt.datetime | None = None
    queues: set[int] = field(default_factory=set)
    example: tuple[int, int] = (0, 0)  # id and queue id of one message
    dead: int = 0

    def add(self, row: tuple[Any, ...]) -> None:
        _text, dead, _again, count, first, last, queues, example = row
        self.count += count
        self.dead += count if dead else 0
        self.first = first if self.first is None else min(self.first, first)
        if self.last is None or last >= self.last:
            self.last, self.example = last, tuple(example)
        self.queues.update(queues)


class Failures(NamedTuple):
    """Failures of some queues within a window."""

    queues: list[int]
    dead_letters: list[int]  # ids of the queues that take dead letters
    window: dt.timedelta
    using: str

    @classmethod
    def of(cls, request: HttpRequest, window: dt.timedelta) -> Failures:
        known = list(queues_for(request).values_list("pk", "dead_letter_queue_id"))
        own = {pk for pk, _dead in known}
        # Dead-letter queues count as such even if the user may not see their sources.
        using = Queue.objects.database()
        dead = Queue.objects.using(using).filter(dead_letter_queue__in=own)
        into = set(dead.values_list("dead_letter_queue_id", flat=True))
        return cls(sorted(own), sorted(into), window, using)

    def groups(self) -> tuple[list[Group], int]:
        """The groups, the largest first, and the number of failed messages that were replayed."""
        sql = (
            "SELECT text, dead, again, count(*), min(at), max(at), array_agg(DISTINCT queue_id), "
            f"max(ARRAY[id, queue_id::bigint]) FROM ({_FAILED} UNION ALL {_DEAD}) f "
            f"GROUP BY text, dead, again ORDER BY count(*) DESC LIMIT {KINDS}"
        )
        found: dict[str, Group] = {}
        sent_again = 0
        for row in self._fetch(sql, again=self._sent_again()):
            text, _dead, again, count, *_rest = row
            if again:
                sent_again += count
                continue
            name = fingerprint(text)
            found.setdefault(name, Group(name, normal(text))).add(row)
        return sorted(found.values(), key=lambda each: -each.count), sent_again

    def rows(
        self, name: str, *, dead: bool, asked_at: dt.datetime | None = None
    ) -> Iterable[tuple[int, int]]:
        """(queue id, message id) of the group's messages, ordered by message id."""
        source = _DEAD if dead else _FAILED
        sql = f"SELECT queue_id, id, text FROM ({source}) f WHERE NOT again ORDER BY id"
        again = [] if dead else self._sent_again()
        for queue_id, pk, text in self._fetch(sql, again=again, asked_at=asked_at):
            if fingerprint(text) == name:
                yield queue_id, pk

    def _sent_again(self) -> list[int]:
        """The ids of messages that were replayed lately.

        They are passed as a list, not joined: PostgreSQL hashes a list, and may plan a join badly.
        """
        return [int(text) for (text,) in self._fetch(_AGAIN) if text and _ID.fullmatch(text)]

    def _fetch(
        self, sql: str, *, again: Sequence[int] = (), asked_at: dt.datetime | None = None
    ) -> list[tuple[Any, ...]]:
        params: dict[str, Any] = {
            "queues": self.queues,
            "dead": self.dead_letters,
            "again": list(again),
            "window": self.window,
            "look": LOOK,
            "asked_at": asked_at,
        }
        with connections[self.using].cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall())


@dataclass(frozen=True)
class Members:
    """The targets of an action: a group's dead letters, or its failed messages in the archive."""

    failures: Failures
    name: str
    text: str
    dead: bool

    def extents(self, *, using: str) -> dict[int, Extent]:
        return {pk: Extent(len(ids), ids[-1]) for pk, ids in self._by_queue(None).items()}

    def gather(self, asked_at: dt.datetime, *, using: str) -> dict[int, list[int]]:
        return self._by_queue(asked_at)

    def as_query(self) -> dict[str, str]:
        return {"failure": self.text}

    def _by_queue(self, asked_at: dt.datetime | None) -> dict[int, list[int]]:
        found: dict[int, list[int]] = defaultdict(list)
        for queue_id, pk in self.failures.rows(self.name, dead=self.dead, asked_at=asked_at):
            found[queue_id].append(pk)
        return found
