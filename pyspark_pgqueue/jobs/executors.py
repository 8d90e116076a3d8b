"""Calls functions on executors, and checks what executors need: this package and its drivers.

Another machine may lack any of these. A job checks before its first task. A read or write, which
Spark plans without a check, reports missing packages when its first task is unpickled.
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from pyspark_pgqueue.errors import ExecutorsLack
from pyspark_pgqueue.jobs.progress import Progress, quiet, watched
from pyspark_pgqueue.source.landing import advice, missing

#: Seconds that each check task lasts, so that every core of the cluster gets one.
_CHECK_SECONDS = 0.2
#: Number of check tasks in Spark Connect, which does not report the number of cores.
_CHECK_TASKS = 16


def check(spark: Any, path: str | None = None) -> None:
    """Check that executors have the packages they need, and see the files under a local path.

    Executors that join later are not checked.

    >>> check(spark)

    Raises ExecutorsLack, with the settings that fix it.
    """
    master = str(spark.conf.get("spark.master", "local"))
    if master == "local" or master.startswith("local["):
        return
    probe = _probe(path) if path is not None and "://" not in path else None
    find, seconds = missing, _CHECK_SECONDS

    def look(number: int) -> str:
        import json
        import socket
        import time
        from pathlib import Path

        time.sleep(seconds)
        sees = probe is None or Path(probe).exists()
        return json.dumps([socket.gethostname(), find(), sees])

    context = getattr(spark, "sparkContext", None)
    tasks = context.defaultParallelism if context is not None else _CHECK_TASKS
    try:
        told = {row.result for row in _each(spark, look, "string", tasks).collect()}
    finally:
        if probe is not None:
            Path(probe).unlink()
    for host, lacking, sees in map(json.loads, sorted(told)):
        if lacking:
            raise ExecutorsLack(advice(host, lacking))
        if not sees:
            raise ExecutorsLack(
                f"Executors on {host} do not see a file that this driver wrote to {path}: the path "
                f"is not on a shared disk. Choose a path on a shared disk, or an object store, "
                f"such as s3://bucket/lake."
            )


def _probe(path: str) -> str:
    directory = Path(path).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    probe = directory / f"_seen-{uuid.uuid4().hex}"
    probe.touch()
    return str(probe)


def on_executors(
    spark: Any,
    function: Callable[[int, Any], Any],
    payloads: Sequence[Any],
    progress: Progress = quiet,
) -> list[Any]:
    """Call ``function(number, payload)`` for each payload, each in a task of its own.

    Results of failed or superseded attempts are discarded. Runs as a plain UDF, which works in
    Spark Connect too and needs no pandas.
    """
    if not payloads:
        return []
    given = list(payloads)

    def call(number: int) -> bytes:
        return pickle.dumps(function(number, given[number]))

    with watched(spark, "tasks", len(given), progress):
        rows = _each(spark, call, "binary", len(given)).collect()
    return [pickle.loads(row.result) for row in sorted(rows)]


def _each(spark: Any, function: Callable[[int], Any], kind: str, tasks: int) -> Any:
    """Return a DataFrame with one row per task: its number, and the function's result."""
    # Marked as nondeterministic, so that Spark calls it exactly once per row.
    result = f.udf(function, kind, useArrow=False).asNondeterministic()
    return spark.range(0, tasks, 1, tasks).select("id", result("id").alias("result"))
