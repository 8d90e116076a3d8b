"""``manage.py report``: export the archive to a lake, and report on the lake.

Prints tables, and writes the same with plots as one page that needs nothing else.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import BaseCommand, CommandError, CommandParser
from django.template.loader import render_to_string

from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import Queue
from example_project.inbox.report import plots
from pyspark_pgqueue import java
from pyspark_pgqueue.errors import PipelineError
from pyspark_pgqueue.session import local_session

STYLE = Path(__file__).resolve().parents[2] / "static" / "inbox" / "inbox.css"


class Command(BaseCommand):
    help = "Turn the webhook history into a lake and a report (needs Spark and Java)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--lake",
            type=Path,
            default=settings.BASE_DIR / ".lake",
            help="where the lake is (default: .lake)",
        )
        parser.add_argument(
            "--output",
            type=Path,
            default=settings.BASE_DIR / ".lake" / "report.html",
            help="where the page goes (default: .lake/report.html)",
        )

    def handle(self, *args: Any, lake: Path, output: Path, **options: Any) -> None:
        try:
            java.check()
        except PipelineError as error:
            raise CommandError(str(error)) from error
        # These need what was just looked for.
        from example_project.inbox.report import history as asked
        from pyspark_pgqueue.export import export

        spark = local_session("inbox report")
        try:
            summary = export(spark, url_of(Queue.objects.database()), str(lake.resolve()))
        except PipelineError as error:
            raise CommandError(str(error)) from error
        self.stdout.write(str(summary))
        if not (lake / "archive").exists():
            raise CommandError("Nothing was archived yet: run the demo first (manage.py demo).")
        history = asked.ask(spark, str(lake.resolve()))

        sections = sections_of(history)
        for section in sections:
            self.stdout.write(f"\n{section['title']}\n\n{section['table']}")
        output.parent.mkdir(parents=True, exist_ok=True)
        page = {
            "history": history,
            "sections": sections,
            "style": STYLE.read_text(),
            "made_at": dt.datetime.now(dt.timezone.utc),
        }
        output.write_text(render_to_string("inbox/report.html", page), encoding="utf-8")
        self.stdout.write(f"\nThe same with plots: {output}")


def sections_of(history: Any) -> list[dict[str, str]]:
    return [
        {
            "title": "Events",
            "table": plots.table(history.events),
            "plot": plots.bars([(str(row["event"]), row["deliveries"]) for row in history.events]),
        },
        {
            "title": "Repositories",
            "table": plots.table(history.repositories),
            "plot": plots.bars(
                [(row["repository"], row["deliveries"]) for row in history.repositories]
            ),
        },
        {
            "title": "From webhook to done, by hour",
            "table": plots.table(history.hours),
            "plot": plots.columns(
                [row["hour"].strftime("%d. %H:00") for row in history.hours],
                {name: [row[name] for row in history.hours] for name in ("p50", "p95")},
                "s",
            ),
        },
    ]
