"""Handlers of every mode: they write an effect (an Order) and obey the body.

A body is ``{"op": 7, "before": "raise", "after": "kill", "times": 1}``: the faults before and after
the effect, and in how many first deliveries they happen.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_pgqueue import consumer, schedule, signals
from django_pgqueue.models import Message
from django_pgqueue.retries import Constant
from django_pgqueue.worker import ticker
from tests.app.models import Order
from tests.promises import batching
from tests.promises.full_speed import Journal
from tests.promises.stepping import Stepper
from tests.working.history import record

RETRY = Constant(seconds=0.05, max_attempts=20)
#: Seconds per message: a handler without any cost would hide a held lease.
COST = float(os.environ.get("WORKING_COST", "0.002"))


def act(what: str | None, message: Message) -> None:
    if what is None or message.read_ct > message.body.get("times", 1):
        return
    record("fault", what=what, op=message.body["op"])
    if what == "raise":
        raise ValueError("as told")
    if what == "sys.exit":
        sys.exit(3)
    if what == "exit":
        os._exit(9)  # ends like an out-of-memory kill, without any cleanup
    if what == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "memory":
        raise MemoryError
    if what == "hang":
        time.sleep(3600)
    if what == "spin":
        while True:
            pass
    if what == "wait":
        until = message.body["until"]
        while not os.path.exists(until):
            time.sleep(0.01)
    if what == "sleep":
        time.sleep(message.body["seconds"])
    if what == "child":
        terminate_a_child()
    if what == "daemon":
        begun_child(daemon=True)
    if what == "lock":
        lock_in_turn(message.body["keys"])


def sleep_in_child(begun: Any) -> None:
    begun.set()
    time.sleep(3600)


def begun_child(**options: Any) -> Any:
    forked = multiprocessing.get_context("fork")
    begun = forked.Event()
    child = forked.Process(target=sleep_in_child, args=[begun], **options)
    child.start()
    begun.wait()
    return child


def terminate_a_child() -> None:
    child = begun_child()
    child.terminate()
    child.join(5)
    record("ended", code=child.exitcode)
    child.kill()
    child.join()


def lock_in_turn(keys: list[int]) -> None:
    """Two of these with their keys in opposite order deadlock."""
    with transaction.atomic(), connection.cursor() as cursor:
        for key in keys:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [key])
            time.sleep(0.2)


def obey(message: Message) -> None:
    op = message.body["op"]
    record("deliver", op=op, delivery=message.read_ct, queue=message.queue_name)
    act(message.body.get("before"), message)
    time.sleep(COST)
    Order.objects.create(number=str(op), note=message.queue_name)
    record("effect", op=op)
    act(message.body.get("after"), message)


@consumer("lease", retry=RETRY, timeout=3)
def lease(message: Message) -> None:
    obey(message)


@consumer("transactional", ack_policy="TRANSACTIONAL", retry=RETRY, timeout=3)
def transactional(message: Message) -> None:
    obey(message)


@consumer("locked", locked=True, retry=RETRY, timeout=3)
def locked(message: Message) -> None:
    obey(message)


@consumer("batch", batch=True, batch_size=20, retry=RETRY, timeout=3)
def batch(messages: list[Message]) -> None:
    for message in messages:
        obey(message)


@consumer("async", max_workers=10, retry=RETRY, timeout=3)
async def asynchronous(message: Message) -> None:
    op = message.body["op"]
    record("deliver", op=op, delivery=message.read_ct, queue=message.queue_name)
    await asyncio.sleep(COST)
    await Order.objects.acreate(number=str(op), note=message.queue_name)
    record("effect", op=op)


@consumer("patient", retry=RETRY, max_workers=2)
def patient(message: Message) -> None:
    """A handler without a timeout."""
    obey(message)


@consumer("asleep")
async def asleep(message: Message) -> None:
    """Waits in the thread that runs the queries of async handlers."""
    record("deliver", op=message.body["op"])
    await sync_to_async(time.sleep)(60)


# Handlers of steps; their process has a file of notes.
if folder := os.environ.get("STEPS_NOTES"):
    stepper = Stepper(Journal(Path(folder) / f"{os.getpid()}.notes"), os.getpid())
    consumer("steps", retry=RETRY)(stepper.run)
    consumer("async-steps", retry=RETRY, max_workers=10)(stepper.arun)


# Members of batches that end in every way.
if name := os.environ.get("BATCHES"):
    consumer(name, **batching.OPTIONS)(batching.run)


class StuckHandler(logging.Handler):
    """A log handler whose disk or network never answers after a failed attempt."""

    def emit(self, record: logging.LogRecord) -> None:
        if hasattr(record, "attempt"):
            threading.Event().wait()


if "WORKING_STUCK_LOG" in os.environ:
    logging.getLogger("django_pgqueue").addHandler(StuckHandler())

# A schedule declared by another version of this code: "queue name". Without a declaration it ends
# soon.
if declared := os.environ.get("WORKING_SCHEDULE"):
    ticker._GRACE = 5
    on, name = declared.split()
    schedule(every=3600, name=name)({"patient": patient, "lease": lease}[on])


def acked(messages: list[Message], **kwargs: Any) -> None:
    for message in messages:
        record("acked", op=message.body["op"], delivery=message.read_ct)


def started(**kwargs: Any) -> None:
    record("started")


signals.messages_completed.connect(acked)
signals.consumer_started.connect(started)
