"""Handlers that do steps, while their deliveries fail and come too late, and what they note.

A handler notes each call of a step's function ("calls") before anything else, each value that it
gets ("got"), and that its lease was lost ("late"). A call has an id of its own, and an atomic step
writes it to an order. The value of a step tells the call, and the delivery that stored it.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any
from uuid import uuid4

from django.db import OperationalError, connection

from django_pgqueue import bare
from django_pgqueue.acks import Retry
from django_pgqueue.errors import LeaseLost
from django_pgqueue.handlers import Handler
from django_pgqueue.models import Message
from tests.app.models import Order
from tests.promises.consumers import AGAIN, KINDS
from tests.promises.full_speed import Journal, Worker

__all__ = ["NAMES", "Stepper", "end_leases"]

#: The steps of each message, in their order.
NAMES = ("plain", "atomic", "plain too", "atomic too")
#: The longest work of a step, in seconds.
WORK = 0.004


class Stepper:
    """Does the steps of messages. Some deliveries fail between two steps."""

    def __init__(self, journal: Journal, seed: int = 7) -> None:
        self._journal = journal
        self._draw = random.Random(seed)

    def handler(self, kind: str, queue: str = "orders") -> Handler:
        function = {"async": self.arun, "batch": self.run_batch}.get(kind, self.run)
        options: dict[str, Any] = {"retry": AGAIN, "max_deliveries": 10_000, **KINDS[kind]}
        return Handler(queue, function, **options)

    def run(self, message: Message, among: int = 1) -> None:
        for name in NAMES:
            self._fail(among)
            try:
                self._got(message, name, self._step(message, name))
                message.note({"by": message.read_at}, flush=True)
            except LeaseLost:
                self._note("late", message)
                raise

    def run_batch(self, messages: list[Message]) -> None:
        for message in messages:
            self.run(message, len(messages))

    async def arun(self, message: Message) -> None:
        for name in NAMES:
            self._fail()
            try:
                call = self.call if name.startswith("atomic") else self.acall
                value = await message.astep(
                    name, call, message, name, atomic=name.startswith("atomic")
                )
                self._got(message, name, value)
                await message.anote({"by": message.read_at}, flush=True)
            except LeaseLost:
                self._note("late", message)
                raise

    def call(self, message: Message, name: str) -> dict[str, Any]:
        """What a step does."""
        value = self._begin(message, name)
        time.sleep(self._draw.uniform(0, WORK))
        if name.startswith("atomic"):
            number = f"{message.queue_name} {message.id} {name}"
            Order.objects.create(number=number, note=value["call"])
            time.sleep(self._draw.uniform(0, WORK))
        return value

    async def acall(self, message: Message, name: str) -> dict[str, Any]:
        value = self._begin(message, name)
        await asyncio.sleep(self._draw.uniform(0, WORK))
        return value

    def _step(self, message: Message, name: str) -> Any:
        given = (name, self.call, message, name)
        atomic = name.startswith("atomic")
        try:
            return message.step(*given, atomic=atomic)
        except OperationalError:
            # Begins the step again, not knowing whether its commit was the last of the connection.
            connection.close_if_unusable_or_obsolete()
            return message.step(*given, atomic=atomic)

    def _begin(self, message: Message, name: str) -> dict[str, Any]:
        call = uuid4().hex
        self._note("calls", message, name=name, call=call)
        return {"by": message.read_at, "call": call}

    def _got(self, message: Message, name: str, value: Any) -> None:
        self._note("got", message, name=name, value=value)

    def _note(self, event: str, message: Message, **facts: Any) -> None:
        delivery = {"queue": message.queue_name, "id": message.id, "by": message.read_at}
        self._journal.note(event, **delivery, **facts)

    def _fail(self, among: int = 1) -> None:
        drawn = self._draw.random() * among
        if drawn < 0.02:
            raise ValueError("as told")
        if drawn < 0.04:
            raise Retry(0)


def end_leases(worker: Worker) -> None:
    """End some leases, as ``set_vt(id, 0)`` does, and read what is due: their workers are late.

    They are of messages that have a new note, since their handlers are at work.
    """
    time.sleep(worker.draw.uniform(0, 0.01))
    with worker.connection.transaction():
        worker.connection.execute(
            "UPDATE pgqueue_deferred SET vt = clock_timestamp() WHERE ctid = ANY(ARRAY("
            "SELECT d.ctid FROM pgqueue_deferred d WHERE state = 'PROCESSING' ORDER BY "
            "(SELECT max(at) FROM pgqueue_note WHERE message_id = d.id) DESC NULLS LAST "
            "LIMIT %s FOR UPDATE SKIP LOCKED))",
            [worker.draw.choice([1, 2, 8])],
        )
        qty = worker.draw.choice([0, 0, 100])
        bare.read(worker.queue, qty=qty, vt=0, in_transaction=True)
    if worker.draw.random() < 0.2:
        worker.connection.execute(
            "UPDATE pgqueue_lease SET vt = clock_timestamp() WHERE ctid = ANY(ARRAY("
            "SELECT ctid FROM pgqueue_lease ORDER BY random() LIMIT 1 FOR UPDATE SKIP LOCKED))"
        )
