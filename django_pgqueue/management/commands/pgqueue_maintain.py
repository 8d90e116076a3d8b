"""``manage.py pgqueue_maintain``: do once what consumers do in the background."""

from __future__ import annotations

import time
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_pgqueue.management.base import QueueCommand, counted, seconds, table
from django_pgqueue.models import Message, Operation
from django_pgqueue.types import Maintained


class Command(QueueCommand):
    help = (
        "Remove archived messages whose queue's retention is over, and make partitions by time "
        "ahead; go on with operations that were begun in the admin. A message that is not "
        "archived is never touched by retention."
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
            help="how long others may wait behind it at most (default: %(default)gs)",
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
        while (wait := Operation.objects.drive(using=alias)) is not None:
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
    """In words: what was not done, and why."""
    notes = {
        "failed": each.error,
        "refused by a listener": each.refused,
        "nothing removed: a lake is of another server": each.foreign_lakes,
        f"{each.held:,} wait for an export": each.held,
        f"{each.stragglers} old partitions have a message that is not archived": each.stragglers,
        "others use the tables, try later": each.busy,
        f"messages of {each.stay_in_default} ranges stay in the default partition": (
            each.stay_in_default
        ),
    }
    return ", ".join(note for note, applies in notes.items() if applies)


def _advice(done: list[Maintained]) -> list[str]:
    """The way on when retention is held by lakes that were exported from another server."""
    lakes = sorted({path for each in done for path in each.foreign_lakes})
    if not lakes:
        return []
    return [
        "",
        f"Exported from another server: {', '.join(lakes)}. What is there is not known to be here "
        f"too, so nothing is removed.",
        'Export to a new lake with pgqueue_export PATH --hold-retention, then unset "holds '
        'retention" of the old one in the admin.',
    ]
