"""The time of each layer for one message: the same work with one more layer each time.

Without fsync, which would hide the rest; the last line includes it.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psycopg
from django.db import connection
from django.utils import timezone

from benchmarks import database
from benchmarks.peers import bare, ours, ours_bare
from benchmarks.scenarios import Measure, scenario
from django_pgqueue import arguments
from django_pgqueue.engine.rows import Delivery
from django_pgqueue.engine.runner import Rows
from django_pgqueue.engine.send.sending import send, send_batch
from django_pgqueue.models import Message, Queue
from django_pgqueue.runner import DjangoRunner

NO_FSYNC = "SET synchronous_commit = off"


def bare_queues(cursor_factory: Any) -> ours_bare.Queues:
    """psycopg's own cursor prepares repeated statements; Django's binds values on the client."""
    queues = ours_bare.Queues(cursor_factory)
    queues.connection.execute(NO_FSYNC)
    return queues


@contextmanager
def django_without_fsync() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(NO_FSYNC)
        try:
            yield
        finally:
            cursor.execute("RESET synchronous_commit")


def microseconds(step: Callable[[], int], repeats: int) -> float:
    """Microseconds of this process per message."""
    count, started = 0, time.perf_counter()
    for _ in range(repeats):
        count += step()
    return (time.perf_counter() - started) / count * 1e6


def without_fsync(step: Callable[[], int], repeats: int) -> float:
    with django_without_fsync():
        return microseconds(step, repeats)


def select_one(cursor: Any) -> int:
    cursor.execute("SELECT 1")
    return len(cursor.fetchall())


def select_one_by_django() -> int:
    with connection.cursor() as cursor:
        return select_one(cursor)


@scenario("Send one: a layer more each time", unit="µs a message", baseline="ours, fsync")
def parts_send(bench: Any) -> dict[str, Measure]:
    repeats = bench.amount(1000, 3000)
    queues, name = bench.queue("ours")
    body = bench.payload.bodies[0]
    bare.create()
    plain = database.connect().cursor()
    plain.execute(NO_FSYNC)
    prepared = bare_queues(psycopg.Cursor)
    bound = bare_queues(psycopg.ClientCursor)

    def insert() -> int:
        plain.execute(bare.INSERT, [bare.text(body)])
        return len(plain.fetchall())

    steps: dict[str, Callable[[], int]] = {
        "SELECT 1": lambda: select_one(plain),
        "insert into a plain table": insert,
        "send, prepared": lambda: prepared.send(name, body),
        "send, bound in the client": lambda: bound.send(name, body),
    }
    return {
        **{label: timed(step, repeats) for label, step in steps.items()},
        "SELECT 1 by Django": lambda: without_fsync(select_one_by_django, repeats),
        "ours": lambda: without_fsync(lambda: queues.send(name, body), repeats),
        "ours, fsync": lambda: microseconds(lambda: queues.send(name, body), repeats),
    }


@scenario(
    "Read 100 and archive them: a layer more each time", unit="µs a message", baseline="ours, fsync"
)
def parts_read(bench: Any) -> dict[str, Measure]:
    repeats = bench.amount(60, 200)
    queues, name = bench.queue("ours")
    prepared = bare_queues(psycopg.Cursor)
    bound = bare_queues(psycopg.ClientCursor)
    limit = bare.Queues()
    limit.cursor.execute(NO_FSYNC)

    def measured(measure: Any, cycling: ours.Queues) -> Measure:
        def run() -> float:
            queues.fill(name, bench.payload.bodies, repeats * 100)
            return measure(lambda: cycling.cycle(name, 100), repeats)

        return run

    def deleted() -> float:
        bare.copy_in(bench.payload.take(repeats * 100))
        return microseconds(lambda: limit.cycle(name, 100), repeats)

    return {
        "delete from a plain table": deleted,
        "read and archive, prepared": measured(microseconds, prepared),
        "read and archive, bound in the client": measured(microseconds, bound),
        "ours": measured(without_fsync, queues),
        "ours, fsync": measured(microseconds, queues),
    }


class Nowhere(DjangoRunner):
    """A runner that sends no statement to the server."""

    def run(self, text: str, params: Any = None) -> Rows:
        return [(1,)]


@scenario(
    "Our own Python: the processor's time for a send without its statement",
    unit="µs a message",
    baseline="json.dumps",
)
def parts_python(bench: Any) -> dict[str, Measure]:
    repeats = bench.amount(2000, 10_000)
    _, name = bench.queue("ours")
    body, bodies = bench.payload.bodies[0], bench.payload.take(100)
    opened = Queue.objects.resolve(name).opened
    nowhere = dataclasses.replace(opened, runner=Nowhere(opened.alias))
    now = timezone.now()
    row = Delivery(None, 1, 1, 1, json.dumps(body), None, now, 0, None, 0, 2, 1)
    [message] = Message.from_deliveries(opened, [row])

    steps: dict[str, tuple[Callable[[], Any], int]] = {
        "json.dumps": (lambda: json.dumps(body), 1),
        "send": (lambda: send(nowhere, body), 1),
        "json.dumps of 100": (lambda: json.dumps(bodies), 100),
        "send_batch of 100": (lambda: send_batch(nowhere, bodies), 100),
        "messages from 100 rows": (lambda: Message.from_deliveries(opened, [row] * 100), 100),
        "a receipt to settle by": (lambda: arguments.targets(message), 1),
    }

    def busy(step: Callable[[], Any], count: int) -> float:
        started = time.process_time()
        for _ in range(repeats // count):
            step()
        return (time.process_time() - started) / (repeats // count * count) * 1e6

    return {label: partial(busy, *step) for label, step in steps.items()}


def timed(step: Callable[[], int], repeats: int) -> Measure:
    return lambda: microseconds(step, repeats)
