"""Install or remove the schema pgmq: PGMQ's SQL functions on these queues.

install also replaces the functions after an upgrade. remove leaves queues and messages. Both refuse
a schema pgmq that this package did not make.
"""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.db import connections, transaction

from django_pgqueue import pgmq
from django_pgqueue.conf import settings
from django_pgqueue.management.base import QueueCommand
from django_pgqueue.models import Queue


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("action", choices=("install", "remove"))

    def run(self, alias: str, options: dict[str, Any]) -> None:
        if options["action"] == "install":
            with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
                pgmq.install(cursor, Queue)
            changed, line = True, "Installed schema pgmq."
        else:
            Queue.objects.finish_drops(alias, settings.LOCK_SECONDS)
            with transaction.atomic(using=alias), connections[alias].cursor() as cursor:
                changed = pgmq.remove(cursor)
            line = "Removed schema pgmq." if changed else "There is no schema pgmq."
        self.answer({"action": options["action"], "changed": changed}, [line])
