"""An open queue: its id, its settings, and the runner of its statements."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

from django_pgqueue.engine.names import own_table
from django_pgqueue.engine.runner import Rows, Runner
from django_pgqueue.engine.statements import render, unflushed
from django_pgqueue.errors import TransactionRefused

__all__ = ["STORED", "OpenQueue", "clear_lost"]

_UNFLUSHED = "SELECT set_config('synchronous_commit', 'off', true)"


@dataclass(frozen=True, eq=False)
class OpenQueue:
    """The queue that an operation works on.

    ``find`` opens another queue of the same database by its name, or raises QueueNotFound.
    """

    id: int
    name: str
    unlogged: bool
    visibility_timeout: int
    max_deliveries: int
    dead_letter_queue_id: int | None
    unique_window: dt.timedelta | None
    limit: int | None
    rate: str | None
    group_rate: str | None
    #: Whether groups have or had a limit above 1, a rate, or settings of their own.
    has_slots: bool
    created_at: dt.datetime
    runner: Runner
    find: Callable[[str], OpenQueue]
    #: The object from which the queue was opened, for the caller's use.
    source: Any = None

    @property
    def alias(self) -> str:
        """The database's alias in Django; without Django its name, for error messages."""
        return self.runner.alias

    @property
    def is_limited(self) -> bool:
        """Whether the queue or its groups have a limit or a rate, or its groups ever had one."""
        return bool(self.has_slots or self.limit or self.rate or self.group_rate)

    @property
    def reads_must_commit(self) -> bool:
        """Whether each read has to commit at once, since it counts messages or notes their start.

        Limits of groups, which slots keep, hold in any transaction.
        """
        return bool(self.limit or self.rate or self.group_rate)

    @property
    def message_table(self) -> str:
        """This queue's own partition of the table of messages."""
        return own_table("pgqueue_message", self.id)

    def text(self, statement: str, /, **names: object) -> str:
        """Return the text of a statement, such as ``"read/read"``.

        ``names`` are the values of placeholders other than the queue's own tables. A statement that
        only changes leases includes ``{leases/unflushed}``: outside a transaction it commits
        without waiting for the disk. If the server crashes before the lease is on disk, the
        messages are delivered again. All statements of an unlogged queue commit in this way.
        """
        alone = self.runner.alone
        names["own_transaction"] = "true" if alone else "false"
        text = render(statement, self.id, tuple(names.items()))
        return unflushed(text) if alone and self.unlogged else text

    def run(
        self, statement: str, params: Mapping[str, Any] | None = None, /, **names: object
    ) -> Rows:
        """Run a statement, in the caller's transaction if there is one, and return its rows.

        ``params`` are the values of the statement's parameters. Operations on single messages call
        ``runner`` directly, to save a function call.
        """
        return self.runner.run(self.text(statement, **names), params)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block in a transaction, or in a savepoint of the caller's transaction."""
        alone = self.runner.alone
        with self.runner.transaction():
            if alone and self.unlogged:
                self.runner.run(_UNFLUSHED)
            yield

    def refuse_transaction(self, operation: str) -> None:
        """Raise TransactionRefused inside a transaction: a lease holds only once committed."""
        if not self.runner.may_lease:
            raise TransactionRefused(operation)


#: The fields of OpenQueue that are columns of ``pgqueue_queue``.
STORED = tuple(
    field.name for field in fields(OpenQueue) if field.name not in ("runner", "find", "source")
)


def clear_lost(runner: Runner) -> None:
    """Delete rows of messages that unlogged queues lost in a crash of the server.

    A crash empties the partitions of an unlogged queue, but not the live tables, which all queues
    share. Called before an unlogged queue is opened.
    """
    runner.run("SELECT pgqueue_clear_lost(id) FROM pgqueue_queue WHERE unlogged")
