"""Messages arrive at once, and without notifications, too."""

from __future__ import annotations

import time
from functools import partial

import pytest

from django_pgqueue import bare
from django_pgqueue.engine.read import sleep
from django_pgqueue.models import ArchivedMessage, Message, queue
from tests.conftest import run_sql
from tests.promises import players
from tests.promises.consumers import handler_of
from tests.promises.draining import is_empty
from tests.promises.full_speed import Worker
from tests.promises.pages import promise

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]


@promise(
    "NOTIFY is only a hint.",
    "A lost or throttled notification, or a pooler, delays a message by up to max_fetch_interval "
    "(one second) and never loses it.",
)
@pytest.mark.parametrize("notified", [True, False])
def test_no_message_is_lost_whether_or_not_notifications_arrive(full_speed, consume, notified):
    Message.objects.create_queue("orders")
    handler = handler_of("NACK_ON_ERROR", full_speed.journal, ways=["return"], work=0)
    started = [consume(handlers=[handler], options={"listen": notified}) for _ in range(2)]
    full_speed.threads(partial(players.send, most=50), 4)
    queue("orders").send("first")
    full_speed.wait(is_empty)  # a consumer that cannot register ends
    if notified:
        # The listeners, too.
        full_speed.cut_connections(of_consumers=True)

    full_speed.run()
    full_speed.wait(is_empty)
    for each in started:
        each.stop()

    stored = {pk for (pk,) in run_sql("SELECT id FROM pgqueue_message")}
    assert set(ArchivedMessage.objects.values_list("pk", flat=True)) == stored


@promise("A send wakes a consumer that listens, wherever its commit falls...")
@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize("kind", ["NACK_ON_ERROR", "locked"])
def test_no_consumer_sleeps_while_a_message_is_due(full_speed, consume, monkeypatch, kind, number):
    """The polls that find messages whatever happens are an hour away."""
    monkeypatch.setattr(sleep, "_LISTENING", (3600.0, 1.0, 3600.0))
    Message.objects.create_queue("orders")
    options = {"max_fetch_interval": 3600, "max_workers": number}
    handler = handler_of(kind, full_speed.journal, ways=["return"], work=0, **options)
    for _ in range(number):
        consume(handlers=[handler])
    full_speed.wait(lambda: listeners() == number)
    full_speed.threads(send_and_wait, 1)

    full_speed.run()

    assert len(full_speed.notes("handled")) > 5
    full_speed.wait(is_empty)


def listeners() -> int:
    return run_sql("SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'")[0][0]


def send_and_wait(worker: Worker) -> None:
    """Send a message, and another while a consumer reads the first and falls asleep again.

    Then wait until both are handled: the next send would find one that is overlooked.
    """
    bare.send(worker.queue, 1)
    time.sleep(worker.draw.uniform(0, 0.006))
    with worker.connection.transaction():
        bare.send(worker.queue, 2)
        time.sleep(worker.draw.choice([0, 0.002, 0.004, 0.1]))
    deadline = time.monotonic() + 20
    while worker.connection.execute("SELECT FROM pgqueue_live LIMIT 1").rowcount:
        assert time.monotonic() < deadline, "a message waits"
    worker.note("handled")
