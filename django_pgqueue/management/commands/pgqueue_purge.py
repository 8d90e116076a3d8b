"""``manage.py pgqueue_purge``: empty a queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_pgqueue.management.base import QueueCommand, counted
from django_pgqueue.models import Message


class Command(QueueCommand):
    help = "Delete every message in a queue, ready, delayed or in flight. The archive stays."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        self.add_no_input(parser)
        parser.add_argument("queue")

    def run(self, alias: str, options: dict[str, Any]) -> None:
        queue = Message.objects.resolve(options["queue"], alias)
        held = Message.objects.metrics(queue)
        if options["interactive"]:
            answer = self.ask(
                f"Delete {counted(held.length, exact=held.exact)} of queue {queue.name!r} in "
                f"database {alias!r} for good? Type yes:"
            )
            if answer != "yes":
                raise CommandError("Nothing was purged.")
        with self.progress("deleted", held.length) as progress:

            def show(done: int) -> None:
                self.so_far = f"{counted(done)} deleted; run it again for the rest."
                progress.show(done)

            purged = Message.objects.purge(queue, progress=show)
        self.answer(
            options,
            {"queue": queue.name, "purged": purged},
            [f"Deleted {counted(purged)} of queue {queue.name!r}."],
        )
