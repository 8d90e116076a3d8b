"""Operations on a queue without Django, on a psycopg connection.

::

    from django_pgqueue import bare

    orders = bare.open_queue(psycopg.connect("dbname=shop", autocommit=True), "orders")
    bare.send(orders, {"order": 7})
    for message in bare.read(orders, qty=10):
        bare.archive(orders, message)
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row
from psycopg.types.string import TextLoader

from django_pgqueue.engine import arguments
from django_pgqueue.engine.open_queue import STORED, OpenQueue, clear_lost
from django_pgqueue.engine.read.grouped import read_grouped, read_grouped_rr
from django_pgqueue.engine.read.polling import read_with_poll
from django_pgqueue.engine.read.reading import peek, pop, read
from django_pgqueue.engine.rows import Deliveries, Delivery
from django_pgqueue.engine.runner import Plan, Rows
from django_pgqueue.engine.send.sending import send, send_batch
from django_pgqueue.engine.settings import DEFAULTS, mistake
from django_pgqueue.engine.settle.outcomes import fail, release, retry
from django_pgqueue.engine.settle.settling import archive, cancel, delete, set_vt
from django_pgqueue.engine.sqlstates import UNDEFINED_TABLE
from django_pgqueue.errors import InvalidArgument, QueueNotFound, TablesMissing

__all__ = [
    "Deliveries",
    "Delivery",
    "OpenQueue",
    "archive",
    "cancel",
    "delete",
    "fail",
    "open_queue",
    "peek",
    "pop",
    "read",
    "read_grouped",
    "read_grouped_rr",
    "read_with_poll",
    "release",
    "retry",
    "send",
    "send_batch",
    "set_vt",
]

#: Maximum number of statements whose plans a connection keeps, as psycopg's ``prepared_max``.
PLANS = 100

_COLUMNS = ", ".join(f'"{name}"' for name in STORED)


class BareRunner:
    """Runs statements on a psycopg connection, in one thread at a time.

    psycopg prepares a statement after as many runs as the connection's ``prepare_threshold``.
    Behind a pooler, set ``prepare_threshold`` to None.
    """

    def __init__(
        self, connection: psycopg.Connection[Any], settings: Mapping[str, Any] | None = None
    ) -> None:
        self.session = connection
        self.settings = SimpleNamespace(**{**DEFAULTS, **_checked(settings or {})})
        self._cursor = connection.cursor(row_factory=tuple_row)
        self._plans: dict[str, Plan] = {}
        # Load jsonb as text: the engine decodes bodies itself.
        self._cursor.adapters.register_loader("jsonb", TextLoader)

    @property
    def alias(self) -> str:
        return self.session.info.dbname

    @property
    def database(self) -> tuple[str, int, str]:
        info = self.session.info
        return info.host, info.port, info.dbname

    @property
    def errors(self) -> AbstractContextManager[Any]:
        return nullcontext()

    @property
    def alone(self) -> bool:
        session = self.session
        return session.autocommit and session.info.transaction_status == TransactionStatus.IDLE

    @property
    def may_lease(self) -> bool:
        return self.alone

    def run(self, text: str, params: Mapping[str, Any] | None = None) -> Rows:
        plan = self._plans.get(text)
        if plan is None:
            if len(self._plans) == PLANS:
                self._plans.clear()
            plan = self._plans[text] = Plan(text)
        return plan.run(self._cursor, params)

    def transaction(self) -> AbstractContextManager[Any]:
        return self.session.transaction()


def open_queue(
    connection: psycopg.Connection[Any],
    name: str,
    *,
    settings: Mapping[str, Any] | None = None,
) -> OpenQueue:
    """Open a queue on a psycopg connection, with its stored settings.

    In autocommit mode each statement is a transaction of its own; reads require that mode.
    Otherwise statements are a part of the connection's transaction.

    Arguments:
        settings: values for keys of ``PGQUEUE`` (:mod:`django_pgqueue.conf`), in place of the
            defaults.

    >>> orders = open_queue(psycopg.connect("dbname=shop", autocommit=True), "orders")

    Raises InvalidQueueName, QueueNotFound, TablesMissing, and InvalidArgument for invalid settings.
    """
    return _find(BareRunner(connection, settings), name)


def open_queues(runner: BareRunner, where: str, params: Mapping[str, Any]) -> list[OpenQueue]:
    """Return the queues that satisfy an SQL condition, ordered by name. Raises TablesMissing."""
    text = f"SELECT {_COLUMNS} FROM pgqueue_queue WHERE {where} ORDER BY name"
    try:
        rows = runner.run(text, params)
    except psycopg.Error as error:
        if error.sqlstate == UNDEFINED_TABLE:
            raise TablesMissing(error) from error
        raise
    columns = [dict(zip(STORED, row, strict=True)) for row in rows]
    if any(each["unlogged"] for each in columns):
        clear_lost(runner)
    return [OpenQueue(**each, runner=runner, find=partial(_find, runner)) for each in columns]


def _find(runner: BareRunner, name: str) -> OpenQueue:
    named = {"name": arguments.queue_name(name)}
    for queue in open_queues(runner, "lower(name) = lower(%(name)s)", named):
        return queue
    raise QueueNotFound(name, runner.alias)


def _checked(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    for name in settings:
        if name not in DEFAULTS:
            raise InvalidArgument(f"settings: {name!r} is not a key; see django_pgqueue.conf")
        if wrong := mistake(settings, name):
            raise InvalidArgument(f"settings: {name} {wrong}")
    return settings
