"""Reads that wait for messages: the ``_with_poll`` form of each read."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.read import grouped
from django_pgqueue.engine.read.reading import lease
from django_pgqueue.engine.read.sleep import Sleep
from django_pgqueue.engine.rows import Deliveries
from django_pgqueue.engine.runner import Runner
from django_pgqueue.engine.wake import CHANNEL
from django_pgqueue.errors import InvalidArgument

__all__ = ["read_grouped_rr_with_poll", "read_grouped_with_poll", "read_with_poll"]


def read_with_poll(
    queue: OpenQueue,
    *,
    vt: float | dt.timedelta | None = None,
    qty: int | None = 1,
    max_poll_seconds: float = 5,
    poll_interval_ms: float = 100,
    conditional: dict[str, Any] | None = None,
) -> Deliveries:
    """Read; if there are no messages, wait for some.

    Returns as soon as there are messages, even if fewer than ``qty``. It reads again at a
    notification, when the next message is due, and every ``poll_interval_ms``. No transaction is
    open while it waits.

    Arguments:
        vt, qty, conditional: as for ``read``.
        max_poll_seconds: how long to wait at most; zero tries once.
        poll_interval_ms: the longest time between two reads, in milliseconds.

    >>> queue("orders").read_with_poll(max_poll_seconds=0)
    []

    Raises what ``read`` raises.
    """
    read = partial(lease, queue, vt=vt, qty=qty, conditional=conditional)
    return _poll(queue, "read_with_poll", read, qty, max_poll_seconds, poll_interval_ms)


def read_grouped_with_poll(
    queue: OpenQueue,
    *,
    vt: float | dt.timedelta | None = None,
    qty: int = 1,
    max_poll_seconds: float = 5,
    poll_interval_ms: float = 100,
) -> Deliveries:
    """``read_grouped``; if there are no messages, wait as ``read_with_poll`` does.

    >>> queue("orders").pgmq.read_grouped_with_poll(qty=10, max_poll_seconds=0)
    []

    Raises what ``read_grouped`` raises.
    """
    read = partial(grouped.read_grouped, queue, vt=vt, qty=qty, in_transaction=True)
    return _poll(queue, "read_grouped_with_poll", read, qty, max_poll_seconds, poll_interval_ms)


def read_grouped_rr_with_poll(
    queue: OpenQueue,
    *,
    vt: float | dt.timedelta | None = None,
    qty: int = 1,
    max_poll_seconds: float = 5,
    poll_interval_ms: float = 100,
) -> Deliveries:
    """``read_grouped_rr``; if there are no messages, wait as ``read_with_poll`` does.

    >>> queue("orders").pgmq.read_grouped_rr_with_poll(qty=10, max_poll_seconds=0)
    []

    Raises what ``read_grouped_rr`` raises.
    """
    read = partial(grouped.read_grouped_rr, queue, vt=vt, qty=qty, in_transaction=True)
    return _poll(queue, "read_grouped_rr_with_poll", read, qty, max_poll_seconds, poll_interval_ms)


def _poll(
    queue: OpenQueue,
    operation: str,
    read: Callable[[], Deliveries],
    qty: int | None,
    max_poll_seconds: float,
    poll_interval_ms: float,
) -> Deliveries:
    """Call ``read`` until it finds messages. Refuses open transactions, since ``read`` does not."""
    queue.refuse_transaction(operation)
    deadline = time.monotonic() + _seconds(max_poll_seconds, "max_poll_seconds")
    interval = max(_seconds(poll_interval_ms, "poll_interval_ms") / 1000, 0.001)
    taken = read()
    if taken or qty == 0 or time.monotonic() >= deadline:
        return taken
    with _listening(queue.runner):
        sleep, heard = Sleep(), _heard(queue)
        while True:
            before, taken = taken, read()
            taken.add_ended(before)
            if taken:
                break
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                break
            seconds, _ = sleep.begin(queue, interval)
            _wait(queue, min(remaining, seconds), sleep, heard)
    return taken


@contextlib.contextmanager
def _listening(runner: Runner) -> Iterator[None]:
    with runner.errors:
        runner.session.execute(f"LISTEN {CHANNEL}")
    try:
        yield
    finally:
        # Errors are ignored: a closed connection no longer listens.
        with contextlib.suppress(Exception), runner.errors:
            runner.session.execute(f"UNLISTEN {CHANNEL}")


def _heard(queue: OpenQueue) -> set[str]:
    """Return the names of the queues whose notifications are for a reader of this one."""
    rows = (
        queue.runner.run(
            "SELECT name FROM pgqueue_queue WHERE id = %(source)s::integer",
            {"source": queue.source_id},
        )
        if queue.source_id is not None
        else []
    )
    return {queue.name, *(name for (name,) in rows)}


def _wait(queue: OpenQueue, seconds: float, sleep: Sleep, heard: set[str]) -> None:
    """Wait up to ``seconds`` for a notification."""
    runner = queue.runner
    if not runner.alone:
        # No notification arrives inside a test's transaction.
        time.sleep(seconds)
        return
    with runner.errors:
        for notice in runner.session.notifies(timeout=seconds):
            if notice.payload in heard:
                sleep.hear(notice.pid)
                return


def _seconds(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
        raise InvalidArgument(f"{name} must be zero or more, not {value!r}")
    return float(value)
