"""The metrics of queues: message counts and ages."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from django_pgqueue.engine.open_queue import OpenQueue
from django_pgqueue.engine.runner import Runner
from django_pgqueue.engine.statements import compose
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
    return _metrics(queue.name, row, limit, limit)


def metrics_of_all(runner: Runner) -> list[Metrics]:
    """:func:`metrics` of every queue of a database, sorted by name, in one statement.

    Counts above a limit are estimates; the more queues, the lower the limit. The number of archived
    messages comes from statistics that lag by seconds. Ages are those of the counted
    messages and of the ready message that is last in line.
    """
    [(queues, *_)] = runner.run(
        f"SELECT count(*), {_FLUSH}, count(CASE WHEN unlogged THEN pgqueue_clear_lost(id) END) "
        "FROM pgqueue_queue"
    )
    exact = int(runner.settings.EXACT_COUNT_LIMIT)
    limit = min(exact, max(LEAST_COUNTED, exact // max(queues, 1)))
    sql = compose("metrics/metrics_all", {"of": "q.id"})
    rows = runner.run(sql, {"limit": limit + 1, "enough": ENOUGH + 1})
    return [_metrics(name, row, limit, most - 1) for name, most, *row in rows]


def _metrics(name: str, row: Sequence[Any], limit: int, ready_limit: int) -> Metrics:
    """Convert a row of metrics.sql, and estimate counts that exceed the limits."""
    (
        ready,
        waiting,
        first_ready,
        first_delayed,
        deferred,
        leased,
        due,
        in_flight,
        delayed,
        oldest_age,
        newest_age,
        archived,
        live_estimate,
        archived_estimate,
        inserted,
        scraped_at,
        complete,
        loose_delayed,
        loose_retries,
        blocked,
    ) = row
    past = {
        "ready": ready > ready_limit or not complete,
        "waiting": waiting > limit or not complete,
        "in_flight": deferred > limit,
        "delayed": deferred > limit,
        "archived": archived > limit,
    }
    found = [
        ("delayed", "scheduled", loose_delayed - loose_retries),
        ("delayed", "retry", loose_retries),
        *json.loads(blocked or "[]"),
    ]
    past["blocked"] = (
        waiting > limit
        or deferred > limit
        or (ready > ready_limit and any(place == "ready" for place, _, _ in found))
    )
    counted = {"ready": ready, "waiting": waiting, "delayed": delayed}
    if archived > limit:
        archived = max(archived, archived_estimate)
    # Messages that only the statistics know are added to the count that stopped at its limit.
    uncounted = max(0, live_estimate - archived - ready - deferred - leased - waiting)
    if ready > ready_limit:
        ready += uncounted
    elif waiting > limit:
        waiting += uncounted
    elif deferred > limit:
        # Rows are counted in order of vt, so those beyond the limit are delayed messages.
        delayed += uncounted
    estimated = {"ready": ready, "waiting": waiting, "delayed": delayed}
    # The waiting count includes the first messages of groups without a head.
    ready, delayed = ready + first_ready, delayed + first_delayed
    waiting -= first_ready + first_delayed
    length = ready + waiting + due + in_flight + delayed
    return Metrics(
        queue_name=name,
        length=length,
        ready=ready,
        in_flight=in_flight,
        delayed=delayed,
        waiting=waiting,
        visible=ready + due,
        oldest_age=oldest_age,
        newest_age=newest_age,
        archived=archived,
        total=max(length + archived, inserted),
        scraped_at=scraped_at,
        blocked=_blocked(found, counted, estimated),
        exact=not any(past.values()),
        estimated=tuple(name for name, is_past in past.items() if is_past),
    )


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
