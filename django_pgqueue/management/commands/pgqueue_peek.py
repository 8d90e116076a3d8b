"""``manage.py pgqueue_peek``: show the messages that a read would find."""

from __future__ import annotations

import json
import shutil
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from django_pgqueue.management.base import QueueCommand, json_value, positive, table
from django_pgqueue.models import Message
from django_pgqueue.models.bound import bound_to
from django_pgqueue.wording import age

COLUMNS = {
    "id": ">",
    "age": ">",
    "read": ">",
    "priority": ">",
    "group": "<",
    "headers": "<",
    "body": "<",
}


class Command(QueueCommand):
    help = "Show the messages that a read would find, without leasing them."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue")
        parser.add_argument(
            "--qty", type=positive, default=10, metavar="N", help="(default: %(default)s)"
        )
        parser.add_argument(
            "--conditional",
            type=json_value,
            metavar="JSON",
            help='only messages whose body contains it, as {"customer": 7}',
        )

    def run(self, alias: str, options: dict[str, Any]) -> None:
        queue = Message.objects.resolve(options["queue"], alias)
        messages = bound_to(queue).peek(qty=options["qty"], conditional=options["conditional"])
        lines = table(COLUMNS, [_row(message) for message in messages])
        if not messages:
            lines = [f"A read of queue {queue.name!r} would find nothing now."]
        elif self.stdout.isatty():
            width = shutil.get_terminal_size().columns
            lines = [line if len(line) <= width else f"{line[: width - 3]}..." for line in lines]
        self.answer(options, [_facts(message) for message in messages], lines)


def _row(message: Message) -> list[str]:
    return [
        str(message.id),
        age((timezone.now() - message.enqueued_at).total_seconds()),
        str(message.read_ct),
        str(message.priority),
        message.group_key or "",
        "" if message.headers is None else _text(message.headers),
        _text(message.body),
    ]


def _facts(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "enqueued_at": message.enqueued_at.isoformat(),
        "read_ct": message.read_ct,
        "attempts": message.attempts,
        "priority": message.priority,
        "group": message.group_key,
        "headers": message.headers,
        "body": message.body,
    }


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
