"""PostgreSQL queues in Spark: a source, a sink, and jobs that maintain a data lake.

Spark looks for a ``DefaultSource`` in every top-level module named ``pyspark_*``, so
``spark.read.format("pgqueue")`` works without registration. A cluster needs this package,
``django_pgqueue``, PySpark and the drivers of the extra ``spark``. This package
imports only modules of ``django_pgqueue`` that need no Django.

===========  ==================================================================================
data_source  the data source ``pgqueue``, which creates readers and writers
session      a local session; java finds its Java, daemon shares memory between Python workers
cli          the jobs' arguments, for ``manage.py`` and ``python -m pyspark_pgqueue``
jobs/        export, replay and load, verify, rollup: a module each
rollup/      the statistics of a roll-up, counted by PostgreSQL
lake/        a lake's files and stores, its rows in the database, its Iceberg table
consume/     a queue as a stream, with the engine of django_pgqueue
sink/        batch and streaming writes, each row once
source/      options and columns; batch reads, and the archive as a stream
errors       every error that the package raises on purpose
===========  ==================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["DefaultSource", "Refused", "each_batch"]

# Imported late: the command line must parse the jobs' arguments without PySpark installed.
_MODULES = {
    "DefaultSource": ("data_source", "PgQueueDataSource"),
    "Refused": ("errors", "Refused"),
    "each_batch": ("consume.refusals", "each_batch"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _MODULES[name]
    return getattr(import_module(f"pyspark_pgqueue.{module}"), attribute)
