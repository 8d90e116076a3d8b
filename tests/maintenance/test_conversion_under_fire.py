"""Processes send, read and archive while a queue is converted and converters are killed."""

from __future__ import annotations

import datetime as dt
import multiprocessing
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_pgqueue.errors import QueueBusy
from django_pgqueue.models import BoundQueue, Message, Queue
from tests.conftest import run_sql
from tests.maintenance import conversion_players as players
from tests.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

DAY, HOUR = dt.timedelta(days=1), dt.timedelta(hours=1)

#: The queue's successive forms, and the steps at which the converter is killed.
WAY: list[tuple[dt.timedelta, list[str]]] = [
    (DAY, ["bounds.add_bound", "bounds.validate_bound", "build", "switch_tables"]),
    (HOUR, ["replace_partitions"]),
]


@pytest.fixture
def ledger(committed: None) -> Iterator[None]:
    run_sql("CREATE TABLE sent (id bigint)")
    run_sql("CREATE TABLE handled (id bigint)")
    run_sql("CREATE TABLE waited (what text, seconds float)")
    yield
    run_sql("DROP TABLE sent, handled, waited")


@pytest.mark.parametrize(
    "kind", [{}, {"unlogged": True}, {"retention": 1}], ids=["logged", "unlogged", "short-lived"]
)
def test_no_message_is_lost_or_doubled_and_no_wait_is_long(ledger, reachable, sql, kind):
    Message.objects.create_queue("orders", **kind)
    orders = BoundQueue("orders")
    old = orders.send_batch(list(range(20_000)))
    orders.archive(old[:10_000])
    spawn = multiprocessing.get_context("spawn")
    stop = spawn.Event()
    at_work = [
        spawn.Process(target=play, args=(reachable, stop, number), daemon=True)
        for play in (players.send, players.consume)
        for number in range(2)
    ]
    if "retention" in kind:
        keeper = spawn.Process(target=players.maintain, args=(reachable, stop, 0), daemon=True)
        at_work.append(keeper)
    for process in at_work:
        process.start()
    try:
        until(lambda: sql("SELECT count(*) > 50 FROM sent") == [(True,)], 60)
        for interval, steps in WAY:
            for step in steps:
                die(reachable, interval, step, spawn)
            before = sql("SELECT count(*) FROM sent")
            convert(orders, interval)
            assert Queue.objects.get(name="orders").partition_interval == interval
            until(lambda before=before: sql("SELECT count(*) FROM sent") > before, 30)
    finally:
        stop.set()
        for process in at_work:
            process.join(60)
            process.kill()

    assert [process.exitcode for process in at_work] == [0] * len(at_work)
    until(lambda: orders.metrics().delayed == 0)
    while messages := orders.read(qty=None):
        ids = orders.archive(messages)
        sql("INSERT INTO handled SELECT unnest(%s::bigint[])", [list(ids)])
    assert orders.metrics().length == 0
    sql("INSERT INTO sent SELECT unnest(%s::bigint[])", [old])
    sql("INSERT INTO handled SELECT unnest(%s::bigint[])", [old[:10_000]])
    assert sql("SELECT id FROM sent EXCEPT SELECT id FROM handled") == []
    assert sql("SELECT id FROM handled EXCEPT SELECT id FROM sent") == []
    assert sql("SELECT id FROM handled GROUP BY id HAVING count(*) > 1") == []
    # Every body has an outcome, and every outcome has a body.
    assert sql("SELECT id FROM pgqueue_message EXCEPT SELECT id FROM pgqueue_archive") == []
    assert sql("SELECT id FROM pgqueue_archive EXCEPT SELECT id FROM pgqueue_message") == []
    longest = dict(sql("SELECT what, max(seconds) FROM waited GROUP BY what"))
    print(f"longest waits: {longest}, {sql('SELECT count(*) FROM sent')[0][0]} messages")
    assert max(longest.values(), default=0) < 3


def die(databases: Any, interval: Any, step: str, spawn: Any) -> None:
    converter = spawn.Process(
        target=players.convert_and_die, args=(databases, interval, step), daemon=True
    )
    converter.start()
    converter.join(60)
    assert converter.exitcode == -signal.SIGKILL, step


def convert(orders: BoundQueue, interval: dt.timedelta) -> None:
    """Convert, once the server has noticed that the previous converter is dead."""
    deadline = time.monotonic() + 30
    while True:
        try:
            orders.repartition(interval)
            return
        except QueueBusy:
            assert time.monotonic() < deadline
            time.sleep(0.05)
