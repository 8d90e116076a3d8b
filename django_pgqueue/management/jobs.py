"""What the commands of the pipeline share: a database of Django's, a session on this machine."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from psycopg.conninfo import make_conninfo

from django_pgqueue.management.base import add_database
from django_pgqueue.models import Queue
from django_pgqueue.spark import cli
from django_pgqueue.spark.errors import PipelineError
from django_pgqueue.worker.connections import parameters

__all__ = ["JobCommand", "url_of"]


def url_of(alias: str) -> str:
    """How another process reaches a database of Django's, as libpq takes it."""
    return make_conninfo(**{name: str(value) for name, value in parameters(alias).items()})


class JobCommand(BaseCommand):
    """``job`` names a function of the pipeline; see :mod:`django_pgqueue.spark`."""

    job: str

    @property
    def help(self) -> str:  # type: ignore[override]
        return cli.HELP[self.job]

    def add_arguments(self, parser: CommandParser) -> None:
        add_database(parser)
        cli.arguments(self.job, parser)

    def handle(self, *args: Any, **options: Any) -> None:
        alias = Queue.objects.database(options.pop("database"))
        try:
            status = cli.run(self.job, url_of(alias), options, self.stdout.write)
        except PipelineError as error:
            raise CommandError(str(error)) from error
        if status:
            raise CommandError("Lake and database differ.")
