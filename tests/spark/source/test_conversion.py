"""Reads of the archive while a queue's partitions are converted."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_pgqueue import queue
from django_pgqueue.models import Message
from pyspark_pgqueue.errors import TableRewritten
from pyspark_pgqueue.jobs.export import export
from pyspark_pgqueue.lake.reading import read as read_lake
from tests.spark.conftest import wait_for_commits
from tests.spark.source.test_reading import ids, planned, run
from tests.spark.source.test_streaming import Stream

Finish = Callable[..., list[int]]

DAY, HOUR = dt.timedelta(days=1), dt.timedelta(hours=1)


def test_a_read_sees_all_before_and_during_and_after(url: str, finish: Finish) -> None:
    archived = finish("orders", 300)
    during: list[list[int]] = []

    queue("orders").repartition(
        DAY,
        progress=lambda *step: during.append(run(*planned(url))),
    )

    assert during
    for found in [*during, run(*planned(url))]:
        assert found == sorted(archived)


def test_a_read_that_was_planned_before_says_so(url: str, finish: Finish) -> None:
    finish("orders", 300)
    options, tasks = planned(url)

    queue("orders").repartition(DAY)

    with pytest.raises(TableRewritten):
        run(options, tasks)


@pytest.mark.slow
def test_a_stream_and_a_lake_go_on(spark: Any, url: str, finish: Finish, tmp_path: Path) -> None:
    stream, lake = Stream(spark, url, tmp_path / "checkpoint"), str(tmp_path / "lake")
    archived: list[int] = []

    for interval in (None, DAY, HOUR):
        Message.objects.create_queue("orders")
        queue("orders").repartition(interval)
        archived += finish("orders", 20)
        wait_for_commits(url)
        stream.catch_up()
        export(spark, url, lake)

    assert stream.ids == sorted(archived)
    assert ids(read_lake(spark, lake)) == sorted(archived)
