"""Send one message, or many at once, in the caller's transaction if there is one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, islice
from typing import Any

from django_pgqueue import arguments
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.statements import render
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.types import Delay

__all__ = ["listed", "send", "send_batch", "window"]

# Characters that COPY's text format escapes.
_COPY_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
#: How long a unique key counts if the queue has no setting for it.
UNIQUE_WINDOW = dt.timedelta(minutes=5)

_COPY_BLOCK = 100

# In characters. PostgreSQL refuses jsonb arrays of more than 256 MB.
_LONGEST_ARRAY = 32_000_000


def send(
    queue: OpenQueue,
    body: Any,
    *,
    headers: dict[str, Any] | None = None,
    delay: Delay | None = 0,
    priority: int = 0,
    group: str | None = None,
    unique: str | None = None,
) -> int:
    """Send one message and return its id.

    In a transaction, the message is sent when the transaction commits. A rollback takes it back.

    Arguments:
        body: any value JSON can hold; dates, Decimal and UUID become text.
        headers: a dict of such values, or None.
        delay: hides the message for that many seconds (number or timedelta), or until an aware
            datetime.
        priority: from -100 to 100; higher is read first.
        group: the FIFO group, text of 1 to 255 characters; None: none.
        unique: text of 1 to 255 characters; within the queue's unique window only the first send
            with this key adds a message; later sends return its id.

    >>> queue("orders").send({"order": 7}, delay=60)
    1

    Raises QueueNotFound, InvalidMessage and InvalidArgument; nothing is sent then.
    """
    params = {
        "body": arguments.json_text(body),
        "headers": arguments.headers_text(headers),
        "priority": arguments.priority(priority),
        "group": arguments.key(group, "group"),
        **arguments.moment(delay),
    }
    key = arguments.key(unique, "unique")
    if key is None:
        [(pk,)] = queue.runner.run(queue.text("send/send"), params)
    else:
        [(pk,)] = queue.run("send/send_once", {**params, "unique_key": key, **window(queue)})
    return int(pk)


def send_batch(
    queue: OpenQueue,
    bodies: Sequence[Any],
    *,
    headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
    delay: Delay | None = 0,
    priority: int = 0,
    group: Sequence[str | None] | str | None = None,
    unique: Sequence[str | None] | None = None,
) -> list[int]:
    """Send many messages at once, all or none, and return their ids in the same order.

    Uses COPY for ``COPY_THRESHOLD`` messages or more, and for very large ones.

    Arguments:
        bodies: a list with the body of each message, at least one.
        headers, group: one for all, or a list with one for each body.
        delay, priority: one for all, as for :func:`send`.
        unique: a list with a key for each body.

    >>> queue("orders").send_batch([{"order": 7}, {"order": 8}])
    [1, 2]

    Raises InvalidArgument for an empty batch and for lists whose lengths differ, and what
    :func:`send` raises; nothing is sent then.
    """
    bodies = listed(bodies)
    count = len(bodies)
    columns: dict[str, list[Any]] = {
        "headers": _one_each(headers, dict, count, "headers", arguments.headers_text),
        "groups": _one_each(group, str, count, "group", partial(arguments.key, name="group")),
        "unique_keys": _one_each(
            unique, (), count, "unique", partial(arguments.key, name="unique")
        ),
    }
    params = {"priority": arguments.priority(priority), **arguments.moment(delay)}
    return _write(queue, bodies, columns, params)


def listed(bodies: Any) -> list[Any]:
    """Return the bodies of a batch as a list. Raises InvalidArgument if there are none."""
    if isinstance(bodies, (str, bytes, dict)) or not isinstance(bodies, Iterable):
        raise InvalidArgument(f"bodies must be a list of bodies, not {bodies!r}")
    found = list(bodies)
    if not found:
        raise InvalidArgument("bodies is empty: give at least one")
    return found


def _write(
    queue: OpenQueue, bodies: list[Any], columns: dict[str, list[Any]], params: dict[str, Any]
) -> list[int]:
    """Insert the messages by one statement, or by COPY."""
    if not _all_none(columns["unique_keys"]):
        columns["bodies"] = [arguments.json_text(body) for body in bodies]
        return _copy_once(queue, columns, params)
    if len(bodies) < queue.runner.settings.COPY_THRESHOLD:
        array = str(arguments.json_text(bodies))
        if len(array) < _LONGEST_ARRAY:
            groups = columns["groups"]
            values = {
                **params,
                "bodies": array,
                "headers": _json_array(columns["headers"]),
                "group": None if _all_none(groups) else groups,
            }
            return sorted(pk for (pk,) in queue.run("send/send_batch", values))
    return _copy(queue, bodies, columns, params)


def _copy(
    queue: OpenQueue, bodies: list[Any], columns: dict[str, list[Any]], params: dict[str, Any]
) -> list[int]:
    with queue.transaction():
        reserved = queue.run("send/reserve_ids", {**params, "count": len(bodies)})
        ids, moments = zip(*reserved, strict=True)
        # An invalid body ends the COPY, which rolls back the rows before it.
        texts = map(arguments.json_text, bodies)
        _copy_rows(queue, ids, moments[0], {**columns, "bodies": texts}, params)
    return list(ids)


def _copy_once(
    queue: OpenQueue, columns: dict[str, list[Any]], params: dict[str, Any]
) -> list[int]:
    """COPY the messages whose unique key is new. Returns an id for each body."""
    with queue.transaction():
        keys = {"unique_keys": columns["unique_keys"], **window(queue)}
        claimed = queue.run("send/claim_keys", {**params, **keys})
        ids, is_new, moments = zip(*claimed, strict=True)
        if any(is_new):
            fresh = {name: list(compress(values, is_new)) for name, values in columns.items()}
            _copy_rows(queue, list(compress(ids, is_new)), moments[0], fresh, params)
    return list(ids)


def _copy_rows(
    queue: OpenQueue,
    ids: Sequence[int],
    scheduled_at: str | None,
    columns: Mapping[str, Iterable[Any]],
    params: dict[str, Any],
) -> None:
    fixed = {"queue_id": str(queue.id), "priority": str(params["priority"])}
    if scheduled_at is not None:
        fixed["scheduled_at"] = scheduled_at
    start = "\t".join(fixed.values())
    listed = {
        "id": (f"{start}\t{pk}" for pk in ids),
        "group_key": _fields(columns["groups"], _escaped),
        "unique_key": _fields(columns["unique_keys"], _escaped),
        "headers": _fields(columns["headers"], _escaped_json),
        "body": _fields(columns["bodies"], _escaped_json),
    }
    given = {name: values for name, values in listed.items() if values is not None}
    rows = map("\t".join, zip(*given.values(), strict=True))
    names = (("columns", ", ".join([*fixed, *given])),)
    statement = render("send/copy", queue.id, names)
    runner = queue.runner
    with runner.errors, runner.session.cursor() as cursor, cursor.copy(statement) as copy:
        # The server inserts one block while the next is formatted.
        while block := "\n".join(islice(rows, _COPY_BLOCK)):
            copy.write(f"{block}\n")


def window(queue: OpenQueue) -> dict[str, Any]:
    """Return the parameter that holds the queue's unique window."""
    return {"window": queue.unique_window or UNIQUE_WINDOW}


def _one_each(
    value: Any, single: Any, count: int, name: str, checked: Callable[[Any], str | None]
) -> list[str | None]:
    """Return a list with a value for each body. ``value`` is one value for all, or a list."""
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
    """Join JSON texts to a JSON array. Returns None if all are None."""
    if _all_none(texts):
        return None
    return f"[{','.join('null' if text is None else text for text in texts)}]"


def _fields(values: Iterable[str | None], escaped: Callable[[str], str]) -> Iterator[str] | None:
    """Format a column for COPY. Returns None if it has no values, so that it is left out."""
    if isinstance(values, list) and _all_none(values):
        return None
    return ("\\N" if value is None else escaped(value) for value in values)


def _escaped(text: str) -> str:
    return text.translate(_COPY_ESCAPES)


def _escaped_json(text: str) -> str:
    # JSON text has no raw tabs or newlines, so only backslashes are escaped.
    return text.replace("\\", "\\\\")
