"""Every error the package raises on purpose.

Their tree::

    * PgQueueError
      x QueueNotFound         no queue of that name
      x QueueMismatch         the queue exists, made in another way than asked for
      x QueueBusy             the tables of a queue stayed locked by others
        + QueueConverting     another process converts it
      x QueueInUse            another queue has it as its dead-letter queue
      x NeverRead             a message that was peeked at, and not read, has no lease
      x MessageNotFound       no message of that id in the queue or its archive
      x MessageFailed         the message whose result is asked for failed for good
        + MessageCancelled    it was cancelled
      x ResultNotReady        it is not done yet; also a TimeoutError
      x LeaseLost             the message was read again, or is gone
      x InvalidArgument       also a ValueError
        + InvalidQueueName
        + InvalidMessage      a body or headers that PostgreSQL's jsonb cannot hold
      x HandlerTimeout        a handler ran longer than it may
      x TransactionRefused    a read inside the caller's transaction
      x ImmutableMessage      a message row is written once
"""

from __future__ import annotations

import copyreg
from typing import Any

__all__ = [
    "HandlerTimeout",
    "ImmutableMessage",
    "InvalidArgument",
    "InvalidMessage",
    "InvalidQueueName",
    "LeaseLost",
    "MessageCancelled",
    "MessageFailed",
    "MessageNotFound",
    "NeverRead",
    "PgQueueError",
    "QueueBusy",
    "QueueConverting",
    "QueueInUse",
    "QueueMismatch",
    "QueueNotFound",
    "ResultNotReady",
    "TransactionRefused",
]


class PgQueueError(Exception):
    """The root of the tree: catch it to catch everything the package raises."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickled with its text: most errors write it themselves, from other arguments.
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class QueueNotFound(PgQueueError, LookupError):
    """No queue of that name in that database.

    ::

        try:
            queue("orders").send({"order": 7})
        except QueueNotFound:
            Message.objects.create_queue("orders")
    """

    def __init__(self, name: object, using: str) -> None:
        super().__init__(
            f"There is no queue {name!r} in database {using!r}. Create it first: in a migration "
            f"with CreateQueue({name!r}), or now with Message.objects.create_queue({name!r})."
        )


class QueueMismatch(PgQueueError):
    """``create_queue`` found the queue, but with another storage than it was asked for."""

    def __init__(self, name: str, setting: str, found: object, asked: object) -> None:
        super().__init__(
            f"Queue {name!r} exists with {setting}={found!r}, not {asked!r}. "
            f"Leave {setting} out to use it as it is, or drop it first."
        )


class QueueBusy(PgQueueError):
    """Other transactions kept the queue's tables locked for too long; nothing was changed."""

    def __init__(self, name: str, seconds: float) -> None:
        super().__init__(
            f"Queue {name!r} could not be locked within {seconds:g} seconds: another transaction "
            f"uses its tables. Nothing was changed; see pg_stat_activity, then try again."
        )


class QueueConverting(QueueBusy):
    """Another process converts the queue at this moment; nothing was changed."""

    def __init__(self, name: str) -> None:
        PgQueueError.__init__(
            self,
            f"Queue {name!r} is being converted by another process. Let that end, then try again.",
        )


class QueueInUse(PgQueueError):
    """A queue that takes the dead letters of others cannot be dropped; nothing was changed."""

    def __init__(self, name: str, sources: str) -> None:
        super().__init__(
            f"Queue {name!r} takes the dead letters of {sources}: give these another "
            f"dead_letter_queue first, or none."
        )


class NeverRead(PgQueueError):
    """A message without a lease can not be acked, nor its lease extended."""

    def __init__(self, pk: int) -> None:
        super().__init__(
            f"message {pk} was never read: peek() gives no lease. To settle it, read() it first."
        )


class MessageNotFound(PgQueueError, LookupError):
    """No message of that id: it was never sent, rolled back, deleted, or is older than the
    queue's retention."""

    def __init__(self, name: str, message_id: int) -> None:
        super().__init__(
            f"Queue {name!r} has no message {message_id}, nor has its archive. Was it sent to "
            f"another queue, rolled back, deleted, or removed by the queue's retention?"
        )


class MessageFailed(PgQueueError):
    """The message failed for good: there is no result. ``error`` says why."""

    def __init__(self, name: str, message_id: int, error: str) -> None:
        self.error = error
        first = error.strip().splitlines()[0] if error.strip() else "no reason given"
        super().__init__(
            f"Message {message_id} of queue {name!r} failed: {first}. Its attempts are in "
            f"queue({name!r}).attempts({message_id})."
        )


class MessageCancelled(MessageFailed):
    """The message was called off by ``cancel``: there is no result."""

    def __init__(self, name: str, message_id: int) -> None:
        self.error = "cancelled"
        PgQueueError.__init__(self, f"Message {message_id} of queue {name!r} was cancelled.")


class ResultNotReady(PgQueueError, TimeoutError):
    """The message is not done yet. Ask again later, or wait longer."""

    def __init__(self, name: str, message_id: int, state: str) -> None:
        super().__init__(
            f"Message {message_id} of queue {name!r} is {state}: there is no result yet. Ask "
            f"again later; a message that was sent in this transaction is not read before the "
            f"commit."
        )


class LeaseLost(PgQueueError):
    """The receipt is no longer valid: the lease ran out and the message was read again."""

    def __init__(self, receipt: object) -> None:
        super().__init__(
            f"Receipt {receipt} is no longer held: its visibility timeout ran out and the message "
            f"was read again, or it is gone. Nothing was changed; let the new holder finish it."
        )


class InvalidArgument(PgQueueError, ValueError):
    """An argument the operation cannot work with; nothing was sent, read or changed."""


class InvalidQueueName(InvalidArgument):
    """A queue name has 1 to 63 of the characters ``A-Z a-z 0-9 _ . -``."""

    def __init__(self, name: object) -> None:
        super().__init__(
            f"{name!r} is not a queue name: use 1 to 63 of the characters A-Z a-z 0-9 _ . -"
        )


class InvalidMessage(InvalidArgument):
    """A body or headers that JSON or PostgreSQL's jsonb cannot hold."""


class HandlerTimeout(PgQueueError):
    """Raised inside a handler whose ``timeout`` is over; let it pass, or clean up and re-raise.

    It can only interrupt Python code: a handler that waits in a system call is given up, and
    its thread replaced.
    """

    def __init__(self) -> None:
        super().__init__("the handler ran longer than its timeout")


class TransactionRefused(PgQueueError):
    """A read inside the caller's transaction would hold no lease."""

    def __init__(self, operation: str) -> None:
        super().__init__(
            f"{operation}() inside a transaction gives no lease: until the commit it is only a "
            f"row lock, and a rollback undoes the delivery count. Read outside atomic() (and "
            f"outside ATOMIC_REQUESTS), or pass in_transaction=True to process the message in "
            f"this very transaction."
        )


class ImmutableMessage(PgQueueError):
    """A message row is written once; send a new message instead of changing one."""

    def __init__(self) -> None:
        super().__init__(
            "A message is immutable once sent. Send a new one, or use set_vt, archive or delete."
        )
