"""Our handlers, run by ``manage.py runconsumer`` in scenarios with workers."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

from django.db import connection

from benchmarks import runs
from benchmarks.notes import note, note_delay
from django_pgqueue import consumer, signals
from django_pgqueue.models import Message
from django_pgqueue.retries import NoRetry

#: Modes that have a batch handler too.
BATCHES = ("drain",)


@consumer("drain")
def nothing(message: Message) -> None:
    """A handler that does nothing."""


@consumer("drain-batch", batch=True)
def nothing_at_once(messages: list[Message]) -> None:
    """A batch handler that does nothing."""


@consumer("slow-logs", visibility_timeout=2, retry=NoRetry())
def note_and_fail(message: Message) -> None:
    note("ran", message.id)
    raise ValueError("as told")


@consumer("slow-receiver", visibility_timeout=2)
def note_the_run(message: Message) -> None:
    note("ran", message.id)


class SlowHandler(logging.Handler):
    """A log handler that waits for a network, for 5 ms a line."""

    def emit(self, record: logging.LogRecord) -> None:
        time.sleep(0.005)


def wait_for_each(messages: list[Any], **kwargs: Any) -> None:
    """A receiver that waits 5 ms for each message."""
    time.sleep(0.005 * len(messages))


if os.environ.get("BENCHMARK_SLOW") == "slow-logs":
    logging.getLogger("django_pgqueue").addHandler(SlowHandler())
    logging.getLogger("django_pgqueue").propagate = False
if os.environ.get("BENCHMARK_SLOW") == "slow-receiver":
    signals.messages_completed.connect(wait_for_each)


@consumer("wait")
def wait_10ms(message: Message) -> None:
    time.sleep(0.01)


@consumer("latency")
def note_the_delay(message: Message) -> None:
    note_delay(message.body["sent"])


@consumer("limits-cap")
def capped(message: Message) -> None:
    runs.handle(**message.body)


@consumer("limits-rate")
def rated(message: Message) -> None:
    runs.handle(**message.body)


EFFECTS = "CREATE TABLE failover_effect (queue text NOT NULL, op text NOT NULL)"


def effect(message: Message) -> None:
    """An effect in the database, and one outside of it."""
    op = message.body["op"]
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO failover_effect VALUES (%s, %s)", [message.queue_name, op])
    note("handled", op, time.monotonic(), os.getpid())


@consumer("failover-transactional", ack_policy="TRANSACTIONAL")
def in_one_transaction(message: Message) -> None:
    effect(message)


@consumer("failover-plain")
def at_least_once(message: Message) -> None:
    effect(message)
