"""Roll-ups equal the results of plain SQL, and follow changes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.db.models import F, Sum

from django_pgqueue.history.histograms import LEAST, MOST
from django_pgqueue.models import (
    ArchivedMessage,
    BoundQueue,
    Message,
    PurgeMark,
    Queue,
    Rollup,
    RollupRun,
    queue,
)
from pyspark_pgqueue.errors import ServerChanged
from pyspark_pgqueue.jobs.rollup import _first_xid, rollup
from pyspark_pgqueue.rollup.in_database import first_bucket
from pyspark_pgqueue.source import database
from tests.actors import Actor, begin, call, commit
from tests.waiting import until

Sql = Callable[..., list[tuple[Any, ...]]]

# A history of many hours, at uneven times: messages and outcomes as the package would write them.
HISTORY = """
WITH sent AS (
    INSERT INTO {message} (queue_id, enqueued_at, scheduled_at, group_key, body)
    SELECT {queue_id}, at, CASE WHEN n %% 7 = 0 THEN at + interval '90 seconds' END,
           CASE WHEN n %% 3 > 0 THEN 'g' || (n * n) %% 5 END, to_jsonb(n)
    FROM (SELECT n, timestamptz '2026-01-05 00:10' + n * interval '71.3 seconds' AS at
          FROM generate_series(1, %(count)s) n) numbered
    RETURNING id, enqueued_at, scheduled_at
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, archived_at, queue_id,
                       read_ct, attempts, state, error)
SELECT id, enqueued_at, first, first + retry, first + retry + run, {queue_id},
       CASE WHEN retry > interval '0' THEN 2 + id %% 4 ELSE 1 END,
       CASE WHEN retry > interval '0' THEN 1 + id %% 2 ELSE 1 END,
       CASE WHEN id %% 9 = 0 THEN 'FAILED' ELSE 'COMPLETED' END,
       CASE WHEN id %% 9 = 0 THEN 'KeyError: ' || id %% 4 || E'\n\nTraceback\n  a line' END
FROM (SELECT id, enqueued_at, greatest(enqueued_at, scheduled_at)
                              + (id * 37 %% 101) * interval '0.13 seconds' AS first,
             CASE WHEN id %% 11 = 0 THEN interval '2 hours' ELSE interval '0' END AS retry,
             (id * 53 %% 97) * interval '0.07 seconds' AS run
      FROM sent) timed
"""

PLAIN = """
WITH timed AS (
    SELECT date_trunc('hour', a.archived_at) AS bucket, a.*, m.group_key,
           extract(epoch FROM a.first_read_at - greatest(m.enqueued_at, m.scheduled_at)) AS wait,
           extract(epoch FROM a.archived_at - a.last_read_at) AS run
    FROM pgqueue_archive a JOIN pgqueue_message m USING (id, queue_id, enqueued_at)
    WHERE a.queue_id = %s
)
SELECT bucket, count(*) FILTER (WHERE state = 'COMPLETED'),
       count(*) FILTER (WHERE state = 'FAILED'),
       sum(attempts - 1), sum(run)::float8, count(DISTINCT group_key),
       percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY wait),
       percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY run)
FROM timed GROUP BY bucket ORDER BY bucket
"""


@pytest.fixture
def history(url: str) -> Callable[[str, int], Queue]:
    def make(name: str, count: int) -> Queue:
        queue = Message.objects.create_queue(name)
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            cursor.execute(HISTORY.format_map(queue.tables), {"count": count})
            cursor.execute("RESET session_replication_role")
        return queue

    return make


def hours(**conditions: Any) -> list[Rollup]:
    return list(Rollup.objects.filter(**conditions).order_by("bucket"))


def test_rollups_are_what_plain_sql_says(
    url: str, history: Callable[[str, int], Queue], sql: Sql
) -> None:
    queue = history("orders", 700)
    history("mails", 50)

    rollup(url, to_at=dt.datetime(2026, 1, 6, 12, tzinfo=dt.timezone.utc))

    found = hours(queue_name="orders")
    ended = {row.bucket: row for row in found if row.completed or row.failed}
    plain = sql(PLAIN, [queue.pk])
    assert len(plain) >= 14
    assert sorted(ended) == [bucket for bucket, *_ in plain]
    for bucket, completed, failed, retried, busy, groups, wait, run in plain:
        row = ended[bucket]
        assert (row.completed, row.failed, row.retried, row.groups) == (
            completed,
            failed,
            retried,
            groups,
        )
        assert row.busy == pytest.approx(busy)
        assert [row.wait_p50, row.wait_p95, row.wait_p99] == pytest.approx(list(map(float, wait)))
        assert [row.run_p50, row.run_p95, row.run_p99] == pytest.approx(list(map(float, run)))
        assert sum(row.waits.values()) == completed + failed
        assert sum(row.runs.values()) == completed + failed
        assert all(LEAST <= int(key) <= MOST for key in (*row.waits, *row.runs))


def test_sent_and_backlog_are_what_plain_sql_says(
    url: str, history: Callable[[str, int], Queue], sql: Sql
) -> None:
    queue = history("orders", 400)
    Message.objects.send_batch("orders", [1, 2, 3])

    rollup(url)

    found = hours(queue_name="orders")
    assert sum(row.sent for row in found) == 403
    assert found[-1].backlog == 3
    for row in found:
        end = row.bucket + dt.timedelta(hours=1)
        ((sent, waiting),) = sql(
            "SELECT count(*) FILTER (WHERE m.enqueued_at >= %(start)s), "
            "count(*) FILTER (WHERE a.archived_at IS NULL OR a.archived_at >= %(end)s) "
            "FROM pgqueue_message m LEFT JOIN pgqueue_archive a USING (id, queue_id, enqueued_at) "
            "WHERE m.queue_id = %(queue)s AND m.enqueued_at < %(end)s",
            {"start": row.bucket, "end": end, "queue": queue.pk},
        )
        assert (row.sent, row.backlog) == (sent, waiting)


def test_worst_messages_errors_and_groups_are_listed(
    url: str, history: Callable[[str, int], Queue], sql: Sql
) -> None:
    queue = history("orders", 400)

    rollup(url)

    (row,) = [row for row in hours(queue_name="orders") if row.poison][:1]
    end = row.bucket + dt.timedelta(hours=1)
    inside = "FROM pgqueue_archive WHERE queue_id = %s AND archived_at >= %s AND archived_at < %s"
    span = [queue.pk, row.bucket, end]
    worst = sql(f"SELECT id, read_ct {inside} ORDER BY read_ct DESC, id LIMIT 5", span)
    errors = sql(
        f"SELECT split_part(error, E'\\n', 1), count(*) {inside} AND error IS NOT NULL "
        f"GROUP BY 1 ORDER BY 2 DESC, 1",
        span,
    )
    assert [(told["id"], told["read_ct"]) for told in row.poison] == [
        (pk, count) for pk, count in worst if count >= 3
    ]
    assert [(told["error"], told["count"]) for told in row.top_errors] == errors
    assert row.top_group is not None
    assert row.top_group["group"] in {f"g{n}" for n in range(5)}


def test_spans_that_are_empty_by_now_go_and_others_stay(
    url: str, history: Callable[[str, int], Queue]
) -> None:
    queue = history("orders", 300)
    rollup(url)
    first, *others = hours(queue_name="orders", completed__gt=0)
    ArchivedMessage.objects.filter(queue=queue, archived_at__lt=others[0].bucket).delete()
    Message.objects.filter(queue=queue, enqueued_at__lt=others[0].bucket).delete()

    summary = rollup(url, from_at=first.bucket, to_at=first.bucket + dt.timedelta(hours=1))

    assert summary.removed == 1
    left = hours(queue_name="orders", completed__gt=0)
    assert [row.bucket for row in left] == [row.bucket for row in others]


def test_next_time_only_what_is_new_is_computed(
    url: str, history: Callable[[str, int], Queue], finish: Callable[..., list[int]]
) -> None:
    history("orders", 200)
    rollup(url)
    untouched = {row.pk: row.computed_at for row in hours(queue_name="orders", completed__gt=0)}

    new = finish("mails", 5)
    summary = rollup(url)

    assert sum(row.completed for row in hours(queue_name="mails")) == len(new)
    assert summary.from_at > dt.datetime(2026, 6, 1, tzinfo=dt.timezone.utc)
    assert untouched == {
        row.pk: row.computed_at for row in hours(queue_name="orders", completed__gt=0)
    }
    assert RollupRun.objects.count() == 2


def test_retried_are_failed_attempts_that_were_tried_again(url: str) -> None:
    Message.objects.create_queue("orders")
    orders = queue("orders")

    def receipts(vt: int = 60) -> list[Any]:
        return [message.receipt for message in orders.read(vt=vt)]

    orders.send("fails twice")
    for _ in range(2):
        orders.retry(dict.fromkeys(receipts(), 0))
    orders.complete(receipts())
    orders.send("its lease runs out")
    receipts(vt=0)
    orders.complete(receipts())
    cancelled = orders.send("fails once, then is cancelled")
    orders.retry(dict.fromkeys(receipts(), 60))
    orders.cancel(cancelled)
    ended = ArchivedMessage.objects.order_by("pk").values_list("attempts", "read_ct")
    assert list(ended) == [(3, 3), (1, 2), (1, 1)]

    rollup(url)

    found = hours(queue_name="orders")
    assert sum(row.retried for row in found) == 3
    # The cancelled message waited for a retry: that was no run.
    assert sum(sum(row.runs.values()) for row in found) == 2


def test_expired_messages_have_ended_without_times(url: str) -> None:
    Message.objects.create_queue("orders")
    Message.objects.send_batch("orders", [1, 2, 3], expires=1e-6)
    Message.objects.read("orders")

    rollup(url)

    [row] = hours(queue_name="orders")
    assert (row.sent, row.completed, row.failed, row.retried, row.backlog) == (3, 0, 0, 0, 0)
    assert (row.wait_p95, row.run_p95, row.busy) == (None, None, 0)
    assert (row.waits, row.runs) == ({}, {})


def test_dead_letters_count_where_they_came_from(url: str) -> None:
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead")
    Message.objects.send_batch("orders", [1, 2, 3])
    messages = Message.objects.read("orders", qty=3)
    BoundQueue("orders").fail({message.receipt: "no" for message in messages})
    Message.objects.archive("dead", Message.objects.read("dead"))

    rollup(url)

    assert sum(row.dead_lettered for row in hours(queue_name="orders")) == 3
    assert sum(row.sent for row in hours(queue_name="dead")) == 3


@pytest.mark.parametrize("change", [{"below_xid": 2**50}, {"system": "another"}])
def test_rollup_of_a_restored_server_is_not_gone_on_with_but_can_be_computed_again(
    url: str, finish: Callable[..., list[int]], change: dict[str, Any]
) -> None:
    finish("orders", 3)
    rollup(url)
    RollupRun.objects.update(**change)

    with pytest.raises(ServerChanged, match="--every"):
        rollup(url)

    rollup(url, every=True)
    assert sum(row.completed for row in hours(queue_name="orders")) == 3


def test_sent_counts_what_was_sent_in_a_transaction_that_committed_late(
    url: str, actor: Actor, sql: Sql
) -> None:
    Message.objects.create_queue("orders")
    Message.objects.send_batch("orders", [1, 2, 3, 4, 5])
    actor.do(begin)
    actor.do(call, "send_batch", "orders", list(range(60)))
    rollup(url)
    assert sum(row.sent for row in hours(queue_name="orders")) == 5
    actor.do(commit)
    # As if the first run was a day ago, and the transaction has been open since.
    for table, column in TIMES:
        sql(f"UPDATE {table} SET {column} = {column} - interval '1 day' RETURNING 1")

    rollup(url)
    rollup(url)

    found = hours(queue_name="orders")
    assert sum(row.sent for row in found) == 65
    # The messages count as backlog since then.
    assert len(found) >= 24
    assert {row.backlog for row in found} == {65}


TIMES = [
    ("pgqueue_message", "enqueued_at"),
    ("pgqueue_ready", "enqueued_at"),
    ("pgqueue_rollup", "bucket"),
    ("pgqueue_rollup_run", "started_at"),
]


def figures() -> list[dict[str, Any]]:
    rows = Rollup.objects.order_by("queue_name", "bucket").values()
    return [{k: v for k, v in row.items() if k not in {"id", "computed_at"}} for row in rows]


def almost(row: dict[str, Any]) -> dict[str, Any]:
    return {k: round(v, 6) if isinstance(v, float) else v for k, v in row.items()}


def test_next_run_finds_what_is_new_by_its_transaction(
    url: str, history: Callable[[str, int], Queue], finish: Callable[..., list[int]]
) -> None:
    history("orders", 300)
    rollup(url)
    finish("mails", 5)
    with psycopg.connect(url, autocommit=True) as connection:
        run = RollupRun.objects.get()
        system = database.server(connection).system
        now = run.started_at + dt.timedelta(hours=1)

        first = first_bucket(connection, 3600, run.below_xid, run.started_at)

        assert first is not None
        assert abs(first - run.started_at.timestamp()) < 7200
        assert _first_xid(connection, system, now) == run.below_xid
        assert _first_xid(connection, system, run.started_at - dt.timedelta(hours=1)) == 0


@pytest.fixture
def kept_for_two_hours(history: Callable[[str, int], Queue], sql: Sql) -> Callable[[], None]:
    """Two queues with six hours each; retention keeps only the last two hours of one."""
    queue = history("orders", 300)
    history("mails", 300)

    def prune() -> None:
        [(last,)] = sql("SELECT max(archived_at) FROM pgqueue_archive")
        [(below,)] = sql("SELECT max(archive_xid) + 1 FROM pgqueue_archive")
        old = ArchivedMessage.objects.filter(queue=queue)
        old.filter(archived_at__lt=last - dt.timedelta(hours=2)).delete()
        PurgeMark.objects.create(queue=queue, below_xid=below)

    return prune


@pytest.mark.parametrize("every", [True, False])
def test_rollups_outlive_what_retention_takes_from_one_queue(
    url: str, kept_for_two_hours: Callable[[], None], every: bool
) -> None:
    rollup(url)
    expected = figures()
    kept_for_two_hours()

    summary = rollup(url, every=every, from_at=None if every else hours()[0].bucket)

    assert summary.removed == 0

    assert list(map(almost, figures())) == list(map(almost, expected))


def test_a_first_rollup_after_retention_begins_with_a_whole_span_of_each_queue(
    url: str, kept_for_two_hours: Callable[[], None]
) -> None:
    rollup(url, seconds=1800)
    whole = {(row.queue_name, row.bucket): row.completed for row in hours(completed__gt=0)}
    Rollup.objects.all().delete()
    RollupRun.objects.all().delete()
    kept_for_two_hours()

    rollup(url, seconds=1800)

    found = {(row.queue_name, row.bucket): row.completed for row in hours(completed__gt=0)}
    assert found.items() <= whole.items()
    assert len([key for key in whole if key[0] == "mails" and key not in found]) == 0
    assert 2 < len([key for key in found if key[0] == "orders"]) < len(found) / 2


def test_rollups_outlive_a_queue_that_is_dropped_and_made_anew(
    url: str, history: Callable[[str, int], Queue], finish: Callable[..., list[int]]
) -> None:
    history("orders", 300)
    rollup(url)
    before = [row for row in figures() if row["completed"]]
    Message.objects.drop_queue("orders")
    finish("mails", 5)

    rollup(url, every=True)
    assert [
        row for row in figures() if row["queue_name"] == "orders" and row["completed"]
    ] == before

    finish("orders", 3)
    rollup(url, every=True)
    assert [row for row in figures() if row["bucket"] <= before[-1]["bucket"]] == before


def test_first_rollup_begins_with_the_first_message(
    url: str, finish: Callable[..., list[int]]
) -> None:
    finish("orders", 3)

    summary = rollup(url)

    assert summary.from_at == RollupRun.objects.get().from_at == hours()[0].bucket


def test_queues_that_are_counted_side_by_side_are_of_one_moment(
    url: str, history: Callable[[str, int], Queue]
) -> None:
    names = [f"q{number}" for number in range(6)]
    for name in names:
        history(name, 50)
    totals: list[int] = []

    def send_more(what: str, done: int, total: int) -> None:
        totals.append(total)
        if done == 0:
            # After the snapshot, and before any queue is counted.
            for name in names:
                Message.objects.send(name, {})
                Message.objects.archive(name, Message.objects.read(name))

    rollup(url, every=True, progress=send_more)

    ended = Rollup.objects.aggregate(count=Sum(F("completed") + F("failed")))
    assert set(totals) == {len(names)}
    assert ended["count"] == 50 * len(names)
    assert ArchivedMessage.objects.count() == 51 * len(names)


def test_an_interrupted_count_ends_its_statements_and_writes_nothing(
    url: str, history: Callable[[str, int], Queue]
) -> None:
    for number in range(6):
        history(f"q{number}", 50)

    def interrupt(what: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rollup(url, every=True, progress=interrupt)

    assert not Rollup.objects.exists()
    assert not RollupRun.objects.exists()
    running = (
        "SELECT count(*) FROM pg_stat_activity "
        "WHERE datname = current_database() AND application_name = 'pgqueue spark'"
    )
    with connection.cursor() as cursor:

        def none_is_left() -> bool:
            cursor.execute(running)
            return cursor.fetchone() == (0,)

        until(none_is_left)
