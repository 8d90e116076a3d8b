"""Exit with 0 if each queue with a backlog has a live consumer, otherwise with 1.

Paused queues, and queues with only delayed messages, need no consumer.
"""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import QueueCommand, add_time
from django_pgqueue.models import Message, Process
from django_pgqueue.worker import Options


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queues", nargs="*", help="only these queues (default: all)")
        without = "how long a consumer may send no heartbeat before it counts as dead"
        add_time(parser, "--dead-after", Options.dead_after, without)

    def run(self, alias: str, options: dict[str, Any]) -> None:
        live = Process.objects.live(options["dead_after"], using=alias)
        findings, lines = [], []
        for name in options["queues"] or Message.objects.using(alias).list_queues():
            queue = Message.objects.resolve(name, alias)
            consumers = sum(queue.name in process.queues for process in live)
            backlog = Message.objects.metrics(queue).visible
            healthy = consumers > 0 or backlog == 0 or queue.paused
            findings.append(
                {
                    "queue": queue.name,
                    "consumers": consumers,
                    "backlog": backlog,
                    "paused": queue.paused,
                    "healthy": healthy,
                }
            )
            lines.append(
                f"{'ok  ' if healthy else 'FAIL'} {queue.name}: {consumers} consumers, "
                f"backlog {backlog:,}{', paused' if queue.paused else ''}"
            )
        all_healthy = all(finding["healthy"] for finding in findings)
        self.answer({"healthy": all_healthy, "queues": findings}, lines)
        if not all_healthy:
            sys.exit(1)
