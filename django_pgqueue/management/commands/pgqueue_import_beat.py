"""Make schedules of the entries of Celery's beat.

Reads the rows of django-celery-beat, CELERY_BEAT_SCHEDULE of the settings, and the beat_schedule of
an app. A schedule has the entry's name. One that exists is not changed without --update.
"""

from __future__ import annotations

import argparse
import datetime as dt
from typing import Any

from django.core.management.base import CommandError, CommandParser

from django_pgqueue.engine.wording import length_text
from django_pgqueue.errors import InvalidArgument, QueueNotFound
from django_pgqueue.management.base import QueueCommand, table
from django_pgqueue.management.beat import Converted, Entry, app_of, configured, converted, stored
from django_pgqueue.models import Queue, Schedule

#: The states of an entry, each with the words of the summary.
STATES = {
    "made": "made",
    "updated": "updated",
    "unchanged": "unchanged",
    "differs": "kept as they are",
    "refused": "not imported",
}


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        add = parser.add_argument
        add("--app", metavar="MODULE:ATTRIBUTE", help="an app of Celery, with its beat_schedule")
        add(
            "--task",
            type=_pair,
            action="append",
            default=[],
            metavar="NAME=PATH",
            help="the task of Django's Tasks that replaces Celery's (default: that of its name)",
        )
        add(
            "--queue",
            type=_pair,
            action="append",
            default=[],
            metavar="NAME=QUEUE",
            help="the queue whose consumer replaces Celery's task: its messages have the kwargs",
        )
        add("--paused", action="store_true", help="make or update schedules as paused")
        add(
            "--update",
            action="store_true",
            help="change schedules that exist, too, but resume none",
        )
        add("--dry-run", action="store_true", help="show what would be done")

    def run(self, alias: str, options: dict[str, Any]) -> None:
        entries = self._entries(options["app"])
        tasks, queues = dict(options["task"]), dict(options["queue"])
        known = {entry.task for entry in entries.values() if entry.task}
        if unknown := sorted({*tasks, *queues} - known):
            raise CommandError(
                f"No entry of beat runs {unknown[0]}. Entries run {', '.join(sorted(known))}"
            )
        results = []
        for entry in entries.values():
            result = {"name": entry.name, "task": entry.task}
            try:
                found = converted(entry, tasks, queues)
                found.values["paused"] |= options["paused"]
                results.append(result | self._import(entry, found, alias, options))
            except (InvalidArgument, QueueNotFound) as error:
                results.append(result | {"state": "refused", "reason": str(error)})
        self.answer({"dry_run": options["dry_run"], "entries": results}, _lines(results, options))
        changed = [each for each in results if each["state"] in ("made", "updated")]
        if not options["dry_run"] and not all(each["paused"] for each in changed):
            self.note("Stop Celery's beat now: consumers send these schedules from now on.")

    def _entries(self, app: str | None) -> dict[str, Entry]:
        """Return all entries by name. A row of django-celery-beat takes precedence."""
        sources = [configured(), None if app is None else configured(app_of(app)), stored()]
        if not any(source is not None for source in sources):
            raise CommandError(
                "There is no beat: django_celery_beat is not in INSTALLED_APPS, and the settings "
                "have no CELERY_BEAT_SCHEDULE. Name the app of Celery: --app mysite.celery:app"
            )
        return {entry.name: entry for source in sources for entry in source or ()}

    def _import(
        self, entry: Entry, found: Converted, alias: str, options: dict[str, Any]
    ) -> dict[str, Any]:
        """Make or update a schedule. Returns its values and what was done."""
        queue = Queue.objects.resolve(found.queue, found.using or alias)
        values = {**_DEFAULTS, **found.values}
        schedules = Schedule.objects.using(queue.alias)
        Schedule(name=entry.name, queue=queue, **values).check_settings()
        known = schedules.filter(name=entry.name).first()
        state, differs = "made", list[str]()
        if known is not None:
            if not options["paused"]:
                values["paused"] = known.paused  # an update resumes nothing
            wanted = {**values, "queue_id": queue.pk}
            differs = [name for name, value in wanted.items() if getattr(known, name) != value]
            may_change = options["update"] and known.declared is None
            state = "unchanged" if not differs else "updated" if may_change else "differs"
        if not options["dry_run"]:
            if known is None:
                _, created = schedules.get_or_create({**values, "queue": queue}, name=entry.name)
                state = "made" if created else "unchanged"
            elif state == "updated":
                for name, value in values.items():
                    setattr(known, name, value)
                known.queue = queue
                known.save(using=queue.alias)
        notes = list(found.notes)
        if known is not None and known.declared is not None:
            notes.append("the code declares it, with @schedule")
        spans = {name: values[name] and values[name].total_seconds() for name in _SPANS}
        return {
            **{name: value for name, value in values.items() if name not in _SPANS},
            **spans,
            "queue": queue.name,
            "state": state,
            "differs": sorted(name.removesuffix("_id") for name in differs),
            "notes": notes,
        }


_SPANS = ("interval", "expires")
#: The values of a schedule that an entry may leave out.
_DEFAULTS = {
    "body": None,
    "priority": 0,
    "expires": None,
    "group_key": "",
    "unique_key": "",
    "until": "",
}


def _lines(results: list[dict[str, Any]], options: dict[str, Any]) -> list[str]:
    if not results:
        return ["Beat has no entries."]
    good = [each for each in results if each["state"] != "refused"]
    rows = [[each["name"], _times(each), each["queue"], _remarks(each)] for each in good]
    columns = {"schedule": "<", "times": "<", "queue": "<", "": "<"}
    lines = table(columns, rows) if rows else []
    for each in results:
        if each["state"] == "refused":
            lines.append(f"Not imported: {each['name']}: {each['reason']}")
    counts = {state: sum(each["state"] == state for each in results) for state in STATES}
    told = ", ".join(f"{counts[state]} {words}" for state, words in STATES.items() if counts[state])
    return [*lines, f"{'Would be: ' if options['dry_run'] else ''}{told}."]


def _times(result: dict[str, Any]) -> str:
    if result["cron"]:
        return f"{result['cron']} {result['time_zone']}"
    return f"every {length_text(dt.timedelta(seconds=result['interval']))}"


def _remarks(result: dict[str, Any]) -> str:
    words = [result["state"]]
    if result["differs"]:
        words = [f"{words[0]}: {', '.join(result['differs'])}"]
    return "; ".join([*words, *(["paused"] if result["paused"] else []), *result["notes"]])


def _pair(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE."""
    name, _, value = text.partition("=")
    if not name or not value:
        raise argparse.ArgumentTypeError(f"{text!r} must be NAME=VALUE")
    return name, value
