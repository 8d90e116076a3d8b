"""Unique keys under many senders, consumers and kills: no two live messages, and no stuck key."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from django_pgqueue import bare
from django_pgqueue.engine.settle.settling import archive
from django_pgqueue.management.jobs import url_of
from django_pgqueue.types import Sent
from tests.actors import Actor, begin, call, execute
from tests.conftest import run_sql
from tests.waiting import until

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

SENDERS, SECONDS = 100, 10.0

#: The number of messages that hold the key, for each ``until``.
HOLDING = {
    "done": "SELECT count(*) FROM pgqueue_live",
    "started": "SELECT count(*) FROM pgqueue_live WHERE first_read_at IS NULL",
}


class Crowd:
    """Threads with a connection each, which repeat a step until they are told to stop."""

    def __init__(self) -> None:
        self._url = url_of("default")
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self.errors: list[Exception] = []

    def add(self, number: int, step: Callable[[Any], object]) -> None:
        for _ in range(number):
            self._threads.append(threading.Thread(target=self._repeat, args=(step,)))

    def _repeat(self, step: Callable[[Any], object]) -> None:
        try:
            with psycopg.connect(self._url, autocommit=True) as connection:
                queue = bare.open_queue(connection, "orders")
                while not self._stop.is_set():
                    step(queue)
        except Exception as error:
            self.errors.append(error)

    def run(self, seconds: float) -> None:
        for thread in self._threads:
            thread.start()
        self._stop.wait(seconds)
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive(), "a session got stuck"
        assert self.errors == []


@pytest.mark.parametrize(
    ("until_", "on_conflict"),
    [("done", "skip"), ("started", "skip"), ("done", "replace"), ("started", "replace")],
)
def test_of_a_hundred_senders_of_one_key_one_has_a_message(committed_orders, until_, on_conflict):
    sent: list[Sent] = []
    seen: list[int] = []
    options = {"until": until_, "on_conflict": on_conflict}

    def send(queue: Any) -> None:
        sent.append(bare.send(queue, len(sent), unique="k", **options))

    def consume(queue: Any) -> None:
        for message in bare.read(queue, qty=10):
            archive(queue, message)

    def look(queue: Any) -> None:
        [(count,)] = queue.runner.run(HOLDING[until_])
        seen.append(count)

    crowd = Crowd()
    crowd.add(SENDERS, send)
    crowd.add(2, consume)
    crowd.add(1, look)
    crowd.run(SECONDS)

    # A message that a read is taking counts as in flight before the read commits.
    most = 2 if (until_, on_conflict) == ("started", "replace") else 1
    assert max(seen) <= most
    written = {pk for pk in sent if pk.conflict != "skipped"}
    stored = {pk for (pk,) in run_sql("SELECT id FROM pgqueue_message")}
    assert written == stored
    assert {int(pk) for pk in sent} == stored, "a duplicate gets the id of a message"
    states = dict(run_sql("SELECT state, count(*) FROM pgqueue_archive GROUP BY 1"))
    [(left,)] = run_sql("SELECT count(*) FROM pgqueue_live")
    assert sum(states.values()) > 1
    assert sum(states.values()) + left == len(stored)
    assert states.get("REPLACED", 0) == sum(pk.conflict == "replaced" for pk in sent)


# kill -9 between two statements


@pytest.fixture
def victim(reachable: dict[str, dict[str, Any]]) -> Iterator[Actor]:
    with Actor(reachable) as actor:
        yield actor


def kill(victim: Actor) -> None:
    [(backend,)] = victim.do(execute, "SELECT pg_backend_pid()")
    os.kill(victim.do(os.getpid), signal.SIGKILL)
    until(lambda: run_sql("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [backend]) == [])


def claims(orders: Any) -> bool:
    return bool(orders.send("again", unique="k", until="done").conflict is None)


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("on_conflict", ["skip", "replace"])
def test_a_sender_that_is_killed_before_its_commit_has_claimed_nothing(
    committed_orders, victim, on_conflict, batch
):
    victim.do(begin)
    options = {"until": "done", "on_conflict": on_conflict}
    if batch:
        victim.do(call, "send_batch", "orders", [1, 2], unique=["k", "l"], **options)
    else:
        victim.do(call, "send", "orders", 1, unique="k", **options)

    kill(victim)

    assert claims(committed_orders)
    assert not claims(committed_orders)


def test_a_sender_that_is_killed_while_it_replaces_leaves_the_waiting_message(
    committed_orders, victim
):
    first = committed_orders.send("first", unique="k", until="done")
    victim.do(begin)
    replacing = victim.do(
        call, "send", "orders", "second", unique="k", until="done", on_conflict="replace"
    )
    assert replacing.conflict == "replaced"

    kill(victim)

    assert not claims(committed_orders)
    assert [message.id for message in committed_orders.read(qty=9)] == [first]


@pytest.mark.parametrize("step", ["reading", "read", "acking", "acked"])
@pytest.mark.parametrize("until_", ["started", "done"])
def test_a_key_follows_what_a_killed_consumer_committed(committed_orders, victim, until_, step):
    first = committed_orders.send("first", unique="k", until=until_)
    if step == "reading":
        victim.do(begin)
    [message] = victim.do(call, "read", "orders", in_transaction=step == "reading")
    if step == "acking":
        victim.do(begin)
    if step in ("acking", "acked"):
        victim.do(call, "archive", "orders", message.receipt)

    kill(victim)

    holds = step == "reading" or (until_ == "done" and step != "acked")
    assert claims(committed_orders) is not holds
    if holds:
        committed_orders.set_vt(first, 0)
        assert committed_orders.archive(committed_orders.read()) == [first]
        assert claims(committed_orders)


def test_what_was_killed_again_and_again_leaves_one_live_message(committed_orders, reachable):
    """Senders and consumers are killed at any moment; the key stays with one message at most."""
    for _ in range(6):
        with Actor(reachable) as sender, Actor(reachable) as consumer:
            for actor in (sender, consumer):
                actor.do(call, "metrics", "orders")
            sender.start(repeat_sends)
            consumer.start(repeat_reads)
            time.sleep(0.3)
            for actor in (sender, consumer):
                for process in list(actor._pool._processes.values()):
                    process.kill()
                    process.join(10)
        [(count,)] = run_sql("SELECT count(*) FROM pgqueue_live")
        assert count <= 1

    for message in committed_orders.read(qty=9):
        committed_orders.archive(message)
    for pk in [pk for (pk,) in run_sql("SELECT id FROM pgqueue_live")]:
        committed_orders.archive(pk)
    assert claims(committed_orders)


def repeat_sends() -> None:
    while True:
        call("send", "orders", 1, unique="k", until="done", on_conflict="replace")


def repeat_reads() -> None:
    while True:
        for message in call("read", "orders", vt=0):
            call("archive", "orders", message.receipt)
