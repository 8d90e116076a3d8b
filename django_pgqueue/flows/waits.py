"""Waits of a message for a signal or a time, and signals."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

from asgiref.sync import sync_to_async

from django_pgqueue.database.runner import runner
from django_pgqueue.engine import arguments
from django_pgqueue.engine.sqlstates import is_conflict
from django_pgqueue.engine.wording import length_of
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.flows.steps import STEP_BYTES, Steps, json_value
from django_pgqueue.tables.queue import Queue

__all__ = ["asignal", "signal"]

#: How long a signal is kept for waits that begin after it.
KEPT = dt.timedelta(days=7)
#: How often a wait is tried that the server ends because of a deadlock.
_TRIES = 5
#: The most characters of a signal's key.
LONGEST_KEY = 200
_SEND = "SELECT pgqueue_signal(%(key)s::text, %(value)s::jsonb, %(keep)s::interval)"
_SPAN = re.compile(r"[0-9]{1,9}[smhd]")

Span = float | dt.timedelta | str


def signal(key: str, value: Any = None, *, keep_for: Span = KEPT, using: str | None = None) -> int:
    """Send a signal: the messages that wait for this key go on when this transaction commits.

    A message that waits for the key later gets the signal too, for as long as it is kept. While it
    is kept, a second signal of the same key changes nothing: an event that is reported twice
    counts once. Returns how many messages were waiting.

    Arguments:
        key: names the event: 1 to 200 characters, such as ``"paid:7"``.
        value: JSON of at most 1 MiB, which ``wait_for`` returns.
        keep_for: seconds, a timedelta, or text such as ``"7d"``.
        using: the alias of the queues' database.

    >>> signal("paid:7", {"receipt": "r-41"})
    1

    Raises InvalidArgument, and InvalidMessage for a value that is not JSON.
    """
    text = json_value(value, f"the value of signal {key!r}", STEP_BYTES)
    params = {"key": signal_key(key), "value": text, "keep": span(keep_for, "keep_for")}
    [(count,)] = runner(Queue.objects.database(using)).run(_SEND, params)
    return int(count)


async def asignal(
    key: str, value: Any = None, *, keep_for: Span = KEPT, using: str | None = None
) -> int:
    """The async twin of :func:`signal`."""
    return await sync_to_async(signal)(key, value, keep_for=keep_for, using=using)


def wait(steps: Steps, name: str, key: str | None, timeout: Span) -> dict[str, Any] | None:
    """Return the outcome of a wait; None if there is none yet: the message waits.

    Raises LeaseLost, and InvalidArgument for a name that this delivery has used before.
    """
    length = span(timeout, "timeout")
    done, outcome = steps.begin(name)
    if done:
        found: dict[str, Any] = outcome
        return found
    with steps.under_way(name):
        for tries_left in reversed(range(_TRIES)):
            try:
                return _outcome(steps, name, key, length)
            except Exception as error:
                # With a transaction that has locked the message, and now sends the signal.
                if not (tries_left and is_conflict(error)):
                    raise
    return None


def _outcome(
    steps: Steps, name: str, key: str | None, timeout: dt.timedelta
) -> dict[str, Any] | None:
    """Return the outcome of a wait that is over, and store it. None: the message waits.

    The signal's row is locked first, as by pgqueue_signal: so one sees the other.
    """
    with steps.transaction():
        if key is not None:
            was_sent, value = steps.lock_signal(key, timeout)
            stored = steps.outcome(name)  # by a signal, while this waited for the lock
            if stored is not None:
                return stored
            if was_sent:
                return steps.end_wait(name, {"signal": value})
        if not steps.park(name, key, timeout):
            return None
        if key is not None:
            steps.forget_signal(key)
        return steps.end_wait(name, {"timed_out": True})


def signal_key(key: object, what: str = "the key of a signal") -> str:
    """Validate the key of a signal, or the name of a sleep. Raises InvalidArgument."""
    checked = arguments.key(key, what)
    if checked is None or len(checked) > LONGEST_KEY:
        raise InvalidArgument(f"{what} must be text of 1 to {LONGEST_KEY} characters, not {key!r}")
    return checked


def span(value: object, name: str) -> dt.timedelta:
    """Return a length of time given as seconds, a timedelta, or text. Raises InvalidArgument.

    >>> span("3d", "timeout"), span(90, "timeout")
    (datetime.timedelta(days=3), datetime.timedelta(seconds=90))
    """
    if isinstance(value, str):
        length = length_of(value) if _SPAN.fullmatch(value) else None
        if length is None:
            raise InvalidArgument(
                f"{name} must be seconds, a timedelta, or a number with s, m, h or d such as "
                f"'3d', not {value!r}"
            )
        value = length
    return arguments.duration(value, name, least=0)
