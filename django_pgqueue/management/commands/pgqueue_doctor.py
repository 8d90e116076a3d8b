"""``manage.py pgqueue_doctor``: finds problems, and prints remedies."""

from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import QueueCommand, seconds
from django_pgqueue.management.diagnosis import Finding, Limits, examine


class Command(QueueCommand):
    help = (
        "Find what slows queues down or keeps messages unread, and say what to do. Exits with "
        "1 when there is a problem. Changes nothing."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "--old-snapshot",
            type=seconds,
            default=Limits.snapshot,
            metavar="TIME",
            help="a transaction open for longer is a problem (default: %(default)gs)",
        )
        parser.add_argument(
            "--dead-rows",
            type=int,
            default=Limits.dead_rows,
            metavar="N",
            help="more dead rows in a hot table are a problem (default: %(default)d)",
        )

        parser.add_argument(
            "--export-lag",
            type=seconds,
            default=Limits.export,
            metavar="TIME",
            help="a lake whose last good export is older is a problem (default: %(default)gs)",
        )

    def run(self, alias: str, options: dict[str, Any]) -> None:
        limits = Limits(
            snapshot=options["old_snapshot"],
            dead_rows=options["dead_rows"],
            export=options["export_lag"],
        )
        findings = list(examine(alias, limits))
        healthy = not any(finding.is_problem for finding in findings)
        result = {
            "healthy": healthy,
            "findings": [
                {
                    "check": finding.check,
                    "problem": finding.is_problem,
                    "text": finding.text,
                    "action": finding.action,
                    "values": finding.values,
                }
                for finding in findings
            ],
        }
        self.answer(options, result, [line for each in findings for line in _lines(each)])
        if not healthy:
            sys.exit(1)


def _lines(finding: Finding) -> list[str]:
    lines = [f"{'FAIL' if finding.is_problem else 'ok  '} {finding.check}: {finding.text}"]
    return [*lines, f"     {finding.action}"] if finding.action else lines
