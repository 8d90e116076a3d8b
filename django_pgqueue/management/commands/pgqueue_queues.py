"""Show every queue with its counts and ages. A ≈ marks an estimate."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.db import OperationalError, connections

from django_pgqueue.engine.wording import age, amount
from django_pgqueue.management.base import QueueCommand, counted, seconds, table
from django_pgqueue.models import Batch, Message, Queue
from django_pgqueue.types import Lag, Metrics

COUNTS = ("length", "ready", "in_flight", "delayed", "waiting", "visible")
HEADINGS = (*(name.replace("_", " ") for name in COUNTS), "oldest", "newest", "archived", "sent")
COLUMNS = {"queue": "<", **dict.fromkeys(HEADINGS, ">"), "": "<"}

HOME, CLEAR, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queues", nargs="*", help="only these (default: all)")
        parser.add_argument(
            "--watch",
            type=_pause,
            nargs="?",
            const=2.0,
            metavar="TIME",
            help="refresh the table at this interval, until Ctrl-C (default: 2)",
        )

    def run(self, alias: str, options: dict[str, Any]) -> None:
        if options["watch"] is None:
            return self.answer(*_table(alias, options["queues"]))
        try:
            self._watch(alias, options)
        except KeyboardInterrupt:
            # Ctrl-C is the normal end of --watch: no error message, but the exit code of a Ctrl-C.
            if self.stdout.isatty():
                self.stdout.write("")
            sys.exit(130)

    def _watch(self, alias: str, options: dict[str, Any]) -> None:
        live = self.stdout.isatty() and not options["json"]
        if live:
            self.stdout.write(CLEAR, ending="")
        while True:
            try:
                result, lines = _table(alias, options["queues"])
            except OperationalError as error:
                # Keep watching: the server may be restarting.
                connections[alias].close()
                reason = str(error).strip().splitlines()[0]
                result, lines = {"error": reason}, [f"No answer from the database: {reason}"]
            lines = [f"{datetime.now():%H:%M:%S}", *lines]
            if live:
                self._draw(lines)
            else:
                self.answer(result, [*lines, ""])
            self.stdout.flush()
            time.sleep(options["watch"])

    def _draw(self, lines: list[str]) -> None:
        size = shutil.get_terminal_size()
        height = size.lines - 1
        if len(lines) > height:
            lines = [*lines[: height - 1], f"... and {len(lines) - height + 1:,} more"]
        text = "".join(f"{line[: size.columns - 1]}{CLEAR_LINE}\n" for line in lines)
        self.stdout.write(f"{HOME}{text}{CLEAR_BELOW}", ending="")


def _table(alias: str, names: list[str]) -> tuple[Any, list[str]]:
    """Return the table of queues, as JSON values and as lines of text."""
    if names:
        metrics = [Message.objects.metrics(Message.objects.resolve(name, alias)) for name in names]
    else:
        metrics = Message.objects.using(alias).metrics_all()
    queues = Queue.objects.using(alias).select_related("dead_letter_queue", "source")
    known = {queue.name: queue for queue in queues}
    # Leave out queues that were dropped between the queries.
    found = [(each, known[each.queue_name]) for each in metrics if each.queue_name in known]
    lags = {queue.pk: queue.lag() for _each, queue in found if queue.source_id}
    batches = _open_batches(alias, [queue.pk for _each, queue in found])
    result = [
        {
            **each.as_dict(),
            "paused": queue.paused,
            "dead_letter_queue": _name(queue.dead_letter_queue),
            **_position(queue, lags),
            **_progress(batches.get(queue.pk, ())),
        }
        for each, queue in found
    ]
    if not found:
        return result, ["There are no queues. Make one: manage.py pgqueue_create NAME"]
    rows = [_row(each, queue, lags, batches.get(queue.pk, ())) for each, queue in found]
    return result, table(COLUMNS, rows)


def _name(queue: Queue | None) -> str | None:
    return None if queue is None else queue.name


def _position(queue: Queue, lags: Mapping[int, Lag | None]) -> dict[str, Any]:
    """Return a subscription's source and lag for JSON; nothing for another queue."""
    if queue.source is None:
        return {}
    lag = lags[queue.pk]
    return {"source": queue.source.name, "lag": None if lag is None else lag._asdict()}


def _read_from(queue: Queue, lag: Lag | None) -> str:
    """Describe a subscription: its source, and how far it is behind."""
    if lag is None:
        return f"subscription to {_name(queue.source)}, position lost"
    behind = counted(lag.messages, exact=not lag.is_estimate) if lag.messages else "nothing"
    since = f" of {age(lag.seconds)}" if lag.seconds is not None else ""
    lost = f", {counted(lag.lost)} lost" if lag.lost else ""
    return f"subscription to {_name(queue.source)}, {behind} unread{since}{lost}"


def _open_batches(alias: str, queues: Sequence[int]) -> dict[int, list[Batch]]:
    """Return the batches of these queues that are not done, by queue."""
    found: dict[int, list[Batch]] = {}
    rows = Batch.objects.using(alias).filter(queue__in=queues, done_at=None)
    for batch in rows.defer("callback").order_by("pk"):
        found.setdefault(batch.queue_id, []).append(batch)
    return found


def _progress(batches: Sequence[Batch]) -> dict[str, Any]:
    """Return a queue's batches for JSON; nothing for a queue without any."""
    if not batches:
        return {}
    names = ("name", "outcome", "members", "ended")
    told = [{"id": each.pk, **{name: getattr(each, name) for name in names}} for each in batches]
    return {"batches": told}


def _ended(batches: Sequence[Batch]) -> str:
    """Describe a queue's batches: how many there are, and how many of their members have ended."""
    ended, members = sum(each.ended for each in batches), sum(each.members for each in batches)
    noun = "batch" if len(batches) == 1 else "batches"
    return f"{len(batches):,} {noun}, {ended:,} of {members:,} ended"


def _row(
    metrics: Metrics, queue: Queue, lags: Mapping[int, Lag | None], batches: Sequence[Batch]
) -> list[str]:
    target = _name(queue.dead_letter_queue)
    remarks = {
        _read_from(queue, lags.get(queue.pk)) if queue.source_id else "": queue.source_id,
        "paused": queue.paused,
        "unlogged": queue.unlogged,
        f"dead letters to {target}": target,
        _ended(batches): batches,
    }
    return [
        metrics.queue_name,
        *(amount(getattr(metrics, name), exact=metrics.exact) for name in COUNTS),
        age(metrics.oldest_age),
        age(metrics.newest_age),
        amount(metrics.archived, exact=metrics.exact),
        f"{metrics.total:,}",
        ", ".join(remark for remark, applies in remarks.items() if applies),
    ]


def _pause(text: str) -> float:
    pause = seconds(text)
    if not 0.1 <= pause <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} must be between 0.1 seconds and a day")
    return pause
