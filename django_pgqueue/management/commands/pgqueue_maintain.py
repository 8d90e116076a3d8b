"""``manage.py pgqueue_maintain``: one round of the maintenance that consumers also run."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_pgqueue.management.base import QueueCommand, counted, seconds, table
from django_pgqueue.models import BulkAction, Message
from django_pgqueue.types import Maintained


class Command(QueueCommand):
    help = (
        "Remove archived messages whose retention is over, make partitions ahead, and continue "
        "bulk actions of the admin. Retention never removes a message that is not archived."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queues", nargs="*", metavar="queue", help="(default: all)")
        parser.add_argument(
            "--patience",
            type=seconds,
            default=5.0,
            metavar="TIME",
            help="how long to try for a lock (default: %(default)gs)",
        )
        parser.add_argument(
            "--stall",
            type=seconds,
            default=0.1,
            metavar="TIME",
            help="how long other sessions may wait for one lock of it (default: %(default)gs)",
        )

    def run(self, alias: str, options: dict[str, Any]) -> None:
        with self.progress("messages removed") as progress:

            def show(removed: int) -> None:
                self.so_far = f"{counted(removed)} removed; run it again for the rest."
                progress.show(removed)

            done = Message.objects.using(alias).maintain_all(
                options["queues"] or None,
                patience=options["patience"],
                stall=options["stall"],
                progress=show,
            )
        while (wait := BulkAction.objects.drive(using=alias)) is not None:
            time.sleep(wait)
        self.answer(options, [each.as_dict() for each in done], [*_lines(done), *_advice(done)])
        failed = [each for each in done if each.error]
        if failed:
            raise CommandError("\n".join(f"{each.queue_name}: {each.error}" for each in failed))


def _lines(done: list[Maintained]) -> list[str]:
    columns = ["queue", "removed", "partitions dropped", "partitions made", "note"]
    sides = ["<", ">", ">", ">", "<"]
    return table(
        dict(zip(columns, sides, strict=True)),
        [
            [
                each.queue_name,
                f"{each.removed:,}",
                f"{each.partitions_dropped}",
                f"{each.partitions_made}",
                _note(each),
            ]
            for each in done
        ],
    )


def _note(each: Maintained) -> str:
    """The steps that were not done, with reasons, as text."""
    notes = {
        "failed": each.error,
        "refused by a listener": each.refused,
        "nothing removed: a lake was exported from another server": each.foreign_lakes,
        f"{each.held:,} wait for an export": each.held,
        f"{each.stragglers} old partitions have a message that is not archived": each.stragglers,
        "other sessions use the tables, try later": each.busy,
        f"messages of {each.stay_in_default} ranges stay in the default partition": (
            each.stay_in_default
        ),
    }
    return ", ".join(note for note, applies in notes.items() if applies)


def _advice(done: list[Maintained]) -> list[str]:
    """What to do about lakes from another server, which hold retention."""
    lakes = sorted({path for each in done for path in each.foreign_lakes})
    if not lakes:
        return []
    return [
        "",
        f"Exported from another server: {', '.join(lakes)}. They may lack messages of this server, "
        f"so nothing is removed.",
        'Export to a new lake with pgqueue_export PATH --hold-retention, then unset "holds '
        'retention" of the old one in the admin.',
    ]
