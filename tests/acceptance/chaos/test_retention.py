"""Partitions are created and dropped every second, by consumers that are killed meanwhile.

A partition covers one second, and messages are retained for another, so every message outlives its
partition's range. Messages that fail, or whose consumer died, are often read from partitions that
are due to be dropped.
"""

from __future__ import annotations

import json
import signal
import threading
import time
from collections import Counter

import psycopg
import pytest

from tests.acceptance.chaos.world import World
from tests.waiting import until
from tests.working import history

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

QUEUES = ["lease", "transactional", "locked", "batch"]
OFTEN = json.dumps({"MAINTENANCE_SECONDS": 0.2, "CACHE_SECONDS": 0.5})
PARTITIONS = (
    "SELECT relname FROM pg_class WHERE relispartition AND relkind = 'r' AND relname ~ '_p\\d+$'"
)


def kill_the_maintainer(world: World) -> int:
    """Kill -9 the process with the maintenance lease, and restart dead ones. Returns how many were
    killed.
    """
    with world.connect() as connection:
        row = connection.execute("SELECT process FROM pgqueue_maintenance").fetchone()
    killed = 0
    for consumer in world.consumers:
        if row is not None and consumer.alive and row[0].endswith(f":{consumer.pid}"):
            consumer.kill()
            killed += 1
        if not consumer.alive:
            consumer.start()
    return killed


def read_for_a_while(
    world: World, stop: threading.Event, stretches: list[tuple[float, float]]
) -> None:
    """Repeatedly hold a transaction open that has read every partition."""
    with psycopg.connect(world.url) as connection:
        while not stop.is_set():
            connection.execute("SELECT count(*) FROM pgqueue_message")
            began = time.monotonic()
            stop.wait(1.5)
            stretches.append((began, time.monotonic()))
            connection.rollback()
            stop.wait(0.7)


@pytest.mark.parametrize("unlogged", [False, True], ids=["logged", "unlogged"])
def test_partitions_come_and_go_under_load(world, unlogged):
    world.queues(*QUEUES, partition_interval=1, retention=1, unlogged=unlogged)
    with world.connect() as connection:
        at_first = set(connection.execute(PARTITIONS).fetchall())
    for _ in range(3):
        world.until_started(world.consume(WORKING_PGQUEUE=OFTEN))
    stop, stretches = threading.Event(), []
    reader = threading.Thread(target=read_for_a_while, args=(world, stop, stretches))
    reader.start()
    world.produce(
        500,
        producers=2,
        queues=QUEUES,
        rate=300,
        faults=["raise"],
        fault_rate=0.05,
        sends=[*["plain"] * 6, "transaction", "sleep", "rollback"],
    )

    killed = 0

    def fault() -> None:
        nonlocal killed
        world.pause(1.0, 2.0)
        killed += kill_the_maintainer(world)

    world.while_producing(fault, least=4)
    assert killed
    stop.set()
    reader.join()
    world.until_drained(90, restart=True)

    events = history.read(world.history)
    outcome = {e["op"]: e["event"] for e in events if e["event"] in ("ok", "fail", "unknown")}
    queue_of = {e["op"]: e["queue"] for e in events if e["event"] == "invoke"}
    with world.connect() as connection:
        effects = Counter(
            op for (op,) in connection.execute("SELECT number FROM orders_app_order").fetchall()
        )
    sent = {op for op, event in outcome.items() if event == "ok"}
    assert sent - set(effects) == set(), "lost"
    assert {op for op in effects if outcome.get(op) == "fail"} == set(), "phantoms"
    in_transactions = [op for op in effects if queue_of[op] in ("transactional", "locked")]
    assert {op: effects[op] for op in in_transactions if effects[op] > 1} == {}
    # No sender waited for the reader that locked the partitions.
    sends = [e["at"] for e in events if e["event"] == "invoke"]
    for began, ended in stretches:
        if min(sends) < began and ended < max(sends):
            assert any(e["event"] == "ok" and began < e["at"] < ended for e in events)

    def all_gone() -> bool:
        with world.connect() as connection:
            [(left,)] = connection.execute(
                "SELECT (SELECT count(*) FROM pgqueue_message m JOIN pgqueue_queue q "
                "ON q.id = m.queue_id WHERE q.name <> 'dead') + (SELECT count(*) "
                "FROM pgqueue_archive a JOIN pgqueue_queue q ON q.id = a.queue_id "
                "WHERE q.name <> 'dead')"
            ).fetchall()
            return left == 0 and not at_first & set(connection.execute(PARTITIONS).fetchall())

    for consumer in world.consumers:
        if not consumer.alive:
            consumer.start()
    until(all_gone, 60)
    for consumer in world.consumers:
        world.until_started(consumer)
        consumer.terminate()
    for consumer in world.consumers:
        assert consumer.wait(40) in (0, -signal.SIGKILL), consumer.output
