"""The time at which attempts began to fail."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from typing import Any

import pytest
from django.db import connection
from django.utils.timezone import now

from django_pgqueue.history.onset import MINUTES, onsets
from django_pgqueue.models import Attempt, History, Queue

MINUTE, SECOND = dt.timedelta(minutes=1), dt.timedelta(seconds=1)


@pytest.fixture
def present(orders: Any) -> dt.datetime:
    """The first second of a minute."""
    return now().replace(second=0, microsecond=0)


def lived(present: dt.datetime, *minutes: tuple[int, int], failed_at: Sequence[float] = ()) -> None:
    """Add minutes of (completed, retried) attempts, the last of which is the present one, and the
    errors of attempts that failed these many seconds ago.
    """
    queue = Queue.objects.get()
    History.objects.bulk_create(
        History(
            queue=queue,
            bucket=present - ago * MINUTE,
            seconds=60,
            process_id=1,
            completed=completed,
            retried=retried,
        )
        for ago, (completed, retried) in enumerate(reversed(minutes))
    )
    Attempt.objects.bulk_create(
        Attempt(queue=queue, message_id=1, attempt=1, at=present - seconds * SECOND)
        for seconds in failed_at
    )


def onset(present: dt.datetime) -> tuple[float, bool] | None:
    """The seconds before the present at which it began, and whether it may have begun before."""
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT q.id, m.* FROM pgqueue_queue q CROSS JOIN LATERAL ({MINUTES}) m")
        [(pk, *minutes)] = cursor.fetchall()
    found = onsets("default", {pk: list(zip(*minutes, strict=True))}, 0.04, present).get(pk)
    return found and ((present - found.at).total_seconds(), found.is_earlier)


def test_the_onset_is_the_second_of_the_first_failure_of_many(present):
    """17 seconds before the end of a minute. Single attempts failed in an earlier minute, too."""
    lived(
        present,
        *[(60, 0)] * 4,
        (59, 1),
        *[(60, 0)] * 10,
        (42, 18),
        (0, 60),
        (0, 1),
        failed_at=[77 + 40, *range(77, 0, -1)],
    )

    assert onset(present) == (77, False)


@pytest.mark.parametrize(
    ("minutes", "began"),
    [
        ([(5, 0), (2, 1), (5, 0), (5, 0), (5, 0), (0, 5), (0, 5)], 1),
        # As on a quiet queue: a few of many fail, and not in each minute.
        ([*[(40, 0)] * 9, *[(8, 4), (9, 3), (12, 0), (7, 5)] * 5], 19),
        # An earlier incident that was over.
        ([(60, 0), (0, 60), (0, 60), (60, 0), (60, 0), (60, 0), (0, 60), (0, 60)], 1),
        # Half of the attempts failed before all of them did.
        ([*[(60, 0)] * 5, (30, 30), (30, 30), (0, 60), (0, 60)], 3),
        # Fixed two minutes ago: still an alert.
        ([*[(60, 0)] * 5, (0, 60), (0, 60), (60, 0), (60, 0)], 3),
        ([(0, 3)], 0),
    ],
)
def test_the_onset_is_where_the_share_of_failures_rose(present, minutes, began):
    lived(present, *minutes)

    assert onset(present) == (60 * began, False)


def test_failures_that_ended_long_ago_have_no_onset(present):
    lived(present, (60, 0), (0, 60), *[(60, 0)] * 15)

    assert onset(present) is None


def test_an_onset_before_the_minutes_that_are_kept_is_not_invented(present):
    lived(present, *[(50, 10)] * 60)

    assert onset(present) == (59 * 60, True)
