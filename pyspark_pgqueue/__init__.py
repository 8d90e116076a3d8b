"""PostgreSQL queues in Spark: a source, a sink, and jobs that maintain a data lake.

Spark looks into every top-level module named ``pyspark_*`` for its ``DefaultSource``, so that
``spark.read.format("pgqueue")`` works without a call. A cluster needs this package,
``django_pgqueue``, PySpark and the drivers of the extra ``spark``. Of ``django_pgqueue`` it imports
the engine, and what that needs: no Django.

==================  ===========================================================================
offsets, filters    decide, in plain Python: the rows between two moments, as SQL
options, columns    the options of a reader or writer, and the columns there are
planning            asks the database how to cut a read into tasks
bodies              bodies as structs in place of JSON text
arrow               carries rows, as Arrow batches through ADBC
source              the data source ``pgqueue``, which Spark asks for one of the following
reading, stream     batch reads, and the archive as a stream
taking, consume     a queue as a stream, by the engine of django_pgqueue
serving, refusals   a batch that fails is served in part; messages that a sink refuses
sink, staging       batch and streaming writes, each row once
stores              where a lake is, and how files appear there
lake, body_columns  files of a lake: their paths, and what is in them
lake_source         a lake as a DataFrame
iceberg             a lake as an Iceberg table
runs                the database's rows about lakes and exports
export, rollup,     the jobs
replay, verify
cli                 the jobs' arguments, for ``manage.py`` and ``python -m pyspark_pgqueue``
session, java       a local session with what it needs, or what to install
==================  ===========================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__all__ = ["DefaultSource", "Refused", "each_batch"]

# Imported late: the command line reads the jobs' arguments where PySpark is not installed.
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
