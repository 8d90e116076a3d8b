"""The base of the commands that run jobs of pyspark_pgqueue on one of Django's databases."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from psycopg.conninfo import make_conninfo

from django_pgqueue.audit import acting_as, actor
from django_pgqueue.management.base import add_database
from django_pgqueue.models import Queue
from django_pgqueue.worker.connections import parameters
from pyspark_pgqueue import cli
from pyspark_pgqueue.cli import arguments as add_job_arguments
from pyspark_pgqueue.errors import PipelineError

__all__ = ["JobCommand", "add_job_arguments", "run_job", "url_of"]


def url_of(alias: str) -> str:
    """Return the libpq connection string of a database alias."""
    return make_conninfo(**{name: str(value) for name, value in parameters(alias).items()})


def run_job(job: str, alias: str, options: dict[str, Any], command: BaseCommand) -> None:
    """Run a job on one of Django's databases, and print its summary to the command's stdout.

    Raises CommandError with the job's error and exit code.
    """
    try:
        code = cli.run(job, url_of(alias), options, lambda line: command.stdout.write(line))
    except PipelineError as error:
        raise CommandError(str(error), returncode=error.exit_code) from error
    if code:
        raise CommandError("Lake and database differ: see above.", returncode=code)


class JobCommand(BaseCommand):
    """The base of a command that runs the job named ``job``."""

    job: str

    @property
    def help(self) -> str:  # type: ignore[override]
        return cli.JOBS[self.job].help

    def add_arguments(self, parser: CommandParser) -> None:
        add_database(parser)
        add_job_arguments(self.job, parser)

    def handle(self, *args: Any, **options: Any) -> None:
        alias = Queue.objects.database(options.pop("database"))
        with acting_as(actor().who, place="command", program=f"pgqueue_{self.job}"):
            run_job(self.job, alias, options, self)
