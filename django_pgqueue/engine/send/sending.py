"""Send one message, or many at once, in the caller's transaction if there is one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import compress, islice
from typing import Any

from django_pgqueue.engine import arguments
from django_pgqueue.engine.columns import COMMON
from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.send.once import claim
from django_pgqueue.engine.statements import Part, render
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.types import Delay, OnConflict, Sent, Until

__all__ = ["listed", "send", "send_batch"]

# Characters that COPY's text format escapes.
_COPY_ESCAPES = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
#: Values of placeholders for a send with ``expires``. Other sends omit the column.
_EXPIRING = {"expires_at": "expires_at, ", "expires": Part("send/expires")}

_COPY_BLOCK = 100

# In characters. PostgreSQL refuses jsonb arrays of more than 256 MB.
_LONGEST_ARRAY = 32_000_000


_TO_SOURCE = "send to its source, and each of its subscriptions gets the message"


def send(
    queue: OpenQueue,
    body: Any,
    *,
    headers: dict[str, Any] | None = None,
    delay: Delay | None = 0,
    expires: Delay | None = None,
    priority: int = 0,
    group: str | None = None,
    unique: str | None = None,
    until: Until | None = None,
    on_conflict: OnConflict = "skip",
    max_wait: float | dt.timedelta | None = None,
) -> Sent:
    """Send one message and return its id.

    The id is a number, and a :class:`~django_pgqueue.types.Sent`.

    In a transaction, the message is sent when that commits, and not sent if it is rolled back.

    Arguments:
        body: any value JSON can hold; dates, Decimal and UUID become text.
        headers: a dict of such values, or None.
        delay: hides the message for seconds (number or timedelta), or until an aware datetime.
        expires: seconds from now (number or timedelta) or an aware datetime. A message that is not
            delivered by then is archived as EXPIRED, unhandled. None: it never expires.
        priority: from -100 to 100; higher is read first.
        group: the FIFO group, text of 1 to 255 characters. None: no group.
        unique: a key, text of 1 to 255 characters. While a message holds it, a send with the same
            key adds no second message. ``conflict`` of the result says what happened.
        until: how long the message holds the key: until its first delivery (``"started"``), until
            it has left the queue (``"done"``), or for seconds or a timedelta. None: the queue's
            ``unique_window``; ``"started"`` if ``on_conflict`` is given.
        on_conflict: what a send does if a message holds the key. ``"skip"`` returns its id.
            ``"replace"`` archives it, and sends the new message in its place. ``"delay"`` does the
            same, and ``delay`` starts again. A message in flight is not replaced: with
            ``until="started"`` the new message is sent as well, otherwise it is skipped.
        max_wait: with ``"delay"``, the longest time from the first send until the message becomes
            readable: seconds or a timedelta. None: no limit.

    >>> queue("orders").send({"order": 7}, delay=60)
    1

    Raises QueueNotFound, InvalidMessage and InvalidArgument; nothing is sent then.
    """
    queue.refuse_subscription(_TO_SOURCE)
    params = {
        "body": arguments.json_text(body),
        "headers": arguments.headers_text(headers),
        "priority": arguments.priority(priority),
        "group": arguments.key(group, "group"),
        **arguments.moment(delay),
        **(expiry := arguments.expiry(expires)),
    }
    names = _EXPIRING if expiry else {}
    if unique is None and until is None and on_conflict == "skip" and max_wait is None:
        [(pk,)] = queue.runner.run(queue.text("send/send", **names), params)
        return Sent(pk)
    claimed = claim(queue.unique_window, unique, until, on_conflict, delay, max_wait)
    params["unique"] = arguments.key(unique, "unique")
    [(pk, conflict)] = queue.run("send/send_once", {**params, **claimed}, **names)
    return Sent.of(pk, conflict)


def send_batch(
    queue: OpenQueue,
    bodies: Sequence[Any],
    *,
    headers: Sequence[dict[str, Any] | None] | dict[str, Any] | None = None,
    delay: Delay | None = 0,
    expires: Delay | None = None,
    priority: int = 0,
    group: Sequence[str | None] | str | None = None,
    unique: Sequence[str | None] | None = None,
    until: Until | None = None,
    on_conflict: OnConflict = "skip",
    max_wait: float | dt.timedelta | None = None,
) -> list[Sent]:
    """Send many messages at once, all or none, and return their ids in the same order.

    Uses COPY for ``COPY_THRESHOLD`` messages or more, and for very large ones.

    Arguments:
        bodies: a list with the body of each message, at least one.
        headers, group: one for all, or a list with one for each body.
        unique: a list with a key or None for each body. Of bodies with the same key, ``"skip"``
            sends the first; ``"replace"`` and ``"delay"`` send the last.
        delay, expires, priority, until, on_conflict, max_wait: one for all, as for :func:`send`.

    >>> queue("orders").send_batch([{"order": 7}, {"order": 8}])
    [1, 2]

    Raises InvalidArgument for an empty batch and for lists whose lengths differ, and what
    :func:`send` raises; nothing is sent then.
    """
    queue.refuse_subscription(_TO_SOURCE)
    bodies = listed(bodies)
    count = len(bodies)
    columns: dict[str, list[Any]] = {
        "headers": _one_each(headers, dict, count, "headers", arguments.headers_text),
        "groups": _one_each(group, str, count, "group", partial(arguments.key, name="group")),
        "unique_keys": _one_each(
            unique, (), count, "unique", partial(arguments.key, name="unique")
        ),
    }
    params = {
        "priority": arguments.priority(priority),
        **arguments.moment(delay),
        **arguments.expiry(expires),
    }
    if unique is not None or until is not None or on_conflict != "skip" or max_wait is not None:
        claimed = claim(queue.unique_window, unique, until, on_conflict, delay, max_wait)
        if not _all_none(columns["unique_keys"]):
            columns["bodies"] = [arguments.json_text(body) for body in bodies]
            return _copy_once(queue, columns, {**params, **claimed})
    return list(map(Sent, _write(queue, bodies, columns, params)))


def listed(bodies: Any) -> list[Any]:
    """Return the bodies of a batch as a list. Raises InvalidArgument if there are none."""
    if isinstance(bodies, (str, bytes, dict)) or not isinstance(bodies, Iterable):
        raise InvalidArgument(f"bodies must be a list of bodies, not {bodies!r}")
    found = list(bodies)
    if not found:
        raise InvalidArgument("bodies is empty: pass at least one body")
    return found


def _write(
    queue: OpenQueue, bodies: list[Any], columns: dict[str, list[Any]], params: dict[str, Any]
) -> list[int]:
    """Insert the messages by one statement, or by COPY."""
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
            names = _EXPIRING if "expires_at" in params else {}
            return sorted(pk for (pk,) in queue.run("send/send_batch", values, **names))
    return _copy(queue, bodies, columns, params)


def _copy(
    queue: OpenQueue, bodies: list[Any], columns: dict[str, list[Any]], params: dict[str, Any]
) -> list[int]:
    with queue.transaction():
        reserved = queue.run("send/reserve_ids", {**params, "count": len(bodies)})
        ids, moments = zip(*reserved, strict=True)
        # An invalid body ends the COPY, which rolls back the rows before it.
        texts = map(arguments.json_text, bodies)
        columns |= {"scheduled_ats": list(moments)}
        _copy_rows(queue, ids, {**columns, "bodies": texts}, params)
    return list(ids)


def _copy_once(
    queue: OpenQueue, columns: dict[str, list[Any]], params: dict[str, Any]
) -> list[Sent]:
    """Claim the unique keys, and COPY the messages that were not skipped.

    Returns an id for each message; for a skipped one, the id of the message that holds its key.
    """
    keys = columns["unique_keys"]
    given = {
        "unique_keys": keys,
        "groups": columns["groups"],
        "priorities": [params["priority"]] * len(keys),
    }
    with queue.transaction():
        claimed = queue.run("send/claim_keys", {**params, **given})
        ids, conflicts, moments = zip(*claimed, strict=True)
        is_sent = [conflict != "skipped" for conflict in conflicts]
        if any(is_sent):
            columns |= {"scheduled_ats": list(moments)}
            sent = {name: list(compress(values, is_sent)) for name, values in columns.items()}
            _copy_rows(queue, list(compress(ids, is_sent)), sent, params)
    return list(map(Sent.of, ids, conflicts))


def _copy_rows(
    queue: OpenQueue,
    ids: Sequence[int],
    columns: Mapping[str, Iterable[Any]],
    params: dict[str, Any],
) -> None:
    common = {column.name: params[column.name] for column in COMMON}
    fixed = {"queue_id": str(queue.id)}
    fixed |= {name: _escaped(str(value)) for name, value in common.items() if value is not None}
    if "expires_at" in params:
        [(fixed["expires_at"],)] = queue.run("send/expiry", params)
    start = "\t".join(fixed.values())
    listed = {
        "id": (f"{start}\t{pk}" for pk in ids),
        "scheduled_at": _fields(columns["scheduled_ats"], str),
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


def _one_each(
    value: Any, single: Any, count: int, name: str, checked: Callable[[Any], str | None]
) -> list[str | None]:
    """Return a list with a value for each body. ``value`` is one value for all, or a list."""
    if value is None or isinstance(value, single):
        return [checked(value)] * count
    values = list(value)
    if len(values) != count:
        raise InvalidArgument(
            f"{name} has {len(values)} items, but there are {count} bodies: pass one item for "
            f"each body, or one value for all"
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
