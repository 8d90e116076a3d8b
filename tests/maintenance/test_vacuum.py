"""Drops and conversions of tables on which vacuum runs."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import connection

from django_pgqueue.models import Message, Queue
from tests.actors import Actor, begin, call, execute, rollback
from tests.conftest import run_sql
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("committed")

DAY = dt.timedelta(days=1)
CHANGES = pytest.mark.parametrize(
    "change", [("drop_queue", "orders"), ("repartition", "orders", DAY)], ids=lambda call: call[0]
)

Actors = Callable[[int], list[Actor]]


def waits(number: int) -> bool:
    """Whether a session waits for the lock that keeps vacuum off."""
    return run_sql(
        "SELECT count(*) FROM pg_locks "
        "WHERE NOT granted AND mode = 'ShareUpdateExclusiveLock' AND relation = %s::regclass",
        [f"pgqueue_message_q{number}"],
    ) == [(1,)]


@CHANGES
def test_no_sender_waits_behind_one_that_waits_for_a_vacuum(actors, change):
    vacuuming, changing = actors(2)
    Message.objects.create_queue("orders")
    number = Queue.objects.get().pk
    vacuuming.do(begin)
    # The lock that VACUUM holds while it runs.
    vacuuming.do(execute, f"LOCK pgqueue_message_q{number} IN SHARE UPDATE EXCLUSIVE MODE")

    changed: Future[Any] = changing.start(call, *change)
    until(lambda: waits(number))
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '1ms'")
        Message.objects.send("orders", 1)
        assert Message.objects.read("orders")
        cursor.execute("RESET lock_timeout")
    assert not changed.done()

    vacuuming.do(rollback)
    assert changed.result(timeout=60) is True


def test_a_queue_that_has_lost_its_messages_can_be_dropped():
    Message.objects.create_queue("orders")
    run_sql(f"DROP TABLE pgqueue_message_q{Queue.objects.get().pk}")

    assert Message.objects.drop_queue("orders") is True


@pytest.fixture
def eager_autovacuum(committed: None) -> Iterator[None]:
    """Autovacuum checks tables every second."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT usesuper FROM pg_user WHERE usename = current_user")
        if cursor.fetchone() != (True,):
            pytest.skip("changes a setting of the server")
        cursor.execute("ALTER SYSTEM SET autovacuum_naptime = 1")
        cursor.execute("SELECT pg_reload_conf()")
        yield
        cursor.execute("ALTER SYSTEM RESET autovacuum_naptime")
        cursor.execute("SELECT pg_reload_conf()")


@pytest.mark.slow
@pytest.mark.usefixtures("eager_autovacuum")
@CHANGES
def test_an_autovacuum_that_takes_long_is_cancelled(actor, change, pgqueue):
    Message.objects.create_queue("orders")
    table = f"pgqueue_message_q{Queue.objects.get().pk}"
    run_sql(
        f"ALTER TABLE {table} SET (autovacuum_vacuum_cost_delay = 100, "
        f"autovacuum_vacuum_cost_limit = 1, autovacuum_vacuum_insert_threshold = 0, "
        f"autovacuum_vacuum_insert_scale_factor = 0)"
    )
    Message.objects.send_batch("orders", ["x" * 5000] * 2000)
    at_work = (
        "SELECT pid FROM pg_locks JOIN pg_stat_activity USING (pid) "
        "WHERE relation = %s::regclass AND backend_type = 'autovacuum worker' "
        "AND mode = 'ShareUpdateExclusiveLock' AND granted"
    )
    until(lambda: run_sql(at_work, [table]), seconds=60)
    pgqueue(LOCK_SECONDS=10)

    assert call(*change) is True
