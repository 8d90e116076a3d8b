"""Run the jobs from a shell, on this machine or on a cluster.

    python -m pyspark_pgqueue export --url postgresql://… /lake
    spark-submit --py-files pgqueue.zip …/pyspark_pgqueue/__main__.py export …

The address may be in ``PGQUEUE_URL`` instead. Exit codes: 0 done, 1 failed or refused, 2 wrong
arguments, 3 lake and database differ, 130 interrupted. An error is one line; --traceback shows
where it was raised, and Spark's own log.
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
    parser = argparse.ArgumentParser(prog="python -m pyspark_pgqueue", description=__doc__)
    jobs = parser.add_subparsers(dest="job", required=True)
    for name in JOBS:
        job = jobs.add_parser(name)
        job.add_argument("--url", default=os.environ.get("PGQUEUE_URL"))
        job.add_argument("--traceback", action="store_true", help="show where an error was raised")
        arguments(name, job)
    options: dict[str, Any] = vars(parser.parse_args(given))
    if not options["url"]:
        parser.error("say where the queues are: --url, or PGQUEUE_URL")
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
