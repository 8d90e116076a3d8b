"""Where a subscription stands in its source: begin, seek, and how far it is behind."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from typing import Any, NamedTuple

from django_pgqueue.engine import arguments
from django_pgqueue.engine.audit.entry import record
from django_pgqueue.engine.open_queue import OpenQueue, looking, subscribed
from django_pgqueue.engine.runner import READ_COMMITTED, Rows, Runner
from django_pgqueue.engine.sqlstates import DEADLOCK, sqlstate
from django_pgqueue.engine.statements import render
from django_pgqueue.errors import InvalidArgument
from django_pgqueue.types import Lag

__all__ = [
    "EARLIEST",
    "NOW",
    "Behind",
    "begin",
    "behind",
    "lag",
    "position_of",
    "seek",
    "skip_unread",
]

#: Before the first message, and behind the last one.
EARLIEST, NOW = "earliest", "now"

Start = str | dt.datetime | int

#: How often a seek is tried that the server ends because of a deadlock.
_TRIES = 5
# More messages than a queue has.
_ALL = 2**62


class Behind(NamedTuple):
    """What the source has behind a subscription's position."""

    #: How many of the source's messages it has not read yet, with those that it will skip.
    messages: int
    #: Whether that number is an estimate, because there are more than the limit.
    is_estimate: bool
    #: How long ago the first of them was sent, in seconds. None without any.
    seconds: float | None
    #: How many messages it has lost since it began: they left the source after ``keep_for``.
    lost: int
    #: How long ago the last unread message was sent, in seconds. None without any.
    newest: float | None
    #: Why no message is delivered: a reason of :class:`~django_pgqueue.types.Wait`, or None.
    held: str | None
    #: How many messages were ever sent to the source, by the server's statistics.
    sent: int
    #: When the first unread message was sent. None without any.
    unread_since: dt.datetime | None


def begin(runner: Runner, queue_id: int, source_id: int, start: Start) -> None:
    """Store the first position of a subscription, in the caller's transaction.

    ``start`` is what :func:`seek` takes. Raises InvalidArgument.
    """
    names = tuple(subscribed(source_id).items())

    def run(statement: str, params: Mapping[str, Any] | None = None) -> Rows:
        return runner.run(render(statement, queue_id, names), params)

    place = position_of(start, "start")
    run("subscriptions/keep_out")
    if run("subscriptions/is_foreign"):
        run("subscriptions/adopt")
    run("subscriptions/begin", _place(run("subscriptions/find", place)))
    [(source,)] = runner.run(
        "SELECT name FROM pgqueue_queue WHERE id = %(source)s", {"source": source_id}
    )
    record(runner, "subscribe", (queue_id, None), {"to": source, "start": str(start)})


def seek(queue: OpenQueue, to: Start) -> None:
    """Move a subscription, forward or back. The next read begins there.

    Going back, it delivers messages again, also those that were acknowledged; what is in flight,
    waits for a retry or is archived is taken back, and comes again from there. Going forward, it
    leaves messages out; what is in flight or waits for a retry stays. Waits for transactions in
    which messages leave the source.

    Messages are in the order in which their transactions began to write. ``seek`` goes to the first
    in this order that satisfies the argument, so the subscription gets every message that satisfies
    it, and may get some that do not.

    Arguments:
        to: ``"earliest"``: before all messages that the source has. ``"now"``: behind all that are
            committed. An aware datetime: to messages sent then or later. An int: to messages with
            this id or a higher one.

    >>> queue("audit").seek(dt.datetime(2026, 11, 28, tzinfo=dt.timezone.utc))

    Raises InvalidArgument, also for a queue that is no subscription; QueueNotFound.
    """
    _refuse_others(queue)
    place = position_of(to, "to")
    alone = queue.runner.alone
    for tries_left in reversed(range(_TRIES)):
        try:
            return _move(queue, to, place)
        except Exception as error:
            # With a transaction that settles messages.
            if not (alone and tries_left and sqlstate(error) == DEADLOCK):
                raise
    return None


def _move(queue: OpenQueue, to: Start, place: dict[str, Any]) -> None:
    alone = queue.runner.alone
    with queue.transaction():
        if alone:  # each statement has to see what the one before has waited for
            queue.runner.session.execute(READ_COMMITTED)
        queue.run("subscriptions/keep_out")
        if queue.run("subscriptions/is_foreign"):
            queue.run("subscriptions/adopt")
        # A read may move the position meanwhile.
        while not queue.run("subscriptions/seek", _place(queue.run("subscriptions/find", place))):
            pass
        while queue.run("subscriptions/take_back") != [(0,)]:
            pass
        record(queue.runner, "seek", (queue.id, queue.name), {"to": str(to)})


def skip_unread(queue: OpenQueue) -> int:
    """Move a subscription behind all committed messages. Returns how many it has skipped."""
    with queue.transaction():
        queue.run("subscriptions/keep_out")
        found = behind(queue.runner, queue.id, queue.source_id, _ALL)
        seek(queue, NOW)
    return 0 if found is None else found.messages


def lag(queue: OpenQueue, limit: int | None = None) -> Lag | None:
    """Return how far a subscription is behind its source; None if its position is lost.

    Messages in flight and those that wait for a retry do not count: ``metrics`` counts these.

    Arguments:
        limit: counts up to this number, and estimates above it. None: ``EXACT_COUNT_LIMIT``.

    >>> queue("audit").lag().messages
    12

    Raises InvalidArgument for a queue that is no subscription, and QueueNotFound.
    """
    _refuse_others(queue)
    most = queue.runner.settings.EXACT_COUNT_LIMIT if limit is None else limit
    most = arguments.count(most, "limit")
    found = behind(queue.runner, queue.id, queue.source_id, most)
    return None if found is None else Lag(*found[:4])


def behind(runner: Runner, queue_id: int, source_id: int | None, limit: int) -> Behind | None:
    """Return what the source has behind a subscription's position; None if that is lost.

    Counts messages up to ``limit``, and estimates above it.
    """
    names = tuple({**subscribed(source_id), **looking(runner)}.items())
    [(counted, oldest, newest, estimate, lost, is_foreign, held, sent, since)] = runner.run(
        render("subscriptions/lag", queue_id, names), {"qty": limit}
    )
    if is_foreign is not False:
        return None
    is_estimate = counted >= limit
    messages = max(counted, estimate or 0) if is_estimate else counted
    return Behind(messages, is_estimate, oldest, lost, newest, held, sent, since)


def position_of(value: Any, name: str) -> dict[str, Any]:
    """Return the parameters of find.sql for a start or a target. Raises InvalidArgument."""
    if isinstance(value, int) and not isinstance(value, bool):
        [number] = arguments.ids([value])
        return {"id": number, "at": None, "earliest": False}
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return {"id": None, "at": value, "earliest": False}
    if value not in (EARLIEST, NOW):
        raise InvalidArgument(
            f'{name} must be "now", "earliest", an aware datetime or a message\'s id, not {value!r}'
        )
    return {"id": None, "at": None, "earliest": value == EARLIEST}


def _refuse_others(queue: OpenQueue) -> None:
    if queue.source_id is None:
        raise InvalidArgument(
            f"queue {queue.name!r} is no subscription, so it has no position: only queues made "
            f"with subscribe() have one"
        )


def _place(rows: Rows) -> dict[str, Any]:
    """Return the columns of a position that find.sql has found."""
    return dict(zip(("since", "until", "after_xid", "after_id"), rows[0], strict=True))
