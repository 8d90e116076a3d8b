"""Functions on executors, and what executors need for that: this package and its drivers.

On another machine any of it may be missing. A job looks before its first task; a read or a write,
which Spark plans without asking, says so where its first task arrives.
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

__all__ = ["Landing", "check", "on_executors"]

#: Tasks of a check stay so long that each core of the cluster gets one; Spark Connect does not say
#: how many cores there are.
_CHECK_SECONDS = 0.2
_CHECK_TASKS = 16

#: The directory or zip that has this package.
_HOME = str(Path(__file__).resolve().parents[1])


def _missing() -> list[str]:
    """Runs where this package may not be: with nothing of it."""
    from importlib import import_module

    needed = ("pyspark_pgqueue", "pyarrow", "adbc_driver_postgresql", "psycopg")
    missing = []
    for name in needed:
        try:
            import_module(name)
        except ImportError:
            missing.append(name)
    return missing


def _advice(host: str, missing: Iterable[str]) -> str:
    """Likewise."""
    names = ", ".join(missing)
    told = f"Executors on {host} lack {names}. "
    if "pyspark_pgqueue" in names:
        told += (
            "Ship the package: python -m zipfile -c pyspark_pgqueue.zip "
            "\"$(python -c 'import pyspark_pgqueue as p; print(p.__path__[0])')\"; then "
            "spark-submit --py-files pyspark_pgqueue.zip, or spark.addArtifacts("
            '"pyspark_pgqueue.zip", pyfile=True). '
        )
    if names != "pyspark_pgqueue":
        told += (
            "Install the drivers on each machine, or in an environment that you ship with "
            '--archives: pip install pyarrow adbc-driver-postgresql "psycopg[binary]". '
        )
    return told + "docs/spark.md, On a cluster."


def _landed(
    payload: bytes, home: str, missing: Callable[[], list[str]], advice: Callable[..., str]
) -> Any:
    """Likewise: what was sent, or what keeps it from being made."""
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


# Pickled as their code, not by name: there may be no module of that name.
for _function in (_missing, _advice, _landed):
    _function.__module__ = "__main__"


class Landing:
    """A source, reader or writer that says what is missing where Spark takes it.

    It brings along where this package is on the driver's machine. The process there in which Spark
    plans a stream does not know: it looks for the files of ``--py-files`` below a directory
    ``streaming_job``, where Spark has put none (PythonStreamingSourceRunner, as of Spark 4.3).
    """

    def __reduce__(self) -> tuple[Any, ...]:
        payload = cloudpickle.dumps((type(self), self.__dict__))
        return _landed, (payload, _HOME, _missing, _advice)


def check(spark: Any, path: str | None = None) -> None:
    """Look whether executors have what they need, and see the files under a path of a disk.

    Executors that join later are not looked at.

    >>> check(spark)

    Raises ExecutorsLack, with the lines that put it right.
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
                f"Executors on {host} do not see {path}, where this driver has written a file: it "
                f"is another machine's disk there. Choose a path on a shared disk, or a store as "
                f"in s3://bucket/lake."
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
    """Call a function with each payload's number and the payload, a task each.

    A failed or a superseded attempt's result never arrives here. By a plain UDF, which a session
    of Spark Connect has too, and which needs no pandas.
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
    """Numbers and the function of each, one a task."""
    # Not deterministic: it is called once for each, whatever the optimizer thinks of it.
    result = f.udf(function, kind, useArrow=False).asNondeterministic()
    return spark.range(0, tasks, 1, tasks).select("id", result("id").alias("result"))
