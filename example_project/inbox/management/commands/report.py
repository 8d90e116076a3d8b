"""``manage.py report``: exports the archive to a lake, rolls it up, and reports on both.

Prints tables, and draws the dashboard that the admin shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from django.core.management import BaseCommand, CommandError, CommandParser

from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import Queue
from example_project.inbox.report import dashboard, lake_path, page_path, plots
from pyspark_pgqueue import java
from pyspark_pgqueue.errors import PipelineError
from pyspark_pgqueue.session import local_session


class Command(BaseCommand):
    help = "Export the webhook history to a lake, and report on it (needs Spark and Java)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--lake", type=Path, default=lake_path(), help="directory of the lake (default: .lake)"
        )
        parser.add_argument(
            "--output",
            type=Path,
            default=page_path(),
            help="file of the page that the admin shows (default: .lake/report.html)",
        )

    def handle(self, *args: Any, lake: Path, output: Path, **options: Any) -> None:
        try:
            java.check()
        except PipelineError as error:
            raise CommandError(str(error)) from error
        # Imported after the check above: they need Spark.
        from example_project.inbox.report import history as asked
        from pyspark_pgqueue.jobs.export import export
        from pyspark_pgqueue.jobs.rollup import rollup

        spark, where = local_session("inbox report"), str(lake.resolve())
        url = url_of(Queue.objects.database())
        try:
            self.stdout.write(str(export(spark, url, where)))
            if not (lake / "archive").exists():
                raise CommandError("Nothing was archived yet: run the demo first (manage.py demo).")
            self.stdout.write(str(rollup(url)))
        except PipelineError as error:
            raise CommandError(str(error)) from error
        history = asked.ask(spark, where)

        for title, rows in (("Events", history.events), ("Repositories", history.repositories)):
            self.stdout.write(f"\n{title}\n\n{plots.table(rows)}")
        output.parent.mkdir(parents=True, exist_ok=True)
        # Replaced in one step, since the admin may be reading the page.
        drawn = output.with_suffix(".new")
        drawn.write_text(dashboard.draw(history), encoding="utf-8")
        drawn.replace(output)
        self.stdout.write(f"\nThe dashboard is in the admin: Deliveries, Report ({output}).")
