"""Make a queue.

An existing queue is not changed; differing settings are reported. Make queues that code relies on
in a migration, with CreateQueue.
"""

from __future__ import annotations

from argparse import BooleanOptionalAction
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import QueueCommand, duration, positive, whole_seconds
from django_pgqueue.models import Message, Queue
from django_pgqueue.tables import columns
from django_pgqueue.tables.queue import SETTINGS

#: The functions that parse an option's value; others are texts.
PARSERS: dict[columns.Kind, Callable[[str], Any]] = {
    columns.COUNT: positive,
    columns.SLOTS: positive,
    columns.SECONDS: whole_seconds,
    columns.SPAN: duration,
}


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue", help="name of the queue")
        for name, column in SETTINGS.items():
            kind: columns.Kind = column.kind  # type: ignore[attr-defined]
            parsed: dict[str, Any] = {"metavar": kind.metavar, "type": PARSERS.get(kind, str)}
            if kind is columns.FLAG:
                parsed = {"action": BooleanOptionalAction}
            default = f" (default: {column.default})" if column.has_default() else ""
            option, help = f"--{name.replace('_', '-')}", f"{column.help_text}{default}"
            parser.add_argument(option, default=None, help=help, **parsed)

    def run(self, alias: str, options: dict[str, Any]) -> None:
        name = options["queue"]
        asked = {key: options[key] for key in SETTINGS if options[key] is not None}
        existed = Queue.objects.using(alias).named(name).exists()
        queue = Message.objects.using(alias).create_queue(name, **asked)
        found = {key: getattr(queue, key) for key in SETTINGS}
        if (target := queue.dead_letter_queue) is not None:
            found["dead_letter_queue"] = target.name
        differs = [key for key, value in asked.items() if _folded(found[key]) != _folded(value)]
        made = f"Queue {queue.name!r} exists already." if existed else f"Made queue {queue.name!r}."
        kept = [
            f"{key} is still {'none' if found[key] is None else found[key]}, not {asked[key]}: "
            f"change it in the admin, or set it on the Queue and save it."
            for key in differs
        ]
        values = {
            key: value.total_seconds() if isinstance(value, timedelta) else value
            for key, value in found.items()
        }
        result = {"queue": queue.name, "created": not existed, **values, "differs": sorted(differs)}
        self.answer(result, [made, *kept])


def _folded(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value
