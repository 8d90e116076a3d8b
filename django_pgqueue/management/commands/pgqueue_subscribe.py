"""Make a subscription: a queue that reads the messages of another queue, its source.

An existing subscription is not changed; differing settings are reported. The source stays in use: a
large one gets its index without blocking its senders.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.engine.subscriptions.positions import NOW
from django_pgqueue.management import queue_settings
from django_pgqueue.management.base import QueueCommand, add_start
from django_pgqueue.models import Queue
from django_pgqueue.tables.queue import SubscriptionSettings


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue", help="name of the subscription")
        parser.add_argument("--to", required=True, metavar="QUEUE", help="the source")
        add_start(
            parser,
            "earliest: all messages that the source has; now: those whose transaction commits "
            "later; or a moment: those sent then or later (default: now)",
            default=NOW,
        )
        names = SubscriptionSettings.__annotations__
        queue_settings.add_settings(parser, names, defaults=True)

    def run(self, alias: str, options: dict[str, Any]) -> None:
        given = queue_settings.given(options)
        to, start = options["to"], options["start"]
        queue, differs = Queue.subscribe(options["queue"], to, start, alias, given)
        if differs:
            self.note(queue_settings.differing(queue, differs, "pgqueue_subscribe", options))
        made, name = differs is None, queue.name
        result = {
            "queue": name,
            "to": to,
            "created": made,
            **queue_settings.stored(queue),
            "differs": sorted(differs or ()),
        }
        told = f"Made subscription {name!r} to queue {to!r}."
        self.answer(result, [told if made else f"Subscription {name!r} exists already."])
