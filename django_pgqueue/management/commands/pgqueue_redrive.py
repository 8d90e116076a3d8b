"""Send the messages of a dead-letter queue back to the queues they came from."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from django_pgqueue.management.base import QueueCommand, add_conditional, counted
from django_pgqueue.models import Message
from django_pgqueue.queues.bound import bound_to


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue", help="the dead-letter queue")
        parser.add_argument("--to", metavar="QUEUE", help="send every message to this queue")
        parser.add_argument("--ids", type=int, nargs="+", metavar="ID", help="only these messages")
        add_conditional(parser)
        parser.add_argument(
            "--rate", type=float, metavar="N", help="maximum messages a second (default: no limit)"
        )

    def run(self, alias: str, options: dict[str, Any]) -> None:
        queue = Message.objects.resolve(options["queue"], alias)
        chosen = {key: options[key] for key in ("ids", "conditional")}
        some = any(value is not None for value in chosen.values())
        total = None if some else Message.objects.metrics(queue).length
        so_far = "{} redriven. Run the command again for the rest."
        with self.counting("sent back", total, so_far) as show:
            went = bound_to(queue).redrive(
                to=options["to"], rate=options["rate"], progress=show, **chosen
            )
        left = Message.objects.metrics(queue).length
        lines = [f"Sent {counted(went)} of queue {queue.name!r} back."]
        if left and not some:
            lines.append(
                f"Not sent: {counted(left)} in flight, just arrived, or without a source queue. "
                f"To send those without one, add --to QUEUE."
            )
        self.answer({"queue": queue.name, "redriven": went, "left": left}, lines)
