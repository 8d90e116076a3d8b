"""Sending: one message, or many at once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any

from django.db import connections, transaction

from django_pgqueue import arguments, queries, signals
from django_pgqueue.conf import settings
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.models.operations.base import MessageT, Operations, twin
from django_pgqueue.models.queue import Queue
from django_pgqueue.types import Delay

__all__ = ["Sending"]

# COPY's text format gives these a meaning of their own.
_COPY_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
#: How long a dedup key counts where the queue does not say.
DEDUP_WINDOW = dt.timedelta(minutes=5)

_COPY_BLOCK = 100

# As most messages are: read at once, in their order, of no group. A statement that says nothing of
# all that costs a tenth less.
_PLAIN = {"priority": 0, "group": None, "at": None, "after": None}

# In characters; PostgreSQL takes no jsonb array of more than 256 MB.
_LONGEST_ARRAY = 32_000_000


class Sending(Operations[MessageT]):
    """Send messages, in the caller's transaction if there is one."""

    def send(
        self,
        queue: str | Queue,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: str | None = None,
        dedup_key: str | None = None,
        using: str | None = None,
    ) -> int:
        """Send one message and return its id.

        In a transaction the message exists if, and only if, the transaction commits; nobody can
        read it before. ``body`` is anything JSON can hold, ``headers`` a dict of the same.
        ``delay`` hides the message for so many seconds (number or timedelta), or until an aware
        datetime. A higher ``priority`` (-100 to 100) is read first. ``group`` is the FIFO group.
        With a ``dedup_key`` only the first send within the queue's window adds a message; the
        others return its id.

        >>> Message.objects.send("orders", {"order": 7}, delay=60)
        1

        Raises QueueNotFound, InvalidMessage and InvalidArgument; nothing is sent then.
        """
        if signals.messages_sending.receivers:
            headers = _carried(queue, headers)
        content = {
            "body": arguments.json_text(body),
            "headers": arguments.headers_text(headers),
        }
        params = {
            "priority": arguments.priority(priority),
            "group": arguments.key(group, "group"),
            **arguments.moment(delay),
        }
        key = arguments.key(dedup_key, "dedup_key")
        if key is not None:
            params |= {**content, "dedup_key": key}
            _, rows = self._run("send_once", queue, using, lambda q: {**params, **_window(q)})
        elif params == _PLAIN:
            _, rows = self._run("send", queue, using, content)
        else:
            _, rows = self._run("send_full", queue, using, {**params, **content})
        return int(rows[0][0])

    def send_batch(
        self,
        queue: str | Queue,
        bodies: Sequence[Any],
        *,
        headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
        delay: Delay | None = 0,
        priority: int = 0,
        group: Sequence[str | None] | str | None = None,
        dedup_key: Sequence[str | None] | None = None,
        using: str | None = None,
    ) -> list[int]:
        """Send many messages at once, all or none, and return their ids in the same order.

        ``headers`` and ``group`` are one for all, or a list with one for each body; ``delay``
        and ``priority`` are one for all. Many messages, or very large ones, go by COPY.

        >>> Message.objects.send_batch("orders", [{"order": 7}, {"order": 8}])
        [1, 2]

        Raises InvalidArgument for an empty batch and for lists whose lengths differ, and what
        :meth:`send` raises; nothing is sent then.
        """
        if isinstance(bodies, (str, bytes, dict)) or not isinstance(bodies, Iterable):
            raise InvalidArgument(f"bodies must be a list of bodies, not {bodies!r}")
        bodies = list(bodies)
        if not bodies:
            raise InvalidArgument("bodies is empty: give at least one")
        count = len(bodies)
        if signals.messages_sending.receivers:
            headers = _carried_by_each(queue, headers, count)
        columns = {
            "headers": _one_each(headers, dict, count, "headers", arguments.headers_text),
            "groups": _one_each(group, str, count, "group", partial(arguments.key, name="group")),
            "dedup_keys": _one_each(
                dedup_key, (), count, "dedup_key", partial(arguments.key, name="dedup_key")
            ),
        }
        params = {"priority": arguments.priority(priority), **arguments.moment(delay)}
        if not _all_none(columns["dedup_keys"]):
            columns["bodies"] = [arguments.json_text(body) for body in bodies]
            return self._on(queue, using, _copy_once, columns, params)[1]
        if count < settings.COPY_THRESHOLD:
            array = str(arguments.json_text(bodies))
            if len(array) < _LONGEST_ARRAY:
                return self._send_array(queue, using, array, columns, params)
        return self._on(queue, using, _copy, bodies, columns, params)[1]

    def _send_array(
        self,
        queue: str | Queue,
        using: str | None,
        bodies: str,
        columns: dict[str, list[str | None]],
        params: dict[str, Any],
    ) -> list[int]:
        content = {"bodies": bodies, "headers": _json_array(columns["headers"])}
        groups = columns["groups"]
        params = {**params, "group": None if _all_none(groups) else groups}
        if params == _PLAIN:
            _, rows = self._run("send_batch", queue, using, content)
        else:
            _, rows = self._run("send_batch_full", queue, using, {**params, **content})
        return sorted(row[0] for row in rows)

    asend = twin(send)
    asend_batch = twin(send_batch)


def _carried(queue: str | Queue, headers: Any, count: int = 1) -> Any:
    """The headers with what listeners of ``messages_sending`` add, if they are any."""
    if headers is not None and not isinstance(headers, dict):
        return headers
    carried = dict(headers or {})
    name = queue.name if isinstance(queue, Queue) else queue
    signals.messages_sending.send_robust(name, headers=carried, count=count)
    return carried or headers


def _carried_by_each(queue: str | Queue, headers: Any, count: int) -> Any:
    """The same for many messages: what is added to one is added to all, once."""
    if headers is None or isinstance(headers, dict):
        return _carried(queue, headers, count)
    added = _carried(queue, None, count)
    if not added:
        return headers
    return [
        {**added, **(each or {})} if isinstance(each, (dict, type(None))) else each
        for each in headers
    ]


def _copy(
    queue: Queue, bodies: list[Any], columns: dict[str, list[Any]], params: dict[str, Any]
) -> list[int]:
    connection = connections[queue.alias]
    with transaction.atomic(using=queue.alias), connection.cursor() as cursor:
        cursor.execute(
            queries.render("reserve_ids", queue.tables), {**params, "count": len(bodies)}
        )
        reserved = cursor.fetchall()
        ids = [row[0] for row in reserved]
        # One that cannot be sent ends the copying, and so takes back what was sent before it.
        texts = map(arguments.json_text, bodies)
        _copy_rows(queue, cursor, ids, reserved[0][1], {**columns, "bodies": texts}, params)
    return ids


def _copy_once(queue: Queue, columns: dict[str, list[Any]], params: dict[str, Any]) -> list[int]:
    """Copy those messages of a batch whose dedup key is new; the ids of all."""
    connection = connections[queue.alias]
    with transaction.atomic(using=queue.alias), connection.cursor() as cursor:
        cursor.execute(
            queries.render("claim_keys", queue.tables),
            {**params, **_window(queue), "dedup_keys": columns["dedup_keys"]},
        )
        claimed = cursor.fetchall()
        new = [place for place, row in enumerate(claimed) if row[1]]
        if new:
            ids = [claimed[place][0] for place in new]
            fresh = {name: [values[place] for place in new] for name, values in columns.items()}
            _copy_rows(queue, cursor, ids, claimed[0][2], fresh, params)
    return [row[0] for row in claimed]


def _copy_rows(
    queue: Queue,
    cursor: Any,
    ids: list[int],
    scheduled_at: str | None,
    columns: Mapping[str, Iterable[Any]],
    params: dict[str, Any],
) -> None:
    scheduled = "\\N" if scheduled_at is None else scheduled_at
    fixed = f"{queue.pk}\t{scheduled}\t{params['priority']}"
    rows = zip(
        ids,
        _fields(columns["groups"], _escaped),
        _fields(columns["dedup_keys"], _escaped),
        _fields(columns["headers"], _escaped_json),
        _fields(columns["bodies"], _escaped_json),
        strict=True,
    )
    # The cursor's own wrapping of errors ends where the copying begins.
    copying = cursor.copy(queries.render("copy", queue.tables))
    with connections[queue.alias].wrap_database_errors, copying as copy:
        # The server works on some blocks while the next is written.
        while block := "".join(
            [
                f"{pk}\t{fixed}\t{group}\t{dedup}\t{header}\t{body}\n"
                for pk, group, dedup, header, body in islice(rows, _COPY_BLOCK)
            ]
        ):
            copy.write(block)


def _window(queue: Queue) -> dict[str, Any]:
    return {"window": queue.dedup_window or DEDUP_WINDOW}


def _one_each(
    value: Any, single: Any, count: int, name: str, checked: Callable[[Any], str | None]
) -> list[str | None]:
    """One value for each of the bodies: the same for all, or as listed."""
    if value is None or isinstance(value, single):
        return [checked(value)] * count
    values = list(value)
    if len(values) != count:
        raise InvalidArgument(
            f"{name} has {len(values)} entries for {count} bodies: give one for each, "
            f"or one for all"
        )
    return [checked(each) for each in values]


def _all_none(values: list[Any]) -> bool:
    return values.count(None) == len(values)


def _json_array(texts: list[str | None]) -> str | None:
    """One JSON array of all, or None if there is nothing in it."""
    if _all_none(texts):
        return None
    return f"[{','.join('null' if text is None else text for text in texts)}]"


def _fields(values: Iterable[str | None], escaped: Callable[[str], str]) -> Iterator[str]:
    """A column as COPY wants it."""
    if isinstance(values, list) and _all_none(values):
        return repeat("\\N", len(values))
    return ("\\N" if value is None else escaped(value) for value in values)


def _escaped(text: str) -> str:
    return text.translate(_COPY_ESCAPES)


def _escaped_json(text: str) -> str:
    # JSON has its tabs and ends of lines escaped already.
    return text.replace("\\", "\\\\")
