"""Runs a consumer in a thread of the test, and inspects its results."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from django.db import connections, transaction

from django_pgqueue.handlers import Handler
from django_pgqueue.models import ArchivedMessage, Message
from django_pgqueue.worker import Consumer, Options
from django_pgqueue.worker.execution import Execution
from django_pgqueue.worker.settler import Settler
from django_pgqueue.worker.subscription import Subscription
from tests.conftest import run_sql
from tests.waiting import until

__all__ = [
    "Held",
    "InThread",
    "elsewhere",
    "errors",
    "executing",
    "leases",
    "live",
    "outcomes",
    "steal",
    "subscribed",
]


class InThread:
    """A consumer that runs until the block or the test ends, or until it stops by itself."""

    def __init__(self, *handlers: Handler, **options: Any) -> None:
        self.consumer = Consumer(handlers, Options(**{"graceful_timeout": 10.0, **options}))
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self.consumer.run()
        finally:
            connections.close_all()

    @property
    def subscription(self) -> Any:
        return self.consumer.subscriptions[0]

    def until_registered(self) -> None:
        """Wait until its connections may be cut: a consumer that cannot register ends."""
        until(lambda: all(each.process_id for each in self.consumer.subscriptions), 20)

    def wait(self, seconds: float = 20.0) -> None:
        """Wait for the end."""
        self.thread.join(seconds)
        assert not self.thread.is_alive(), "the consumer did not stop"

    def stop(self) -> None:
        self.consumer.stop()
        self.wait()


class Held:
    """A handler that blocks until it is released."""

    def __init__(self) -> None:
        self._begun, self._go = threading.Event(), threading.Event()

    def work(self, message: Message) -> None:
        self._begun.set()
        self._go.wait(30)

    def until_begun(self) -> None:
        assert self._begun.wait(10), "no handler has begun"

    def let_go(self) -> None:
        self._go.set()


def subscribed(
    queue: str = "orders", using: str | None = None, **handler_options: Any
) -> Subscription:
    """The state shared by a consumer's loops, without a consumer."""
    handler = Handler(queue, lambda message: None, using=using, **handler_options)
    return Subscription(handler, Message.objects.resolve(queue, using), Options())


def executing(subscription: Subscription) -> Execution:
    """Runs a subscription's handler, without a consumer."""
    return Execution(subscription, Settler(0))


def elsewhere(function: Callable[[], Any]) -> None:
    """Call a function in another thread, with its own connection, and wait for it."""

    def run() -> None:
        try:
            function()
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def steal(message: Message) -> list[int]:
    """Take over a lease, like another reader after the visibility timeout."""
    stolen: list[int] = []

    def read() -> None:
        # One transaction, so that the consumer cannot read the message first.
        with transaction.atomic():
            Message.objects.set_vt("orders", message.receipt, 0)
            again = Message.objects.read("orders", vt=60, in_transaction=True)
        stolen.extend(each.id for each in again)

    elsewhere(read)
    return stolen


def outcomes(queue: str = "orders") -> dict[int, str]:
    """The state of each archived message of a queue, by id."""
    return dict(ArchivedMessage.objects.filter(queue__name=queue).values_list("id", "state"))


def errors(queue: str = "orders") -> list[str]:
    """The first line of each error in the archive."""
    found = ArchivedMessage.objects.filter(queue__name=queue, state="FAILED").order_by("id")
    return [(error or "").splitlines()[0] for error in found.values_list("error", flat=True)]


def live(queue: str = "orders") -> list[tuple[int, str, int, int]]:
    """The messages of a queue: id, state, deliveries, attempts."""
    found = Message.objects.resolve(queue)
    return run_sql(
        "SELECT id, state, read_ct, attempts FROM pgqueue_live WHERE queue_id = %s ORDER BY id",
        [found.pk],
    )


def leases(queue: str = "orders") -> int:
    """The number of messages in flight."""
    return Message.objects.metrics(queue).in_flight
