"""Imports modules before Spark forks its Python workers, so that the workers share the memory.

Spark's own daemon has imported nothing when it forks, so each worker imports PySpark, pyarrow and
the drivers itself, which takes 70 MB and half a second. If executors have this package, set
``spark.python.daemon.module`` to this module, as jobs on a local master do.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from pyspark import daemon

#: Modules imported by reads, writes and exports, and by Spark's worker.
SHARED = (
    "pyspark.worker",
    "pyspark.sql.functions",
    "pyspark.sql.datasource",
    "pyspark.sql.pandas.serializers",
    "pyspark.sql.pandas.types",
    "pyarrow.compute",
    "pyarrow.parquet",
    "adbc_driver_postgresql.dbapi",
    "psycopg",
    "pyspark_pgqueue.source.arrow",
    "pyspark_pgqueue.lake.files",
    "pyspark_pgqueue.source.reading",
    "pyspark_pgqueue.sink.writing",
    "pyspark_pgqueue.sink.staging",
)

if __name__ == "__main__":
    for name in SHARED:
        # Ignore a missing package: the worker reports it, and how to install it.
        with suppress(ImportError):
            import_module(name)
    daemon.manager()
