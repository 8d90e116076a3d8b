"""PostgreSQL queues in Spark: a source, a sink, and jobs that maintain a data lake.

Spark looks for a ``DefaultSource`` in every top-level module named ``pyspark_*``, so
``spark.read.format("pgqueue")`` works without registration. A cluster needs this package,
``django_pgqueue``, PySpark and the drivers of the extra ``spark``. This package
imports only modules of ``django_pgqueue`` that need no Django.

==================  ===========================================================================
offsets, filters    SQL conditions: for rows between two positions, and for Spark's filters
options, columns    the options and the columns of readers and writers
planning            cuts a read into tasks, with statistics of the database
bodies              converts bodies from JSON text to structs
arrow               reads rows through ADBC as Arrow batches
source              the data source ``pgqueue``, which creates readers and writers
reading, stream     batch reads, and the archive as a stream
taking, consume     a queue as a stream, with the engine of django_pgqueue
serving, refusals   how to repeat a failed batch; messages that a sink refuses
sink, staging       batch and streaming writes, each row once
stores              a lake's storage, and how files are published there
lake, body_columns  a lake's files: paths and contents
lake_source         a lake as a DataFrame
iceberg             a lake as an Iceberg table
runs                the database's rows about lakes and exports
export, rollup,     the jobs
replay, verify
cli                 the jobs' arguments, for ``manage.py`` and ``python -m pyspark_pgqueue``
session, java       a local session and its Java, or advice on what to install
==================  ===========================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["DefaultSource", "Refused", "each_batch"]

# Imported late: the command line must parse the jobs' arguments without PySpark installed.
_MODULES = {
    "DefaultSource": ("source", "PgQueueDataSource"),
    "Refused": ("errors", "Refused"),
    "each_batch": ("refusals", "each_batch"),
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, attribute = _MODULES[name]
    return getattr(import_module(f"pyspark_pgqueue.{module}"), attribute)
