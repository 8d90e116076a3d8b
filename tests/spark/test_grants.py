"""What ``pgqueue_grants --for spark`` gives a role is what Spark needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from pyspark.sql.streaming.datasource import ReadMaxRows
from pyspark.sql.types import StructType

from django_pgqueue.models import ArchivedMessage, Message
from pyspark_pgqueue.consume.stream import QueueStream
from pyspark_pgqueue.jobs.rollup import rollup
from pyspark_pgqueue.jobs.verify import verify
from pyspark_pgqueue.source.options import Options
from tests.management.calling import call
from tests.management.roles import role as role
from tests.spark.conftest import export


def test_role_reads_writes_consumes_and_runs_the_jobs(
    spark: Any, url: str, role: str, finish: Callable[..., list[int]], lake: str
) -> None:
    finish("orders", 3)
    Message.objects.create_queue("copies")
    restricted = make_conninfo(url, options=f"-c role={role}")
    with pytest.raises(Exception, match="permission denied"):
        spark.read.format("pgqueue").option("url", restricted).load().collect()

    call("pgqueue_grants", "--role", role, "--for", "spark", "--apply")

    rows = spark.read.format("pgqueue").option("url", restricted).load()
    assert rows.count() == 3
    writer = rows.selectExpr("body", "'k' || id AS unique_key").write.format("pgqueue")
    writer.mode("append").options(url=restricted, queue="copies").save()
    assert export(spark, restricted, lake).rows == 3
    rollup(restricted)
    assert {finding.agrees for finding in verify(spark, restricted, lake)} == {True}

    options = {"url": restricted, "mode": "consume", "subscribe": "copies"}
    stream = QueueStream(Options.parse(options), StructType.fromDDL("id bigint"))
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(10))
    stream.stop()
    # A batch that comes again is written down.
    stream = QueueStream(Options.parse(options), StructType.fromDDL("id bigint"))
    assert stream.partitions(start, end)
    stream.commit(end)
    stream.stop()
    assert ArchivedMessage.objects.count() == 6


def test_analyst_reads_and_does_not_write(
    spark: Any, url: str, role: str, finish: Callable[..., list[int]]
) -> None:
    finish("orders", 3)
    call("pgqueue_grants", "--role", role, "--for", "analyst", "--apply")
    restricted = make_conninfo(url, options=f"-c role={role}")

    rows = spark.read.format("pgqueue").option("url", restricted).load()

    assert rows.count() == 3
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        rollup(restricted)
