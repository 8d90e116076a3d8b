"""Exit with 0 if each queue with a backlog has a live consumer, otherwise with 1.

Paused queues, dead-letter queues and queues with only delayed messages need no consumer. The
backlog of a subscription includes its source's messages that it has not read; without a position
it is not healthy. A ≈ marks an estimate.
"""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.engine.wording import amount
from django_pgqueue.management.base import QueueCommand, add_time
from django_pgqueue.models import Message, Process, Queue
from django_pgqueue.tables.process import DEAD_AFTER


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queues", nargs="*", help="only these queues (default: all)")
        without = "how long a consumer may send no heartbeat before it counts as dead"
        add_time(parser, "--dead-after", DEAD_AFTER, without)

    def run(self, alias: str, options: dict[str, Any]) -> None:
        live = Process.objects.live(options["dead_after"], using=alias)
        targets = Queue.objects.using(alias).exclude(dead_letter_queue=None)
        dead_letter_queues = set(targets.values_list("dead_letter_queue", flat=True))
        findings, lines = [], []
        for name in options["queues"] or Message.objects.using(alias).list_queues():
            queue = Message.objects.resolve(name, alias)
            consumers = sum(queue.name in process.queues for process in live)
            metrics = Message.objects.metrics(queue)
            backlog = metrics.visible
            exact = not {"ready", "delayed"}.intersection(metrics.estimated)
            lost = metrics.position_lost
            dead_letters = queue.pk in dead_letter_queues
            healthy = not lost and (consumers > 0 or backlog == 0 or queue.paused or dead_letters)
            findings.append(
                {
                    "queue": queue.name,
                    "consumers": consumers,
                    "backlog": backlog,
                    "exact": exact,
                    "paused": queue.paused,
                    "dead_letters": dead_letters,
                    "position_lost": lost,
                    "healthy": healthy,
                }
            )
            lines.append(
                f"{'ok  ' if healthy else 'FAIL'} {queue.name}: {consumers} consumers, "
                f"backlog {amount(backlog, exact=exact)}"
                f"{', paused' if queue.paused else ''}{', dead letters' if dead_letters else ''}"
                f"{', position lost' if lost else ''}"
            )
        all_healthy = all(finding["healthy"] for finding in findings)
        self.answer({"healthy": all_healthy, "queues": findings}, lines)
        if not all_healthy:
            sys.exit(1)
