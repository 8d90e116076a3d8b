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
            parser,
            "--old-snapshot",
            Limits.snapshot,
            "report transactions that are open for longer",
        )
        parser.add_argument(
            "--dead-rows",
            type=int,
            default=Limits.dead_rows,
            metavar="N",
            help="report hot tables with more dead rows than this (default: %(default)d)",
        )
        add_time(
            parser,
            "--export-lag",
            Limits.export,
            "report lakes whose last successful export is older",
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
