"""Searches of messages, queued and archived, for lists, counts, exports and actions.

Each search follows an index from the end of the previous page, and reads a limited number of rows.
So its cost does not grow with the number of messages.
"""

from __future__ import annotations

import datetime as dt
import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from django.utils.translation import gettext as _

from django_pgqueue.admin.durations import span_of
from django_pgqueue.admin.json_text import as_jsonb
from django_pgqueue.admin.places import ENDED, LIVE, UNINDEXED, Place, listed
from django_pgqueue.admin.queries import ask, rows
from django_pgqueue.engine.statements import compose

#: The value of the URL parameter ``state`` for all archived messages.
ARCHIVED = "archived"
#: Maximum number of messages tested against a filter without an index.
LOOK = 100_000
#: Maximum number of rows that a search without filters tests, unless its limit is higher.
SCAN = 10_000
#: Maximum number of messages of one action.
MOST = 1_000_000
#: Maximum size on disk, in bytes, of bodies and headers that are searched.
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
        """Parse the output of :meth:`as_text`. Return None if the text is invalid."""
        queue_id, _, rest = text.partition(":")
        pk, _, key = rest.partition(":")
        if not is_number(queue_id, 2**31) or not is_number(pk.removeprefix("-"), 2**63):
            return None
        return cls(int(queue_id), key, int(pk))


class Looked(NamedTuple):
    """The result of a search."""

    found: list[Found]
    #: The last tested message, if the search stopped after ``most`` tested messages.
    end: Found | None
    most: int


class Extent(NamedTuple):
    """The number of messages found in a queue, and their highest id."""

    number: int
    highest: int


class Targets:
    """The messages of an action: search results, a queue's backlog, or a group of failures."""

    def aggregate(self, what: str, asked_at: dt.datetime | None) -> list[tuple[Any, ...]]:
        """Return a row per queue: its id, and the SQL aggregate ``what`` over its messages.

        Messages that did not exist at the time ``asked_at`` are left out.
        """
        raise NotImplementedError

    def as_query(self) -> dict[str, str]:
        """Return the filter, as it is stored with a bulk action."""
        raise NotImplementedError

    def extents(self) -> dict[int, Extent]:
        """Return the number of messages and the highest id, by queue id."""
        return {pk: Extent(*rest) for pk, *rest in self.aggregate("count(*), max(id)", None)}

    def gather(self, asked_at: dt.datetime) -> dict[int, list[int]]:
        """Return the ids of the messages that existed at ``asked_at``, by queue id."""
        return dict(self.aggregate("array_agg(id ORDER BY id)", asked_at))


class Term(NamedTuple):
    """A search term, such as ``body.customer:7``, ``customer:7``, or the words ``customer 7``."""

    #: ``body`` or ``headers``: a value at a path. ``key``: at any depth of the body. ``error``: the
    #: message's error contains the value. ``words``: the body contains them, or the first is a key.
    kind: str
    path: tuple[str, ...]
    value: str

    @classmethod
    def of(cls, word: str) -> Term | None:
        name, colon, value = word.partition(":")
        kind, *path = name.split(".")
        if not colon or not _KEY.fullmatch(name) or value.startswith("//"):
            return None
        if kind in ("body", "headers"):
            return cls(kind, tuple(path), value)
        return cls("error", (), value) if name == "error" else cls("key", (kind, *path), value)

    @property
    def word(self) -> str:
        """The term, as it is written in a search."""
        if self.kind == "words":
            return self.value
        path = self.path if self.kind == "key" else (self.kind, *self.path)
        return f"{'.'.join(path)}:{self.value}"

    @property
    def text(self) -> str:
        """The value; of words, without quotation marks around them."""
        return self.value.strip('"') if self.kind == "words" else self.value

    @property
    def meaning(self) -> str:
        """What the term finds, in words."""
        told = {"value": self.text, "path": self.word.partition(":")[0]}
        if self.kind == "error":
            return _("the error contains “%(value)s”") % told
        if self.kind == "words":
            key, _space, value = self.text.partition(" ")
            told |= {"path": key, "of": value}
            if value:
                return (
                    _("“%(path)s” is “%(of)s” anywhere in the body, or it contains “%(value)s”")
                    % told
                )
            return _("the body contains “%(value)s”") % told
        if not self.value:
            return _("“%(path)s” exists") % told
        if self.kind == "key":
            return _("“%(path)s” is “%(value)s” anywhere in the body") % told
        return _("%(path)s is “%(value)s”") % told

    def condition(self, number: int) -> tuple[str, dict[str, Any]]:
        """Return SQL that tests a message m. Also return its parameters."""
        name = f"term{number}"
        if self.kind == "error":
            return compose("search/error", {"name": name}, __package__), {
                name: _pattern(self.value)
            }
        column = "headers" if self.kind == "headers" else "body"
        sql, params = self._of_json(name, column)
        whole = f"CASE WHEN pg_column_size(m.{column}) <= {LARGE} THEN {sql} ELSE false END"
        return whole, params

    def _of_json(self, name: str, column: str) -> tuple[str, dict[str, Any]]:
        if self.kind == "words":
            return self._of_words(name)
        if self.kind == "key":
            path = "$.**" + "".join(f".{json.dumps(key)}" for key in self.path)
            test = " ? (@ == $text || @ == $json)" if self.value else ""
            values = {"text": self.value, "json": _scalar(self.value)}
            sql = f"jsonb_path_exists(m.body, %({name})s::jsonpath, %({name}_is)s::jsonb, true)"
            return sql, {name: path + test, f"{name}_is": json.dumps(values)}
        at = f"m.{column} #> %({name}_path)s::text[]"
        params: dict[str, Any] = {f"{name}_path": list(self.path)}
        if not self.value:
            return f"({at}) IS NOT NULL", params
        texts = [json.dumps(self.value)]
        with suppress(RecursionError, ValueError):
            texts.append(as_jsonb(json.loads(self.value)))
        return f"{at} = ANY(%({name})s::jsonb[])", {**params, name: texts}

    def _of_words(self, name: str) -> tuple[str, dict[str, Any]]:
        inside = json.dumps(self.text, ensure_ascii=False)[1:-1]  # as in the JSON text of a body
        contains = f"m.body::text ILIKE %({name}_text)s"
        params = {f"{name}_text": _pattern(inside)}
        key, _space, value = self.text.partition(" ")
        if not value or _KEY.fullmatch(key) is None:
            return contains, params
        sql, of_key = Term("key", tuple(key.split(".")), value)._of_json(name, "body")
        return f"({sql} OR {contains})", params | of_key


#: A path of keys, such as ``customer`` or ``body.lines.0.sku``.
_KEY = re.compile(r"[^\W\d][^\s.:]*(\.[^\s.:]+)*")


def _scalar(value: str) -> Any:
    """Return the scalar that a text means as JSON, or the text itself."""
    with suppress(RecursionError, ValueError):
        parsed = json.loads(value)
        as_jsonb(parsed)
        return value if isinstance(parsed, (dict, list)) else parsed
    return value


def _pattern(text: str) -> str:
    """Return the pattern of ILIKE that matches texts with this text in them."""
    return "%" + re.sub(r"([\\%_])", r"\\\1", text) + "%"


@dataclass(frozen=True)
class Search(Targets):
    """The filters of a list. ``queues`` holds ids; None means all queues."""

    place: Place | None = None
    queues: tuple[int, ...] | None = None
    group: str = ""
    attempts: int = 0
    older: dt.timedelta | None = None
    newer: dt.timedelta | None = None
    terms: tuple[Term, ...] = ()
    ids: tuple[int, ...] | None = None
    #: Whether to search only archived messages, with any outcome.
    archived: bool = False
    #: Whether the oldest messages come first. It has no effect on ``LIVE`` places.
    oldest: bool = False
    #: Error messages about filters that could not be parsed.
    wrong: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, query: Mapping[str, str], seen: Iterable[int] | None) -> Search:
        """Make a search from URL parameters, limited to the queue ids in ``seen`` (None: all)."""
        wrong: list[str] = []
        queues = None if seen is None else tuple(seen)
        if query.get("queue"):
            chosen = int(query["queue"]) if is_number(query["queue"], 2**31) else None
            queues = (chosen,) if chosen and (queues is None or chosen in queues) else ()
        places = [place for place in Place if place.value == query.get("state")]
        attempts = query.get("attempts", "").strip()
        if attempts and not is_number(attempts, 2**31):
            wrong.append(_("Enter a whole number of attempts."))
            attempts = ""
        spans: dict[str, Any] = {}
        for name in ("older", "newer"):
            try:
                spans[name] = span_of(query[name]) if query.get(name, "").strip() else None
            except ValueError as error:
                wrong.append(str(error))
        terms, ids = terms_of(query.get("q", ""))
        if wrong:
            queues = ()  # An invalid filter finds nothing, rather than everything.
        return cls(
            place=places[0] if places else None,
            archived=query.get("state") == ARCHIVED,
            oldest=query.get("o") == "oldest",
            queues=queues,
            group=query.get("group", "").strip(),
            attempts=int(attempts or 0) if places or query.get("state") == ARCHIVED else 0,
            terms=tuple(terms),
            ids=tuple(ids) if ids else None,
            wrong=tuple(wrong),
            **spans,
        )

    @property
    def meaning(self) -> str:
        """What the words of the search find, in words; "" if there are none."""
        told = [term.meaning for term in self.terms]
        if self.ids:
            told.append(_("the id is %s") % ", ".join(map(str, self.ids)))
        return "; ".join(told)

    @property
    def is_filtered(self) -> bool:
        """Whether the search has filters besides queue and place, or a place without an index."""
        given = (self.group, self.attempts, self.older, self.newer, self.terms, self.ids)
        return any(given) or self.place in UNINDEXED

    def find(self, limit: int, after: Found | None = None, *, look: int | None = None) -> Looked:
        """Return the first ``limit`` messages after ``after``, in list order.

        Arguments:
            look: maximum number of tested messages; None: ``LOOK``, or ``SCAN`` without filters.
        """
        sql, params = self._sql(limit, after)
        params["look"] = look or params["look"]
        found: list[Found] = []
        text = f"SELECT queue_id, key::text, id, matches, ends FROM ({sql}) f"
        for queue_id, key, pk, matches, ends in rows(text, params):
            place = Found(queue_id, key or "", pk)
            if matches:
                found.append(place)
            if ends or len(found) == limit:
                return Looked(found, place if ends else None, params["look"])
        return Looked(found, None, params["look"])

    def count(self, limit: int) -> tuple[int, bool]:
        """Return the number of messages among those that :meth:`find` tests, up to ``limit``.

        Also return whether all were tested. If not, there may be more.
        """
        sql, params = self._sql(limit, None, ordered=False)
        what = "count(*) FILTER (WHERE matches), coalesce(bool_or(ends), false)"
        [(count, ends)] = rows(f"SELECT {what} FROM ({sql}) f", params)
        return int(count), not ends

    def searched(self) -> int | None:
        """Return the estimated number of messages to search; None for a ``LIVE`` place."""
        if self.place in LIVE:
            return None
        params = {"queues": None if self.queues is None else list(self.queues)}
        [(count,)] = ask("lists/kept_count", params, table=self._table)
        return int(count)

    def newest(self, most: int) -> tuple[str, dict[str, Any]]:
        """Return SQL for the first messages, with their ids and queue ids. Also its parameters."""
        sql, params = self._sql(most, None)
        return sql, {**params, "look": most}

    def aggregate(self, what: str, asked_at: dt.datetime | None) -> list[tuple[Any, ...]]:
        sql, params = self._sql(MOST, None, asked_at, ordered=False)
        params["look"] = MOST
        sql = f"SELECT queue_id, {what} FROM ({sql}) f WHERE matches GROUP BY 1 ORDER BY 1"
        return rows(sql, params)

    def as_query(self) -> dict[str, str]:
        """Return the query parameters of the list that shows this search."""
        words = [str(pk) for pk in self.ids or ()]
        words += [term.word for term in self.terms]
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

    # SQL

    @property
    def _table(self) -> str:
        return "pgqueue_archive" if self.archived or self.place in ENDED else "pgqueue_message"

    def _sql(
        self,
        limit: int,
        after: Found | None,
        asked_at: dt.datetime | None = None,
        *,
        ordered: bool = True,
    ) -> tuple[str, dict[str, Any]]:
        """Return SQL with the rows (queue_id, key, id, matches, ends), and its parameters."""
        backwards = self.place not in LIVE and not self.oldest
        after = after or Found(0, "", _HIGHEST if backwards else _LOWEST)
        params: dict[str, Any] = {
            "queues": None if self.queues is None else list(self.queues),
            "group": self.group or None,
            "attempts": self.attempts,
            "older": self.older,
            "newer": self.newer,
            "ids": None if self.ids is None else list(self.ids),
            "asked_at": asked_at,
            "limit": limit,
            "look": LOOK if self.is_filtered else max(limit, SCAN),
            "after_queue": after.queue_id,
            "after_key": after.key or None,
            "after_id": after.pk,
        }
        conditions = []  # Conditions on s, the message's row in the searched table.
        if self.ids is not None:
            conditions.append("s.id = ANY(%(ids)s::bigint[])")
        if self.attempts:
            conditions.append("s.attempts >= %(attempts)s")
        if self.older is not None:
            conditions.append("s.enqueued_at <= statement_timestamp() - %(older)s::interval")
        if self.newer is not None:
            conditions.append("s.enqueued_at >= statement_timestamp() - %(newer)s::interval")
        if asked_at is not None:
            entered = "archived_at" if self._table == "pgqueue_archive" else "enqueued_at"
            conditions.append(f"s.{entered} <= %(asked_at)s")
        if self.place in UNINDEXED:
            conditions.append(f"s.state = '{self.place.name}'")
        outer: list[str] = []  # Conditions on m, the row of pgqueue_message.
        if self.group and self._table == "pgqueue_archive":
            outer.append("m.group_key = %(group)s")
        elif self.group:
            conditions.append("s.group_key = %(group)s")
        for number, term in enumerate(self.terms):
            sql, values = term.condition(number)
            outer.append(sql)
            params |= values
        if outer:
            conditions.append(self._of_message(outer))
        if self.place is not None and self.place in LIVE:
            return listed(self.place, conditions, ordered=ordered), params
        return self._kept(conditions, backwards), params

    def _of_message(self, conditions: list[str]) -> str:
        """Return a condition on s: that its message, m, meets these conditions."""
        tests = " AND ".join(conditions)
        if self.place not in LIVE and self._table == "pgqueue_message":
            # s is the message. To look it up again by its id would take three quarters of the time.
            columns = "s.id, s.queue_id, s.enqueued_at, s.body, s.headers"
            return f"EXISTS (SELECT FROM (SELECT {columns}) m WHERE {tests})"
        return (
            "EXISTS (SELECT FROM pgqueue_message m WHERE m.id = s.id "
            f"AND m.queue_id = {'q.id' if self.place in LIVE else 's.queue_id'} "
            f"AND m.enqueued_at = s.enqueued_at AND {tests} OFFSET 0)"
        )

    def _kept(self, conditions: list[str], backwards: bool) -> str:
        """Return SQL that searches all messages, all archived ones, or the failed ones."""
        only, key, order, last = ["true"], "NULL::text", ["id"], "%(after_id)s"
        if self.place is not None and self.place.is_failure:  # Failures have an index by time.
            only = [f"state = '{self.place.name}'"]
            key, order = "archived_at", ["archived_at", "id"]
            start = "'infinity'" if backwards else "'-infinity'"
            last = f"coalesce(%(after_key)s::timestamptz, {start}), %(after_id)s"
        if self.queues is not None:
            only.append(
                # A literal id lets the planner skip the partitions of other queues.
                f"queue_id = {int(self.queues[0])}"
                if len(self.queues) == 1
                else "queue_id = ANY(%(queues)s::int[])"
            )
        if self.ids is not None:
            only.append("id = ANY(%(ids)s::bigint[])")
        only.append(f"({', '.join(order)}) {'<' if backwards else '>'} ({last})")
        names = {
            "table": self._table,
            "conditions": " AND ".join(conditions) or "true",
            "key": key,
            "only": " AND ".join(only),
            "order": ", ".join(f"{each} {'DESC' if backwards else 'ASC'}" for each in order),
        }
        return compose("lists/kept", names, __package__)


def terms_of(text: str) -> tuple[list[Term], list[int]]:
    """Parse a search into terms and ids. Numbers are ids, unless they stand among plain words."""
    terms, plain = [], []
    for word in text.replace(",", " ").split():
        term = Term.of(word)
        if term is not None:
            terms.append(term)
        else:
            plain.append(word)
    if all(is_number(word, 2**63) for word in plain):
        return terms, [int(word) for word in plain]
    return [*terms, Term("words", (), " ".join(plain))], []


@dataclass(frozen=True)
class Backlog(Targets):
    """All messages in a queue: ready, waiting, delayed and in flight."""

    queue_id: int

    def aggregate(self, what: str, asked_at: dt.datetime | None) -> list[tuple[Any, ...]]:
        params = {"queue": self.queue_id, "asked_at": asked_at, "most": MOST}
        return ask("lists/backlog", params, what=what)

    def as_query(self) -> dict[str, str]:
        return {}


def is_number(text: str, below: int) -> bool:
    """Return whether a text is a whole number from 0 to ``below`` - 1, in ASCII digits."""
    return text.isascii() and text.isdigit() and len(text) < 20 and int(text) < below
