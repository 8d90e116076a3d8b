"""``manage.py pgqueue_queues``: a table of the queues and their message counts."""

from __future__ import annotations

import argparse
import shutil
import time
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.db import OperationalError, connections

from django_pgqueue.management.base import QueueCommand, seconds, table
from django_pgqueue.models import Message, Queue
from django_pgqueue.types import Metrics
from django_pgqueue.wording import age

COLUMNS = {
    "queue": "<",
    "length": ">",
    "ready": ">",
    "in flight": ">",
    "delayed": ">",
    "waiting": ">",
    "visible": ">",
    "oldest": ">",
    "newest": ">",
    "archived": ">",
    "sent": ">",
    "": "<",
}

HOME, CLEAR, CLEAR_LINE, CLEAR_BELOW = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J"


class Command(QueueCommand):
    help = "Show every queue with its counts and ages. A ~ marks an estimate."

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
            result, lines = self._look(alias, options["queues"])
            self.answer(options, result, lines)
            return
        try:
            self._watch(alias, options)
        except KeyboardInterrupt:
            # Ctrl-C is the normal end of --watch.
            if self.stdout.isatty():
                self.stdout.write("")

    def _watch(self, alias: str, options: dict[str, Any]) -> None:
        live = self.stdout.isatty() and not options["json"]
        if live:
            self.stdout.write(CLEAR, ending="")
        while True:
            try:
                result, lines = self._look(alias, options["queues"])
            except OperationalError as error:
                # Keep watching: the server may be restarting.
                connections[alias].close()
                reason = str(error).strip().splitlines()[0]
                result, lines = {"error": reason}, [f"No answer from the database: {reason}"]
            moment = f"{datetime.now():%H:%M:%S}"
            if live:
                self._draw([moment, *lines])
            else:
                self.answer(options, result, [moment, *lines, ""])
                self.stdout.flush()
            time.sleep(options["watch"])

    def _draw(self, lines: list[str]) -> None:
        size = shutil.get_terminal_size()
        room = size.lines - 1
        if len(lines) > room:
            lines = [*lines[: room - 1], f"... and {len(lines) - room + 1:,} more"]
        text = "".join(f"{line[: size.columns - 1]}{CLEAR_LINE}\n" for line in lines)
        self.stdout.write(f"{HOME}{text}{CLEAR_BELOW}", ending="")
        self.stdout.flush()

    def _look(self, alias: str, names: list[str]) -> tuple[Any, list[str]]:
        queues = Queue.objects.using(alias).select_related("dead_letter_queue")
        known = {queue.name: queue for queue in queues}
        if names:
            chosen = [Message.objects.resolve(name, alias) for name in names]
            found = [Message.objects.metrics(queue) for queue in chosen]
            # A queue in ``names`` may have been made after ``queues`` was read.
            known = {**{queue.name: queue for queue in chosen}, **known}
        else:
            # A queue that was made meanwhile appears at the next refresh.
            every = Message.objects.using(alias).metrics_all()
            found = [metrics for metrics in every if metrics.queue_name in known]
        result = [_facts(metrics, known[metrics.queue_name]) for metrics in found]
        if not found:
            return result, ["There are no queues. Make one: manage.py pgqueue_create NAME"]
        return result, table(COLUMNS, [_row(m, known[m.queue_name]) for m in found])


def _facts(metrics: Metrics, queue: Queue) -> dict[str, Any]:
    target = queue.dead_letter_queue
    return {
        **metrics.as_dict(),
        "paused": queue.paused,
        "dead_letter_queue": target and target.name,
    }


def _row(metrics: Metrics, queue: Queue) -> list[str]:
    about = "" if metrics.exact else "~"
    remarks = ["paused"] if queue.paused else []
    if queue.unlogged:
        remarks.append("unlogged")
    if queue.dead_letter_queue is not None:
        remarks.append(f"dead letters to {queue.dead_letter_queue.name}")
    return [
        metrics.queue_name,
        f"{about}{metrics.length:,}",
        f"{about}{metrics.ready:,}",
        f"{about}{metrics.in_flight:,}",
        f"{about}{metrics.delayed:,}",
        f"{about}{metrics.waiting:,}",
        f"{about}{metrics.visible:,}",
        age(metrics.oldest_age),
        age(metrics.newest_age),
        f"{about}{metrics.archived:,}",
        f"{metrics.total:,}",
        ", ".join(remarks),
    ]


def _pause(text: str) -> float:
    pause = seconds(text)
    if not 0.1 <= pause <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} must be between 0.1 seconds and a day")
    return pause
