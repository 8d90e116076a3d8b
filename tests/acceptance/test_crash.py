"""Logged and unlogged queues after a server crash."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from environ import Env

from example_project.embedded_postgres.server import EmbeddedServer
from tests.actors import Actor, begin, call, execute, manage

pytestmark = [pytest.mark.acceptance]

HOT = [f"pgqueue_{table}{twin}" for table in ("ready", "deferred") for twin in ("", "_unlogged")]


@pytest.fixture
def server() -> Iterator[EmbeddedServer]:
    directory = Path(tempfile.mkdtemp(prefix="pgqueue-crash-"))
    # With fsync, since the data must survive a crash.
    with EmbeddedServer(directory, settings={"shared_buffers": "16MB"}) as server:
        yield server
    shutil.rmtree(directory, ignore_errors=True)
    shutil.rmtree(server.home, ignore_errors=True)


@pytest.fixture
def actor(server: EmbeddedServer) -> Iterator[Actor]:
    with Actor({"default": Env.db_url_config(server.url())}) as actor:
        actor.do(manage, "migrate", "django_pgqueue")
        yield actor


@pytest.fixture
def crash(server: EmbeddedServer, actor: Actor) -> Callable[[], None]:
    def crash() -> None:
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


def count(actor: Actor, table: str) -> int:
    return actor.do(execute, f"SELECT count(*) FROM {table}")[0][0]


def test_an_unlogged_queue_is_empty_after_a_crash_and_works_again(
    actor: Actor, crash: Callable[[], None]
) -> None:
    sent = fill(actor, "fast", unlogged=True)
    sent += fill(actor, "daily", unlogged=True, partition_interval=86400)

    crash()

    for name in ("fast", "daily"):
        metrics = actor.do(call, "metrics", name)
        assert (metrics.length, metrics.archived) == (0, 0)
        assert actor.do(call, "read", name, qty=9) == []
    for table in (*HOT, "pgqueue_message", "pgqueue_archive"):
        assert count(actor, table) == 0
    again = fill(actor, "fast") + fill(actor, "daily")
    assert min(again) > max(sent)
    metrics = actor.do(call, "metrics", "fast")
    assert (metrics.ready, metrics.in_flight, metrics.delayed, metrics.archived) == (13, 4, 5, 3)
    assert actor.do(call, "drop_queue", "daily") is True


def test_a_logged_queue_keeps_all_that_was_committed(
    actor: Actor, crash: Callable[[], None]
) -> None:
    sent = fill(actor, "safe")
    fill(actor, "fast", unlogged=True)
    actor.do(begin)
    actor.do(call, "send", "safe", "never committed")
    before = actor.do(execute, "SELECT * FROM pgqueue_live WHERE id = ANY(%s) ORDER BY id", [sent])

    crash()

    after = actor.do(execute, "SELECT * FROM pgqueue_live ORDER BY id")
    assert after == before
    assert len(after) == 22
    assert {row[0] for row in actor.do(execute, "SELECT id FROM pgqueue_archive")} == set(sent[:3])
    assert {row[0] for row in actor.do(execute, "SELECT id FROM pgqueue_message")} == set(sent)
    assert [m.id for m in actor.do(call, "read", "safe", qty=99)] == sent[7:20]
    assert actor.do(call, "send", "safe", 1) > max(sent)


def test_a_queue_wakes_its_readers_again_after_a_crash(
    server: EmbeddedServer, actor: Actor, crash: Callable[[], None]
) -> None:
    fill(actor, "safe")
    actor.do(call, "purge", "safe")
    mark = "SELECT pg_sequence_last_value('pgqueue_wake_q1'::regclass)"
    before = actor.do(execute, mark)

    crash()

    actor.do(call, "send", "safe", 1)
    assert actor.do(execute, mark) > before
