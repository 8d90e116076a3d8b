"""Other processes that play a part in a test, one step at a time.

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
    "execute",
    "manage",
    "rollback",
    "save_and_send",
    "send_each",
    "until_empty",
]

SECONDS = 60
COPIED = ("NAME", "HOST", "PORT", "USER", "PASSWORD", "OPTIONS")


class Actor:
    """One process with Django set up and database connections of its own."""

    def __init__(self, databases: dict[str, dict[str, Any]], **settings: Any) -> None:
        self._pool = ProcessPoolExecutor(
            max_workers=1,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_enter,
            initargs=(databases, settings),
        )

    def start(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Future[Any]:
        return self._pool.submit(function, *args, **kwargs)

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return self.start(function, *args, **kwargs).result(timeout=SECONDS)

    def rest(self) -> None:
        """Leave no transaction, connection or memory of a queue behind."""
        self.do(_rest)

    def leave(self) -> None:
        self._pool.shutdown(cancel_futures=True)

    def __enter__(self) -> Actor:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.leave()


def databases(**options: Any) -> dict[str, dict[str, Any]]:
    """The databases of this process as another one can reach them."""
    from django.db import connections

    reachable = {}
    for connection in connections.all():
        known = connection.settings_dict
        if known["NAME"] != known["TEST"]["NAME"]:
            continue  # none of the tests that run now needs it
        connection.ensure_connection()
        reachable[connection.alias] = {
            "ENGINE": "django.db.backends.postgresql",
            **{key: known[key] for key in COPIED},
            **options,
        }
    return reachable


# In the actor's process:

_blocks: list[Any] = []


def _enter(databases: dict[str, dict[str, Any]], changes: dict[str, Any]) -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
    os.environ.setdefault("DATABASE_URL", "postgres:///unused")  # start no server
    import django
    from django.conf import settings

    settings.DATABASES = databases
    for name, value in changes.items():
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
    """An operation of Message.objects."""
    from django_pgqueue.models import Message

    return getattr(Message.objects, operation)(*args, **kwargs)


def drive() -> None:
    """Do the steps of operations until none is left."""
    from django_pgqueue.models import Operation

    while Operation.objects.drive(60, using="default") is not None:
        pass


def execute(statement: str, params: Any = None) -> list[tuple[Any, ...]]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(statement, params)
        return cursor.fetchall() if cursor.description else []


def until_empty(queue: str, qty: int, vt: float) -> list[int]:
    """Read until there is nothing left; the ids in the order in which they came."""
    ids: list[int] = []
    while messages := call("read", queue, qty=qty, vt=vt):
        ids += [message.id for message in messages]
    return ids


def convert_until(step: str, queue: str, interval: dt.timedelta | None) -> None:
    """Convert a queue, and end right before a step of the conversion, as Ctrl-C does."""
    from unittest.mock import patch

    with patch(f"django_pgqueue.maintenance.conversion.{step}", side_effect=KeyboardInterrupt):
        try:
            call("repartition", queue, interval)
        except KeyboardInterrupt:
            return
    raise AssertionError(f"it did not come to {step}")


def save_and_send(queue: str) -> int:
    """Save an order and send a message about it; its id."""
    from tests.app.models import Order

    order = Order.objects.create(number="7")
    call("send", queue, {"order": order.pk})
    return order.pk


def archive_each(queue: str, batches: list[list[int]]) -> list[int]:
    """Archive batches of ids; what this process archived."""
    return [pk for batch in batches for pk in call("archive", queue, batch)]


def send_each(queue: str, count: int) -> list[int]:
    """Send messages one by one; their ids."""
    return [call("send", queue, number) for number in range(count)]


def manage(command: str, *args: str, **options: Any) -> str:
    """A management command; what it printed."""
    from io import StringIO

    from django.core.management import call_command

    out = StringIO()
    call_command(command, *args, stdout=out, **options)
    return out.getvalue()
