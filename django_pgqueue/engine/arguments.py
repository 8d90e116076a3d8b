"""Validates the arguments of operations, and converts them to parameters of SQL statements."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeGuard

from django_pgqueue.engine.encoding import encode
from django_pgqueue.errors import InvalidArgument, InvalidMessage, InvalidQueueName
from django_pgqueue.types import BatchReceipt, Delay, Receipt, Sent

#: What a queue's name and a rate must match, in Python and in PostgreSQL.
NAME, RATE = r"[A-Za-z0-9_.-]{1,63}", r"[1-9][0-9]{0,8}/[smhd]"
_NAME, _RATE = re.compile(NAME), re.compile(RATE)
#: The limits of a span, which is a setting that is a length of time.
SHORTEST, LONGEST = dt.timedelta(seconds=1), dt.timedelta(days=365 * 1000)
#: The shortest length of time above zero, in seconds.
POSITIVE = 1e-6
_LEAST = {0: "zero seconds or more", POSITIVE: "more than zero seconds", 1: "at least a second"}
INT4 = 2**31 - 1
#: The most characters of a group key or a unique key.
LONGEST_KEY = 255
#: The highest limit or burst. Each slot is a row, numbered by a smallint.
MOST_SLOTS = 10_000
# The limits of the constraint pgqueue_time_range.
_FIRST = dt.datetime(1, 1, 2, tzinfo=dt.timezone.utc)
_LAST = dt.datetime(9999, 1, 1, tzinfo=dt.timezone.utc)

#: jsonb holds a little less than 256 MiB.
_LARGEST = 255 * 1024 * 1024

# Characters that PostgreSQL's text cannot hold.
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")

# An escaped NUL in JSON text. Not matched after another backslash, where \u0000 is ordinary text.
_NUL = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")


def queue_name(name: object) -> str:
    """Validate a queue name, and return it unchanged. Raises InvalidQueueName."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidQueueName(name)
    return name


def queue_or_none(value: object, name: str) -> str | None:
    """Validate the name of a queue, or None."""
    try:
        return None if value is None else queue_name(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{name} must be the name of a queue or None: {error}") from error


def quantity(qty: object) -> int | None:
    """Validate a number of messages: zero or more, or None for all."""
    return None if qty is None else count(qty, "qty", 0)


def priority(value: object) -> int:
    """Validate a priority from -100 to 100. Higher priorities are read first."""
    return count(value, "priority", -100, 100)


def key(value: object, name: str) -> str | None:
    """Validate a group or unique key: 1 to 255 characters that PostgreSQL can store, or None."""
    if value is None:
        return None
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= LONGEST_KEY
        or _UNSTORABLE.search(value)
    ):
        raise InvalidArgument(
            f"{name} must be text of 1 to {LONGEST_KEY} characters without NUL and lone "
            f"surrogates, or None, not {value!r}. Convert an id to text with str()"
        )
    return value


def group(value: object) -> str:
    """Validate the key of a group. Raises InvalidArgument for None, too."""
    checked = key(value, "group")
    if checked is None:
        raise InvalidArgument("group must be text, not None: name the group")
    return checked


def count(value: object, name: str, least: int = 1, most: int = INT4) -> int:
    """Validate a whole number within these limits, by default those of a positive int4."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        limits = ", at least 1," if (least, most) == (1, INT4) else f" from {least} to {most},"
        raise InvalidArgument(f"{name} must be a whole number{limits} not {value!r}")
    return value


def seconds(value: object, name: str) -> int:
    """Validate a length of time in whole seconds, at least one, and convert it to an int."""
    if isinstance(value, dt.timedelta) and value % dt.timedelta(seconds=1) == dt.timedelta(0):
        value = value // dt.timedelta(seconds=1)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= INT4:
        raise InvalidArgument(f"{name} must be whole seconds, at least 1, not {value!r}")
    return value


def process(value: object) -> int | None:
    return None if value is None else count(value, "process_id")


def duration(value: object, name: str = "vt", *, least: float | None = None) -> dt.timedelta:
    """Convert seconds or a timedelta to a timedelta.

    ``least`` is the minimum in seconds: 0, POSITIVE or 1. None: no minimum.
    """
    if isinstance(value, dt.timedelta):
        length = value
    elif isinstance(value, bool) or not isinstance(value, (int, float)):
        raise InvalidArgument(f"{name} must be seconds or a timedelta, not {value!r}")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidArgument(f"{name} must be finite, not {value!r}")
    else:
        try:
            length = dt.timedelta(seconds=value)
        except OverflowError:
            length = dt.timedelta.max
    if abs(length) > LONGEST:
        raise InvalidArgument(f"{name} must be less than a thousand years, not {value!r}")
    if least is not None and length < dt.timedelta(seconds=least):
        raise InvalidArgument(f"{name} must be {_LEAST[least]}, not {value!r}")
    return length


def span(value: object, name: str) -> dt.timedelta | None:
    """Convert a length of time, at least a second, to a timedelta; None stays None."""
    return None if value is None else duration(value, name, least=1)


def flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidArgument(f"{name} must be True or False, not {value!r}")
    return value


def slots(value: object, name: str) -> int | None:
    """Validate a limit or a burst: 1 to 10,000, or None."""
    return None if value is None else count(value, name, 1, MOST_SLOTS)


def rate(value: object, name: str) -> str | None:
    """Validate a rate: a number of messages in a second, minute, hour or day, or None."""
    if value is None:
        return None
    if not isinstance(value, str) or not _RATE.fullmatch(value):
        raise InvalidArgument(
            f"{name} must be a number of messages in a second, minute, hour or day, "
            f'such as "30/m", not {value!r}'
        )
    return value


#: The settings of a queue that limit it.
LIMITS = ("limit", "rate", "burst", "group_limit", "group_rate", "group_burst")


def limits_together(limits: Mapping[str, Any]) -> None:
    """Raise InvalidArgument for a burst without its rate, or a group_burst with a group_limit."""
    for burst, rate in (("burst", "rate"), ("group_burst", "group_rate")):
        if limits.get(burst) is not None and limits.get(rate) is None:
            raise InvalidArgument(f"{burst} needs a {rate}: set both, or neither")
    if limits.get("group_burst") is not None and limits.get("group_limit") is not None:
        raise InvalidArgument(
            "group_burst and group_limit cannot both be set: the group_limit is also the burst of "
            "group_rate. Set group_burst to None"
        )


#: The settings that only subscriptions have, and those that they do not have.
OF_SUBSCRIPTIONS = ("keep_for", "archive_completed")
NOT_OF_SUBSCRIPTIONS = (
    "partition_interval",
    "unique_window",
    "group_limit",
    "group_rate",
    "group_burst",
    "unlogged",
)


def refuse_loop(queue: Any, target: int | None, queues: Any) -> None:
    """Raise InvalidArgument if dead letters of ``queue``, sent to ``target``, would come back.

    They also come back to a subscription whose source they reach. ``target`` is the id of the
    dead-letter queue, ``queues`` a queryset of all queues. The models are this package's, or those
    of a migration, which may be older than subscriptions.
    """
    has_sources = hasattr(queue, "source_id")
    ways: list[tuple[int, tuple[str, ...]]] = [] if target is None else [(target, (queue.name,))]
    passed: set[int] = set()
    while ways:
        reached, path = ways.pop()
        if reached in passed:
            continue
        passed.add(reached)
        found = queues.filter(pk=reached).first()
        if found is None:
            raise InvalidArgument(
                f"the dead_letter_queue of queue {queue.name!r} does not exist: it was dropped. "
                f"Create it again, or name another one"
            )
        path = (*path, found.name)
        if has_sources and found.source_id is not None:
            raise InvalidArgument(
                f"the dead_letter_queue of queue {queue.name!r} cannot be {found.name!r}, which is "
                f"a subscription: it gets only its source's messages. Name another queue"
            )
        if reached in (queue.pk, has_sources and queue.source_id):
            raise InvalidArgument(
                f"the dead-letter queues would form a cycle: {' -> '.join(path)}. Leave one of "
                f"these queues without a dead_letter_queue"
            )
        for each in (found, *(queues.filter(source=reached) if has_sources else ())):
            if each.dead_letter_queue_id is not None:
                way = path if each is found else (*path, each.name)
                ways.append((each.dead_letter_queue_id, way))


def subscribed(settings: Mapping[str, Any], source: object) -> None:
    """Raise InvalidArgument for settings that only a subscription has, or that it cannot have."""
    if source is None:
        wrong = [name for name in OF_SUBSCRIPTIONS if settings.get(name)]
        if wrong:
            raise InvalidArgument(
                f"{wrong[0]} is a setting of subscriptions: leave it out, or make the queue with "
                f'subscribe(to="…")'
            )
        return
    wrong = [name for name in NOT_OF_SUBSCRIPTIONS if settings.get(name)]
    if wrong:
        raise InvalidArgument(
            f"a subscription has no {wrong[0]}: its messages are the source's. Leave it out"
        )


def moment(value: Delay | None, name: str = "delay") -> dict[str, Any]:
    """Convert a delay to the parameters ``at`` (a time) and ``after`` (a timedelta from now).

    Only one of them is set, and neither for a delay of zero or None. Raises InvalidArgument for a
    naive datetime.
    """
    if isinstance(value, dt.datetime):
        if value.utcoffset() is None:
            raise InvalidArgument(
                f"{name} is the naive datetime {value!r}: add a time zone, for example with "
                f"django.utils.timezone.make_aware()"
            )
        if not _FIRST <= value < _LAST:
            raise InvalidArgument(
                f"{name} must be in the years 1 to 9998, in every time zone, not {value!r}"
            )
        return {"at": value, "after": None}
    if value is None or (type(value) is int and value == 0):
        return {"at": None, "after": None}
    return {"at": None, "after": duration(value, name) or None}


def expiry(value: Delay | None) -> dict[str, Any]:
    """Convert ``expires`` to the parameters ``expires_at`` and ``expires_after``; {} for None."""
    if value is None:
        return {}
    if isinstance(value, dt.datetime):
        at = moment(value, "expires")["at"]
        if at <= dt.datetime.now(dt.timezone.utc):
            raise InvalidArgument(f"expires must be in the future, not {value!r}")
        return {"expires_at": at, "expires_after": None}
    return {"expires_at": None, "expires_after": duration(value, "expires", least=POSITIVE)}


def condition(value: object) -> str | None:
    """Return the JSON text of ``conditional``. For None and {}, which match any body: None."""
    return None if value == {} else json_text(value, "conditional")


def json_text(value: object, what: str = "body") -> str | None:
    """Return the JSON text of a body or headers. None stays None, which is stored as NULL.

    Raises InvalidMessage for values that are not JSON (NaN, Infinity, unknown types) or that jsonb
    cannot hold (NUL, lone surrogates).
    """
    if value is None:
        return None
    try:
        text = encode(value)
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"{what} holds a lone surrogate, which PostgreSQL cannot store: {error}. "
            f"Decode the text with its own encoding, or with errors='replace'."
        ) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidMessage(
            f"{what} is not JSON: {error}. Send dicts, lists, text, numbers, booleans, dates, "
            f"Decimal or UUID; NaN and Infinity have no JSON form."
        ) from error
    if size > _LARGEST:
        raise InvalidMessage(
            f"{what} is {size // 2**20} MiB of JSON, more than the 255 MiB that jsonb can hold. "
            f"Store the data in a file or a table, and send its path or key."
        )
    if "\\u0000" in text and _NUL.search(text):
        raise InvalidMessage(
            f"{what} holds the character NUL (\\u0000), which PostgreSQL cannot store. "
            f"Remove it, or encode the bytes as base64."
        )
    return text


def headers_text(value: object) -> str | None:
    """Return the JSON text of headers. Raises InvalidMessage unless they are a dict or None."""
    if value is not None and not isinstance(value, dict):
        raise InvalidMessage(f"headers must be a dict or None, not {value!r}")
    return json_text(value, "headers")


def targets(receipts_or_ids: Any) -> tuple[list[Receipt], list[int]]:
    """Separate receipts from bare ids. Removes duplicates and keeps the order.

    Takes a receipt, an id or a message, or many of them. A message counts as its receipt.

    >>> targets([Receipt(1, 1, 5), 2, 2])
    ([Receipt(id=1, read_ct=1, read_at=5)], [2])
    """
    if isinstance(receipts_or_ids, (Receipt, int)) or hasattr(receipts_or_ids, "receipt"):
        receipts_or_ids = [receipts_or_ids]
    elif type(receipts_or_ids) is not list and (
        isinstance(receipts_or_ids, (str, bytes)) or not isinstance(receipts_or_ids, Iterable)
    ):
        raise InvalidArgument(
            f"pass a message, a receipt, an id, or a list of these, not {receipts_or_ids!r}"
        )
    receipts: dict[Receipt, None] = {}
    ids: dict[int, None] = {}
    for target in receipts_or_ids:
        target = getattr(target, "receipt", target)
        if _is_receipt(target):
            receipts[target] = None
        elif is_id(target):
            ids[target] = None
        else:
            raise InvalidArgument(f"pass messages, receipts or ids, not {target!r}")
    return list(receipts), list(ids)


def ids(values: Any) -> list[int]:
    found = _list(values, "ids", "message ids")
    for value in found:
        if not is_id(value):
            raise InvalidArgument(f"ids: {value!r} is not a message id, which is a whole number")
    return found


def receipts(values: Any) -> list[Receipt]:
    found = _list(values, "receipts", "receipts")
    for value in found:
        if not _is_receipt(value):
            raise InvalidArgument(
                f"receipts: {value!r} is not a receipt: pass the .receipt of a read message"
            )
    return found


def by_receipt(values: Any, name: str, each: str) -> dict[Receipt, Any]:
    """Validate a dict whose keys are receipts; None becomes an empty dict."""
    if values is None:
        return {}
    if not isinstance(values, Mapping):
        raise InvalidArgument(f"{name} must be a dict from receipts to {each}, not {values!r}")
    receipts(list(values))
    return dict(values)


def texts(values: Any, name: str) -> dict[Receipt, str | None]:
    """Validate a dict from receipts to texts, such as errors."""
    found = by_receipt(values, name, "texts")
    return {receipt: text(value, name) for receipt, value in found.items()}


def text(value: object, name: str) -> str | None:
    """Validate a text that PostgreSQL can store, or None."""
    if value is not None and (not isinstance(value, str) or _UNSTORABLE.search(value)):
        raise InvalidArgument(
            f"{name} must be text without NUL and lone surrogates, or None, not {value!r}"
        )
    return value


def _list(values: Any, name: str, what: str) -> list[Any]:
    if isinstance(values, (str, bytes, Receipt)) or not isinstance(values, Iterable):
        raise InvalidArgument(f"{name} must be a list of {what}, not {values!r}")
    return list(values)


def is_id(value: object) -> TypeGuard[int]:
    """Whether a value may be the id of a message."""
    return type(value) in (int, Sent) and value.bit_length() < 64  # type: ignore[attr-defined]


def _is_receipt(value: object) -> bool:
    # Only reads make batch receipts, so their fields are valid.
    return type(value) is BatchReceipt or (
        isinstance(value, Receipt)
        and all(map(is_id, value))
        and 0 <= value.read_ct <= INT4
        and value.read_at >= 0
    )


def newest(given: Sequence[Receipt]) -> list[Receipt]:
    """Return the receipt of the last delivery of each message.

    >>> newest([Receipt(7, 1, 5), Receipt(7, 2, 9), Receipt(8, 1, 5)])
    [Receipt(id=7, read_ct=2, read_at=9), Receipt(id=8, read_ct=1, read_at=5)]
    """
    last: dict[int, Receipt] = {}
    for receipt in given:
        known = last.setdefault(receipt.id, receipt)
        if receipt.read_at > known.read_at:
            last[receipt.id] = receipt
    return list(last.values())


def fence(receipts: Sequence[Receipt]) -> dict[str, str]:
    """Return the receipts' fields as parameters: the arrays ids, read_cts and read_ats."""
    ids, read_cts, read_ats = zip(*receipts, strict=True)
    return {"ids": array(ids), "read_cts": array(read_cts), "read_ats": array(read_ats)}


def array(values: Iterable[object]) -> str:
    """Return a PostgreSQL array literal of values that need no quotes.

    A list would be slower as a parameter: psycopg looks at each value to pick a type.
    """
    return "{" + ",".join(map(str, values)) + "}"
