"""Roll-ups are what plain SQL says, and follow what changes."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from django_pgqueue.models import ArchivedMessage, Message, Queue, Rollup, RollupRun
from pyspark_pgqueue.errors import ServerChanged
from pyspark_pgqueue.rollup import rollup

Sql = Callable[..., list[tuple[Any, ...]]]

# A history of many hours, at uneven times: message and outcome, as the package would write them.
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
       CASE WHEN retry > interval '0' THEN 2 + id %% 4 ELSE 1 END, 1,
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
       count(*) FILTER (WHERE read_ct > 1), sum(run)::float8, count(DISTINCT group_key),
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
    spark: Any, url: str, history: Callable[[str, int], Queue], sql: Sql
) -> None:
    queue = history("orders", 700)
    history("mails", 50)

    rollup(spark, url, to_at=dt.datetime(2026, 1, 6, 12, tzinfo=dt.timezone.utc))

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
        assert row.busy_seconds == pytest.approx(busy)
        assert [row.wait_p50, row.wait_p95, row.wait_p99] == pytest.approx(list(map(float, wait)))
        assert [row.run_p50, row.run_p95, row.run_p99] == pytest.approx(list(map(float, run)))
        assert sum(row.wait_histogram.values()) == completed + failed
        assert sum(row.run_histogram.values()) == completed + failed


def test_sent_and_backlog_are_what_plain_sql_says(
    spark: Any, url: str, history: Callable[[str, int], Queue], sql: Sql
) -> None:
    queue = history("orders", 400)
    Message.objects.send_batch("orders", [1, 2, 3])

    rollup(spark, url)

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
    spark: Any, url: str, history: Callable[[str, int], Queue], sql: Sql
) -> None:
    queue = history("orders", 400)

    rollup(spark, url)

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
    spark: Any, url: str, history: Callable[[str, int], Queue]
) -> None:
    queue = history("orders", 300)
    rollup(spark, url)
    first, *others = hours(queue_name="orders", completed__gt=0)
    ArchivedMessage.objects.filter(queue=queue, archived_at__lt=others[0].bucket).delete()
    Message.objects.filter(queue=queue, enqueued_at__lt=others[0].bucket).delete()

    summary = rollup(spark, url, from_at=first.bucket, to_at=first.bucket + dt.timedelta(hours=1))

    assert summary.removed == 1
    left = hours(queue_name="orders", completed__gt=0)
    assert [row.bucket for row in left] == [row.bucket for row in others]


def test_next_time_only_what_is_new_is_computed(
    spark: Any, url: str, history: Callable[[str, int], Queue], finish: Callable[..., list[int]]
) -> None:
    history("orders", 200)
    rollup(spark, url)
    untouched = {row.pk: row.computed_at for row in hours(queue_name="orders", completed__gt=0)}

    new = finish("mails", 5)
    summary = rollup(spark, url)

    assert sum(row.completed for row in hours(queue_name="mails")) == len(new)
    assert summary.from_at > dt.datetime(2026, 6, 1, tzinfo=dt.timezone.utc)
    assert untouched == {
        row.pk: row.computed_at for row in hours(queue_name="orders", completed__gt=0)
    }
    assert RollupRun.objects.count() == 2


def test_dead_letters_count_where_they_came_from(spark: Any, url: str) -> None:
    Message.objects.create_queue("dead")
    Message.objects.create_queue("orders", dead_letter_queue="dead")
    Message.objects.send_batch("orders", [1, 2, 3])
    messages = Message.objects.read("orders", qty=3)
    Message.objects.fail("orders", {message.receipt: "no" for message in messages})
    Message.objects.archive("dead", Message.objects.read("dead"))

    rollup(spark, url)

    assert sum(row.dead_lettered for row in hours(queue_name="orders")) == 3
    assert sum(row.sent for row in hours(queue_name="dead")) == 3


@pytest.mark.parametrize("change", [{"below_xid": 2**50}, {"system": "another"}])
def test_rollup_of_a_restored_server_is_not_gone_on_with_but_can_be_computed_again(
    spark: Any, url: str, finish: Callable[..., list[int]], change: dict[str, Any]
) -> None:
    finish("orders", 3)
    rollup(spark, url)
    RollupRun.objects.update(**change)

    with pytest.raises(ServerChanged, match="--every"):
        rollup(spark, url)

    rollup(spark, url, every=True)
    assert sum(row.completed for row in hours(queue_name="orders")) == 3
