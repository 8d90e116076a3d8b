"""Makes ``spark.read.format("pgqueue")`` work without a call.

Spark looks into every top-level module named ``pyspark_*`` for its ``DefaultSource``.
"""

from __future__ import annotations

from django_pgqueue.spark.source import PgQueueDataSource as DefaultSource

__all__ = ["DefaultSource"]
