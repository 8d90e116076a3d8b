"""Errors that repeat: a loop tries for ever, and the log says it once."""

from __future__ import annotations

import threading

import pytest
from django.db import OperationalError

from django_pgqueue import signals
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Message
from django_pgqueue.observability import logs
from django_pgqueue.worker.loop import Loop
from django_pgqueue.worker.presence import Presence
from tests.hearing import heard
from tests.waiting import until
from tests.worker.consuming import live, outcomes


@pytest.fixture(autouse=True)
def afresh(monkeypatch):
    monkeypatch.setattr(logs, "_repeated", {})


def errors(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.django_db(transaction=True)
def test_a_dropped_queue_is_logged_once_until_it_is_there_again(committed_orders, consume, caplog):
    Message.objects.create_queue("mails")
    work = [Handler(name, lambda message: None) for name in ("orders", "mails")]
    run = consume(handlers=work)
    caplog.set_level("INFO")

    with heard(signals.database_failed) as failed:
        Message.objects.drop_queue("mails")
        until(lambda: len(failed) >= 3)
    committed_orders.send(1)
    until(lambda: run.subscription.counts.completed == 1)
    logged = errors(caplog)
    Message.objects.create_queue("mails")
    Message.objects.send("mails", 1)
    until(lambda: outcomes("mails"))

    [error] = logged
    assert error.startswith("mails: fetch failed, next try in 1.0 s: QueueNotFound: There is no")
    assert "Create it first" in error
    until(lambda: "mails: fetch works again, after " in caplog.text)
    assert errors(caplog) == logged
    assert live() == []


class Broken(Loop):
    """A loop whose database answers after three failures."""

    def tick(self) -> float:
        if self.failures.count < 3:
            raise OperationalError(f"no connection, process {self.failures.count}")
        self.stop()
        return 0.0


def test_a_loop_that_fails_is_logged_once_and_when_it_works_again(caplog):
    caplog.set_level("INFO")

    Broken("broken").run()

    assert [record.getMessage() for record in caplog.records] == [
        caplog.records[0].getMessage(),
        "pgqueue-broken works again, after 3 failures",
    ]
    assert caplog.records[0].levelname == "ERROR"


def test_another_error_of_the_same_operation_is_logged(caplog):
    for text in ("gone", "refused", "gone", "gone"):
        signals.database_failed.send("loop", operation="fetch", error=OSError(text), wait=1.0)

    assert [message.rpartition(" ")[2] for message in errors(caplog)] == ["gone", "refused"]


def test_a_lasting_error_says_how_often_it_happened(caplog, monkeypatch):
    for _ in range(4):
        signals.database_failed.send("loop", operation="fetch", error=OSError("gone"), wait=1.0)
    monkeypatch.setattr(logs, "_AGAIN", 0.0)
    signals.database_failed.send("loop", operation="fetch", error=OSError("gone"), wait=1.0)

    assert errors(caplog)[-1].endswith("OSError: gone (3 times more since the last line)")


@pytest.mark.parametrize("again", [True, False], ids=["second signal", "graceful timeout"])
def test_an_attempt_to_connect_does_not_hold_up_the_end(
    committed_orders, consume, monkeypatch, again
):
    """It waits for the server, where nothing can cut it."""
    began, go = threading.Event(), threading.Event()

    def leave(self: Presence) -> None:
        began.set()
        go.wait(60)

    monkeypatch.setattr(Presence, "leave", leave)
    run = consume(lambda message: None, options={"graceful_timeout": 30.0 if again else 0.5})

    run.consumer.stop()
    assert began.wait(10)
    if again:
        run.consumer.abort()
    run.wait(15)
    go.set()
