"""Calls functions on executors, and checks what executors need: this package and its drivers.

Another machine may lack any of these. A job checks before its first task. A read or write, which
Spark plans without a check, reports missing packages when its first task is unpickled.
"""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import functions as f

from pyspark_pgqueue.errors import ExecutorsLack
from pyspark_pgqueue.progress import Progress, quiet, watched

#: Seconds that each check task lasts, so that every core of the cluster gets one.
_CHECK_SECONDS = 0.2
#: Number of check tasks in Spark Connect, which does not report the number of cores.
_CHECK_TASKS = 16

#: The directory or zip that contains both packages.
_HOME = str(Path(__file__).resolve().parents[1])


def _missing() -> list[str]:
    """Return the missing packages. Runs on executors without importing any, not even this one."""
    from importlib.util import find_spec

    needed = ("pyspark_pgqueue", "django_pgqueue", "pyarrow", "adbc_driver_postgresql", "psycopg")
    return [name for name in needed if find_spec(name) is None]


def _advice(host: str, missing: Iterable[str]) -> str:
    """The error message for missing packages."""
    names = ", ".join(missing)
    told = f"Executors on {host} lack {names}. "
    if "_pgqueue" in names:
        told += (
            "Ship both packages: python -m zipfile -c pgqueue.zip "
            "$(python -c 'import django_pgqueue as d, pyspark_pgqueue as p; "
            "print(*d.__path__, *p.__path__)'); then spark-submit --py-files pgqueue.zip, or "
            'spark.addArtifacts("pgqueue.zip", pyfile=True). '
        )
    if not all("_pgqueue" in name for name in missing):
        told += (
            "Install the drivers on each machine, or in an environment that you ship with "
            '--archives: pip install pyarrow adbc-driver-postgresql "psycopg[binary]". '
        )
    return told.rstrip()


def _landed(
    payload: bytes, home: str, missing: Callable[[], list[str]], advice: Callable[..., str]
) -> Any:
    """Unpickle the object. Raises ImportError when a package is missing."""
    import pickle
    import socket
    import sys

    if home not in sys.path:
        sys.path.append(home)
    lacking = missing()
    if lacking:
        raise ImportError(advice(socket.gethostname(), lacking))
    kind, state = pickle.loads(payload)
    made = kind.__new__(kind)
    made.__dict__.update(state)
    return made


# With this module name, pickle sends the functions' code instead of their names: executors may be
# unable to import them.
for _function in (_missing, _advice, _landed):
    _function.__module__ = "__main__"


class Landing:
    """Wraps a source, reader or writer, and reports missing packages when Spark unpickles it.

    Unpickling appends the package's directory on the driver to ``sys.path``. The driver's process
    that plans a stream needs this entry: it looks for the files of ``--py-files`` in a directory
    ``streaming_job``, in which Spark puts none (PythonStreamingSourceRunner, as of Spark 4.3).
    """

    def __reduce__(self) -> tuple[Any, ...]:
        payload = cloudpickle.dumps((type(self), self.__dict__))
        return _landed, (payload, _HOME, _missing, _advice)


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
    missing, seconds = _missing, _CHECK_SECONDS

    def look(number: int) -> str:
        import json
        import socket
        import time
        from pathlib import Path

        time.sleep(seconds)
        sees = probe is None or Path(probe).exists()
        return json.dumps([socket.gethostname(), missing(), sees])

    context = getattr(spark, "sparkContext", None)
    tasks = context.defaultParallelism if context is not None else _CHECK_TASKS
    try:
        told = {row.result for row in _each(spark, look, "string", tasks).collect()}
    finally:
        if probe is not None:
            Path(probe).unlink()
    for host, lacking, sees in map(json.loads, sorted(told)):
        if lacking:
            raise ExecutorsLack(_advice(host, lacking))
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
