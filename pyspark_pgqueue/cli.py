"""The jobs' command-line arguments and calls, for ``manage.py`` and for a shell."""

from __future__ import annotations

import argparse
import datetime as dt
import inspect
import sys
import uuid
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from django_pgqueue.engine.wording import length_of
from pyspark_pgqueue.errors import Interrupted, PipelineError, in_one_line
from pyspark_pgqueue.jobs.progress import Bar
from pyspark_pgqueue.session import local_session
from pyspark_pgqueue.source.database import database_url
from pyspark_pgqueue.source.options import moment_of

_MODULES = {"load": "replay"}

#: The exit code if lake and database differ. Errors have exit codes of their own.
DIFFERS = 3


def arguments(job: str, parser: Any) -> None:
    """Add a job's arguments to a parser."""
    JOBS[job].add_arguments(parser)
    if not JOBS[job].needs_spark:
        return
    parser.add_argument("--cores", type=int, help="cores of this machine to use (default: all)")
    parser.add_argument("--memory", default="1g", help="memory of the JVM (default: %(default)s)")


def run(
    job: str,
    url: str,
    options: dict[str, Any],
    tell: Callable[[str], None],
    errors: Any = None,
) -> int:
    """Run a job, pass a one-line summary to ``tell``, and return the process's exit code.

    Notices and progress are written to ``errors``, or to stderr if it is None. Every error is
    raised as a PipelineError of one line, with its exit code.
    """
    bar = Bar(errors or sys.stderr)
    if job in {"replay", "load"}:
        # Generate the id here, so that the message after an interruption can name it.
        options[f"{job}_id"] = options.get(f"{job}_id") or f"{job}-{uuid.uuid4().hex[:12]}"
    try:
        return _run(job, database_url(url), options, tell, bar)
    except KeyboardInterrupt as error:
        raise Interrupted(f"Interrupted. {JOBS[job].after.format(**options)}") from error
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(in_one_line(error)) from error
    finally:
        bar.clear()


def _run(job: str, url: str, options: dict[str, Any], tell: Callable[[str], None], bar: Bar) -> int:
    # The session is created first: it checks for the packages that the jobs' modules import.
    given: list[Any] = [_session(job, options), url] if JOBS[job].needs_spark else [url]
    function = getattr(import_module(f"pyspark_pgqueue.jobs.{_MODULES.get(job, job)}"), job)
    known = {**options, "tell": bar.say, "progress": bar}
    taken = inspect.signature(function).parameters
    result = function(*given, **{k: v for k, v in known.items() if k in taken and v is not None})
    bar.clear()
    if job == "verify":
        for finding in result:
            tell(str(finding))
        if not result:
            tell("Nothing to do: every run was verified before. Pass --every to verify all again.")
        return 0 if all(finding.agrees for finding in result) else DIFFERS
    tell(str(result))
    return 0


def _session(job: str, options: dict[str, Any]) -> Any:
    return local_session(
        f"pgqueue {job}",
        cores=options.get("cores"),
        memory=options.get("memory") or "1g",
        is_quiet=not options.get("traceback"),
    )


def _export(parser: Any) -> None:
    parser.add_argument(
        "path",
        help="the lake: a directory, or an address (without credentials) such as s3://bucket/lake",
    )
    parser.add_argument(
        "--queue",
        action="append",
        dest="queues",
        metavar="NAME",
        help="of a new lake: export only this queue; repeatable (default: all queues)",
    )
    parser.add_argument(
        "--hold-retention",
        action=argparse.BooleanOptionalAction,
        dest="holds_retention",
        help="whether retention keeps messages until this lake has them (default: as before)",
    )
    parser.add_argument(
        "--max-files",
        type=int,
        default=32,
        help="compact each directory with more files than this (default: 32)",
    )
    parser.add_argument(
        "--anew", action="store_true", help="first delete the lake and its files, then export all"
    )
    parser.add_argument(
        "--table", metavar="NAMESPACE.TABLE", help="make the lake an Iceberg table of this name"
    )
    parser.add_argument(
        "--expire-snapshots",
        type=_length,
        metavar="TIME",
        help="expire the table's snapshots older than this, for example 7d (default: never)",
    )
    parser.add_argument(
        "--body-schema",
        action=_Schemas,
        dest="body_schemas",
        metavar="QUEUE=SCHEMA",
        help="columns for fields of the queue's bodies: DDL, evolve or none; repeatable",
    )


def _rollup(parser: Any) -> None:
    parser.add_argument(
        "--seconds", type=int, default=3600, help="length of a span in seconds (default: 3600)"
    )
    parser.add_argument(
        "--from",
        type=_time,
        dest="from_at",
        metavar="TIME",
        help="start with the span of this time, in ISO 8601 (default: the first that changed)",
    )
    parser.add_argument(
        "--to",
        type=_time,
        dest="to_at",
        metavar="TIME",
        help="compute spans up to this time, in ISO 8601 (default: now)",
    )
    parser.add_argument("--every", action="store_true", help="recompute every span")


def _sending(parser: Any) -> None:
    parser.add_argument("--to", metavar="QUEUE", help="the destination (default: each row's queue)")
    parser.add_argument(
        "--where", default="true", help="send only rows that meet this condition in Spark's SQL"
    )
    parser.add_argument("--rate", type=float, help="maximum messages a second (default: no limit)")
    parser.add_argument("--dry-run", action="store_true", help="count the messages, send none")


def _replay(parser: Any) -> None:
    parser.add_argument("--lake", dest="path", required=True, help="the lake's path or address")
    parser.add_argument("--queue", help="send only messages from this queue")
    parser.add_argument("--id", dest="replay_id", help="continue the interrupted call with this id")
    _sending(parser)


def _load(parser: Any) -> None:
    parser.add_argument("path", help="files, or a directory of files")
    parser.add_argument(
        "--format",
        default="parquet",
        choices=("parquet", "json", "csv"),
        help="the format of the files (default: %(default)s)",
    )
    parser.add_argument("--id", dest="load_id", help="continue the interrupted call with this id")
    _sending(parser)


def _verify(parser: Any) -> None:
    parser.add_argument("path", help="the lake's path or address")
    parser.add_argument("--every", action="store_true", help="verify every run again")


class Job(NamedTuple):
    """A job: the arguments it adds to a parser, and what its command says."""

    add_arguments: Callable[[Any], None]
    help: str
    #: What an interruption left behind.
    after: str
    needs_spark: bool = True


JOBS = {
    "export": Job(
        _export,
        "Append the messages archived since the last export to a lake of Parquet files.",
        "The run was published completely or not at all. To continue, export again.",
    ),
    "rollup": Job(
        _rollup,
        "Compute the roll-ups: statistics by queue and time span, for the admin's charts.",
        "No roll-up was changed. Run the job again.",
        needs_spark=False,
    ),
    "replay": Job(
        _replay,
        "Send messages from a lake to a queue again.",
        "Some messages may have been sent. Pass --id {replay_id} to send only the rest.",
    ),
    "load": Job(
        _load,
        "Send the rows of Parquet, JSON or CSV files to a queue.",
        "Some messages may have been sent. Pass --id {load_id} to send only the rest.",
    ),
    "verify": Job(
        _verify,
        "Compare a lake with the database, by counts and checksums.",
        "Runs that agreed were recorded as verified. To verify the rest, run the job again.",
    ),
}


class _Schemas(argparse.Action):
    """Collects QUEUE=SCHEMA in a dictionary."""

    def __call__(self, parser: Any, given: Any, value: Any, option: Any = None) -> None:
        queue, equals, schema = value.partition("=")
        if not (queue and equals and schema):
            parser.error(f"{option} must be QUEUE=SCHEMA, as in orders='id bigint', not {value!r}")
        setattr(given, self.dest, {**(getattr(given, self.dest) or {}), queue: schema})


def _time(text: str) -> dt.datetime:
    try:
        return moment_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time: write ISO 8601, as in 2026-11-21 or 2026-11-21T10:00:00Z"
        ) from error


def _length(text: str) -> dt.timedelta:
    length = dt.timedelta(seconds=int(text)) if text.isdecimal() else length_of(text)
    if length is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of time: write 30m, 12h or 7d")
    return length
