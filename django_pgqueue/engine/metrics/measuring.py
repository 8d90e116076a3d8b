"""The metrics of queues: message counts and ages."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.runner import Runner
from django_pgqueue.engine.statements import compose
from django_pgqueue.engine.subscriptions.positions import Behind, behind
from django_pgqueue.types import Metrics

__all__ = ["metrics", "metrics_of_all"]

#: At least this many messages are counted in each queue, however many queues there are.
LEAST_COUNTED = 100
#: Where the statistics show many ready messages, only this many are counted.
ENOUGH = 25
# Makes the server's statistics include this session's sends at once.
_FLUSH = "pg_stat_force_next_flush()"


def metrics(queue: OpenQueue) -> Metrics:
    """Count the messages of one queue; see :class:`django_pgqueue.types.Metrics`.

    >>> queue("orders").metrics().ready
    12

    Raises QueueNotFound.
    """
    limit = int(queue.runner.settings.EXACT_COUNT_LIMIT)
    if queue.runner.alone:  # in a transaction, statistics are flushed at its end only
        queue.runner.run(f"SELECT {_FLUSH}")
    [row] = queue.run("metrics/metrics", {"limit": limit + 1})
    found = _metrics(queue.name, _Row(*row), limit, limit)
    if queue.source_id is not None:
        return _with_unread(found, behind(queue.runner, queue.id, queue.source_id, limit + 1))
    return found


def metrics_of_all(runner: Runner, number: int | None = None) -> list[Metrics]:
    """:func:`metrics` of every queue of a database, sorted by name, in one statement.

    Counts above a limit are estimates; the more queues, the lower the limit. The number of archived
    messages comes from statistics that lag by seconds. Ages are those of the counted
    messages and of the ready message that is last in line. A subscription takes a statement of its
    own.

    Arguments:
        number: how many queues there are, if the caller knows it, and that none is unlogged.
    """
    if number is None:
        [(number, *_)] = runner.run(
            f"SELECT count(*), {_FLUSH}, count(CASE WHEN unlogged THEN pgqueue_clear_lost(id) END) "
            "FROM pgqueue_queue"
        )
    exact = int(runner.settings.EXACT_COUNT_LIMIT)
    limit = min(exact, max(LEAST_COUNTED, exact // max(number, 1)))
    sql = compose("metrics/metrics_all", {"of": "q.id"})
    rows = runner.run(sql, {"limit": limit + 1, "enough": ENOUGH + 1})
    found = []
    for name, queue_id, source_id, most, *row in rows:
        each = _metrics(name, _Row(*row), limit, most - 1)
        if source_id is not None:
            each = _with_unread(each, behind(runner, queue_id, source_id, limit + 1))
        found.append(each)
    return found


class _Row(NamedTuple):
    """A row of metrics.sql."""

    ready: int
    waiting: int
    first_ready: int
    first_delayed: int
    deferred: int
    leased: int
    due: int
    in_flight: int
    delayed: int
    oldest_age: float | None
    newest_age: float | None
    archived: int
    live_estimate: int
    archived_estimate: int
    inserted: int
    scraped_at: dt.datetime
    complete: bool
    loose_delayed: int
    loose_retries: int
    blocked: str | None


def _metrics(name: str, row: _Row, limit: int, ready_limit: int) -> Metrics:
    """Convert a row of metrics.sql, and estimate counts that exceed the limits."""
    found = [
        ("delayed", "scheduled", row.loose_delayed - row.loose_retries),
        ("delayed", "retry", row.loose_retries),
        *json.loads(row.blocked or "[]"),
    ]
    deferred = row.deferred > limit
    past = {
        "ready": row.ready > ready_limit or not row.complete,
        "waiting": row.waiting > limit or not row.complete,
        "in_flight": deferred,
        "delayed": deferred,
        "archived": row.archived > limit,
        "blocked": row.waiting > limit
        or deferred
        or (row.ready > ready_limit and any(place == "ready" for place, _, _ in found)),
    }
    counted = {"ready": row.ready, "waiting": row.waiting, "delayed": row.delayed}
    archived = max(row.archived, row.archived_estimate) if past["archived"] else row.archived
    # Messages that only the statistics know are added to the count that stopped at its limit.
    known = archived + row.ready + row.deferred + row.leased + row.waiting
    estimated = dict(counted)
    if row.ready > ready_limit:
        estimated["ready"] += max(0, row.live_estimate - known)
    elif row.waiting > limit:
        estimated["waiting"] += max(0, row.live_estimate - known)
    elif deferred:
        # Rows are counted in order of vt, so those beyond the limit are delayed messages.
        estimated["delayed"] += max(0, row.live_estimate - known)
    # The waiting count includes the first messages of groups without a head.
    ready = estimated["ready"] + row.first_ready
    delayed = estimated["delayed"] + row.first_delayed
    waiting = estimated["waiting"] - row.first_ready - row.first_delayed
    length = ready + waiting + row.due + row.in_flight + delayed
    return Metrics(
        queue_name=name,
        length=length,
        ready=ready,
        in_flight=row.in_flight,
        delayed=delayed,
        waiting=waiting,
        visible=ready + row.due,
        oldest_age=row.oldest_age,
        newest_age=row.newest_age,
        archived=archived,
        total=max(length + archived, row.inserted),
        scraped_at=row.scraped_at,
        blocked=_blocked(found, counted, estimated),
        exact=not any(past.values()),
        estimated=tuple(name for name, is_past in past.items() if is_past),
    )


def _with_unread(found: Metrics, ahead: Behind | None) -> Metrics:
    """Count the source's unread messages as ready ones of a subscription."""
    if ahead is None:
        return replace(
            found, position_lost=True, exact=False, estimated=_added(found.estimated, "ready")
        )
    unread = ahead.messages
    length = found.length + unread
    more = {"unread", "ready", *(["blocked"] if ahead.held else [])} if ahead.is_estimate else ()
    ages = [age for age in (found.oldest_age, ahead.seconds) if age is not None]
    new_ages = [age for age in (found.newest_age, ahead.newest) if age is not None]
    blocked = Counter(found.blocked)
    if ahead.held and unread:
        blocked[ahead.held] += unread
    return replace(
        found,
        length=length,
        ready=found.ready + unread,
        visible=found.visible + unread,
        oldest_age=max(ages, default=None),
        newest_age=min(new_ages, default=None),
        total=max(length + found.archived, ahead.sent),
        blocked=dict(sorted(blocked.items(), key=lambda each: (-each[1], each[0]))),
        exact=found.exact and not ahead.is_estimate,
        estimated=_added(found.estimated, *sorted(more)),
        unread=unread,
        lost=ahead.lost,
    )


def _added(names: tuple[str, ...], *others: str) -> tuple[str, ...]:
    return (*names, *(name for name in others if name not in names))


def _blocked(
    found: Iterable[tuple[str, str, int]], counted: Mapping[str, int], estimated: Mapping[str, int]
) -> dict[str, int]:
    """Return the number of blocked messages by reason, the most frequent first.

    Assumes that messages that were not counted have the same reasons, in proportion.
    """
    numbers: dict[str, float] = defaultdict(float)
    for place, reason, number in filter(itemgetter(2), found):
        more = estimated[place] / counted[place] if place in counted else 1
        numbers[reason] += number * more
    order = sorted(numbers, key=lambda reason: (-numbers[reason], reason))
    return {reason: round(numbers[reason]) for reason in order}
