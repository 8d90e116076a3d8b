"""A Spark session on this machine, for the jobs. On a cluster, ``spark-submit`` makes it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from pyspark_pgqueue import java

__all__ = ["local_session"]


def local_session(
    name: str = "pgqueue",
    *,
    cores: int | None = None,
    memory: str = "1g",
    master: str | None = None,
    **conf: str,
) -> Any:
    """A session with what the jobs need, on some cores of this machine.

    Spark's own settings go in ``conf``, with ``__`` for the dots. A session that runs already,
    as under ``spark-submit``, is taken as it is.

    >>> spark = local_session(cores=2, spark__sql__shuffle__partitions="2")

    Raises SparkMissing, and says what to install.
    """
    java.check()
    from pyspark.sql import SparkSession

    cores = cores or os.cpu_count() or 1
    # Workers must find this package too, as well where it is not installed.
    root = str(Path(__file__).resolve().parents[1])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, known), root])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.driver.memory": memory,
        "spark.log.level": "ERROR",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(2 * cores),
        # What Python's workers hold: bytes of one batch, and workers that wait for work.
        "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
        "spark.python.factory.idleWorkerMaxPoolSize": str(cores),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        **{key.replace("__", "."): value for key, value in conf.items()},
    }
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    builder = SparkSession.builder.master(master or f"local[{cores}]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
