"""Print the GRANTs that a database role needs to send, consume, operate or analyse.

--apply runs the GRANTs. The database user must own the tables.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import connections, transaction

from django_pgqueue.ddl import grants
from django_pgqueue.management.base import QueueCommand
from django_pgqueue.models import Message


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("--role", required=True, help="an existing role of the server")
        parser.add_argument(
            "--for", required=True, choices=grants.KINDS, dest="kind", help="what the role does"
        )
        parser.add_argument(
            "--queue",
            action="append",
            dest="queues",
            metavar="NAME",
            help="only this queue; may be repeated (default: all queues, including future ones)",
        )
        parser.add_argument("--apply", action="store_true", help="also run the statements")
        parser.add_argument(
            "--revoke", action="store_true", help="print REVOKEs of the same rights instead"
        )

    def run(self, alias: str, options: dict[str, Any]) -> None:
        role, kind, names = options["role"], options["kind"], options["queues"]
        queues = names and [Message.objects.resolve(name, alias) for name in names]
        targets = {queue.dead_letter_queue_id for queue in queues or ()} - {None}
        with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
            if not grants.role_exists(cursor, role):
                raise CommandError(
                    f"The server of DATABASES[{alias!r}] has no role {role!r}. Create it first: "
                    f"CREATE ROLE {role} LOGIN PASSWORD '...'"
                )
            statements = grants.statements(
                cursor,
                role,
                kind,
                queues and [queue.pk for queue in queues],
                sorted(targets) if kind in ("consumer", "operator") else [],
                revoke=options["revoke"],
            )
            if options["apply"]:
                for statement in statements:
                    cursor.execute(statement)
        lines = statements
        if options["apply"]:
            verb = "REVOKE" if options["revoke"] else "GRANT"
            lines = [f"Ran {len(statements)} {verb} statements for role {role!r}."]
        done = {"role": role, "for": kind, "applied": options["apply"], "statements": statements}
        self.answer(done, lines)
