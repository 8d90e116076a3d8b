"""Make a queue.

An existing queue is not changed; differing settings are reported. Make queues that code relies on
in a migration, with CreateQueue.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import QueueCommand, duration, positive, whole_seconds
from django_pgqueue.models import Message, Queue

#: The options that take a value: metavar and type, by setting.
VALUES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "visibility_timeout": ("TIME", whole_seconds),
    "max_deliveries": ("N", positive),
    "dead_letter_queue": ("QUEUE", str),
    "retention": ("TIME", duration),
    "partition_interval": ("TIME", duration),
    "unique_window": ("TIME", duration),
    "limit": ("N", positive),
    "rate": ("RATE", str),
    "burst": ("N", positive),
    "group_limit": ("N", positive),
    "group_rate": ("RATE", str),
    "group_burst": ("N", positive),
    "age_limit": ("TIME", duration),
}
SETTINGS = (*VALUES, "unlogged", "notify")


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue", help="name of the queue")
        for name, (metavar, kind) in VALUES.items():
            field: Any = Queue._meta.get_field(name)
            default = f" (default: {field.default})" if field.has_default() else ""
            option, help = f"--{name.replace('_', '-')}", f"{field.help_text}{default}"
            parser.add_argument(option, metavar=metavar, type=kind, help=help)
        unlogged = "faster, but the queue is empty after a crash of the server"
        parser.add_argument("--unlogged", action="store_true", default=None, help=unlogged)
        silent = "sends do not wake waiting consumers"
        parser.add_argument(
            "--no-notify", action="store_false", default=None, dest="notify", help=silent
        )

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
