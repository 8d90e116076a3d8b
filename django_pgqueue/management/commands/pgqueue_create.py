"""Make a queue.

An existing queue is not changed; differing settings are reported. Make queues that code relies on
in a migration, with CreateQueue.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management import queue_settings
from django_pgqueue.management.base import QueueCommand
from django_pgqueue.models import Queue
from django_pgqueue.tables.queue import QueueSettings


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue", help="name of the queue")
        queue_settings.add_settings(parser, QueueSettings.__annotations__, defaults=True)

    def run(self, alias: str, options: dict[str, Any]) -> None:
        queue, differs = Queue.create(options["queue"], alias, queue_settings.given(options))
        name = queue.name
        if differs:
            self.note(queue_settings.differing(queue, differs, "pgqueue_create", options))
        made = differs is None
        stored = queue_settings.stored(queue)
        result = {"queue": name, "created": made, **stored, "differs": sorted(differs or ())}
        self.answer(
            result, [f"Made queue {name!r}." if made else f"Queue {name!r} exists already."]
        )
