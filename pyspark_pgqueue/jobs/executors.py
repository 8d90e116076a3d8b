"""Calls functions on executors, and checks whether executors see a lake's directory."""

from __future__ import annotations

import pickle
import socket
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import functions as f

from pyspark_pgqueue.errors import ExecutorsLack
from pyspark_pgqueue.jobs.progress import Progress, quiet, watched
from pyspark_pgqueue.source.landing import Landing

#: Seconds that each check task lasts, so that every core of the cluster gets one.
_CHECK_SECONDS = 0.2
#: Number of check tasks in Spark Connect, which does not report the number of cores.
_CHECK_TASKS = 16


def check(spark: Any, path: str) -> None:
    """Check that executors see the files under a local path. Ones that join later are not checked.

    >>> check(spark, "/lake")

    Raises ExecutorsLack.
    """
    master = str(spark.conf.get("spark.master", "local"))
    if master == "local" or master.startswith("local[") or "://" in path:
        return
    probe = Path(path).resolve() / f"_seen-{uuid.uuid4().hex}"
    probe.parent.mkdir(parents=True, exist_ok=True)
    probe.touch()

    def look(*_: Any) -> tuple[str, bool]:
        time.sleep(_CHECK_SECONDS)
        return socket.gethostname(), probe.exists()

    context = getattr(spark, "sparkContext", None)
    tasks = context.defaultParallelism if context is not None else _CHECK_TASKS
    try:
        told = on_executors(spark, look, [None] * tasks)
    finally:
        probe.unlink()
    if blind := sorted({host for host, sees in told if not sees}):
        raise ExecutorsLack(
            f"Executors on {', '.join(blind)} do not see a file that this driver wrote to {path}: "
            f"the path is not on a shared disk. Choose a path on a shared disk, or an object "
            f"store, such as s3://bucket/lake."
        )


class _Task(Landing):
    """A function as Spark calls it on an executor, where missing packages are reported."""

    def __init__(self, function: Callable[[int, Any], Any], payloads: Sequence[Any]) -> None:
        self.function, self.payloads = function, payloads

    def __call__(self, number: int) -> bytes:
        return pickle.dumps(self.function(number, self.payloads[number]))


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
    tasks = len(payloads)
    if not tasks:
        return []
    # Marked as nondeterministic, so that Spark calls it exactly once per row.
    result = f.udf(_Task(function, list(payloads)), "binary", useArrow=False).asNondeterministic()
    with watched(spark, "tasks", tasks, progress):
        rows = spark.range(0, tasks, 1, tasks).select("id", result("id").alias("result")).collect()
    return [pickle.loads(row.result) for row in sorted(rows)]
