"""Send a queue's archived messages again. With --lake, Spark reads them from an export.

Asks first, unless --state or --ids selects messages of the archive, or --where those of a lake.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_pgqueue.management.base import QueueCommand, add_conditional, counted
from django_pgqueue.management.jobs import add_job_arguments, run_job
from django_pgqueue.models import Message
from django_pgqueue.queues.bound import bound_to
from django_pgqueue.types import ENDS


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        self.add_no_input(parser)
        parser.add_argument("source", nargs="?", metavar="queue", help="the queue to replay")
        archive = parser.add_argument_group("from the archive")
        states = [str(state) for state in ENDS]
        archive.add_argument("--state", choices=states, help="only messages in this state")
        archive.add_argument("--ids", type=int, nargs="+", metavar="ID", help="only these messages")
        add_conditional(archive)
        lake = parser.add_argument_group("from a lake (--to and --rate also work without --lake)")
        add_job_arguments("replay", lake)
        for argument in lake._group_actions:
            argument.required = False  # a replay from the archive needs no lake

    def run(self, alias: str, options: dict[str, Any]) -> None:
        options["queue"] = options["source"] or options["queue"]
        if options["path"] is None:
            return self._from_archive(alias, options)
        for key in ("state", "ids", "conditional"):
            if options[key] is not None:
                raise CommandError(f"--{key} selects from the archive; with --lake use --where.")
        if options["json"]:
            raise CommandError("--json does not work with --lake: leave it out.")
        if options["where"] == "true" and not options["dry_run"]:
            self._ask(f"Send all messages of the lake {options['path']} again", "--where", options)
        run_job("replay", alias, options, self)

    def _from_archive(self, alias: str, options: dict[str, Any]) -> None:
        if options["queue"] is None:
            raise CommandError("Name a queue, or a lake with --lake.")
        if options["where"] != "true" or options["dry_run"] or options["replay_id"] is not None:
            raise CommandError(
                "--where, --dry-run and --id need --lake PATH. To select from the archive use "
                "--state, --ids and --conditional."
            )
        queue = Message.objects.resolve(options["queue"], alias)
        chosen = {key: options[key] for key in ("ids", "state", "conditional")}
        some = any(value is not None for value in chosen.values())
        held = Message.objects.metrics(queue)
        total = None if some else held.archived
        to = Message.objects.resolve(options["to"] or queue, alias).name
        if options["state"] is None and options["ids"] is None:
            matching = "" if options["conditional"] is None else "those matching --conditional of "
            archived = counted(held.archived, exact="archived" not in held.estimated)
            task = f"Send {matching}{archived} in the archive of queue {queue.name!r} again"
            where = f"to queue {to!r} in database {alias!r}"
            self._ask(f"{task}, {where}, COMPLETED ones too", "--state or --ids", options)
        so_far = (
            "Sent at least {} again, in the order of their ids. Another run would send these once "
            "more."
        )
        with self.counting("sent again", total, so_far) as show:
            sent = bound_to(queue).replay(
                to=options["to"], rate=options["rate"], progress=show, **chosen
            )
        line = f"Sent {counted(sent)} of queue {queue.name!r} again, to queue {to!r}."
        self.answer({"queue": queue.name, "to": to, "replayed": sent}, [line])

    def _ask(self, task: str, selecting: str, options: dict[str, Any]) -> None:
        """Ask whether to send all messages, unless --no-input is given."""
        if options["interactive"]:
            question = f"{task}? They are new messages. {selecting} selects some. Type yes:"
            self.confirm(question, "yes", "Nothing was sent.")
