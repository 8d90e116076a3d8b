"""The ways in which messages end in this process. Any thread may count and announce an end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import models

from django_pgqueue import signals
from django_pgqueue.acks import Ack, Discard, Failure, Nack, Outcome, Reject
from django_pgqueue.engine.times import as_microseconds
from django_pgqueue.models import ArchivedMessage, Message
from django_pgqueue.types import Receipt, State
from django_pgqueue.worker.announcer import send
from django_pgqueue.worker.subscription import Subscription

_READ_AT = models.Func(
    "last_read_at",
    template=as_microseconds("%(expressions)s"),
    output_field=models.BigIntegerField(),
)


@dataclass(frozen=True)
class Lost:
    """The lease ended before the message was settled, so it is delivered again."""


@dataclass(frozen=True)
class Cancelled:
    """``cancel`` archived the message while this process held it."""

    reason: str | None


@dataclass(frozen=True)
class Release:
    """No handler ran: the message is due again at once, and the delivery is not counted."""


@dataclass(frozen=True)
class Parked:
    """The handler waits for a signal or a time, which is stored. The delivery is not counted."""


@dataclass(frozen=True)
class Late:
    """The error of a handler whose message is settled already. It is stored as an attempt."""

    failure: Failure


#: How a message ends in this process: with an outcome, or without one.
Ending = Outcome | Lost | Cancelled | Release | Parked | Late


#: The endings after which a message is in the queue no more.
_ENDS = (Ack, Reject, Discard, Cancelled)


def announce(subscription: Subscription, outcomes: Sequence[tuple[Message, Ending]]) -> None:
    """Count endings, pass the next messages of groups to the workers, and send the signals.

    The followers of a lost message count as lost, too.
    """
    by_kind: dict[type, list[tuple[Message, Any]]] = {
        kind: [] for kind in (Ack, Nack, Reject, Discard, Lost, Cancelled, Release, Parked)
    }
    headers: list[Any] = []
    for message, outcome in outcomes:
        if message.headers and isinstance(outcome, _ENDS):
            headers.append(message.headers)
        for kind, ended in by_kind.items():
            if isinstance(outcome, kind):
                ended.append((message, outcome))
                break
    if headers:
        subscription.batches.note(subscription.queue.alias, headers)
    lost = by_kind[Lost]
    for message, outcome in tuple(lost):
        followers = subscription.buffer.groups.take_followers(message)
        lost += [(follower, outcome) for follower in followers]
    subscription.counts.add(
        completed=len(by_kind[Ack]) + len(by_kind[Discard]),
        retried=len(by_kind[Nack]),
        failed=len(by_kind[Reject]),
        cancelled=len(by_kind[Cancelled]),
        lost=len(lost),
        fetched=-len(by_kind[Release]) - len(by_kind[Parked]),
    )
    if grouped := [message for message, _ in outcomes if message.group_key is not None]:
        subscription.buffer.promote(grouped)
    if subscription.is_limited:
        subscription.buffer.plan.fetch_now()
    # Receivers may be slow, so they come last.
    name = subscription.name
    for kind, signal in (
        (Ack, signals.messages_completed),
        (Nack, signals.messages_retried),
        (Reject, signals.messages_failed),
        (Discard, signals.messages_discarded),
    ):
        if ended := by_kind[kind]:
            extra = {"outcomes": [o for _, o in ended]} if kind in (Nack, Reject) else {}
            send(signal, name, messages=[m for m, _ in ended], **extra)
    if gone := lost + by_kind[Cancelled]:
        announce_gone(subscription, gone)
    if released := by_kind[Release]:
        send(signals.messages_released, name, count=len(released))


def why_gone(
    subscription: Subscription, messages: Sequence[Message]
) -> dict[Receipt, Lost | Cancelled]:
    """Return why each message's lease is gone: cancelled, or lost to another reader.

    Leaves out messages whose outcome of this delivery is already committed: after a lost connection
    the process writes outcomes again.
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
    """Signal that leases are gone, once for each message even if several threads notice."""
    gone = [(message, ending) for message, ending in gone if not message.lease_gone]
    for message, _ in gone:
        message.lease_gone = True
    if lost := [message for message, ending in gone if isinstance(ending, Lost)]:
        send(signals.leases_lost, subscription.name, messages=lost)
    if cancelled := [(m, ending.reason) for m, ending in gone if isinstance(ending, Cancelled)]:
        send(
            signals.messages_cancelled,
            subscription.name,
            messages=[message for message, _ in cancelled],
            reasons=[reason for _, reason in cancelled],
        )
