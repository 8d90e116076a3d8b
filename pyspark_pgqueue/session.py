"""A Spark session for the jobs: local, or that of ``spark-submit`` or Spark Connect."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark_pgqueue
from django_pgqueue.engine.interrupts import interrupts_held
from pyspark_pgqueue import java

PER_SESSION = {
    "spark.sql.session.timeZone": "UTC",
    # Bytes that a Python worker holds at once.
    "spark.sql.execution.arrow.maxBytesPerBatch": "8m",
}


def local_session(
    name: str = "pgqueue",
    *,
    cores: int | None = None,
    memory: str = "1g",
    master: str | None = None,
    is_quiet: bool = False,
    **conf: str,
) -> Any:
    """A session with the settings that the jobs need, on some cores of this machine.

    ``conf`` has more Spark settings, with ``__`` for dots. With ``is_quiet``, errors are raised but
    not logged. Under ``spark-submit``, with ``SPARK_REMOTE`` set, or in a process with a session,
    the existing session is used with its own settings.

    >>> spark = local_session(cores=2, spark__sql__shuffle__partitions="2")

    Raises SparkMissing, which says what to install.
    """
    remote = "SPARK_REMOTE" in os.environ
    if not remote:
        java.check()
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    if is_quiet:
        _mute_logs()
    if remote or "PYSPARK_GATEWAY_PORT" in os.environ:
        session = SparkSession.builder.appName(name).getOrCreate()
        for key, value in PER_SESSION.items():
            session.conf.set(key, value)
        _register(session)
        return session
    cores = cores or os.cpu_count() or 1
    _set_environment()
    settings = {
        **_settings(cores, memory),
        **{key.replace("__", "."): value for key, value in conf.items()},
    }
    if master is None or master.startswith("local["):
        # Local only: remote executors may lack the module until the package is shipped to them.
        settings.setdefault("spark.python.daemon.module", "pyspark_pgqueue.daemon")
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    builder = SparkSession.builder.master(master or f"local[{cores}]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if is_quiet:
        _start_quietly(SparkConf().setAll(list(settings.items())))
    return builder.getOrCreate()


def _set_environment() -> None:
    # Workers must be able to import this package even if it is not installed.
    root = str(Path(__file__).resolve().parents[1])
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    if root not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, known), root])
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def _settings(cores: int, memory: str) -> dict[str, str]:
    return {
        "spark.driver.memory": memory,
        "spark.log.level": "ERROR",
        **PER_SESSION,
        "spark.sql.shuffle.partitions": str(2 * cores),
        # Maximum number of idle Python workers that Spark keeps.
        "spark.python.factory.idleWorkerMaxPoolSize": str(cores),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


def _register(session: Any) -> None:
    """Register the source if Spark does not find it.

    Spark searches the Python path of the driver, but not the zips of --py-files.
    """
    try:
        session.read.format("pgqueue").options(url="postgresql://", columns="id").load().schema  # noqa: B018
    except Exception as error:
        if "DATA_SOURCE_NOT_FOUND" not in str(error):
            raise
        session.dataSource.register(pyspark_pgqueue.DefaultSource)


def _mute_logs() -> None:
    """Mute the logs of PySpark and Py4J, which repeat errors with their tracebacks."""
    from pyspark.logger import PySparkLogger

    for logger in ("DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        PySparkLogger.getLogger(logger).disabled = True
    logging.getLogger("py4j").propagate = False
    logging.getLogger().addFilter(_is_not_of_py4j)


def _start_quietly(conf: Any) -> None:
    """Start the JVM with its log discarded, unless one is running."""
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is None:
        # An interrupt during the start would leave the JVM running.
        with interrupts_held():
            gateway = launch_gateway(conf, popen_kwargs={"stderr": subprocess.DEVNULL})
        SparkContext._ensure_initialized(gateway=gateway)


def _is_not_of_py4j(record: logging.LogRecord) -> bool:
    return "py4j" not in record.pathname
