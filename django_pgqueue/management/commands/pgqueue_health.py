"""``manage.py pgqueue_health``: whether each queue with a backlog has a live consumer."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import QueueCommand, seconds
from django_pgqueue.models import Message, Process, Queue
from django_pgqueue.worker import Options


class Command(QueueCommand):
    help = (
        "Exit with 0 if each queue with a backlog has a live consumer, otherwise with 1. Paused "
        "queues, and queues with only delayed messages, need no consumer."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queues", nargs="*", help="only these queues (default: all)")
        parser.add_argument(
            "--dead-after",
            type=seconds,
            default=Options.dead_after,
            metavar="TIME",
            help="a consumer without a heartbeat for this time is dead (default: %(default)gs)",
        )

    def run(self, alias: str, options: dict[str, Any]) -> None:
        findings = self._findings(alias, options["queues"], options["dead_after"])
        healthy = all(finding["healthy"] for finding in findings)
        self.answer(
            options, {"healthy": healthy, "queues": findings}, [_line(each) for each in findings]
        )
        if not healthy:
            sys.exit(1)

    def _findings(self, alias: str, names: list[str], dead_after: float) -> list[dict[str, Any]]:
        live = Process.objects.live(dead_after, using=alias)
        queues = (
            [Message.objects.resolve(name, alias) for name in names]
            if names
            else Queue.objects.using(alias).all()
        )
        findings = []
        for queue in queues:
            consumers = sum(queue.name in process.queues for process in live)
            backlog = Message.objects.metrics(queue).visible
            findings.append(
                {
                    "queue": queue.name,
                    "consumers": consumers,
                    "backlog": backlog,
                    "paused": queue.paused,
                    "healthy": consumers > 0 or backlog == 0 or queue.paused,
                }
            )
        return findings


def _line(finding: dict[str, Any]) -> str:
    return (
        f"{'ok  ' if finding['healthy'] else 'FAIL'} {finding['queue']}: "
        f"{finding['consumers']} consumers, backlog {finding['backlog']:,}"
        f"{', paused' if finding['paused'] else ''}"
    )
