"""Send one message. Without a body, send every line of stdin; each line is JSON.

Lines are sent in batches; a batch is sent completely or not at all.
"""

from __future__ import annotations

import os
import signal
import stat
import sys
from itertools import islice
from typing import Any, BinaryIO

from django.core.management.base import CommandError, CommandParser
from django.db import InterfaceError, OperationalError

from django_pgqueue.engine import arguments
from django_pgqueue.engine.interrupts import interrupts_held
from django_pgqueue.errors import InvalidMessage
from django_pgqueue.management.base import (
    QueueCommand,
    counted,
    duration,
    json_value,
    loads,
    positive,
)
from django_pgqueue.management.progress_bar import ProgressBar
from django_pgqueue.models import Message, Queue

#: Maximum number of bad lines that are printed; the rest are only counted.
MOST_SHOWN = 20

Line = tuple[int, bytes]


class Command(QueueCommand):
    help = __doc__

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.add_argument("queue")
        parser.add_argument("body", nargs="?", help="JSON (default: one body per line of stdin)")
        parser.add_argument("--headers", type=json_value, metavar="JSON", help="for every message")
        parser.add_argument(
            "--delay",
            type=duration,
            default=0,
            metavar="TIME",
            help="hide every message for this time, such as 30 or 2h",
        )
        parser.add_argument(
            "--expires",
            type=duration,
            metavar="TIME",
            help="deliver no message after this time, such as 30 or 2h",
        )
        parser.add_argument(
            "--priority", type=int, default=0, metavar="N", help="-100 to 100; higher first"
        )
        parser.add_argument("--group", help="the FIFO group of every message")
        parser.add_argument(
            "--batch",
            type=positive,
            default=1000,
            metavar="N",
            help="lines per batch (default: %(default)s)",
        )
        parser.add_argument(
            "--skip-bad", action="store_true", help="skip bad lines instead of stopping at them"
        )

    def run(self, alias: str, options: dict[str, Any]) -> None:
        queue = Message.objects.resolve(options["queue"], alias)
        if options["body"] is None:
            self._send_lines(queue, options)
        else:
            self._send_one(queue, options)

    def _send_one(self, queue: Queue, options: dict[str, Any]) -> None:
        try:
            body = loads(options["body"])
        except ValueError as error:
            raise CommandError(
                f"The body is not JSON: {error}. Quote text for JSON and for the shell: "
                f"'\"hello\"'."
            ) from error
        pk = Message.objects.send(queue, body, **_envelope(options))
        result = {"queue": queue.name, "id": pk}
        self.answer(result, [f"Sent message {pk} to queue {queue.name!r}."])

    def _send_lines(self, queue: Queue, options: dict[str, Any]) -> None:
        stream = sys.stdin.buffer
        if stream.isatty():
            self.note("Type one JSON body per line; end with Ctrl-D.")
        numbered, size = enumerate(stream, 1), _size(stream)
        sent, read, first = 0, 0, 1
        bad: list[dict[str, Any]] = []
        with ProgressBar(self.stderr, "sent") as bar:
            while batch := list(islice(numbered, options["batch"])):
                bodies, wrong = _sort(batch)
                bad += wrong
                if wrong and not options["skip_bad"]:
                    break
                # Delay Ctrl-C until the batch is sent: then the number of sent lines is known.
                with interrupts_held([signal.SIGINT]):
                    if bodies:
                        sent += self._send_batch(queue, bodies, batch, options)
                    first = batch[-1][0] + 1
                    self.so_far = (
                        f"Sent {counted(sent)} from lines 1 to {first - 1}. "
                        f"Continue from line {first} (tail -n +{first})."
                    )
                read += sum(len(line) for _, line in batch)
                bar.show(sent, share=read / size if size else None)
        for each in bad[:MOST_SHOWN]:
            self.note(f"line {each['line']}: {each['error']}")
        if len(bad) > MOST_SHOWN:
            self.note(f"... and {len(bad) - MOST_SHOWN:,} more bad lines")
        lines = [f"Sent {counted(sent)} to queue {queue.name!r}."]
        if bad and options["skip_bad"]:
            lines.append(f"Skipped bad lines: {len(bad):,}.")
        self.answer({"queue": queue.name, "sent": sent, "bad": bad}, lines)
        if bad and not options["skip_bad"]:
            raise CommandError(
                f"Lines {first} to {batch[-1][0]} were not sent. Bad lines among them: "
                f"{len(bad):,}. Correct these and continue from line {first} "
                f"(tail -n +{first}), or use --skip-bad."
            )

    def _send_batch(
        self, queue: Queue, bodies: list[Any], batch: list[Line], options: dict[str, Any]
    ) -> int:
        try:
            return len(Message.objects.send_batch(queue, bodies, **_envelope(options)))
        except (KeyboardInterrupt, InterfaceError, OperationalError):
            # The commit may have succeeded although no answer arrived.
            unsure = f"Lines {batch[0][0]} to {batch[-1][0]} may have been sent or not"
            self.so_far = f"{self.so_far} {unsure}: check before you continue.".strip()
            raise


def _envelope(options: dict[str, Any]) -> dict[str, Any]:
    return {key: options[key] for key in ("headers", "delay", "expires", "priority", "group")}


def _size(stream: BinaryIO) -> int | None:
    """Return the number of bytes left to read; None if the stream is not a file."""
    try:
        status = os.fstat(stream.fileno())
        return status.st_size - stream.tell() if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None


def _sort(batch: list[Line]) -> tuple[list[Any], list[dict[str, Any]]]:
    """Return the parsed bodies of a batch, and the errors of its bad lines. Skip empty lines."""
    bodies: list[Any] = []
    wrong: list[dict[str, Any]] = []
    for number, line in batch:
        try:
            if text := line.decode("utf-8-sig").strip():
                body = loads(text)
                arguments.json_text(body)
                bodies.append(body)
        except ValueError as error:
            kind = "" if isinstance(error, InvalidMessage) else "not JSON: "
            wrong.append({"line": number, "error": f"{kind}{error}"})
    return bodies, wrong
