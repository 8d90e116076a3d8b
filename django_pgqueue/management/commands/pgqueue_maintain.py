"""``manage.py pgqueue_maintain``: do once what consumers do in the background."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_pgqueue.management.base import QueueCommand, amount, seconds, table
from django_pgqueue.models import Message
from django_pgqueue.types import Upkeep


class Command(QueueCommand):
    help = (
        "Remove archived messages whose queue's retention is over, and make partitions "
        "ahead of time. Live messages are not touched."
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
                self.so_far = f"{amount(removed)} went; say it again for the rest."
                progress.show(removed)

            upkeeps = Message.objects.maintain_all(
                options["queues"] or None,
                patience=options["patience"],
                stall=options["stall"],
                progress=show,
                using=alias,
            )
        self.answer(options, [upkeep.as_dict() for upkeep in upkeeps], _lines(upkeeps))
        failed = [upkeep for upkeep in upkeeps if upkeep.error]
        if failed:
            raise CommandError("\n".join(f"{each.queue_name}: {each.error}" for each in failed))


def _lines(upkeeps: list[Upkeep]) -> list[str]:
    columns = ["queue", "removed", "partitions dropped", "partitions made", "note"]
    sides = ["<", ">", ">", ">", "<"]
    return table(
        dict(zip(columns, sides, strict=True)),
        [
            [
                upkeep.queue_name,
                f"{upkeep.removed:,}",
                f"{upkeep.leaves_dropped}",
                f"{upkeep.leaves_made}",
                _note(upkeep),
            ]
            for upkeep in upkeeps
        ],
    )


def _note(upkeep: Upkeep) -> str:
    """What was not done, in words."""
    notes = {
        "failed": upkeep.error,
        "refused by a listener": upkeep.refused,
        f"{upkeep.held:,} wait for an export": upkeep.held,
        f"{upkeep.stragglers} old partitions still have live messages": upkeep.stragglers,
        "tables in use, try later": upkeep.busy,
        f"{upkeep.spans_in_default} stay in the default partition": upkeep.spans_in_default,
    }
    return ", ".join(note for note, applies in notes.items() if applies)
