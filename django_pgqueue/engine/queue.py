"""An open queue: its id, its settings, and the database that its statements run in."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django_pgqueue import ddl
from django_pgqueue.engine.runner import Rows, Runner
from django_pgqueue.engine.statements import render
from django_pgqueue.errors import TransactionRefused

__all__ = ["OpenQueue"]


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
        again. The ack that follows flushes the lease, too.
        """
        names["own_transaction"] = "true" if self.runner.alone else "false"
        return render(statement, self.id, self.unlogged, tuple(names.items()))

    def run(
        self, statement: str, params: Mapping[str, Any] | None = None, /, **names: object
    ) -> Rows:
        """Run a statement, and fetch its rows; ``params`` are the values in its text.

        It is a transaction of its own, or part of the caller's. What runs for each message asks
        ``runner`` itself, which is one call less.
        """
        return self.runner.run(self.text(statement, **names), params)

    def refuse_transaction(self, operation: str) -> None:
        """A lease is only one once it is committed. Raises TransactionRefused in a transaction."""
        if not self.runner.may_lease:
            raise TransactionRefused(operation)
