"""The jobs' command-line arguments and calls, for ``manage.py`` and for a shell."""

from __future__ import annotations

import argparse
import datetime as dt
import re
import sys
import uuid
from collections.abc import Callable
from importlib import import_module
from typing import Any

import psycopg

from pyspark_pgqueue.errors import PipelineError
from pyspark_pgqueue.progress import Bar
from pyspark_pgqueue.session import local_session

__all__ = ["DIFFERS", "FAILED", "HELP", "INTERRUPTED", "JOBS", "arguments", "run"]

HELP = {
    "export": "Export what was archived since the last time to a lake of Parquet files.",
    "rollup": "Compute the figures that the admin's charts show.",
    "replay": "Send messages of a lake into a queue again.",
    "load": "Send the rows of Parquet, JSON or CSV files into a queue.",
    "verify": "Compare a lake with the database, by counts and checksums.",
}
JOBS = tuple(HELP)

#: Exit codes besides 0 and argparse's 2: the job failed or was refused; lake and database differ;
#: Ctrl-C or SIGTERM.
FAILED, DIFFERS, INTERRUPTED = 1, 3, 130


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

    Notices and progress are written to ``errors``, or to stderr if it is None. Raises
    PipelineError.
    """
    bar = Bar(errors or sys.stderr)
    if job in {"replay", "load"}:
        # Generated here, so that the message after an interruption can name it.
        options[f"{job}_id"] = options.get(f"{job}_id") or f"{job}-{uuid.uuid4().hex[:12]}"
    try:
        return _run(job, url, options, tell, bar)
    except KeyboardInterrupt:
        bar.clear()
        bar.say(f"Interrupted. {_AFTER[job].format(**options)}")
        return INTERRUPTED
    except PipelineError:
        raise
    except psycopg.Error as error:
        raise PipelineError(f"Database error: {str(error).strip()}") from error
    except Exception as error:
        # Spark wraps an error of a task or worker in the text of a Java error.
        told = _RAISED.search(str(error))
        if told is None:
            raise
        raise PipelineError(told[1].strip()) from error
    finally:
        bar.clear()


def _run(job: str, url: str, options: dict[str, Any], tell: Callable[[str], None], bar: Bar) -> int:
    # The session is created first: it checks for the packages that the jobs' modules import.
    spark = local_session(
        f"pgqueue {job}",
        cores=options.pop("cores", None),
        memory=options.pop("memory", "1g"),
    )
    import_module("pyspark_pgqueue.executors").check(spark)
    function = getattr(import_module(f"pyspark_pgqueue.{_MODULES.get(job, job)}"), job)
    if job in {"export", "rollup"}:
        options["tell"] = bar.say
    result = function(spark, url, **_chosen(job, options), progress=bar)
    bar.clear()
    if job == "verify":
        for finding in result:
            tell(str(finding))
        if not result:
            tell("Every run was verified before; --every verifies them again.")
        return 0 if all(finding.agrees for finding in result) else DIFFERS
    tell(str(result))
    return 0


# The class and the text of an error raised by a task or by the driver's Python worker.
_RAISED = re.compile(
    r"(?:pyspark_pgqueue\.errors\.\w+|psycopg\.\w+|adbc_driver_manager\.\w+): (.*)"
)

_AFTER = {
    "export": "The lake is as it was, or published whole; the next call goes on from there.",
    "rollup": "No roll-up was changed.",
    "replay": "Messages that were sent stay sent; --id {replay_id} continues after them.",
    "load": "Messages that were sent stay sent; --id {load_id} continues after them.",
    "verify": "Runs that agreed stay verified.",
}


_MODULES = {"load": "replay"}


def _chosen(job: str, options: dict[str, Any]) -> dict[str, Any]:
    names = _NAMES[job]
    return {name: options[name] for name in names if options.get(name) is not None}


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
        "--max-files", type=int, default=32, help="compact fuller directories (default: 32)"
    )
    parser.add_argument(
        "--anew", action="store_true", help="delete the lake with its files, and export all"
    )
    parser.add_argument(
        "--table", metavar="NAMESPACE.TABLE", help="turn the lake into this Iceberg table"
    )


def _rollup(parser: Any) -> None:
    parser.add_argument("--seconds", type=int, default=3600, help="span length (default: 3600)")
    parser.add_argument("--from", type=_moment, dest="from_at", metavar="TIME", help="ISO 8601")
    parser.add_argument("--to", type=_moment, dest="to_at", metavar="TIME", help="ISO 8601")
    parser.add_argument("--every", action="store_true", help="recompute every span")
    parser.add_argument("--lake", metavar="PATH", help="let Spark count this lake's complete spans")


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
_SEND = ("path", "to", "where", "rate", "dry_run")
_NAMES = {
    "export": ("path", "queues", "holds_retention", "max_files", "anew", "table", "tell"),
    "rollup": ("seconds", "from_at", "to_at", "every", "lake", "tell"),
    "replay": (*_SEND, "queue", "replay_id"),
    "load": (*_SEND, "format", "load_id"),
    "verify": ("path", "every"),
}


def _moment(text: str) -> dt.datetime:
    moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)
