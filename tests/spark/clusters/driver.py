"""The driver's program: a process with PySpark and ``pyspark_pgqueue``, and without Django.

python driver.py streams|jobs URL FOLDER
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

import pyspark_pgqueue

STEP, URL, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
#: Rows per micro-batch: so small while processes are killed that neither stream ends before the
#: kills, even if the other has to wait for a new executor.
SMALL, LARGE = "10", "100000"
STREAMS = {
    "streamed": {"subscribe": "history"},
    # Leases that outlast the driver's restart.
    "consumed": {"subscribe": "work", "mode": "consume", "visibilityTimeout": "300"},
}


def session() -> Any:
    """The session of spark-submit or of a Spark Connect server, or a new one."""
    builder = SparkSession.builder.appName("pgqueue cluster")
    if "SPARK_REMOTE" not in os.environ:
        for key, value in json.loads(os.environ["CLUSTER_CONF"]).items():
            builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # Needed under spark-submit if only a zip has the package, as docs/spark.md says.
        spark.dataSource.register(pyspark_pgqueue.DefaultSource)
    return spark


def start(spark: Any, name: str, rows: str) -> Any:
    """Start a stream from a queue, or from an archive, into a queue, with its checkpoint."""
    source = spark.readStream.format("pgqueue").options(url=URL, maxOffsetsPerTrigger=rows)
    sink = source.options(**STREAMS[name]).load().select("body").writeStream.format("pgqueue")
    sink = sink.options(url=URL, queue=name, checkpointLocation=str(FOLDER / f"checkpoint-{name}"))
    return sink.trigger(availableNow=True).start()


def streams(spark: Any, rows: str) -> None:
    waiting, running = list(STREAMS), {}
    while waiting or running:
        # Start streams one after another: Spark gives a Python process ten seconds to start, too
        # few for two at once on a busy machine.
        if waiting and all(query.lastProgress for query in running.values()):
            name = waiting.pop()
            running[name] = start(spark, name, rows)
        time.sleep(0.1)
        for name in [name for name, query in running.items() if not query.isActive]:
            error = running.pop(name).exception()
            if error is not None and "connect back" in str(error):
                waiting.append(name)
            elif error is not None:
                raise error


def started(job: Callable[[], Any]) -> Any:
    """Run a job; retry it if a Python process did not start within Spark's ten seconds."""
    for attempts_left in (2, 1, 0):
        try:
            return job()
        except Exception as error:
            if "connect back" not in str(error) or not attempts_left:
                raise


def jobs(spark: Any) -> dict[str, int]:
    """Run the jobs; returns a read's rows. The jobs' results are in the database and the lake."""
    from pyspark_pgqueue.jobs.export import export
    from pyspark_pgqueue.jobs.replay import replay

    options = {"subscribe": "history", "maxRecordsPerPartition": "500"}

    def rows() -> Any:
        return spark.read.format("pgqueue").options(url=URL, **options).load().select("body")

    def write() -> None:
        rows().write.format("pgqueue").mode("append").options(url=URL, queue="written").save()

    lake = str(FOLDER / "lake")
    found = [row.body for row in started(lambda: rows().collect())]
    started(write)
    started(lambda: export(spark, URL, lake, queues=(), rows_per_task=500))
    started(lambda: replay(spark, URL, lake, queue="history", to="replayed", replay_id="cluster"))
    return {"read": len(found), "distinct": len(set(found))}


def main() -> None:
    spark = session()
    if STEP == "streams":
        streams(spark, SMALL)
        return
    streams(spark, LARGE)
    print(json.dumps(jobs(spark)), flush=True)
    spark.stop()


main()
