"""Logged and unlogged queues after a server crash."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from environ import Env

from django_pgqueue.embedded.server import EmbeddedServer
from django_pgqueue.engine.names import LIVE
from django_pgqueue.engine.read.reading import fall_asleep
from tests.actors import Actor, begin, call, engine, execute, manage, work_off
from tests.conftest import VERSIONS
from tests.servers import new_database, one_server

pytestmark = [pytest.mark.acceptance]

SENDER = "pgqueue_test_sender"


@pytest.fixture(scope="module", params=VERSIONS)
def server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    # With fsync, since the data must survive a crash.
    with one_server({"shared_buffers": "16MB"}, request.param) as server:
        yield server


@pytest.fixture
def actor(server: EmbeddedServer) -> Iterator[Actor]:
    """A process with a new database."""
    with Actor({"default": Env.db_url_config(new_database(server, "crashing"))}) as actor:
        actor.do(manage, "migrate", "django_pgqueue")
        yield actor


@pytest.fixture
def crash(server: EmbeddedServer, actor: Actor) -> Callable[[], None]:
    def crash() -> None:
        # Operations on unlogged queues do not wait for the disk: without this, it may have nothing
        # of them.
        actor.do(execute, "CHECKPOINT")
        server.kill("immediate")
        server.start()
        actor.rest()

    return crash


def fill(actor: Actor, name: str, **options: Any) -> list[int]:
    """Create a queue with a message in every state; returns the ids."""
    actor.do(call, "create_queue", name, **options)
    sent = actor.do(call, "send_batch", name, list(range(20)))
    sent += actor.do(call, "send_batch", name, list(range(5)), delay=600)
    actor.do(call, "archive", name, sent[:3])
    actor.do(call, "read", name, qty=4)
    return sent


def fill_tables(actor: Actor, name: str) -> list[int]:
    """Put a row of the queue into each live table; returns the ids."""
    # With a backlog, two reads of 16 or more: the second one has a batch lease.
    sent = actor.do(call, "send_batch", name, list(range(100)))
    assert [len(actor.do(call, "read", name, qty=20)) for _ in range(2)] == [20, 20]
    sent += actor.do(call, "send_batch", name, [1, 2, 3], group="customer 1")
    assert len(actor.do(call, "read", name, qty=61)) == 61
    sent += actor.do(call, "send_batch", name, [1, 2], group="customer 2")
    sent.append(actor.do(call, "send", name, "ready", priority=-1))
    sent.append(actor.do(call, "send", name, "once", unique="report 7"))
    for table in LIVE:
        assert count(actor, table), table
    return sent


def count(actor: Actor, table: str) -> int:
    return actor.do(execute, f"SELECT count(*) FROM {table}")[0][0]


def test_an_unlogged_queue_is_empty_after_a_crash_and_works_again(actor, crash):
    sent = fill(actor, "fast", unlogged=True)
    sent += fill(actor, "daily", unlogged=True, partition_interval=86400)
    sent += fill_tables(actor, "fast")

    crash()

    for name in ("fast", "daily"):
        metrics = actor.do(call, "metrics", name)
        assert (metrics.length, metrics.archived) == (0, 0)
        assert actor.do(call, "read", name, qty=9) == []
    for table in (*LIVE, "pgqueue_message", "pgqueue_archive"):
        assert count(actor, table) == 0
    again = fill(actor, "fast") + fill(actor, "daily")
    assert min(again) > max(sent)
    metrics = actor.do(call, "metrics", "fast")
    assert (metrics.ready, metrics.in_flight, metrics.delayed, metrics.archived) == (13, 4, 5, 3)
    assert actor.do(call, "drop_queue", "daily") is True


@pytest.mark.parametrize("unlogged", [True, False])
@pytest.mark.parametrize(
    ("limits", "free"), [({"limit": 3}, 3), ({"group_limit": 3}, 3), ({"rate": "1/h"}, 0)]
)
def test_limits_hold_after_a_crash(actor, crash, unlogged, limits, free):
    """An unlogged queue loses its messages in flight, and so their slots, but not its rate."""

    def send_and_read() -> list[Any]:
        group = "a" if "group_limit" in limits else None
        actor.do(call, "send_batch", "fast", list(range(9)), group=group)
        return actor.do(call, "read", "fast", qty=9)

    actor.do(call, "create_queue", "fast", unlogged=unlogged, **limits)
    assert len(send_and_read()) == (free or 1)

    crash()

    assert actor.do(call, "read", "fast", qty=9) == []
    assert len(send_and_read()) == (free if unlogged else 0)
    assert actor.do(call, "read", "fast", qty=9) == []


def test_nothing_of_a_lost_message_is_in_the_way_of_one_sent_since(actor, crash):
    actor.do(call, "create_queue", "fast", unlogged=True)
    lost = fill_tables(actor, "fast")

    crash()

    once = actor.do(call, "send", "fast", "once", unique="report 7")
    assert once not in lost
    actor.do(call, "send_batch", "fast", ["a", "b"], group="customer 1")
    assert actor.do(work_off, "fast") == ["once", "a", "b"]
    assert [count(actor, table) for table in LIVE] == [0] * 6 + [1]


def test_plain_inserts_since_a_crash_stay_when_the_queue_is_cleared(server, actor, crash):
    """They open no queue: what the crash left is still there when they run."""
    actor.do(call, "create_queue", "fast", unlogged=True)
    fill_tables(actor, "fast")

    crash()

    insert = "INSERT INTO pgqueue_message (queue_id, group_key, scheduled_at) VALUES "
    with psycopg.connect(server.url("crashing"), autocommit=True) as plain:
        plain.execute(f"{insert} (1, NULL, NULL), (1, NULL, now() + interval '1 hour')")
        plain.execute(f"{insert} (1, 'customer 1', NULL), (1, 'customer 1', NULL)")
    metrics = actor.do(call, "metrics", "fast")
    assert (metrics.ready, metrics.delayed, metrics.waiting) == (2, 1, 1)
    assert len(actor.do(call, "read", "fast", qty=9)) == 2


@pytest.mark.parametrize("until", ["started", "done"])
def test_a_key_is_held_after_a_crash_if_its_message_is_there(actor, crash, until):
    for name, unlogged in (("safe", False), ("fast", True)):
        actor.do(call, "create_queue", name, unlogged=unlogged)
        actor.do(call, "send", name, "once", unique="report 7", until=until)

    crash()

    def conflict(name: str) -> Any:
        return actor.do(call, "send", name, "again", unique="report 7", until=until).conflict

    assert (conflict("safe"), conflict("fast")) == ("skipped", None)
    [message] = actor.do(call, "read", "safe")
    actor.do(call, "archive", "safe", message.receipt)
    assert (conflict("safe"), conflict("fast")) == (None, "skipped")


def test_a_role_that_may_only_send_claims_the_keys_that_a_crash_left(server, actor, crash):
    actor.do(call, "create_queue", "fast", unlogged=True)
    lost = actor.do(call, "send", "fast", "once", unique="report 7")
    actor.do(execute, f"CREATE ROLE {SENDER} LOGIN")
    actor.do(manage, "pgqueue_grants", role=SENDER, kind="sender", apply=True)

    crash()

    claim = (
        "SELECT id, conflict FROM pgqueue_claim_keys("
        "1, ARRAY['report 7'], '{0}', '{NULL}', 'done', '1 hour', 'skip', NULL)"
    )
    with psycopg.connect(server.url("crashing"), autocommit=True) as plain:
        plain.execute(f"SET ROLE {SENDER}")
        [(new, conflict)] = plain.execute(claim).fetchall()
        assert conflict is None
        assert new > lost
        assert plain.execute("SELECT pgqueue_clear_lost(1)").fetchall() == [(True,)]
    assert actor.do(call, "metrics", "fast").length == 0


def test_a_logged_queue_keeps_all_that_was_committed(actor, crash):
    sent = fill(actor, "safe")
    fill(actor, "fast", unlogged=True)
    actor.do(begin)
    actor.do(call, "send", "safe", "never committed")
    live = "SELECT * FROM pgqueue_live WHERE queue_id = 1 ORDER BY id"
    before = actor.do(execute, live)

    crash()

    after = actor.do(execute, live)
    assert after == before[:-1]
    assert len(after) == 22
    assert {row[0] for row in actor.do(execute, "SELECT id FROM pgqueue_archive")} == set(sent[:3])
    assert {row[0] for row in actor.do(execute, "SELECT id FROM pgqueue_message")} == set(sent)
    assert [m.id for m in actor.do(call, "read", "safe", qty=99)] == sent[7:20]
    assert actor.do(call, "send", "safe", 1) > max(sent)


def test_a_queue_wakes_its_readers_again_after_a_crash(server, actor, crash):
    fill(actor, "safe")
    actor.do(call, "purge", "safe")
    mark = "SELECT pg_sequence_last_value('pgqueue_wake_q1'::regclass)"
    # The crash may lose this change: its commit did not wait for the disk.
    actor.do(engine, fall_asleep, "safe", heard=None, doubt=None)

    crash()

    actor.do(engine, fall_asleep, "safe", heard=(), doubt=None)
    asleep = actor.do(execute, mark)
    actor.do(call, "send", "safe", 1)
    assert asleep == [(7,)]
    assert actor.do(execute, mark) > asleep
