"""``manage.py pgqueue_partition``: partition a queue by time, or make it one table again."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import QueueCommand, duration
from django_pgqueue.models import Message, Queue

DOING = {"check": "rows checked", "copy": "rows copied"}


class Command(QueueCommand):
    help = (
        "Partition a queue by time, change the length of its partitions, or make it one table "
        "again, while messages are sent and read."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue")
        wanted = parser.add_mutually_exclusive_group(required=True)
        wanted.add_argument(
            "--interval",
            type=duration,
            metavar="TIME",
            help="the length of time of one partition, as 1d",
        )
        wanted.add_argument("--off", action="store_true", help="one table; copies all rows")

    def run(self, alias: str, options: dict[str, Any]) -> None:
        found = Message.objects.resolve(options["queue"], alias)
        queue = Queue.objects.using(alias).get(pk=found.pk)
        was, interval = queue.partition_interval, options["interval"]
        with self.progress("rows") as progress:

            def show(step: str, done: int, total: int) -> None:
                now = "--off" if was is None else f"--interval {was.total_seconds():g}"
                self.so_far = (
                    f"The queue works as before. Run the command again to go on, or run it with "
                    f"what the queue is now ({now}) to clear away what was begun."
                )
                progress.say(DOING[step], total)
                progress.show(done)

            changed = Message.objects.repartition(queue, interval, progress=show)
        now = "one table" if interval is None else f"partitions of {interval}"
        self.answer(
            options,
            {
                "queue": queue.name,
                "changed": changed,
                "was": was and was.total_seconds(),
                "partition_interval": interval and interval.total_seconds(),
            },
            [f"Queue {queue.name!r} {'now has' if changed else 'has'} {now}."],
        )
