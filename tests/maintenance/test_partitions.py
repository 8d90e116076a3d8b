"""Partitions by time: creating, attaching and finding them."""

from __future__ import annotations

import datetime as dt

import pytest
from django.db import IntegrityError, connection, transaction

from django_pgqueue.maintenance.partitions import (
    AHEAD,
    Partition,
    create_partition,
)
from django_pgqueue.models import ArchivedMessage, Message, Queue
from tests.conftest import run_sql
from tests.maintenance.partitions import partitions

pytestmark = pytest.mark.django_db

DAY = dt.timedelta(days=1)
PAST = dt.datetime(2001, 1, 1, tzinfo=dt.timezone.utc)


def make_partition(queue: Queue, start: dt.datetime, end: dt.datetime) -> Partition:
    with connection.cursor() as cursor:
        return create_partition(cursor, queue.pk, start, end, unlogged=queue.unlogged)


@pytest.mark.parametrize("unlogged", [False, True])
def test_a_partition_holds_the_messages_of_its_range_and_their_outcomes(unlogged):
    queue = Message.objects.create_queue("daily", partition_interval=DAY, unlogged=unlogged)

    made = make_partition(queue, PAST, PAST + DAY)

    message = Message.objects.create(queue=queue, enqueued_at=PAST + DAY / 2)
    assert Message.objects.archive(queue, message.pk) == [message.pk]
    assert run_sql(f"SELECT id FROM {made.message}") == [(message.pk,)]
    assert run_sql(f"SELECT id FROM {made.archive}") == [(message.pk,)]
    assert ArchivedMessage.objects.get(pk=message.pk).message == message
    kind = "u" if unlogged else "p"
    assert run_sql(
        "SELECT DISTINCT relpersistence::text FROM pg_class WHERE relname IN (%s, %s)",
        [made.message, made.archive],
    ) == [(kind,)]


def test_bodies_are_compressed_with_lz4_where_the_server_has_it():
    plain = Message.objects.create_queue("plain")
    daily = Message.objects.create_queue("daily", partition_interval=DAY)
    make_partition(daily, PAST, PAST + DAY)
    tables = [each.message for queue in (plain, daily) for each in partitions(queue)]
    columns = (
        "SELECT attcompression::text FROM pg_attribute"
        " WHERE attrelid = ANY(%s::regclass[]) AND attname IN ('body', 'headers')"
    )
    [(has_lz4,)] = run_sql(
        "SELECT 'lz4' = ANY(enumvals) FROM pg_settings WHERE name = 'default_toast_compression'"
    )

    found = [method for (method,) in run_sql(columns, [tables])]

    assert found == ["l" if has_lz4 else ""] * 2 * len(tables)
    assert len(tables) > 2


def test_partitions_are_found_by_their_bounds():
    queue = Message.objects.create_queue("daily", partition_interval=DAY)
    made = make_partition(queue, PAST, PAST + DAY)

    found = partitions(queue)

    assert found[0] == made
    assert len(found) == 1 + AHEAD + 1 + 1
    assert [partition.end for partition in found[1:-2]] == [
        partition.start for partition in found[2:-1]
    ]
    assert found[-1] == Partition(
        f"{queue.tables['message']}_default", f"{queue.tables['archive']}_default"
    )


def test_a_partition_without_a_beginning_is_a_partition():
    queue = Message.objects.create_queue("daily", partition_interval=DAY)
    for parent in ("message", "archive"):
        table = queue.tables[parent]
        run_sql(
            f"CREATE TABLE {table}_old PARTITION OF {table} "
            f"FOR VALUES FROM (MINVALUE) TO ('2001-01-01Z')"
        )

    assert partitions(queue)[0] == Partition(
        f"{queue.tables['message']}_old", f"{queue.tables['archive']}_old", True, None, PAST
    )


def test_a_queue_without_partitions_is_one_partition(orders):
    queue = Queue.objects.resolve("orders")

    assert partitions(queue) == [Partition(queue.tables["message"], queue.tables["archive"])]
    assert partitions(Queue(pk=0)) == []


def test_half_a_partition_is_left_out():
    queue = Message.objects.create_queue("daily", partition_interval=DAY)
    table = queue.tables["message"]
    run_sql(
        f"CREATE TABLE {table}_old PARTITION OF {table} FOR VALUES FROM (MINVALUE) TO ('1999-1-1')"
    )

    assert f"{table}_old" not in [partition.message for partition in partitions(queue)]


def test_a_range_with_rows_in_the_default_partition_gets_no_partition():
    queue = Message.objects.create_queue("daily", partition_interval=DAY)
    Message.objects.create(queue=queue, enqueued_at=PAST)
    before = partitions(queue)

    with pytest.raises(IntegrityError), transaction.atomic():
        make_partition(queue, PAST, PAST + DAY)

    assert partitions(queue) == before
