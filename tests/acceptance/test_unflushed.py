"""Leases commit without a flush: what a server crash may lose, and what it must not."""

from __future__ import annotations

import datetime as dt
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from environ import Env

from django_pgqueue.embedded.server import EmbeddedServer
from django_pgqueue.engine.leases.batches import rescue
from django_pgqueue.engine.read.reading import lease
from django_pgqueue.engine.settle.outcomes import release
from tests.actors import Actor, begin, call, commit, engine, execute, manage
from tests.conftest import VERSIONS
from tests.servers import one_server
from tests.waiting import process_state, until

pytestmark = [pytest.mark.acceptance]

SETTINGS = {
    "shared_buffers": "16MB",
    # Only commits flush the log.
    "autovacuum": "off",
    "bgwriter_lru_maxpages": "0",
    "checkpoint_timeout": "1h",
}


class Crashing:
    """A server whose log only commits flush, and a process that uses the server."""

    def __init__(self, server: EmbeddedServer, actor: Actor) -> None:
        self.server, self.actor = server, actor
        self._stop_wal_writer()

    def crash(self) -> None:
        """Kill a server process: PostgreSQL then ends all of them, and recovers from its log."""
        os.kill(self.wal_writer, signal.SIGKILL)
        until(lambda: self.wal_writer not in self._wal_writers())
        self.actor.rest()
        self._stop_wal_writer()

    def _stop_wal_writer(self) -> None:
        """Stop the WAL writer, which would flush leases within ``wal_writer_delay``."""
        until(lambda: len(self._wal_writers()) == 1)
        [self.wal_writer] = self._wal_writers()
        until(self._is_stopped_asleep)

    def _is_stopped_asleep(self) -> bool:
        """Stop the WAL writer, unless it was at work: it may hold a lock that commits need."""
        os.kill(self.wal_writer, signal.SIGSTOP)
        until(lambda: process_state(self.wal_writer) == "T")
        with psycopg.connect(self.server.url()) as connection:
            [(event,)] = connection.execute(
                "SELECT wait_event FROM pg_stat_activity WHERE pid = %s", [self.wal_writer]
            )
        if event != "WalWriterMain":
            os.kill(self.wal_writer, signal.SIGCONT)
        return bool(event == "WalWriterMain")

    def _wal_writers(self) -> list[int]:
        found = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'"
        try:
            with psycopg.connect(self.server.url()) as connection:
                return [pid for (pid,) in connection.execute(found)]
        except psycopg.OperationalError:  # it recovers
            return [self.wal_writer]


@pytest.fixture(scope="module", params=VERSIONS)
def crashing(request: pytest.FixtureRequest) -> Iterator[Crashing]:
    with (
        one_server(SETTINGS, request.param) as server,
        Actor({"default": Env.db_url_config(server.url())}) as actor,
    ):
        actor.do(manage, "migrate", "django_pgqueue")
        crashing = Crashing(server, actor)
        yield crashing
        os.kill(crashing.wal_writer, signal.SIGCONT)


@pytest.fixture
def actor(crashing: Crashing) -> Iterator[Actor]:
    """The process, with a queue created."""
    crashing.actor.do(call, "create_queue", "orders")
    yield crashing.actor
    crashing.actor.rest()
    crashing.actor.do(call, "drop_queue", "orders")


@pytest.fixture
def crash(crashing: Crashing) -> Callable[[], None]:
    return crashing.crash


def flushes(actor: Actor, *step: Any, **options: Any) -> bool:
    """Whether a step of the actor waits until the log is on disk."""
    [(before,)] = actor.do(execute, "SELECT pg_current_wal_insert_lsn()")
    actor.do(*step, **options)
    question = "SELECT pg_current_wal_insert_lsn() > %s, pg_current_wal_flush_lsn() > %s"
    [(wrote, flushed)] = actor.do(execute, question, [before, before])
    assert wrote
    return flushed


def read_all(actor: Actor, lease: str) -> list[Any]:
    if lease == "of a group":
        return actor.do(call, "read_grouped", "orders", qty=20)
    sizes = [1] * 20 if lease == "of one" else [20]
    return [m for qty in sizes for m in actor.do(call, "read", "orders", qty=qty)]


# Called in the actor's process:


def register() -> None:
    from django_pgqueue.models import Process

    Process.objects.register(["orders"], version="1", using="default")


def beat() -> None:
    from django_pgqueue.models import Process

    assert Process.objects.beat(Process.objects.get(), {}, [], False) == (False, False)


def reap() -> None:
    from django_pgqueue.models import Process

    assert Process.objects.reap(dt.timedelta(0), using="default")


def test_what_only_moves_a_lease_is_not_flushed(actor):
    actor.do(call, "send_batch", "orders", list(range(60)))
    actor.do(call, "send_batch", "orders", list(range(6)), group="customer 1")
    [first, *_] = found = actor.do(call, "read", "orders", qty=3)
    actor.do(call, "read", "orders", qty=20)

    assert not flushes(actor, call, "read", "orders")
    assert not flushes(actor, call, "read", "orders", qty=20)
    assert not flushes(actor, call, "set_vt", "orders", first, 60)
    assert not flushes(actor, engine, release, "orders", [m.receipt for m in found[1:]])
    assert not flushes(actor, engine, lease, "orders", qty=5, process_id=7)
    assert not flushes(actor, engine, rescue, "orders", 7)
    assert not flushes(actor, call, "read_grouped", "orders", qty=99)


def test_a_heartbeat_and_the_reaping_of_a_dead_process_are_not_flushed(actor):
    actor.do(register)

    assert not flushes(actor, beat)
    assert not flushes(actor, reap)


def test_sends_and_outcomes_are_flushed(actor):
    assert flushes(actor, call, "send", "orders", 1)
    assert flushes(actor, call, "send_batch", "orders", list(range(60)))
    assert flushes(actor, call, "pop", "orders")
    messages = actor.do(call, "read", "orders", qty=7)
    one, two, three, four, five, *rest = messages
    assert flushes(actor, call, "archive", "orders", one)
    assert flushes(actor, call, "delete", "orders", two)
    assert flushes(actor, call, "complete", "orders", [three.receipt])
    assert flushes(actor, call, "retry", "orders", {four.receipt: 9})
    assert flushes(actor, call, "fail", "orders", {five.receipt: "no"})
    batch = actor.do(call, "read", "orders", qty=20)
    assert flushes(actor, call, "complete", "orders", [m.receipt for m in batch])
    assert flushes(actor, call, "set_vt", "orders", [rest[0].id], 5)


def test_no_operation_on_an_unlogged_queue_is_flushed(actor):
    actor.do(call, "create_queue", "fast", unlogged=True)

    assert not flushes(actor, call, "send", "fast", 1)
    assert not flushes(actor, call, "send", "fast", 2, unique="k")
    assert not flushes(actor, call, "send_batch", "fast", list(range(60)))
    assert not flushes(actor, call, "send_batch", "fast", list(range(600)))
    assert not flushes(actor, call, "pop", "fast")
    one, two, three, four, *_ = actor.do(call, "read", "fast", qty=7)
    assert not flushes(actor, call, "archive", "fast", one)
    assert not flushes(actor, call, "delete", "fast", two)
    assert not flushes(actor, call, "retry", "fast", {three.receipt: 9})
    assert not flushes(actor, call, "fail", "fast", {four.receipt: "no"})
    batch = actor.do(call, "read", "fast", qty=20)
    assert not flushes(actor, call, "complete", "fast", [m.receipt for m in batch])
    actor.do(begin)
    actor.do(call, "send", "fast", "with the caller's data")
    assert flushes(actor, commit)
    actor.do(call, "drop_queue", "fast")


def test_a_read_in_the_callers_transaction_leaves_its_commit_alone(actor):
    actor.do(call, "send_batch", "orders", list(range(3)))
    actor.do(begin)
    actor.do(call, "send", "orders", "more")
    actor.do(call, "read", "orders", in_transaction=True)

    assert actor.do(execute, "SHOW synchronous_commit") == [("on",)]
    assert flushes(actor, commit)


@pytest.mark.parametrize("own", ["local", "remote_apply", "off"])
def test_a_session_keeps_its_own_synchronous_commit(actor, own):
    actor.do(call, "send", "orders", 1)
    actor.do(execute, f"SET synchronous_commit = {own}")

    actor.do(call, "read", "orders")

    assert actor.do(execute, "SHOW synchronous_commit") == [(own,)]


@pytest.mark.parametrize("lease", ["of one", "of a batch", "of a group"])
def test_leases_that_a_crash_takes_are_delivered_again_and_their_receipts_are_no_good(
    actor, crash, lease
):
    group = "customer 1" if lease == "of a group" else None
    sent = actor.do(call, "send_batch", "orders", list(range(20)), group=group)
    old = [m.receipt for m in read_all(actor, lease)]
    assert sorted(receipt.id for receipt in old) == sent

    crash()

    assert actor.do(call, "metrics", "orders").in_flight == 0
    assert actor.do(call, "archive", "orders", old) == []
    assert actor.do(call, "set_vt", "orders", old, 60) == []
    again = read_all(actor, lease)
    # The delivery count is lost too: the receipts differ only by their time.
    assert [m.read_ct for m in again] == [1] * 20
    new = [m.receipt for m in again]
    assert sorted(receipt.id for receipt in new) == sent
    assert actor.do(engine, release, "orders", old) == []
    assert sorted(actor.do(call, "complete", "orders", old).lost) == sorted(old)
    assert sorted(actor.do(call, "complete", "orders", new)) == sent
    crash()
    assert actor.do(call, "metrics", "orders").archived == 20


def test_an_ack_takes_the_leases_before_it_to_the_disk(actor, crash):
    sent = actor.do(call, "send_batch", "orders", list(range(22)))
    [one] = actor.do(call, "read", "orders")
    [two] = actor.do(call, "read", "orders")
    batch = actor.do(call, "read", "orders", qty=20)
    actor.do(call, "archive", "orders", one)

    crash()

    assert actor.do(call, "metrics", "orders").in_flight == 21
    held = [m.receipt for m in [two, *batch]]
    assert sorted(actor.do(call, "complete", "orders", held)) == sent[1:]


def test_a_read_behind_a_crash_finds_what_lies_before_its_position(actor, crash):
    """The process remembers its last position, which the server has lost."""
    sent = actor.do(call, "send_batch", "orders", list(range(30)))
    for _ in range(3):
        actor.do(call, "read", "orders", qty=5)

    crash()

    found: list[int] = []
    while messages := actor.do(call, "read", "orders", qty=5):
        found += [m.id for m in messages]
    assert sorted(found) == sent
