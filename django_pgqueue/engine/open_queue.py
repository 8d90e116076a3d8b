"""An open queue: its id, its settings, and the runner of its statements."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

from django_pgqueue.engine.names import own_table, own_tables
from django_pgqueue.engine.runner import Rows, Runner
from django_pgqueue.engine.statements import Part, render, unflushed
from django_pgqueue.errors import InvalidArgument, TransactionRefused

__all__ = ["ROUND", "STORED", "OpenQueue", "clear_lost", "looking", "subscribed"]

_UNFLUSHED = "SELECT set_config('synchronous_commit', 'off', true)"


#: What a round of a subscription reads, and whether it may end. False: in a test's transaction,
#: where the round goes on, with the transaction's own messages.
ROUND: dict[bool, dict[str, object]] = {
    True: {"snapshot": "pg_current_snapshot()", "ends_round": "true"},
    False: {"snapshot": "pgqueue_own_snapshot()", "ends_round": "false"},
}


@cache
def subscribed(source_id: int) -> dict[str, object]:
    """Return the values of the placeholders that a subscription to this queue renders otherwise."""
    message, archive = own_tables(source_id)
    return {
        "source_id": source_id,
        "source_message": message,
        "source_archive": archive,
        "leases/rows": Part("subscriptions/rows"),
        "read/note": Part("subscriptions/note"),
        "no_leases": " AND false",
        "dead_letter_id": "nextval('pgqueue_message_id_seq')",
        "dead_letter_origin": "'id', m.id, ",
        # The bodies of leased messages are in the source.
        "and_leased": " + (SELECT coalesce(sum(cardinality(ids)), 0)::bigint FROM leased)",
    }


def looking(runner: Runner) -> dict[str, object]:
    """Return the placeholders of a statement that looks behind a position, and moves nothing.

    It looks at this round and the next one. In a transaction it also sees the messages sent there.
    It writes nothing, so it runs on a standby.
    """
    snapshot = ROUND[True]["snapshot"]
    if not runner.alone:
        snapshot = (
            f"CASE WHEN pg_current_xact_id_if_assigned() IS NULL THEN {snapshot} "
            f"ELSE {ROUND[False]['snapshot']} END"
        )
    return {"subscriptions/position": Part("subscriptions/rounds"), "snapshot": snapshot}


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
    #: The queue that this one is a subscription to, if it is one.
    source_id: int | None
    #: Whether a subscription archives the messages that it has completed.
    archive_completed: bool
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
        if self.source_id is not None:
            names = {**subscribed(self.source_id), **ROUND[alone], **names}
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

    def refuse_subscription(self, why: str) -> None:
        """Raise InvalidArgument if this queue is a subscription. ``why`` says what to do."""
        if self.source_id is not None:
            raise InvalidArgument(f"queue {self.name!r} is a subscription: {why}")

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
