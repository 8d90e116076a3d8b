"""Move a subscription forward or back, while its consumers run. The next read begins there.

Back, it delivers messages again, also those that were acknowledged. Forward, it leaves messages
out.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import QueueCommand, add_start, counted, moment, positive
from django_pgqueue.models import Message
from django_pgqueue.queues.bound import bound_to


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue", help="name of the subscription")
        where = parser.add_mutually_exclusive_group(required=True)
        add_start(
            where,
            "earliest: before all messages that the source has; now: behind all that are "
            "committed; or a moment, as with --at",
        )
        where.add_argument(
            "--at",
            dest="start",
            type=moment,
            metavar="MOMENT",
            help="to messages sent then or later, such as 2026-11-28T12:00Z",
        )
        where.add_argument(
            "--id",
            dest="start",
            type=positive,
            metavar="ID",
            help="to messages with this id or a higher one",
        )

    def run(self, alias: str, options: dict[str, Any]) -> None:
        queue, to = Message.objects.resolve(options["queue"], alias), options["start"]
        bound_to(queue).seek(to)
        result: dict[str, Any] = {"queue": queue.name, "unread": None}
        told = ""
        if behind := bound_to(queue).lag():
            result["unread"] = behind.messages
            told = f": {counted(behind.messages, exact=not behind.is_estimate)} to read"
        self.answer(result, [f"Moved subscription {queue.name!r}{told}."])
