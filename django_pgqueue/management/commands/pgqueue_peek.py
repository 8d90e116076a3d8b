"""Show the messages that a read would return, or the blocked ones. Leases nothing."""

from __future__ import annotations

import json
import shutil
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from django_pgqueue.engine.wording import age
from django_pgqueue.management.base import QueueCommand, add_conditional, positive, table
from django_pgqueue.models import Message
from django_pgqueue.queues.bound import bound_to

COLUMNS = {
    **dict.fromkeys(("id", "age", "read", "priority", "expires"), ">"),
    **dict.fromkeys(("group", "headers", "body"), "<"),
}


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue")
        parser.add_argument(
            "--qty",
            type=positive,
            default=10,
            metavar="N",
            help="maximum number of messages (default: %(default)s)",
        )
        parser.add_argument(
            "--blocked",
            action="store_true",
            help="show the messages that are not delivered now, with the reason",
        )
        add_conditional(parser)

    def run(self, alias: str, options: dict[str, Any]) -> None:
        queue = Message.objects.resolve(options["queue"], alias)
        messages = bound_to(queue).peek(
            qty=options["qty"], conditional=options["conditional"], blocked=options["blocked"]
        )
        lines = (
            table({"waits for": "<", **COLUMNS}, [[_reason(m) or "", *_row(m)] for m in messages])
            if options["blocked"]
            else table(COLUMNS, [_row(message) for message in messages])
        )
        if not messages:
            lines = [f"A read of queue {queue.name!r} would find nothing now."]
            if options["blocked"]:
                lines = [f"Queue {queue.name!r} has no blocked messages."]
        elif self.stdout.isatty():
            width = shutil.get_terminal_size().columns
            lines = [line if len(line) <= width else f"{line[: width - 3]}..." for line in lines]
        self.answer([_facts(message) for message in messages], lines)


def _row(message: Message) -> list[str]:
    expires = message.expires_at
    return [
        str(message.id),
        age((timezone.now() - message.enqueued_at).total_seconds()),
        str(message.read_ct),
        str(message.priority),
        "" if expires is None else age((expires - timezone.now()).total_seconds()),
        message.group_key or "",
        "" if message.headers is None else json.dumps(message.headers, ensure_ascii=False),
        json.dumps(message.body, ensure_ascii=False),
    ]


def _facts(message: Message) -> dict[str, Any]:
    names = ("id", "read_ct", "attempts", "priority", "group", "headers", "body")
    facts = {name: getattr(message, name) for name in names}
    facts["reason"] = _reason(message)
    expires = message.expires_at and message.expires_at.isoformat()
    return {**facts, "enqueued_at": message.enqueued_at.isoformat(), "expires_at": expires}


def _reason(message: Message) -> str | None:
    return message.wait and message.wait.reason
