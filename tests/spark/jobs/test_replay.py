"""Replays from a lake, and loads from other files, into queues."""

from __future__ import annotations

import getpass
import socket
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_pgqueue.audit import acting_as
from django_pgqueue.models import ArchivedMessage, AuditEntry, BoundQueue, Message
from pyspark_pgqueue.jobs import replay as replaying
from pyspark_pgqueue.jobs.export import export
from pyspark_pgqueue.jobs.replay import load, replay
from tests.spark.conftest import wait_for_commits

Finish = Callable[..., list[int]]


@pytest.fixture
def lake(spark: Any, url: str, finish: Finish, tmp_path: Path) -> str:
    """A lake with forty orders, of which four failed."""
    finish("orders", 36)
    Message.objects.send_batch("orders", [{"n": n} for n in range(100, 104)])
    failing = Message.objects.read("orders", qty=4)
    BoundQueue("orders").fail({message.receipt: "no" for message in failing})
    path = str(tmp_path / "lake")
    wait_for_commits(url)
    export(spark, url, path)
    return path


def bodies(queue: str) -> list[Any]:
    return [message.body for message in live(queue)]


def live(queue: str) -> list[Message]:
    """A queue's messages that are not archived."""
    found = Message.objects.filter(queue__name=queue)
    return list(found.exclude(pk__in=ArchivedMessage.objects.values("pk")))


def test_dry_run_counts_and_sends_nothing(spark: Any, url: str, lake: str) -> None:
    summary = replay(spark, url, lake, where="state = 'FAILED'", dry_run=True)

    assert summary.counts == {"orders": 4}
    assert Message.objects.metrics("orders").length == 0


def test_messages_go_back_to_their_queue_and_say_what_they_were(
    spark: Any, url: str, lake: str
) -> None:
    name = f"again-{uuid.uuid4()}"

    replay(spark, url, lake, where="state = 'FAILED'", replay_id=name)
    replay(spark, url, lake, where="state = 'FAILED'", replay_id=name)

    messages = live("orders")
    assert sorted(message.body["n"] for message in messages) == [100, 101, 102, 103]
    assert {message.headers["x-replay"]["by"] for message in messages} == {name}
    [entry] = AuditEntry.objects.filter(operation="replay")
    given = {"id": name, "lake": lake, "where": "state = 'FAILED'"}
    assert (entry.arguments, entry.queue_name, entry.count) == (given, "orders", 4)
    assert entry.ended_at is not None
    assert (entry.who, entry.host) == (getpass.getuser(), socket.gethostname())


def test_headers_are_kept_beside_the_note(spark: Any, url: str, lake: str) -> None:
    Message.objects.create_queue("again")

    replay(spark, url, lake, queue="orders", to="again", where="state = 'COMPLETED'")

    message, *_ = live("again")
    assert message.headers["h"] == 1
    assert set(message.headers["x-replay"]) == {"id", "by"}
    assert len(bodies("again")) == 36


@pytest.mark.parametrize("rate", [15, 20, None])
def test_rate_is_kept_and_an_interrupted_replay_goes_on_at_any_rate(
    spark: Any, url: str, lake: str, rate: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replaying, "_RANGE", 7)  # several tasks sort a range each
    Message.objects.create_queue("again")
    name = f"slow-{uuid.uuid4()}"

    def interrupt(what: str, done: int, total: int) -> None:
        assert (what, done, total) == ("messages", 20, 40)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        replay(spark, url, lake, to="again", rate=20, replay_id=name, progress=interrupt)
    assert len(bodies("again")) == 20
    [entry] = AuditEntry.objects.filter(operation="replay")
    assert (entry.count, entry.ended_at) == (20, None)

    started = time.monotonic()
    for _ in range(2):  # the second call finds nothing left to send
        replay(spark, url, lake, to="again", rate=rate, replay_id=name)

    assert len(bodies("again")) == 40
    assert len({str(body) for body in bodies("again")}) == 40
    assert time.monotonic() - started < 60
    [entry] = AuditEntry.objects.filter(operation="replay")
    assert (entry.count, entry.ended_at is None) == (40, False)


@pytest.mark.parametrize("kind", ["csv", "json", "parquet"])
def test_rows_of_files_become_bodies(spark: Any, url: str, tmp_path: Path, kind: str) -> None:
    Message.objects.create_queue("orders")
    path = str(tmp_path / kind)
    frame = spark.createDataFrame([("a", 1), ("b", 2)], "name string, number int")
    frame.write.format(kind).options(**({"header": "true"} if kind == "csv" else {})).save(path)

    with acting_as("ann", place="command", program="pgqueue_load"):
        summary = load(spark, url, path, to="orders", format=kind, where="number > 1")

    assert summary.rows == 1
    number = "2" if kind == "csv" else 2
    assert bodies("orders") == [{"name": "b", "number": number}]
    entry = AuditEntry.objects.get(operation="load")
    assert (entry.who, entry.place, entry.program) == ("ann", "command", "pgqueue_load")
    given = {"path": path, "format": kind, "to": "orders", "where": "number > 1"}
    assert (entry.count, entry.arguments) == (1, {"id": summary.id, **given})


def test_file_of_messages_keeps_what_a_message_has(spark: Any, url: str, tmp_path: Path) -> None:
    Message.objects.create_queue("orders")
    path = str(tmp_path / "messages")
    spark.createDataFrame(
        [("orders", '{"a": 1}', 7, "x")], "queue string, body string, priority int, other string"
    ).write.parquet(path)

    load(spark, url, path)

    (message,) = live("orders")
    assert (message.body, message.priority) == ({"a": 1}, 7)
