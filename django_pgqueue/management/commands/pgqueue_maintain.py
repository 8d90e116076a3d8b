"""Remove archived messages whose retention is over, and create future partitions.

Also continues the admin's bulk actions. Messages that are not archived are never removed.
"""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_pgqueue.management.base import QueueCommand, add_time, table
from django_pgqueue.models import BulkAction, Message
from django_pgqueue.types import Maintained

COLUMNS = {
    "queue": "<",
    "removed": ">",
    "partitions dropped": ">",
    "partitions made": ">",
    "note": "<",
}


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            "queues", nargs="*", metavar="queue", help="only these queues (default: all)"
        )
        add_time(parser, "--patience", 5.0, "how long to keep trying to get a lock")
        add_time(
            parser,
            "--stall",
            0.1,
            "how long one try may wait for a lock, while other sessions wait behind it",
        )

    def run(self, alias: str, options: dict[str, Any]) -> None:
        so_far = "{} removed. Run the command again for the rest."
        with self.counting("messages removed", None, so_far) as show:
            done = Message.objects.using(alias).maintain_all(
                options["queues"] or None,
                patience=options["patience"],
                stall=options["stall"],
                progress=show,
            )
        while (wait := BulkAction.objects.drive(using=alias)) is not None:
            time.sleep(wait)
        lines = [*table(COLUMNS, [_row(each) for each in done]), *_advice(done)]
        self.answer([each.as_dict() for each in done], lines)
        if failed := [f"{each.queue_name}: {each.error}" for each in done if each.error]:
            raise CommandError("\n".join(failed))


def _row(each: Maintained) -> list[str]:
    notes = {
        "failed": each.error,
        "nothing removed: a receiver of retention_due refused": each.refused,
        "nothing removed: a lake was exported from another server": each.foreign_lakes,
        f"messages waiting for an export: {each.held:,}": each.held,
        f"{each.stragglers} old partitions have a message that is not archived": each.stragglers,
        "other sessions use the tables: run this again later": each.busy,
        f"messages of {each.stay_in_default} ranges stay in the default partition": (
            each.stay_in_default
        ),
    }
    return [
        each.queue_name,
        f"{each.removed:,}",
        f"{each.partitions_dropped}",
        f"{each.partitions_made}",
        ", ".join(note for note, applies in notes.items() if applies),
    ]


def _advice(done: list[Maintained]) -> list[str]:
    """Return advice, as lines of text, if lakes from another server stop retention."""
    lakes = sorted({path for each in done for path in each.foreign_lakes})
    if not lakes:
        return []
    return [
        "",
        f"Lakes exported from another server: {', '.join(lakes)}. They may lack messages of this "
        f"server, so nothing is removed.",
        'Export to a new lake with pgqueue_export PATH --hold-retention, then unset "holds '
        'retention" of the old lake in the admin.',
    ]
