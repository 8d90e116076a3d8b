"""Run the @consumer functions of the installed apps on their queues."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import fields
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error, connections
from django.utils import autoreload

from django_pgqueue.engine import interrupts
from django_pgqueue.errors import PgQueueError
from django_pgqueue.handlers import autodiscover, handlers
from django_pgqueue.management.base import add_time, advice, positive, seconds
from django_pgqueue.models import Queue
from django_pgqueue.observability import logs
from django_pgqueue.worker import Consumer, Options, supervisor
from django_pgqueue.worker.connections import configure
from django_pgqueue.worker.console import Console

#: How long the end of the process waits for threads that do not end, in seconds.
_MOMENT = 1.0


class Command(BaseCommand):
    help = __doc__
    #: Whether threads are running after the end, such as an interrupted handler's.
    _left_threads = False

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as the command of this process, which then ends."""
        super().run_from_argv(argv)
        if self._left_threads:
            _end_in_a_moment()

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        _add_queues(parser)
        add("--workers", type=positive, help="number of concurrent handlers for each queue")
        add("--batch", type=positive, help="maximum number of messages per read")
        add("--processes", type=positive, default=1, help="number of processes (default: 1)")
        add("--drain", action="store_true", help="exit when the queues are empty")
        add(
            "--no-listen",
            action="store_false",
            dest="listen",
            help="poll without LISTEN, for use behind a pooler in transaction mode",
        )
        add_time(
            parser,
            "--graceful-timeout",
            Options.graceful_timeout,
            "how long to wait for running handlers after SIGTERM or Ctrl-C",
        )
        add("--max-messages", type=positive, metavar="N", help="exit after N messages")
        add("--max-runtime", type=seconds, metavar="TIME", help="exit after this time")
        add(
            "--max-memory",
            type=_size,
            metavar="SIZE",
            help="exit when the process uses more memory than this, such as 512M",
        )
        add(
            "--health-port",
            type=int,
            metavar="PORT",
            help="serve /healthz and /readyz on this port; each further process uses the next port",
        )
        add(
            "--health-host",
            default=Options.health_host,
            metavar="HOST",
            help="IP address of the health port; 0.0.0.0: every address (default: %(default)s)",
        )
        add_time(
            parser,
            "--database-timeout",
            Options.database_timeout,
            "how long the server may be silent before a connection is closed",
        )
        add("--autoreload", action="store_true", help="restart when code changes")
        add(
            "--no-progress",
            action="store_true",
            help="log the counts regularly, instead of redrawing them on a terminal",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        _refuse_transaction()
        terminal = self.stdout.isatty() and not options["no_progress"]
        logs.configure_if_unset(counts_shown=terminal)
        if options["autoreload"]:
            autoreload.run_with_reloader(self._run, options)
        elif options["processes"] > 1 and supervisor.number() is None:
            supervisor.Supervisor(
                options["processes"], options["graceful_timeout"], drain=options["drain"]
            ).run()
        else:
            self._run(options)

    def _run(self, options: dict[str, Any]) -> None:
        try:
            self._consume(options)
        except (PgQueueError, Error) as error:
            raise CommandError(advice(error, Queue.objects.database())) from error

    def _consume(self, options: dict[str, Any]) -> None:
        autodiscover()
        found = handlers(options["queues"], options["leave_out"])
        if not found:
            raise CommandError(
                "No app in INSTALLED_APPS has a consumers.py with a @consumer function. Add one."
            )
        names = ",".join(sorted({handler.queue for handler in found}))
        configure(options["database_timeout"], f"runconsumer {names}")
        given = {f.name: options[f.name] for f in fields(Options) if f.name in options}
        if first := options["health_port"]:  # with 0, each process takes any free port
            given["health_port"] = first + (supervisor.number() or 0)
        consumer = Consumer(found, Options(**given))
        _stop_on_signals(consumer)
        console = Console(consumer, self.stdout, live=not options["no_progress"])
        console.begin()
        consumer.run(every_second=console.show)
        console.finish()
        if consumer.waits_for_receivers:
            _end_logging()
        self._left_threads = consumer.has_unfinished_threads


def _add_queues(parser: CommandParser) -> None:
    parser.add_argument(
        "queues",
        nargs="*",
        help='only these queues, by name or quoted pattern such as "mail-*" (default: all)',
    )
    parser.add_argument(
        "--except",
        action="append",
        default=[],
        dest="leave_out",
        metavar="QUEUE",
        help="not this queue, by name or pattern; may be given several times",
    )


def _refuse_transaction() -> None:
    """Raise CommandError if a transaction is open: the threads would wait for its locks."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            raise CommandError(
                f"runconsumer does not work inside a transaction (of "
                f"DATABASES[{connection.alias!r}]): its threads have their own connections, which "
                f"see only committed messages. In a TestCase, handle messages with "
                f"django_pgqueue.testing.drain(), or make the class a TransactionTestCase. "
                f"Elsewhere, call runconsumer outside atomic()."
            )


def _stop_on_signals(consumer: Consumer) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if consumer.stopping:
            consumer.abort(f"{name} again")
            restore()  # a third signal kills the process
        else:
            consumer.stop(name)

    try:
        restore = interrupts.handle(stop)
    except ValueError:
        # Only the main thread may set signal handlers, and the reloader runs this in another
        # thread: stop at exit.
        thread = threading.current_thread()

        def wait_for_the_end() -> None:
            consumer.stop("the reloader ends this process")
            thread.join(consumer.options.graceful_timeout)

        atexit.register(wait_for_the_end)


def _end_logging() -> None:
    """Do at once what Python's logging does at exit, but wait for a moment only.

    A log handler that does not return holds its lock, for which the process would wait for ever.
    """
    atexit.unregister(logging.shutdown)
    thread = threading.Thread(target=logging.shutdown, daemon=True)
    thread.start()
    thread.join(_MOMENT)


def _end_in_a_moment() -> None:
    """End the process in a moment, although threads are running.

    Python waits at exit for threads of executors, in which the queries of async handlers run, and
    for the locks of log handlers. An interrupted handler may hold either for ever.
    """

    def end() -> None:
        time.sleep(_MOMENT)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)

    threading.Thread(target=end, name="pgqueue-end", daemon=True).start()


def _size(text: str) -> int:
    """Parse a size in bytes, with an optional suffix K, M or G."""
    factor = {"K": 1024, "M": 1024**2, "G": 1024**3}.get(text[-1:].upper())
    return int(float(text[:-1]) * factor) if factor else positive(text)
