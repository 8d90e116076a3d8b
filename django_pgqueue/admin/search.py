"""Searches of messages, queued and archived, for lists, counts, exports and actions.

Each search follows an index from the end of the previous page, and reads a limited number of rows.
So its cost does not grow with the number of messages.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from django.db import connections
from django.http import QueryDict
from django.utils.http import urlencode
from django.utils.translation import gettext as _

from django_pgqueue.admin.json_text import as_jsonb
from django_pgqueue.admin.places import ENDED, LIVE, Place, listed
from django_pgqueue.admin.spans import span_of

__all__ = ["ARCHIVED", "LARGE", "LOOK", "MOST", "Backlog", "Extent", "Found", "Search", "Term"]

#: The value of ``state`` in an address for all archived messages.
ARCHIVED = "archived"
#: Maximum number of messages tested against a filter without an index.
LOOK = 100_000
#: Maximum number of rows of a place that are tested for the wanted state.
SCAN = 10_000
#: Maximum number of messages of one action.
MOST = 1_000_000
#: Bodies and headers that take more bytes in the database are not searched.
LARGE = 100_000

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1


class Found(NamedTuple):
    """A message that a search found, and its sort key."""

    queue_id: int
    key: str
    pk: int

    def as_text(self) -> str:
        return f"{self.queue_id}:{self.pk}:{self.key}"

    @classmethod
    def from_text(cls, text: str) -> Found | None:
        """Parse the position at which the previous page ended; None if the text is invalid."""
        queue_id, _, rest = text.partition(":")
        pk, _, key = rest.partition(":")
        if not _is_number(queue_id, 2**31) or not _is_number(pk.removeprefix("-"), 2**63):
            return None
        return cls(int(queue_id), key, int(pk))


class Extent(NamedTuple):
    """The number of a queue's messages that a search finds, and their highest id."""

    number: int
    highest: int


class Term(NamedTuple):
    """A word of the search: ``body.customer:7``."""

    column: str
    path: tuple[str, ...]
    value: str

    @classmethod
    def of(cls, word: str) -> Term | None:
        name, colon, value = word.partition(":")
        column, *path = name.split(".")
        if not colon or column not in ("body", "headers") or not all(path):
            return None
        return cls(column, tuple(path), value)

    def condition(self, number: int) -> tuple[str, dict[str, Any]]:
        """SQL for message ``m``. Compares the value as JSON, if it parses, and as text."""
        values = [json.dumps(self.value)]
        with suppress(RecursionError, ValueError):
            values.append(as_jsonb(json.loads(self.value)))
        name = f"term{number}"
        sql = (
            f"CASE WHEN pg_column_size(m.{self.column}) <= {LARGE} THEN "
            f"m.{self.column} #> %({name}_path)s::text[] = ANY(%({name})s::jsonb[]) ELSE false END"
        )
        return sql, {f"{name}_path": list(self.path), name: values}


@dataclass(frozen=True)
class Search:
    """The filters of a list. ``queues`` holds ids; None means all queues."""

    place: Place | None = None
    queues: tuple[int, ...] | None = None
    group: str = ""
    attempts: int = 0
    older: dt.timedelta | None = None
    newer: dt.timedelta | None = None
    terms: tuple[Term, ...] = ()
    ids: tuple[int, ...] | None = None
    #: Archived messages, with any outcome.
    archived: bool = False
    #: Only messages that existed at this time.
    asked_at: dt.datetime | None = None
    #: Errors for the filters in the address that could not be parsed.
    wrong: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, query: Mapping[str, str], seen: Iterable[int] | None) -> Search:
        """The search of an address's parameters, limited to the queues in ``seen``."""
        wrong: list[str] = []
        queues = None if seen is None else tuple(seen)
        if query.get("queue"):
            chosen = int(query["queue"]) if _is_number(query["queue"], 2**31) else None
            queues = (chosen,) if chosen and (queues is None or chosen in queues) else ()
        places = [place for place in Place if place.value == query.get("state")]
        attempts = query.get("attempts", "").strip()
        if attempts and not _is_number(attempts, 2**31):
            wrong.append(_("Attempts must be a number."))
            attempts = ""
        spans: dict[str, Any] = {}
        for name in ("older", "newer"):
            try:
                spans[name] = span_of(query[name]) if query.get(name, "").strip() else None
            except ValueError as error:
                wrong.append(str(error))
        terms, ids = [], []
        for word in query.get("q", "").replace(",", " ").split():
            term = Term.of(word)
            if term is not None:
                terms.append(term)
            elif _is_number(word, 2**63):
                ids.append(int(word))
            else:
                wrong.append(
                    _("Search for ids, body.customer:7 or headers.trace:abc, not “%s”.") % word
                )
        if wrong:
            queues = ()  # an invalid filter finds nothing, rather than everything
        return cls(
            place=places[0] if places else None,
            archived=query.get("state") == ARCHIVED,
            queues=queues,
            group=query.get("group", "").strip(),
            attempts=int(attempts or 0) if places or query.get("state") == ARCHIVED else 0,
            terms=tuple(terms),
            ids=tuple(ids) if ids else None,
            wrong=tuple(wrong),
            **spans,
        )

    @classmethod
    def from_text(cls, text: str, seen: Iterable[int] | None) -> Search:
        """The search of a query string. See :meth:`of`."""
        return cls.of(QueryDict(text).dict(), seen)

    @property
    def is_filtered(self) -> bool:
        """Whether the search has filters that no index serves."""
        return bool(self.group or self.attempts or self.older or self.newer or self.terms)

    def find(self, limit: int, after: Found | None = None, *, using: str) -> list[Found]:
        """The first ``limit`` messages after ``after``, in list order."""
        sql, params = self._sql(limit, after)
        rows = _fetch(f"SELECT queue_id, key::text, id FROM ({sql}) f", params, using)
        return [Found(queue_id, key or "", pk) for queue_id, key, pk in rows]

    def count(self, limit: int, *, using: str) -> int:
        """The number of messages, at most ``limit``."""
        sql, params = self._sql(limit, None, ordered=False)
        [(count,)] = _fetch(f"SELECT count(*) FROM ({sql}) f", params, using)
        return int(count)

    def extents(self, *, using: str) -> dict[int, Extent]:
        """The number of messages and the highest id, by queue."""
        sql, params = self._sql(MOST, None, ordered=False)
        text = f"SELECT queue_id, count(*), max(id) FROM ({sql}) f GROUP BY 1 ORDER BY 1"
        return {pk: Extent(*rest) for pk, *rest in _fetch(text, params, using)}

    def gather(self, asked_at: dt.datetime, *, using: str) -> dict[int, list[int]]:
        """The ids of the messages that existed at ``asked_at``, by queue."""
        sql, params = replace(self, asked_at=asked_at)._sql(MOST, None, ordered=False)
        text = f"SELECT queue_id, array_agg(id ORDER BY id) FROM ({sql}) f GROUP BY 1"
        return dict(_fetch(text, params, using))

    def as_query(self) -> dict[str, str]:
        """The query parameters of the list with this search."""
        words = [str(pk) for pk in self.ids or ()]
        words += [f"{'.'.join([t.column, *t.path])}:{t.value}" for t in self.terms]
        found = {
            "state": self.place.value if self.place else ARCHIVED if self.archived else "",
            "group": self.group,
            "attempts": str(self.attempts or ""),
            "older": f"{self.older.total_seconds():g}s" if self.older else "",
            "newer": f"{self.newer.total_seconds():g}s" if self.newer else "",
            "q": " ".join(words),
        }
        if self.queues is not None and len(self.queues) == 1:
            found["queue"] = str(self.queues[0])
        return {name: value for name, value in found.items() if value}

    def as_text(self) -> str:
        return urlencode(self.as_query())

    # SQL

    def _sql(
        self, limit: int, after: Found | None, *, ordered: bool = True
    ) -> tuple[str, dict[str, Any]]:
        after = after or Found(0, "", _LOWEST if self.place in LIVE else _HIGHEST)
        params: dict[str, Any] = {
            "limit": limit,
            "look": LOOK if self.is_filtered or self.ids is not None else max(limit, SCAN),
            "queues": None if self.queues is None else list(self.queues),
            "after_queue": after.queue_id,
            "after_key": after.key or None,
            "after_id": after.pk,
            "group": self.group or None,
            "attempts": self.attempts,
            "older": self.older,
            "newer": self.newer,
            "ids": None if self.ids is None else list(self.ids),
            "asked_at": self.asked_at,
        }
        inner = []  # conditions on s, the message's row in the table of its place
        if self.ids is not None:
            inner.append("s.id = ANY(%(ids)s::bigint[])")
        if self.attempts:
            inner.append("s.attempts >= %(attempts)s")
        if self.older is not None:
            inner.append("s.enqueued_at <= statement_timestamp() - %(older)s::interval")
        if self.newer is not None:
            inner.append("s.enqueued_at >= statement_timestamp() - %(newer)s::interval")
        if self.asked_at is not None:
            ended = self.archived or self.place in ENDED
            entered = "archived_at" if ended else "enqueued_at"
            inner.append(f"s.{entered} <= %(asked_at)s")
        outer: list[str] = []  # conditions on m, the message
        if self.group:
            (inner if self.place in LIVE else outer).append(
                f"{'s' if self.place in LIVE else 'm'}.group_key = %(group)s"
            )
        for number, term in enumerate(self.terms):
            sql, values = term.condition(number)
            outer.append(sql)
            params |= values
        if self.place is not None and self.place in LIVE:
            conditions = [*inner, *self._of_message("q.id", outer)]
            return listed(self.place, conditions, ordered=ordered), params
        return self._kept(inner, outer), params

    def _kept(self, inner: list[str], outer: list[str]) -> str:
        """SQL for archived messages, or for all messages, the newest first."""
        if self.place is None and not self.archived:
            columns = "id, queue_id, enqueued_at, group_key, NULL::timestamptz AS archived_at"
            table = "pgqueue_message"
        else:
            columns = "id, queue_id, enqueued_at, archived_at, attempts, state"
            table = "pgqueue_archive"
            if self.place not in (None, Place.FAILED):
                inner = [*inner, f"s.state = '{self.place.name}'"]
        only = "true"
        if self.queues is not None:
            only = "queue_id = ANY(%(queues)s::int[])"
            if len(self.queues) == 1:
                only = f"queue_id = {int(self.queues[0])}"  # so that only its partition is planned
        if self.ids is not None:
            only += " AND id = ANY(%(ids)s::bigint[])"
        if self.place is Place.FAILED:
            only += " AND state = 'FAILED'"  # so that its index finds them at any age
        conditions = [*inner, *self._of_message("s.queue_id", outer)]
        look = f"{LOOK}" if conditions else "%(limit)s"
        return (
            f"SELECT s.queue_id, NULL::text AS key, s.id FROM (SELECT {columns} FROM {table} "
            f"WHERE {only} AND id < %(after_id)s ORDER BY id DESC "
            f"LIMIT (SELECT {look}::bigint)) s "
            f"WHERE {' AND '.join(conditions) or 'true'} ORDER BY s.id DESC "
            f"LIMIT (SELECT %(limit)s::bigint)"
        )

    def _of_message(self, queue: str, conditions: list[str]) -> list[str]:
        if not conditions:
            return []
        return [
            f"EXISTS (SELECT FROM pgqueue_message m WHERE m.id = s.id AND m.queue_id = {queue} "
            f"AND m.enqueued_at = s.enqueued_at AND {' AND '.join(conditions)} OFFSET 0)"
        ]


@dataclass(frozen=True)
class Backlog:
    """All messages in a queue, in any place."""

    queue_id: int

    def extents(self, *, using: str) -> dict[int, Extent]:
        found = [each.get(self.queue_id) for each in (s.extents(using=using) for s in self._parts)]
        there = [extent for extent in found if extent]
        if not there:
            return {}
        highest = max(extent.highest for extent in there)
        return {self.queue_id: Extent(sum(extent.number for extent in there), highest)}

    def gather(self, asked_at: dt.datetime, *, using: str) -> dict[int, list[int]]:
        # A set, since a message can move to another place between two queries.
        ids = {
            pk
            for each in self._parts
            for pk in each.gather(asked_at, using=using).get(self.queue_id, [])
        }
        return {self.queue_id: sorted(ids)[:MOST]}

    def as_query(self) -> dict[str, str]:
        return {}

    @property
    def _parts(self) -> list[Search]:
        return [Search(place=place, queues=(self.queue_id,)) for place in LIVE]


def _fetch(sql: str, params: dict[str, Any], using: str) -> list[tuple[Any, ...]]:
    with connections[using].cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def _is_number(text: str, below: int) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) < below
