"""How much memory Spark's Python workers take, with a heap of 512 MB for the JVM.

    python -m benchmarks.spark_memory --rows 3000000 --bytes 200
    python -m benchmarks.spark_memory --rows 100000 --bytes 8192
    python -m benchmarks.spark_memory --rows 5000000 --bytes 200    # too many for a heap to hold

Reads, exports, rolls up from the lake and writes an archive of such messages with two cores, and
prints the most that the Python workers of the tasks held at a time, together and the largest of
them: their proportional set size, which counts shared pages once. The goal is under 500 MB
together. Workers in which the driver plans are told apart; they hold no rows.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

GOAL = 500.0
HEAP = "512m"
MEGABYTE = 1024.0


class Watch:
    """Samples the memory of this process's Python descendants."""

    def __init__(self) -> None:
        self.tasks = self.largest = self.driver = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(0.05):
            sizes: dict[bool, list[float]] = {True: [], False: []}
            for pid, runs_tasks in workers().items():
                sizes[runs_tasks].append(pss(pid))
            self.tasks = max(self.tasks, sum(sizes[True]))
            self.largest = max([self.largest, *sizes[True]])
            self.driver = max(self.driver, sum(sizes[False]))


def workers() -> dict[int, bool]:
    """Spark's Python processes below this one, and whether each runs tasks."""
    parents, commands = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
            commands[int(entry.name)] = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # the process has ended
    family = {os.getpid()}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return {
        pid: b"pyspark.worker" in commands[pid]
        for pid in family
        if b".daemon" in commands[pid] and b"java" not in commands[pid]
    }


def pss(pid: int) -> float:
    """A process's proportional set size in megabytes; 0 after its end."""
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) / MEGABYTE
    except OSError:
        pass
    return 0.0


FILL = """
WITH sent AS (
    INSERT INTO {message} (enqueued_at, queue_id, body)
    SELECT now() - interval '3 days' + n * interval '3 days' / %(count)s, {queue_id},
           jsonb_build_object('n', n, 'x', (SELECT string_agg(md5((n + i)::text), '')
                                            FROM generate_series(0, %(size)s / 32) i))
    FROM generate_series(1, %(count)s) n
    RETURNING id, enqueued_at
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, archived_at, queue_id,
                       read_ct, attempts, state)
SELECT id, enqueued_at, enqueued_at, enqueued_at, enqueued_at + interval '1 s', {queue_id},
       1, 1, 'COMPLETED'
FROM sent
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_memory", description=__doc__)
    parser.add_argument("--rows", type=int, default=300_000)
    parser.add_argument("--bytes", type=int, default=200, help="of each message's body")
    chosen = parser.parse_args()

    from example_project.embedded_postgres.server import EmbeddedServer

    home = Path(tempfile.mkdtemp(prefix="pgqueue-memory-"))
    server = EmbeddedServer(home / "server", settings={"shared_buffers": "256MB"})
    server.start()
    try:
        where = {key: str(value) for key, value in conninfo_to_dict(server.url()).items()}
        os.environ["BENCHMARK_DATABASE"] = json.dumps({"port": "5432", **where})
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        return measure(server.url(), home, chosen.rows, chosen.bytes)
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


def measure(url: str, home: Path, rows: int, size: int) -> int:
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    call_command("migrate", verbosity=0)

    from django_pgqueue.models import Message
    from pyspark_pgqueue.export import export
    from pyspark_pgqueue.rollup import rollup
    from pyspark_pgqueue.session import local_session

    queue = Message.objects.create_queue("orders")
    Message.objects.create_queue("copies")
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(FILL.format_map(queue.tables), {"count": rows, "size": size})
    # Hides polars, which ADBC would import and a cluster's machine does not need.
    (home / "absent").mkdir()
    (home / "absent" / "polars.py").write_text("raise ImportError('absent')\n")
    paths = [str(home / "absent"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    print(f"{rows:,} messages of {size:,} bytes, two cores:")

    def archive(spark: Any) -> Any:
        options = {"url": url, "subscribe": "orders", "columns": "body"}
        return spark.read.format("pgqueue").options(**options).load()

    steps: dict[str, Callable[[Any], object]] = {
        "read": lambda spark: archive(spark).write.format("noop").mode("overwrite").save(),
        "export": lambda spark: export(spark, url, str(home / "lake")),
        "roll up": lambda spark: rollup(spark, url, every=True, lake=str(home / "lake")),
        "write": lambda spark: (
            archive(spark)
            .write.format("pgqueue")
            .mode("append")
            .options(url=url, queue="copies")
            .save()
        ),
    }
    worst = 0.0
    for name, step in steps.items():
        # A new session each time: workers live for a minute.
        spark = local_session("memory", cores=2, memory=HEAP)
        started = time.monotonic()
        with Watch() as watch:
            step(spark)
        worst = max(worst, watch.tasks)
        print(
            f"{name:8} {time.monotonic() - started:6.1f} s, tasks {watch.tasks:5.0f} MB (the "
            f"largest {watch.largest:4.0f} MB), planning on the driver {watch.driver:5.0f} MB",
            flush=True,
        )
        spark.stop()
    print(f"At most {worst:.0f} MB; the goal is under {GOAL:.0f} MB.")
    return 0 if worst < GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
