"""How messages end in this process: as counted and announced, whichever loop ends them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import models

from django_pgqueue import signals
from django_pgqueue.acks import Ack, Discard, Nack, Outcome, Reject
from django_pgqueue.ddl.times import as_microseconds
from django_pgqueue.models import ArchivedMessage, Message
from django_pgqueue.types import Receipt, State
from django_pgqueue.worker.subscription import Subscription

__all__ = ["Cancelled", "Ending", "Lost", "Release", "announce", "announce_gone", "why_gone"]

_READ_AT = models.Func(
    "last_read_at",
    template=as_microseconds("%(expressions)s"),
    output_field=models.BigIntegerField(),
)


@dataclass(frozen=True)
class Lost:
    """The lease ended before the message was settled: another reader has it, or will have it."""


@dataclass(frozen=True)
class Cancelled:
    """``cancel`` moved the message to the archive while this process held it."""

    reason: str | None


@dataclass(frozen=True)
class Release:
    """No handler ran: the message goes back at once, the delivery uncounted."""


#: The end of a message in this process: a handler's outcome, or that there was none.
Ending = Outcome | Lost | Cancelled | Release


def announce(subscription: Subscription, outcomes: Sequence[tuple[Message, Ending]]) -> None:
    """Count and signal outcomes that were written, and messages whose lease is gone."""
    done: list[Message] = []
    again: list[tuple[Message, Nack]] = []
    failed: list[tuple[Message, Reject]] = []
    gone: list[tuple[Message, Lost | Cancelled]] = []
    discarded, cancelled, released = [], 0, 0
    for message, outcome in outcomes:
        if isinstance(outcome, Ack):
            done.append(message)
        elif isinstance(outcome, Nack):
            again.append((message, outcome))
        elif isinstance(outcome, Reject):
            failed.append((message, outcome))
        elif isinstance(outcome, Discard):
            discarded.append(message)
        elif isinstance(outcome, Cancelled):
            gone.append((message, outcome))
            cancelled += 1
        elif isinstance(outcome, Lost):
            gone += [
                (each, outcome)
                for each in (message, *subscription.buffer.groups.take_followers(message))
            ]
        else:
            released += 1
    subscription.counts.add(
        completed=len(done) + len(discarded),
        retried=len(again),
        failed=len(failed),
        cancelled=cancelled,
        lost=len(gone) - cancelled,
        fetched=-released,
    )
    name = subscription.name
    if done:
        signals.messages_completed.send_robust(name, messages=done)
    if again:
        signals.messages_retried.send_robust(
            name, messages=[m for m, _ in again], outcomes=[o for _, o in again]
        )
    if failed:
        signals.messages_failed.send_robust(
            name, messages=[m for m, _ in failed], outcomes=[o for _, o in failed]
        )
    if discarded:
        signals.messages_discarded.send_robust(name, messages=discarded)
    if gone:
        announce_gone(subscription, gone)
    if released:
        signals.messages_released.send_robust(name, count=released)
    if grouped := [message for message, _ in outcomes if message.group_key is not None]:
        subscription.buffer.promote(grouped)


def why_gone(
    subscription: Subscription, messages: Sequence[Message]
) -> dict[Receipt, Lost | Cancelled]:
    """Why messages have no lease any more: cancelled, or lost to another reader.

    A message that this very delivery completed is left out: an outcome whose answer was lost on its
    way to this process is written again.

    Raises DatabaseError.
    """
    ids = [message.id for message in messages]
    archive = ArchivedMessage.objects.using(subscription.queue.alias)
    archived = archive.filter(queue=subscription.queue, pk__in=ids)
    found = {each.pk: each for each in archived.annotate(read_at=_READ_AT)}
    why: dict[Receipt, Lost | Cancelled] = {}
    for message in messages:
        each: Any = found.get(message.id)
        if each is not None and each.state == State.CANCELLED:
            why[message.receipt] = Cancelled(each.error)
        elif each is None or each.read_at != message.receipt.read_at:
            why[message.receipt] = Lost()
    return why


def announce_gone(
    subscription: Subscription, gone: Sequence[tuple[Message, Lost | Cancelled]]
) -> None:
    """Signal messages whose lease is gone, each once: both the lease loop and the settle loop find
    them."""
    gone = [(message, ending) for message, ending in gone if not message.lease_gone]
    for message, _ in gone:
        message.lease_gone = True
    if lost := [message for message, ending in gone if isinstance(ending, Lost)]:
        signals.leases_lost.send_robust(subscription.name, messages=lost)
    if cancelled := [(m, ending.reason) for m, ending in gone if isinstance(ending, Cancelled)]:
        signals.messages_cancelled.send_robust(
            subscription.name,
            messages=[message for message, _ in cancelled],
            reasons=[reason for _, reason in cancelled],
        )
