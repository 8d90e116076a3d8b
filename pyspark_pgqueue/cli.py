"""The jobs' command-line arguments and calls, for ``manage.py`` and for a shell."""

from __future__ import annotations

import argparse
import datetime as dt
import inspect
import sys
import uuid
from collections.abc import Callable
from importlib import import_module
from typing import Any

from django_pgqueue.wording import length_of
from pyspark_pgqueue.errors import Interrupted, PipelineError, in_one_line
from pyspark_pgqueue.options import moment_of
from pyspark_pgqueue.planning import database_url
from pyspark_pgqueue.progress import Bar
from pyspark_pgqueue.session import local_session

HELP = {
    "export": "Export what was archived since the last time to a lake of Parquet files.",
    "rollup": "Compute the figures that the admin's charts show.",
    "replay": "Send messages of a lake into a queue again.",
    "load": "Send the rows of Parquet, JSON or CSV files into a queue.",
    "verify": "Compare a lake with the database, by counts and checksums.",
}
JOBS = tuple(HELP)
_MODULES = {"load": "replay"}

#: The exit code if lake and database differ. Errors have exit codes of their own.
DIFFERS = 3

_AFTER = {
    "export": "The run was published whole or not at all; the next export continues from there.",
    "rollup": "No roll-up was changed.",
    "replay": "Messages that were sent stay sent; --id {replay_id} continues after them.",
    "load": "Messages that were sent stay sent; --id {load_id} continues after them.",
    "verify": "Runs that agreed stay verified.",
}


def arguments(job: str, parser: Any) -> None:
    """Add a job's arguments to a parser."""
    _ARGUMENTS[job](parser)
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
        raise Interrupted(f"Interrupted. {_AFTER[job].format(**options)}") from error
    except PipelineError:
        raise
    except Exception as error:
        raise PipelineError(in_one_line(error)) from error
    finally:
        bar.clear()


def _run(job: str, url: str, options: dict[str, Any], tell: Callable[[str], None], bar: Bar) -> int:
    # The session is created first: it checks for the packages that the jobs' modules import.
    spark = local_session(
        f"pgqueue {job}",
        cores=options.get("cores"),
        memory=options.get("memory") or "1g",
        is_quiet=not options.get("traceback"),
    )
    import_module("pyspark_pgqueue.executors").check(spark)
    function = getattr(import_module(f"pyspark_pgqueue.{_MODULES.get(job, job)}"), job)
    given = {**options, "tell": bar.say, "progress": bar}
    taken = inspect.signature(function).parameters
    result = function(
        spark, url, **{k: v for k, v in given.items() if k in taken and v is not None}
    )
    bar.clear()
    if job == "verify":
        for finding in result:
            tell(str(finding))
        if not result:
            tell("Every run was verified before; --every verifies them again.")
        return 0 if all(finding.agrees for finding in result) else DIFFERS
    tell(str(result))
    return 0


def _export(parser: Any) -> None:
    parser.add_argument(
        "path", help="the lake: a directory, or an address as s3://bucket/lake, without credentials"
    )
    parser.add_argument(
        "--queue",
        action="append",
        dest="queues",
        metavar="NAME",
        help="only this queue; repeatable",
    )
    parser.add_argument(
        "--hold-retention",
        action=argparse.BooleanOptionalAction,
        dest="holds_retention",
        help="whether retention waits for this lake",
    )
    parser.add_argument(
        "--max-files",
        type=int,
        default=32,
        help="compact directories with more files (default: 32)",
    )
    parser.add_argument(
        "--anew", action="store_true", help="delete the lake with its files, and export all"
    )
    parser.add_argument(
        "--table", metavar="NAMESPACE.TABLE", help="turn the lake into this Iceberg table"
    )
    parser.add_argument(
        "--expire-snapshots",
        type=_length,
        metavar="TIME",
        help="the table's snapshots older than this expire, as 7d (default: none)",
    )
    parser.add_argument(
        "--body-schema",
        action=_Schemas,
        dest="body_schemas",
        metavar="QUEUE=SCHEMA",
        help="columns for fields of the queue's bodies: DDL, infer or evolve; repeatable",
    )


def _rollup(parser: Any) -> None:
    parser.add_argument("--seconds", type=int, default=3600, help="span length (default: 3600)")
    parser.add_argument("--from", type=moment_of, dest="from_at", metavar="TIME", help="ISO 8601")
    parser.add_argument("--to", type=moment_of, dest="to_at", metavar="TIME", help="ISO 8601")
    parser.add_argument("--every", action="store_true", help="recompute every span")
    parser.add_argument("--lake", metavar="PATH", help="count the spans in this lake with Spark")


def _sending(parser: Any) -> None:
    parser.add_argument("--to", metavar="QUEUE", help="the destination queue")
    parser.add_argument("--where", default="true", help="a Spark SQL condition on rows")
    parser.add_argument("--rate", type=float, help="messages a second (default: no limit)")
    parser.add_argument("--dry-run", action="store_true", help="only count")


def _replay(parser: Any) -> None:
    parser.add_argument("--lake", dest="path", required=True, help="the path of the lake")
    parser.add_argument("--queue", help="only messages of this queue")
    parser.add_argument("--id", dest="replay_id", help="continue the call with this id")
    _sending(parser)


def _load(parser: Any) -> None:
    parser.add_argument("path", help="files, or a directory of files")
    parser.add_argument("--format", default="parquet", choices=("parquet", "json", "csv"))
    parser.add_argument("--id", dest="load_id", help="continue the call with this id")
    _sending(parser)


def _verify(parser: Any) -> None:
    parser.add_argument("path", help="the lake")
    parser.add_argument("--every", action="store_true", help="verify all runs again")


_ARGUMENTS: dict[str, Callable[[Any], None]] = {
    "export": _export,
    "rollup": _rollup,
    "replay": _replay,
    "load": _load,
    "verify": _verify,
}


class _Schemas(argparse.Action):
    """Collects QUEUE=SCHEMA in a dictionary."""

    def __call__(self, parser: Any, given: Any, value: Any, option: Any = None) -> None:
        queue, equals, schema = value.partition("=")
        if not (queue and equals and schema):
            parser.error(f"{option} is QUEUE=SCHEMA, as in orders='id bigint', not {value!r}")
        setattr(given, self.dest, {**(getattr(given, self.dest) or {}), queue: schema})


def _length(text: str) -> dt.timedelta:
    length = dt.timedelta(seconds=int(text)) if text.isdecimal() else length_of(text)
    if length is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a length of time: write 30m, 12h or 7d")
    return length
