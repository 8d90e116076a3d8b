"""Processes that send and consume while a queue is converted, and converters that die."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from typing import Any

from tests.actors import enter

__all__ = ["consume", "convert_and_die", "maintain", "send"]


def send(databases: dict[str, Any], stop: Event, number: int) -> None:
    """Send in every possible way, and record in the same transaction what was sent."""
    enter(databases)
    from django.db import connection, transaction

    from django_pgqueue import queue
    from django_pgqueue.models import Queue

    orders = queue("orders")
    pk = Queue.objects.get(name="orders").pk

    def insert() -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO pgqueue_message (queue_id, body) VALUES (%s, '1') RETURNING id", [pk]
            )
            return [cursor.fetchone()[0]]

    copies = itertools.cycle(range(10))
    ways = [
        lambda: [orders.send({"n": 1})],
        lambda: orders.send_batch([1, 2, 3]),
        # Uses COPY now and then.
        lambda: orders.send_batch(list(range(600 if next(copies) == 0 else 3))),
        lambda: [orders.send("in turn", group=f"g{number}")],
        lambda: [orders.send("soon", delay=0.05)],
        lambda: [orders.send("once", unique=f"{number}-{time.monotonic_ns()}")],
        insert,
    ]
    for way in itertools.cycle(ways):
        if stop.is_set():
            break
        with _timed("send"), transaction.atomic():
            ids = way()
            _note("sent", ids)
        time.sleep(0.03)


def consume(databases: dict[str, Any], stop: Event, number: int) -> None:
    """Read and archive, or pop, and record in the same transaction what was handled."""
    enter(databases)
    from django.db import transaction

    from django_pgqueue import queue

    orders = queue("orders")
    while not stop.is_set():
        with _timed("pop"), transaction.atomic():
            _note("handled", [message.id for message in orders.pop(2)])
        with _timed("read"):
            messages = orders.read(qty=100, vt=600)
        with _timed("archive"), transaction.atomic():
            done = orders.archive(messages)
            assert not done.lost
            _note("handled", done)
        if not messages:
            time.sleep(0.02)


def maintain(databases: dict[str, Any], stop: Event, number: int) -> None:
    """Run maintenance repeatedly."""
    enter(databases)
    from django_pgqueue import queue

    while not stop.is_set():
        queue("orders").maintain(patience=0.2)
        time.sleep(0.05)


def convert_and_die(databases: dict[str, Any], interval: Any, step: str) -> None:
    """Start a conversion, and die in the transaction of a step."""
    enter(databases)
    from unittest.mock import patch

    from django_pgqueue import queue
    from django_pgqueue.maintenance import bounds, conversion

    module, _, name = step.rpartition(".")
    do = getattr(bounds if module else conversion, name)

    def die(*args: Any, **kwargs: Any) -> None:
        do(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    with patch(f"django_pgqueue.maintenance.conversion.{step}", die):
        queue("orders").repartition(interval)


def _note(table: str, ids: list[int]) -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"INSERT INTO {table} SELECT unnest(%s::bigint[])", [list(ids)])


@contextmanager
def _timed(what: str) -> Iterator[None]:
    from django.db import connection

    began = time.monotonic()
    yield
    took = time.monotonic() - began
    if took > 0.05:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO waited VALUES (%s, %s)", [what, took])
