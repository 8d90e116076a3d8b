"""Delete all messages in a queue: ready, delayed and in flight. The archive stays."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import QueueCommand, counted
from django_pgqueue.models import Message


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        self.add_no_input(parser)
        parser.add_argument("queue")

    def run(self, alias: str, options: dict[str, Any]) -> None:
        queue = Message.objects.resolve(options["queue"], alias)
        held = Message.objects.metrics(queue)
        if options["interactive"]:
            question = (
                f"Delete {counted(held.length, exact=held.exact)} of queue {queue.name!r} in "
                f"database {alias!r} for good? Type yes:"
            )
            self.confirm(question, "yes", "Nothing was purged.")
        so_far = "{} deleted. Run the command again for the rest."
        with self.counting("deleted", held.length, so_far) as show:
            purged = Message.objects.purge(queue, progress=show)
        result = {"queue": queue.name, "purged": purged}
        self.answer(result, [f"Deleted {counted(purged)} of queue {queue.name!r}."])
