"""The cost of retention grows neither with live messages nor with young outcomes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
import pytest_django
from django.db import connections

from django_pgqueue.maintenance.partitions import (
    create_partition,
    time_ranges,
)
from django_pgqueue.maintenance.retention import lives_in
from django_pgqueue.maintenance.work import Work
from django_pgqueue.models import Message, Queue
from tests.conftest import rolled_back, run_sql
from tests.engine.plans.plans import Plan, watched
from tests.maintenance.partitions import partitions

pytestmark = [pytest.mark.slow, pytest.mark.django_db(databases=["default", "other"])]

USING = "other"
MANY = 100_000
DAY = dt.timedelta(days=1)
PAGES = 8
#: The most outcomes that fit on those pages.
ROWS = PAGES * 120


def run(statement: str, *params: Any) -> list[tuple[Any, ...]]:
    return run_sql(statement, params, using=USING)


def fill(queue: Queue, count: int, *, sent: dt.timedelta, archived: dt.timedelta | None) -> None:
    """Create messages sent ``ago``, and archived then if they are outcomes."""
    run(
        f"INSERT INTO {queue.tables['message']} (queue_id, enqueued_at, priority, scheduled_at, "
        "group_key, body) SELECT %s, now() - %s::interval, n %% 3, "
        "CASE n %% 4 WHEN 0 THEN now() + interval '1 hour' END, "
        "CASE n %% 4 WHEN 1 THEN 'g' || n %% 100 END, 'null' FROM generate_series(1, %s) n",
        queue.pk,
        sent,
        count,
    )
    if archived is None:
        return
    for hot in ("ready", "deferred", "waiting"):
        run(
            f"DELETE FROM pgqueue_{hot} WHERE queue_id = %s AND enqueued_at = now() - %s",
            queue.pk,
            sent,
        )
    run(
        f"INSERT INTO {queue.tables['archive']} (id, enqueued_at, archived_at, queue_id, read_ct, "
        "attempts, state) SELECT id, enqueued_at, now() - %s::interval, queue_id, 1, 1, "
        f"'COMPLETED' FROM {queue.tables['message']} WHERE enqueued_at = now() - %s",
        archived,
        sent,
    )


@pytest.fixture(scope="module", params=["analyzed", "without statistics"])
def queue(
    request: pytest.FixtureRequest,
    django_db_setup: None,
    django_db_blocker: pytest_django.DjangoDbBlocker,
) -> Iterator[Queue]:
    """An old partition behind a large backlog, with young and old outcomes."""
    with django_db_blocker.unblock():
        with rolled_back(USING):
            queue = Message.objects.using(USING).create_queue(
                "daily", partition_interval=DAY, retention=7 * DAY
            )
            start = time_ranges(dt.datetime.now(dt.timezone.utc), DAY)[0][0] - 9 * DAY
            with connections[USING].cursor() as cursor:
                create_partition(cursor, queue.pk, start, start + 2 * DAY)
            fill(queue, 20_000, sent=8 * DAY, archived=8 * DAY)
            fill(queue, 20_000, sent=30 * DAY, archived=20 * DAY)
            fill(queue, MANY, sent=29 * DAY, archived=DAY)
            fill(queue, MANY, sent=dt.timedelta(0), archived=None)
            if request.param == "analyzed":
                run("ANALYZE")
            yield queue
        connections[USING].close()


def work(queue: Queue) -> Work:
    return Work(queue, 1, 1, lambda removed: None)


def scanned(plans: list[Plan]) -> list[str]:
    return [node.relation for plan in plans for node in plan.scanned]


def test_a_look_for_what_lives_in_a_partition_passes_the_backlog_by(queue, db):
    [old, *_] = partitions(queue, USING)

    with rolled_back(USING):
        run("SET LOCAL enable_seqscan = off")  # as under the table lock
        with watched(connections[USING]) as plans:
            assert not lives_in(work(queue), old)

    assert scanned(plans) == []
    for plan in plans:
        # A few pages for each possible priority, and the index of waiting messages: a quarter of
        # the backlog, and as many dead rows.
        assert plan.buffers < 201 * 6 + 2 * 1000, "\n".join(map(str, plan.nodes))


def test_a_batch_reads_so_many_pages_wherever_it_is(queue, db):
    default = partitions(queue, USING)[-1]
    page = {"before": dt.datetime.now(dt.timezone.utc) - 7 * DAY, "exported_below": None}

    for first, expected in ((0, True), (700, False)):
        params = {**page, "batch": 100, "first": f"({first},0)", "end": f"({first + PAGES},0)"}
        with rolled_back(USING), watched(connections[USING]) as plans:
            [(gone, *_)] = work(queue).fetch("expire", params, default)

        assert (gone > 0) is expected
        for plan in plans:
            plan.check(rows=ROWS, buffers=ROWS * 10)


@pytest.mark.parametrize("kind", ["window", "started", "done"])
def test_only_keys_that_are_due_are_looked_at(queue, db, kind):
    with rolled_back(USING):
        run(
            "INSERT INTO pgqueue_claim SELECT n, now() + (n - 50) * interval '1 s', now(), "
            "%s, 0, %s, n::text FROM generate_series(1, 50000) n",
            queue.pk,
            kind,
        )
        run("ANALYZE pgqueue_claim")
        with watched(connections[USING]) as plans:
            run("SELECT FROM pgqueue_ready LIMIT 0")  # so that the statements are watched
            swept = work(queue).fetch("sweep_keys", {"batch": 20})

    assert swept == [(20, 20)]
    assert scanned(plans) == []
