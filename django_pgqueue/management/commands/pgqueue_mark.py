"""Mark what happens now outside the queues, such as a deploy: the admin's charts show it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_pgqueue.management.base import QueueCommand
from django_pgqueue.models import Mark
from django_pgqueue.tables.mark import LONGEST


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("text", help="what happens, in a few words, such as v42")

    def run(self, alias: str, options: dict[str, Any]) -> None:
        text = " ".join(options["text"].split())
        if not 0 < len(text) <= LONGEST or not text.isprintable():
            raise CommandError(f"Give 1 to {LONGEST} printable characters, not {text!r}.")
        mark = Mark.objects.using(alias).create(text=text)
        mark.refresh_from_db(fields=["at"])
        self.answer({"text": text, "at": mark.at}, [f"Marked {text!r} at {mark.at:%H:%M:%S %Z}."])
