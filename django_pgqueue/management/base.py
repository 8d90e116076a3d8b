"""The base class of the management commands, and functions that they share."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.serializers.json import DjangoJSONEncoder
from django.db import DatabaseError, Error, OperationalError, connections
from django.utils.dateparse import parse_datetime

from django_pgqueue.audit import acting_as, actor
from django_pgqueue.engine.subscriptions.positions import EARLIEST, NOW
from django_pgqueue.engine.wording import amount, length_of
from django_pgqueue.errors import PgQueueError
from django_pgqueue.management.progress_bar import ProgressBar
from django_pgqueue.models import Queue
from django_pgqueue.tables.queue import explained

_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


class QueueCommand(BaseCommand):
    """The base of commands on queues. Subclasses implement ``run``; its errors become CommandError.

    Results go to stdout, notes to stderr.
    """

    #: The work done so far, as text that is appended to an error message.
    so_far = ""

    def add_arguments(self, parser: CommandParser) -> None:
        add_database(parser)
        parser.add_argument(
            "--json", action="store_true", help="print the result as JSON, for scripts"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        alias, self._as_json = Queue.objects.database(options["database"]), options["json"]
        program = type(self).__module__.rpartition(".")[2]
        try:
            # Some jobs use psycopg directly: convert its errors to Django's.
            with (
                connections[alias].wrap_database_errors,
                acting_as(actor().who, place="command", program=program),
            ):
                self.run(alias, options)
        except (PgQueueError, Error) as error:
            raise CommandError(f"{advice(error, alias)} {self.so_far}".strip()) from error
        except KeyboardInterrupt:
            # 130 is the exit code that shells use for a command ended by Ctrl-C.
            raise CommandError(f"Interrupted. {self.so_far}".strip(), returncode=130) from None

    def run(self, alias: str, options: dict[str, Any]) -> None:
        raise NotImplementedError

    def answer(self, result: Any, lines: Iterable[str]) -> None:
        """Print ``result`` as JSON with --json, otherwise print ``lines``."""
        if self._as_json:
            lines = [json.dumps(result, cls=DjangoJSONEncoder)]
        for line in lines:
            self.stdout.write(line)

    def note(self, text: str) -> None:
        """Print a note to stderr."""
        self.stderr.write(text, style_func=str)

    @contextmanager
    def counting(
        self, verb: str, total: int | None, so_far: str
    ) -> Iterator[Callable[[int], None]]:
        """Show a progress bar. Yield a function to call with the number of finished messages.

        ``so_far`` becomes :attr:`so_far`, with the number of messages in place of ``{}``.
        """
        with ProgressBar(self.stderr, verb) as bar:

            def show(done: int) -> None:
                self.so_far = so_far.format(counted(done))
                bar.show(done, total)

            yield show

    @staticmethod
    def add_no_input(parser: CommandParser) -> None:
        parser.add_argument(
            "--no-input",
            "--noinput",
            "--yes",
            action="store_false",
            dest="interactive",
            help="do not ask for confirmation",
        )

    def confirm(self, question: str, expected: str, refusal: str) -> None:
        """Ask on stderr. Raise CommandError(refusal) unless the answer is ``expected``."""
        self.stderr.write(f"{question} ", style_func=str, ending="")
        self.stderr.flush()
        answer = sys.stdin.readline()
        if not answer:
            raise CommandError(
                "There was no answer on stdin, so nothing was changed. "
                "Add --no-input to run the command without confirmation."
            )
        if answer.strip() != expected:
            raise CommandError(refusal)


def add_database(parser: CommandParser) -> None:
    parser.add_argument(
        "--database",
        choices=tuple(connections),
        help="alias of the queues' database (default: the configured one)",
    )


def add_conditional(parser: Any) -> None:
    parser.add_argument(
        "--conditional",
        type=json_value,
        metavar="JSON",
        help='only messages whose body contains this, such as {"customer": 7}',
    )


def add_time(parser: CommandParser, name: str, default: float, help: str) -> None:
    """Add an option for a length of time, in seconds."""
    parser.add_argument(
        name, type=seconds, default=default, metavar="TIME", help=f"{help} (default: %(default)gs)"
    )


def add_start(parser: Any, help: str, default: str | None = None) -> None:
    """Add the option ``--start``: now, earliest or a moment."""
    parser.add_argument("--start", type=_start, default=default, metavar="WHERE", help=help)


def _start(text: str) -> str | dt.datetime:
    return text if text in (NOW, EARLIEST) else moment(text)


def table(columns: Mapping[str, str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table. ``columns`` maps headings to their alignment, ``<`` or ``>``.

    >>> table({"queue": "<", "ready": ">"}, [["orders", "7"], ["mails", "12"]])
    ['queue   ready', 'orders      7', 'mails      12']
    """
    cells = [list(columns), *([_printable(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(
            f"{cell:{side}{width}}"
            for cell, side, width in zip(row, columns.values(), widths, strict=True)
        ).rstrip()
        for row in cells
    ]


def _printable(text: str) -> str:
    # Control characters in a message must not reach the terminal.
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def counted(number: int, *, exact: bool = True) -> str:
    """Format a number of messages, with "message" or "messages" behind it.

    >>> counted(1), counted(20_000, exact=False)
    ('1 message', '≈ 20,000 messages')
    """
    return f"{amount(number, exact=exact)} message{'' if number == 1 else 's'}"


def duration(text: str) -> dt.timedelta:
    """Parse a duration: a number of seconds, or numbers with units.

    >>> duration("90"), duration("1.5h")
    (datetime.timedelta(seconds=90), datetime.timedelta(seconds=5400))
    """
    try:
        found = length_of(f"{text}s" if _NUMBER.fullmatch(text) else text)
    except OverflowError:
        found = None
    if found is not None:
        return found
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a duration: write 30 or 30s, 10m, 2h, 7d or 1w"
    )


def seconds(text: str) -> float:
    """Parse a duration into a number of seconds.

    >>> seconds("0.5"), seconds("1m")
    (0.5, 60.0)
    """
    return duration(text).total_seconds()


def whole_seconds(text: str) -> int:
    """Parse a duration into a whole number of seconds, 1 or more.

    >>> whole_seconds("90"), whole_seconds("1.5m")
    (90, 90)
    """
    length = seconds(text)
    if length < 1 or length % 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a whole number of seconds, 1 or more, such as 30, 30s, 10m or 2h"
        )
    return int(length)


def moment(text: str) -> dt.datetime:
    """Parse a moment with its time zone.

    >>> moment("2026-11-28T12:00Z")
    datetime.datetime(2026, 11, 28, 12, 0, tzinfo=datetime.timezone.utc)
    """
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is not None and found.tzinfo is not None:
        return found
    raise argparse.ArgumentTypeError(
        f"{text!r} is not a moment with a time zone: write 2026-11-28T12:00Z or "
        f"2026-11-28T13:00+01:00"
    )


def positive(text: str) -> int:
    """Parse a whole number, 1 or more."""
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 or more")
    return number


def loads(text: str) -> Any:
    """Parse strict JSON. Raise ValueError for invalid JSON, NaN, or JSON that nests too deeply."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it nests too deeply") from error


def json_value(text: str) -> Any:
    """Parse strict JSON. For use as the type of a command-line argument."""
    try:
        return loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} has no JSON form")


def advice(error: PgQueueError | Error, alias: str) -> str:
    """Return the error's text, with advice if the database is down or lacks tables."""
    if isinstance(error, DatabaseError):
        error = explained(error, alias)
    if isinstance(error, PgQueueError):
        return str(error)
    text = str(error).strip()
    if isinstance(error, OperationalError):
        return f"{text}\nSee whether the server of DATABASES[{alias!r}] is up, and try again."
    return text
