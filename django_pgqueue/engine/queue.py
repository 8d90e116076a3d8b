"""An open queue: its id, its settings, and the database that its statements run in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django_pgqueue import ddl
from django_pgqueue.engine.runner import Rows, Runner
from django_pgqueue.engine.statements import render, unflushed
from django_pgqueue.errors import TransactionRefused

__all__ = ["OpenQueue", "clear_lost"]

_UNFLUSHED = "SELECT set_config('synchronous_commit', 'off', true)"


@dataclass(frozen=True, eq=False)
class OpenQueue:
    """One queue as operations see it.

    ``find`` opens another queue of the same database by its name, and raises QueueNotFound.
    """

    id: int
    name: str
    unlogged: bool
    visibility_timeout: int
    max_deliveries: int
    dead_letter_queue_id: int | None
    dedup_window: dt.timedelta | None
    created_at: dt.datetime
    runner: Runner
    find: Callable[[str], OpenQueue]
    #: The object that it was opened from, for the caller's use.
    source: Any = None

    @property
    def alias(self) -> str:
        """What errors call its database."""
        return self.runner.alias

    @property
    def message_table(self) -> str:
        """This queue's own partition of the table of messages."""
        return ddl.own_table("pgqueue_message", self.id)

    def text(self, statement: str, /, **names: object) -> str:
        """The text of a statement, as ``"read/read"``, as it runs now.

        ``names`` are names in it besides those of the queue's own tables. A statement that only
        moves leases includes ``{leases/unflushed}``: as a transaction of its own it commits without
        waiting for the disk. A crash of the server may undo it; then the messages are delivered
        again. The ack that follows flushes the lease, too. Each statement of an unlogged queue
        commits in this way.
        """
        alone = self.runner.alone
        names["own_transaction"] = "true" if alone else "false"
        text = render(statement, self.id, tuple(names.items()))
        return unflushed(text) if alone and self.unlogged else text

    def run(
        self, statement: str, params: Mapping[str, Any] | None = None, /, **names: object
    ) -> Rows:
        """Run a statement, and fetch its rows; ``params`` are the values in its text.

        It is a transaction of its own, or part of the caller's. What runs for each message asks
        ``runner`` itself, which is one call less.
        """
        return self.runner.run(self.text(statement, **names), params)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction for the block, or a savepoint in the caller's."""
        alone = self.runner.alone
        with self.runner.transaction():
            if alone and self.unlogged:
                self.runner.run(_UNFLUSHED)
            yield

    def refuse_transaction(self, operation: str) -> None:
        """A lease is only one once it is committed. Raises TransactionRefused in a transaction."""
        if not self.runner.may_lease:
            raise TransactionRefused(operation)


def clear_lost(runner: Runner) -> None:
    """Delete what a crash of the server left of the unlogged queues, before one is opened.

    A crash empties the partitions of an unlogged queue; the live tables, which all queues share,
    still have rows of the lost messages.
    """
    runner.run("SELECT pgqueue_clear_lost(id) FROM pgqueue_queue WHERE unlogged")
