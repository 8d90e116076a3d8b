"""Run a Spark job on PostgreSQL queues, on this machine or on a cluster.

    python -m pyspark_pgqueue export --url postgresql://user@host/database /lake
    spark-submit --py-files pgqueue.zip …/pyspark_pgqueue/__main__.py export …

The database's address is given by --url, or by the environment variable PGQUEUE_URL. An error is
printed as one line; --traceback also prints its traceback and Spark's log.

Exit codes: 0 success, 1 error, 2 wrong arguments, 3 lake and database differ, 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import traceback
from typing import Any

from pyspark_pgqueue.cli import JOBS, arguments, run
from pyspark_pgqueue.errors import PipelineError


def main(given: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_pgqueue",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    jobs = parser.add_subparsers(dest="job", required=True)
    for name, each in JOBS.items():
        job = jobs.add_parser(name, help=each.help, description=each.help)
        job.add_argument(
            "--url",
            default=os.environ.get("PGQUEUE_URL"),
            help="the database's address, for libpq or JDBC (default: $PGQUEUE_URL)",
        )
        job.add_argument(
            "--traceback",
            action="store_true",
            help="print an error with its traceback and Spark's log",
        )
        arguments(name, job)
    options: dict[str, Any] = vars(parser.parse_args(given))
    if not options["url"]:
        parser.error("no database address: pass --url, or set PGQUEUE_URL")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return run(options.pop("job"), options.pop("url"), options, print)
    except PipelineError as error:
        if options["traceback"]:
            traceback.print_exc()
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
