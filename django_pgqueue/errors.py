"""The exceptions of the package.

The hierarchy, with the other base classes in parentheses::

    * PgQueueError
      x QueueNotFound (LookupError), QueueMismatch, QueueInUse, ForeignSchema, PositionLost
      x TablesMissing (with Django: ProgrammingError), UnusableDatabase (DatabaseError)
      x QueueBusy
        + QueueConverting
      x MessageNotFound (LookupError), ImmutableMessage, NeverRead, LeaseLost, UntrustedSource
      x ResultNotReady (TimeoutError), TimedOut (TimeoutError)
      x MessageFailed
        + MessageCancelled, MessageExpired
      x InvalidArgument (ValueError)
        + InvalidQueueName, InvalidMessage
      x HandlerTimeout, BatchSealed, StepRefused, TransactionRefused
"""

from __future__ import annotations

import copyreg
from typing import Any

__all__ = [
    "BatchSealed",
    "ForeignSchema",
    "HandlerTimeout",
    "ImmutableMessage",
    "InvalidArgument",
    "InvalidMessage",
    "InvalidQueueName",
    "LeaseLost",
    "MessageCancelled",
    "MessageExpired",
    "MessageFailed",
    "MessageNotFound",
    "NeverRead",
    "PgQueueError",
    "PositionLost",
    "QueueBusy",
    "QueueConverting",
    "QueueInUse",
    "QueueMismatch",
    "QueueNotFound",
    "ResultNotReady",
    "StepRefused",
    "TablesMissing",
    "TimedOut",
    "TransactionRefused",
    "UntrustedSource",
    "UnusableDatabase",
]


class PgQueueError(Exception):
    """The base class of all exceptions of the package."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle the finished text, since the arguments of the subclasses' __init__ are not kept.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class QueueNotFound(PgQueueError, LookupError):
    """There is no queue with this name in the database.

    ::

        try:
            queue("orders").send({"order": 7})
        except QueueNotFound:
            Message.objects.create_queue("orders")
    """

    def __init__(self, name: object, using: str, made_by: str | None = None) -> None:
        by_hand = (
            f"Create it first: in a migration with CreateQueue({name!r}), or now with "
            f"Message.objects.create_queue({name!r})."
        )
        super().__init__(
            f"There is no queue {name!r} in database {using!r}. "
            + (f"Run {made_by}, which makes it." if made_by else by_hand)
        )


class TablesMissing(PgQueueError):
    """The database lacks the queues' tables: their migrations have not run.

    With Django it is also a ``django.db.ProgrammingError``.
    """

    def __init__(self, error: object, using: str | None = None) -> None:
        where = "" if using is None else f" --database {using}"
        super().__init__(
            f"{str(error).strip().splitlines()[0]}. Make the tables first: manage.py migrate{where}"
        )


class UnusableDatabase(PgQueueError):
    """The database is not PostgreSQL, or takes no writes.

    It is also a ``django.db.DatabaseError``.
    """


class PositionLost(PgQueueError):
    """The position of a subscription belongs to another database system, or is missing.

    A restored dump and a logical replica number their transactions anew, so the position says
    nothing about the messages there. ``queue(...).seek`` sets another one.
    """

    def __init__(self, name: str, last_id: int | None) -> None:
        where = f"--id {last_id + 1}" if last_id else "--start earliest"
        #: The command that sets another position, behind the last message that was read.
        self.remedy: str = f"manage.py pgqueue_seek {name} {where}"
        super().__init__(
            f"Subscription {name!r} has no position in this database, which was restored or "
            f"replicated from another one. Nothing was read. To go on behind the last message that "
            f"it read: {self.remedy}"
        )


class QueueMismatch(PgQueueError):
    """The queue exists, but not with the storage options passed to ``create_queue``."""

    def __init__(self, name: str, setting: str, found: object, asked: object) -> None:
        if setting == "source":
            super().__init__(
                f"Queue {name!r} exists with source={found!r}, not {asked!r}. Subscribe under "
                f"another name, or drop this queue first."
            )
            return
        super().__init__(
            f"Queue {name!r} exists with {setting}={found!r}, not {asked!r}. "
            f"To use the queue as it is, leave {setting} out. To replace it, drop it first."
        )


class QueueBusy(PgQueueError):
    """Other transactions kept the queue's tables locked for too long. Nothing was changed."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(
            f"Queue {name!r} could not be locked within {seconds:g} seconds: another transaction "
            f"uses its tables. Nothing was changed. Find that transaction in pg_stat_activity, and "
            f"try again when it has ended."
        )


class QueueConverting(QueueBusy):
    """Another process is converting the queue. Nothing was changed."""

    def __init__(self, name: str) -> None:
        PgQueueError.__init__(
            self,
            f"Queue {name!r} is being converted by another process. Try again when it has ended.",
        )


class QueueInUse(PgQueueError):
    """The queue was not dropped: others have it as dead-letter queue, or subscribe to it."""

    def __init__(self, name: str, sources: str, subscriptions: str = "") -> None:
        why = (
            f"Queue {name!r} is the dead-letter queue of {sources}: set their dead_letter_queue "
            f"to another queue or to None first."
        )
        if subscriptions:
            why = (
                f"Queue {name!r} is the source of {subscriptions}: drop these subscriptions first."
            )
        super().__init__(why)


class UntrustedSource(PgQueueError):
    """A dead letter may be forged: a role that may not send to its source queue could write it.

    ``redrive`` leaves it in the dead-letter queue. To send it, name the target queue with ``to=``.
    """

    def __init__(self, name: str, source: str, roles: str) -> None:
        super().__init__(
            f"Dead letters in queue {name!r} name {source!r} as their source, but may be forged: "
            f"{roles} may write to {name!r}, but not to {source!r}. These dead letters were not "
            f"moved. Check them, then name the target queue: redrive(to={source!r}, ids=...)."
        )


class NeverRead(PgQueueError):
    """The message was not read, so it has no lease, and cannot be settled."""

    def __init__(self, pk: int) -> None:
        super().__init__(
            f"message {pk} was never read: peek() gives no lease. To settle it, read() it first."
        )


class MessageNotFound(PgQueueError, LookupError):
    """No message has this id: it was rolled back, deleted, removed by retention, or never sent."""

    def __init__(self, name: str, message_id: int, *, archives: bool = True) -> None:
        advice = (
            "Was it sent to another queue, rolled back, deleted, or removed by the queue's "
            "retention?"
            if archives
            else "A subscription keeps nothing of a message that it has completed, unless "
            "archive_completed=True: subscribe() and alter() take it"
        )
        super().__init__(
            f"Message {message_id} is neither in queue {name!r} nor in its archive. {advice}"
        )


class MessageFailed(PgQueueError):
    """The message failed for good: there is no result. ``error`` says why."""

    def __init__(self, name: str, message_id: int, error: str) -> None:
        self.error = error
        line = error_line(error) or "no reason given"
        super().__init__(
            f"Message {message_id} of queue {name!r} failed: {line}. Its attempts are in "
            f"queue({name!r}).attempts({message_id})."
        )


class MessageCancelled(MessageFailed):
    """The message was cancelled, replaced by a later send, or ended otherwise without a result.

    ``reason`` is the text passed to ``cancel``, or names the message that replaced it.
    """

    def __init__(self, name: str, message_id: int, reason: str | None = None) -> None:
        self.reason = reason
        self.error: str = reason or "cancelled"
        why = f": {reason}" if reason else ""
        PgQueueError.__init__(self, f"Message {message_id} of queue {name!r} was cancelled{why}.")


class MessageExpired(MessageFailed):
    """The message was not handled before its ``expires``: there is no result."""

    def __init__(self, name: str, message_id: int) -> None:
        self.error = "expired"
        PgQueueError.__init__(
            self,
            f"Message {message_id} of queue {name!r} expired before a consumer could handle it. "
            f"Start more consumers, or send with a later expires=.",
        )


class ResultNotReady(PgQueueError, TimeoutError):
    """The message is not done yet, so it has no result. Ask again later, or wait longer."""

    def __init__(self, name: str, message_id: int, state: str) -> None:
        super().__init__(
            f"Message {message_id} of queue {name!r} is {state}: there is no result yet. Ask "
            f"again later; a message that was sent in this transaction is not read before the "
            f"commit."
        )


class TimedOut(PgQueueError, TimeoutError):
    """The signal that a message has waited for did not come in time. ``key`` names it.

    Raised by ``message.wait_for``, in this and every later delivery of the message.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        super().__init__(f"the signal {key!r} did not come in time")


class ForeignSchema(PgQueueError):
    """The database has a schema ``pgmq`` that this package did not make."""

    def __init__(self) -> None:
        super().__init__(
            "The database has a schema pgmq that this package did not make. Nothing was changed. "
            "Move its messages (see the documentation, Move from PGMQ). Then run DROP "
            "EXTENSION IF EXISTS pgmq CASCADE, and DROP SCHEMA pgmq CASCADE for the tables that "
            "remain."
        )


class LeaseLost(PgQueueError):
    """The receipt is no longer valid: the message was read again, or is not in the queue."""

    def __init__(self, receipt: object) -> None:
        super().__init__(
            f"Receipt {receipt} is no longer valid: its lease expired and the message was read "
            f"again, or the message is not in the queue any more. Nothing was changed. Let the new "
            f"holder finish the message."
        )


class InvalidArgument(PgQueueError, ValueError):
    """An argument is invalid. Nothing was sent, read or changed."""


class InvalidQueueName(InvalidArgument):
    """The name is invalid. A queue name has 1 to 63 of the characters ``A-Z a-z 0-9 _ . -``."""

    def __init__(self, name: object) -> None:
        super().__init__(
            f"{name!r} is not a queue name: use 1 to 63 of the characters A-Z a-z 0-9 _ . -"
        )


class InvalidMessage(InvalidArgument):
    """A body, headers or the value of a step that JSON or PostgreSQL's jsonb cannot hold."""


class HandlerTimeout(PgQueueError):
    """Raised inside a handler that exceeds its ``timeout``. If you catch it, raise it again.

    It interrupts only Python code. A handler that waits in a system call is abandoned, and its
    thread replaced.
    """

    def __init__(self) -> None:
        super().__init__("the handler ran longer than its timeout")


class BatchSealed(PgQueueError):
    """The batch takes no more members. Nothing was sent."""

    def __init__(self, batch: int) -> None:
        super().__init__(
            f"Batch {batch} takes no more members, and nothing was sent. A batch is sealed at the "
            f"end of its with block, by seal() or cancel(), or when its time runs out: send "
            f"without it, or begin a new one."
        )


class StepRefused(PgQueueError):
    """A step or a note inside a transaction was refused, because a rollback would undo it."""

    def __init__(self, what: str, message_id: int) -> None:
        super().__init__(
            f"{what} of message {message_id} is inside a transaction: a later error would roll "
            f"back what it stores, and the next delivery would do it again. Call it outside "
            f"atomic(), in a handler without ack_policy TRANSACTIONAL and without locked=True. For "
            f"writes that belong to a step, pass a function that makes them, and atomic=True"
        )


class TransactionRefused(PgQueueError):
    """A read inside the caller's transaction was refused, because it would give no lease."""

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"{operation}() inside a transaction gives no lease: until the commit there is only a "
            f"row lock, and a rollback undoes the delivery count. Read outside atomic() and "
            f"ATOMIC_REQUESTS (without Django: with autocommit=True), or pass in_transaction=True "
            f"to process the message in this transaction."
        )


class ImmutableMessage(PgQueueError):
    """A message cannot be changed once it is sent. Send a new one."""

    def __init__(self) -> None:
        super().__init__(
            "A message is immutable once sent. Send a new one, or use set_vt, archive or delete."
        )


def error_line(error: str) -> str:
    """Return the line that names an error: the last one of a bare traceback, else the first.

    ``engine/errors.sql`` has the same rule.

    >>> error_line("no such card")
    'no such card'
    >>> error_line("Traceback (most recent call last):\\n  File x, line 1\\nKeyError: 7\\n")
    'KeyError: 7'
    """
    lines = error.strip().split("\n")
    is_bare = lines[0].startswith("Traceback (most recent call last)")
    return lines[-1 if is_bare else 0]
