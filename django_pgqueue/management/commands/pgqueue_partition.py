"""Partition a queue by time, or change the interval, while messages are sent and read."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import QueueCommand, duration
from django_pgqueue.management.progress_bar import ProgressBar
from django_pgqueue.models import Message
from django_pgqueue.queues.bound import bound_to


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue")
        wanted = parser.add_mutually_exclusive_group(required=True)
        wanted.add_argument(
            "--interval", type=duration, metavar="TIME", help="time span of a partition, such as 1d"
        )
        wanted.add_argument("--cancel", action="store_true", help="undo an interrupted run")

    def run(self, alias: str, options: dict[str, Any]) -> None:
        queue = Message.objects.resolve(options["queue"], alias).reread()
        was, interval = queue.partition_interval, options["interval"]
        with ProgressBar(self.stderr, "rows checked") as bar:

            def show(done: int, total: int) -> None:
                self.so_far = (
                    "The queue works as before. Run the same command again to continue, or with "
                    "--cancel to undo what it did so far."
                )
                bar.show(done, total)

            changed = bound_to(queue).repartition(interval, progress=show)
        now = "no partitions by time" if interval is None else f"partitions of {interval}"
        result = {
            "queue": queue.name,
            "changed": changed,
            "was": was and was.total_seconds(),
            "partition_interval": interval and interval.total_seconds(),
        }
        self.answer(result, [f"Queue {queue.name!r} {'now has' if changed else 'has'} {now}."])
