"""Change settings of a queue, while it is in use. Others keep their values."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management import queue_settings
from django_pgqueue.management.base import QueueCommand
from django_pgqueue.models import Queue
from django_pgqueue.tables.queue import FIXED, SETTINGS


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue", help="name of the queue")
        queue_settings.add_settings(parser, [name for name in SETTINGS if name not in FIXED])

    def run(self, alias: str, options: dict[str, Any]) -> None:
        queue, before = Queue.alter(options["queue"], alias, queue_settings.given(options))
        stored = queue_settings.stored(queue)
        result = {"queue": queue.name, **stored, "changed": sorted(before)}
        changes = ", ".join(
            f"{key} from {queue_settings.shown(was)} to {queue_settings.shown(stored[key])}"
            for key, was in before.items()
        )
        self.answer(
            result,
            [
                f"Changed queue {queue.name!r}: {changes}."
                if changes
                else f"Queue {queue.name!r} has these settings already."
            ],
        )
