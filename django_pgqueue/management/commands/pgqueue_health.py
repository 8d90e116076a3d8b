"""``manage.py pgqueue_health``: whether somebody works on every queue that has work."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from django_pgqueue.errors import PgQueueError
from django_pgqueue.models import Message, Process, Queue
from django_pgqueue.runtime import Options


class Command(BaseCommand):
    help = (
        "Exit with 0 when each queue that has a backlog has a live consumer, and with 1 when one "
        "has none. Paused queues, and those that only wait for later, need none."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("queues", nargs="*", help="only these queues (default: all)")
        parser.add_argument("--database", help="the queues' database (default: as configured)")
        parser.add_argument("--json", action="store_true", help="the findings as JSON")
        parser.add_argument(
            "--dead-after",
            type=float,
            default=Options.dead_after,
            metavar="SECONDS",
            help="a consumer without a heartbeat for so long is dead (default: %(default)g)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        alias = Queue.objects.database(options["database"])
        try:
            findings = self._findings(alias, options["queues"], options["dead_after"])
        except (PgQueueError, Error) as error:
            raise CommandError(str(error)) from error
        healthy = all(finding["healthy"] for finding in findings)
        if options["json"]:
            self.stdout.write(json.dumps({"healthy": healthy, "queues": findings}))
        else:
            for finding in findings:
                self.stdout.write(
                    f"{'ok  ' if finding['healthy'] else 'FAIL'} {finding['queue']}: "
                    f"{finding['consumers']} consumers, backlog {finding['backlog']:,}"
                    f"{', paused' if finding['paused'] else ''}"
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
