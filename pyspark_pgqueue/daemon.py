"""Starts Spark's Python workers with what they need in memory already, which they share.

Spark forks its workers from a process that has imported nothing, so that each imports PySpark,
pyarrow and the drivers for itself: 70 MB, and half a second. Set ``spark.python.daemon.module`` to
this module, as the jobs do, where executors have the package.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

from pyspark import daemon

__all__: list[str] = []

#: The modules that reads, writes and exports import, and Spark's own part of a worker.
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
    "pyspark_pgqueue.source",
    "pyspark_pgqueue.lake",
)

if __name__ == "__main__":
    for name in SHARED:
        # A worker says what is missing, and how to get it.
        with suppress(ImportError):
            import_module(name)
    daemon.manager()
