"""Drop a queue with its messages and its archive. The user types the name to confirm."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_pgqueue.errors import QueueInUse
from django_pgqueue.management.base import QueueCommand, counted
from django_pgqueue.models import Message, Queue


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        self.add_no_input(parser)
        parser.add_argument("queue")

    def run(self, alias: str, options: dict[str, Any]) -> None:
        queue = Queue.objects.using(alias).named(options["queue"]).first()
        if queue is None:
            raise CommandError(
                f"There is no queue {options['queue']!r} in database {alias!r}: nothing to drop. "
                f"manage.py pgqueue_queues lists the queues."
            )
        if sources := ", ".join(queue.sources.values_list("name", flat=True)):
            raise QueueInUse(queue.name, sources)
        if options["interactive"]:
            held = Message.objects.metrics(queue)
            question = (
                f"Queue {queue.name!r} in database {alias!r} has "
                f"{counted(held.length, exact=held.exact)}, and in its archive "
                f"{counted(held.archived, exact=held.exact)}. All of them are deleted for good.\n"
                f"Type the name of the queue to drop it:"
            )
            self.confirm(question, queue.name, "Nothing was dropped.")
        Message.objects.drop_queue(queue)
        result = {"queue": queue.name, "dropped": True}
        self.answer(result, [f"Dropped queue {queue.name!r}."])
