"""Find problems that slow queues down or keep messages unread, and print their remedies.

Exits with 1 when there is a problem. Changes nothing.
"""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import QueueCommand, add_time
from django_pgqueue.management.diagnosis import Limits, examine


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add_time(
            parser, "--old-snapshot", Limits.snapshot, "a transaction open for longer is a problem"
        )
        parser.add_argument(
            "--dead-rows",
            type=int,
            default=Limits.dead_rows,
            metavar="N",
            help="more dead rows in a hot table are a problem (default: %(default)d)",
        )
        add_time(
            parser,
            "--export-lag",
            Limits.export,
            "a lake whose last good export is older is a problem",
        )

    def run(self, alias: str, options: dict[str, Any]) -> None:
        limits = Limits(
            snapshot=options["old_snapshot"],
            dead_rows=options["dead_rows"],
            export=options["export_lag"],
        )
        findings, lines, healthy = [], [], True
        for found in examine(alias, limits):
            healthy = healthy and not found.is_problem
            findings.append({**vars(found), "problem": found.is_problem})
            lines.append(f"{'FAIL' if found.is_problem else 'ok  '} {found.check}: {found.text}")
            if found.is_problem:
                lines.append(f"     {found.action}")
        self.answer({"healthy": healthy, "findings": findings}, lines)
        if not healthy:
            sys.exit(1)
