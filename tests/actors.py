"""Other processes that take part in a test, one step at a time.

    actor.do(begin)
    actor.do(call, "send", "orders", {"order": 7})     # waits for the result
    future = actor.start(call, "purge", "orders")      # does not
    actor.do(commit)

The functions below run in the actor's process and find its open transaction there.
"""

from __future__ import annotations

import datetime as dt
import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any

__all__ = [
    "Actor",
    "archive_each",
    "begin",
    "call",
    "commit",
    "convert_until",
    "databases",
    "drive",
    "engine",
    "enter",
    "execute",
    "manage",
    "rollback",
    "save_and_send",
    "send_each",
    "until_empty",
    "work_off",
]

SECONDS = 60
COPIED = ("NAME", "HOST", "PORT", "USER", "PASSWORD", "OPTIONS")


class Actor:
    """A process with Django set up, and with its own database connections."""

    def __init__(self, databases: dict[str, dict[str, Any]], **settings: Any) -> None:
        self._pool = ProcessPoolExecutor(
            max_workers=1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=enter,
            initargs=(databases, settings),
        )

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        return self._pool.submit(function, *args, **kwargs)

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.start(function, *args, **kwargs).result(timeout=SECONDS)

    def rest(self) -> None:
        """Reset the process: no open transaction, connection or cached queue."""
        self.do(_rest)

    def leave(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.leave()


def databases(**options: Any) -> dict[str, dict[str, Any]]:
    """This process's databases, as another process can connect to them."""
    from django.db import connections

    reachable = {}
    for connection in connections.all():
        known = connection.settings_dict
        if known["NAME"] != known["TEST"]["NAME"]:
            continue  # no running test needs it
        connection.ensure_connection()
        reachable[connection.alias] = {
            "ENGINE": "django.db.backends.postgresql",
            **{key: known[key] for key in COPIED},
            **options,
        }
    return reachable


# Called in the actor's process:

_blocks: list[Any] = []


def enter(databases: dict[str, dict[str, Any]], changes: dict[str, Any] | None = None) -> None:
    """Set Django up with these databases and changed settings."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    os.environ.setdefault("DATABASE_URL", "postgres:///unused")  # prevents that a server is started
    import django
    from django.conf import settings

    settings.DATABASES = databases
    for name, value in (changes or {}).items():
        setattr(settings, name, value)
    django.setup()


def _rest() -> None:
    from django.db import connections

    from django_pgqueue.models import Queue

    while _blocks:
        rollback()
    connections.close_all()
    Queue.objects.forget_all()


def begin() -> None:
    from django.db import transaction

    block = transaction.atomic()
    block.__enter__()
    _blocks.append(block)


def commit() -> None:
    _blocks.pop().__exit__(None, None, None)


def rollback() -> None:
    from django.db import transaction

    transaction.set_rollback(True)
    commit()


def call(operation: str, *args: Any, **kwargs: Any) -> Any:
    """Call an operation of Message.objects, or one that only a queue has, PGMQ's reads too."""
    from django_pgqueue.models import BoundQueue, Message

    if hasattr(Message.objects, operation):
        return getattr(Message.objects, operation)(*args, **kwargs)
    return getattr(BoundQueue(args[0]).pgmq, operation)(*args[1:], **kwargs)


def engine(operation: Callable[..., Any], queue: str, *args: Any, **kwargs: Any) -> Any:
    """Call an operation of the engine with an open queue."""
    from django_pgqueue.models import Queue

    return operation(Queue.objects.resolve(queue, None).opened, *args, **kwargs)


def drive() -> None:
    """Run all steps of all bulk actions."""
    from django_pgqueue.models import BulkAction

    while BulkAction.objects.drive(60, using="default") is not None:
        pass


def execute(statement: str, params: Any = None) -> list[tuple[Any, ...]]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall() if cursor.description else []


def until_empty(queue: str, qty: int, vt: float) -> list[int]:
    """Read until nothing is left; returns the ids in delivery order."""
    ids: list[int] = []
    while messages := call("read", queue, qty=qty, vt=vt):
        ids += [message.id for message in messages]
    return ids


def work_off(queue: str) -> list[Any]:
    """Read and archive until nothing is left; returns the bodies in delivery order."""
    bodies: list[Any] = []
    while messages := call("read", queue, qty=5):
        bodies += [message.body for message in messages]
        # As a set: after a switch-over without its last step, two messages may have one id.
        assert set(call("archive", queue, messages)) == {message.id for message in messages}
    return bodies


def convert_until(step: str, queue: str, interval: dt.timedelta | None) -> None:
    """Convert a queue, and stop right before a step of the conversion, like Ctrl-C."""
    from unittest.mock import patch

    with patch(f"django_pgqueue.maintenance.conversion.{step}", side_effect=KeyboardInterrupt):
        try:
            call("repartition", queue, interval)
        except KeyboardInterrupt:
            return
    raise AssertionError(f"it did not come to {step}")


def save_and_send(queue: str) -> int:
    """Save an order and send a message about it; returns the order's id."""
    from tests.app.models import Order

    order = Order.objects.create(number="7")
    call("send", queue, {"order": order.pk})
    return order.pk


def archive_each(queue: str, batches: list[list[int]]) -> list[int]:
    """Archive batches of ids; returns the ids that this process archived."""
    return [pk for batch in batches for pk in call("archive", queue, batch)]


def send_each(queue: str, count: int) -> list[int]:
    """Send messages one by one; returns their ids."""
    return [call("send", queue, number) for number in range(count)]


def manage(command: str, *args: str, **options: Any) -> str:
    """Run a management command; returns its output."""
    from io import StringIO

    from django.core.management import call_command

    out = StringIO()
    call_command(command, *args, stdout=out, **options)
    return out.getvalue()
