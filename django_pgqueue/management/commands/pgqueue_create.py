"""``manage.py pgqueue_create``: make a queue."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import QueueCommand, duration, positive, whole_seconds
from django_pgqueue.models import Message, Queue

SETTINGS = (
    "visibility_timeout",
    "max_deliveries",
    "dead_letter_queue",
    "retention",
    "partition_interval",
    "dedup_window",
    "age_limit",
    "unlogged",
    "notify",
)


class Command(QueueCommand):
    help = (
        "Make a queue. An existing queue is not changed; differing settings are reported. "
        "Make queues that code relies on in a migration, with CreateQueue."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue", help="its name")
        parser.add_argument(
            "--visibility-timeout",
            type=whole_seconds,
            metavar="TIME",
            help="how long a message stays hidden once it is read, as 1m (default: 30s)",
        )
        parser.add_argument(
            "--max-deliveries",
            type=positive,
            metavar="N",
            help="deliveries of a message before it is dead-lettered (default: 20)",
        )
        parser.add_argument(
            "--dead-letter-queue",
            metavar="QUEUE",
            help="queue for messages that fail for good (default: the archive, as FAILED)",
        )
        parser.add_argument(
            "--retention",
            type=duration,
            metavar="TIME",
            help="how long archived messages are kept, as 30d (default: for ever)",
        )
        parser.add_argument(
            "--partition-interval",
            type=duration,
            metavar="TIME",
            help="length of a partition, as 1d: old messages are removed by dropping a partition",
        )
        parser.add_argument(
            "--dedup-window",
            type=duration,
            metavar="TIME",
            help="how long a dedup key counts (default: 5m)",
        )
        parser.add_argument(
            "--age-limit",
            type=duration,
            metavar="TIME",
            help="how long a message may be readable before the admin warns (default: 5m)",
        )
        parser.add_argument(
            "--unlogged",
            action="store_true",
            default=None,
            help="faster, and empty after a crash of the server",
        )
        parser.add_argument(
            "--no-notify",
            action="store_false",
            default=None,
            dest="notify",
            help="a send does not wake waiting consumers",
        )

    def run(self, alias: str, options: dict[str, Any]) -> None:
        name = options["queue"]
        asked = {key: options[key] for key in SETTINGS if options[key] is not None}
        existed = Queue.objects.using(alias).named(name).exists()
        queue = Message.objects.using(alias).create_queue(name, **asked)
        differs = {
            key: found
            for key, value in asked.items()
            if not _same(found := getattr(queue, key), value)
        }
        lines = [
            f"Queue {queue.name!r} exists already." if existed else f"Made queue {queue.name!r}."
        ]
        for key, found in differs.items():
            lines.append(
                f"{key} stays {_plain(found)}, not {_plain(asked[key])}: "
                f"change it in the admin, or by saving the Queue."
            )
        self.answer(
            options,
            {
                "queue": queue.name,
                "created": not existed,
                **{key: _json(getattr(queue, key)) for key in SETTINGS},
                "differs": sorted(differs),
            },
            lines,
        )


def _same(found: Any, asked: Any) -> bool:
    if isinstance(found, Queue):
        return found.name.lower() == str(asked).lower()
    return bool(found == asked)


def _plain(value: Any) -> str:
    return "none" if value is None else str(value)


def _json(value: Any) -> Any:
    if isinstance(value, Queue):
        return value.name
    return value.total_seconds() if hasattr(value, "total_seconds") else value
