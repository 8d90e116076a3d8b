"""Batches: one callback after the last end, however members end and whoever dies."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from django_pgqueue.handlers import Handler
from django_pgqueue.models import Batch, queue
from tests.conftest import run_sql
from tests.promises import batching
from tests.promises.consumers import KINDS
from tests.promises.full_speed import FullSpeed
from tests.promises.pages import promise
from tests.worker.test_processes import url
from tests.working.running import Command, runconsumer

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

ONCE = (
    "The callback of a batch is sent exactly once, in the transaction that marks the batch as done."
)
AFTER_ALL = "It is never sent before all members have ended, and its counts add up to their number."
NOTHING = "A sender that rolls back, or dies before its commit, leaves no batch."

#: Callbacks of batches with a member that is in the queue still.
TOO_EARLY = """
    SELECT count(*) FROM pgqueue_message c
    JOIN pgqueue_queue q ON q.id = c.queue_id AND q.name = 'reports'
    WHERE EXISTS (
        SELECT FROM pgqueue_live l JOIN pgqueue_message m ON m.id = l.id AND m.queue_id = l.queue_id
        WHERE l.queue_id IN (SELECT id FROM pgqueue_queue WHERE name = 'orders')
          AND m.headers->'x-batch' = c.headers->'x-batch'->'id')
"""
#: Batches with another number of callbacks than one, and callbacks of no batch.
NOT_ONCE = """
    WITH called AS (
        SELECT (c.headers->'x-batch'->>'id')::bigint AS id, count(*) AS number, min(c.id) AS pk
        FROM pgqueue_message c JOIN pgqueue_queue q ON q.id = c.queue_id AND q.name = 'reports'
        GROUP BY 1)
    SELECT b.id, called.id, called.number FROM pgqueue_batch b FULL JOIN called ON called.id = b.id
    WHERE called.number IS DISTINCT FROM 1 OR b.id IS NULL
       OR b.callback_id IS DISTINCT FROM called.pk
"""
#: Batches whose counts differ from what the tables have. A member that is gone was deleted.
MISCOUNTED = """
    WITH member AS (
        SELECT (m.headers->>'x-batch')::bigint AS batch, q.name AS queue, a.state
        FROM pgqueue_message m JOIN pgqueue_queue q ON q.id = m.queue_id
        LEFT JOIN pgqueue_archive a ON a.id = m.id AND a.queue_id = m.queue_id
        WHERE jsonb_typeof(m.headers->'x-batch') = 'number'),
    found AS (
        SELECT batch, count(*) AS number,
               count(*) FILTER (WHERE queue = 'dead') AS dead_lettered,
               count(*) FILTER (WHERE state = 'COMPLETED') AS completed,
               count(*) FILTER (WHERE state = 'CANCELLED') AS cancelled,
               count(*) FILTER (WHERE state = 'EXPIRED') AS expired
        FROM member GROUP BY batch)
    SELECT b.* FROM pgqueue_batch b FULL JOIN found f ON f.batch = b.id
    WHERE b.id IS NULL
       OR (b.dead_lettered, b.completed, b.cancelled, b.expired) IS DISTINCT FROM
          (coalesce(f.dead_lettered, 0), coalesce(f.completed, 0), coalesce(f.cancelled, 0),
           coalesce(f.expired, 0))
       OR b.members <> coalesce(f.number, 0) + b.deleted
       OR b.members <> b.completed + b.failed + b.dead_lettered + b.cancelled + b.expired
                       + b.replaced + b.deleted
"""
ENDED = "SELECT count(*) FROM pgqueue_batch WHERE done_at IS NOT NULL"


def make_queues() -> None:
    for name in ("dead", "reports"):
        queue(name).create()
    queue("orders").create(visibility_timeout=1, max_deliveries=50, dead_letter_queue="dead")


def finish(full_speed: FullSpeed) -> None:
    """Wait for the end of all batches."""
    for batch in Batch.objects.filter(sealed_at=None):
        batch.seal()
    full_speed.wait(lambda: not Batch.objects.filter(done_at=None).exists())


def judge(early: Sequence[int]) -> None:
    assert set(early) == {0}
    assert run_sql(NOT_ONCE) == []
    assert run_sql(MISCOUNTED) == []
    assert run_sql("SELECT count(*) FROM pgqueue_batch_part") == [(0,)]


def beside(full_speed: FullSpeed) -> list[Any]:
    for act in batching.acts():
        full_speed.beside(act)
    return full_speed.observe(TOO_EARLY)


@promise(ONCE, AFTER_ALL, NOTHING)
@pytest.mark.parametrize("kind", ["NACK_ON_ERROR", "TRANSACTIONAL", "async"])
@pytest.mark.parametrize("faults", [False, True], ids=["", "cut connections"])
def test_each_batch_calls_back_once_after_its_last_member(full_speed, consume, kind, faults):
    make_queues()
    function = batching.arun if kind == "async" else batching.run
    started = [
        consume(
            handlers=[Handler("orders", function, **{**batching.OPTIONS, **KINDS[kind]})],
            options={"workers": 4},
        )
        for _ in range(2)
    ]
    for each in started:
        each.until_registered()
    if faults:
        full_speed.cut_connections(of_consumers=True)
    early = beside(full_speed)

    full_speed.run(least=0, until=lambda: run_sql(ENDED)[0][0] >= 30)
    finish(full_speed)
    for each in started:
        each.stop()

    judge(early)


@promise(ONCE, AFTER_ALL)
def test_processes_that_are_killed_lose_no_callback(full_speed):
    make_queues()
    early = beside(full_speed)

    with (
        runconsumer(url(), "orders", "--workers", 4, BATCHES="orders") as one,
        runconsumer(url(), "orders", "--workers", 4, BATCHES="orders") as two,
    ):
        killed: list[int] = []
        full_speed.beside(lambda: kill(full_speed, [one, two], killed))
        full_speed.run(least=0, until=lambda: len(killed) >= 4)
        finish(full_speed)

    judge(early)


def kill(full_speed: FullSpeed, processes: Sequence[Command], killed: list[int]) -> None:
    """Kill a process while batches end, and start it again."""
    [(before,)] = run_sql(ENDED)
    full_speed.wait(lambda: run_sql(ENDED)[0][0] > before)
    time.sleep(full_speed.draw.uniform(0, 0.3))
    victim = full_speed.draw.choice(processes)
    killed.append(victim.pid)
    victim.kill()
    victim.start()
