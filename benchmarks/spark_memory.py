"""How much memory the Python processes of a Spark program take, with a heap of 512 MB for the JVM.

    python -m benchmarks.spark_memory --rows 3000000 --bytes 200
    python -m benchmarks.spark_memory --rows 100000 --bytes 8192
    python -m benchmarks.spark_memory --rows 5000000 --bytes 200    # too many for a heap to hold
    python -m benchmarks.spark_memory --only export --each          # one step, by process

Reads, exports, rolls up from the lake and writes an archive of such messages with two cores, each
step in a program of its own. Prints the most that all of its Python processes held at a time: the
program, Spark's daemons, the workers that plan and those of tasks. Each process counts with its
proportional set size, so that shared pages count once. Then the program does nothing for --idle
seconds, and what they hold after that is printed. Spark ends idle workers after a minute.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from select import select

from psycopg.conninfo import conninfo_to_dict

GOAL = 300.0
HEAP = "512m"
MEGABYTE = 1024.0

# What each program does with ``spark``, the database ``url`` and the path of a ``lake``.
STEPS = {
    "read": "archive().write.format('noop').mode('overwrite').save()",
    "export": "export(spark, url, lake)",
    "roll up": "rollup(spark, url, every=True, lake=lake)",
    "write": "archive().write.format('pgqueue').mode('append')"
    ".options(url=url, queue='copies').save()",
}
PROGRAM = """
import sys
from pyspark_pgqueue.session import local_session

url, lake, step = sys.argv[1:]
spark = local_session("memory", cores=2, memory="{heap}", is_quiet=True)
from pyspark_pgqueue.export import export
from pyspark_pgqueue.rollup import rollup

def archive():
    options = {{"url": url, "subscribe": "orders", "columns": "body"}}
    return spark.read.format("pgqueue").options(**options).load()

print("started", flush=True)
eval(step)
print("done", flush=True)
sys.stdin.read()
"""


def sizes(root: int) -> dict[int, tuple[float, str]]:
    """The Python processes of a family: megabytes, and the command line, by process id."""
    parents, commands = {}, {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(stat[1])
            commands[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # the process has ended
    family = {root}
    while grown := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= grown
    return {
        pid: (pss(pid), commands[pid])
        for pid in family
        if "python" in commands.get(pid, "").partition(" ")[0]
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


def together(found: dict[int, tuple[float, str]]) -> float:
    return sum(size for size, _ in found.values())


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
    parser.add_argument("--idle", type=float, default=75.0, help="seconds (default: %(default)g)")
    parser.add_argument("--only", choices=STEPS, help="one step")
    parser.add_argument("--each", action="store_true", help="each process at the worst moment")
    chosen = parser.parse_args()

    from example_project.embedded_postgres.server import EmbeddedServer

    home = Path(tempfile.mkdtemp(prefix="pgqueue-memory-"))
    server = EmbeddedServer(home / "server", settings={"shared_buffers": "256MB"})
    server.start()
    try:
        where = {key: str(value) for key, value in conninfo_to_dict(server.url()).items()}
        os.environ["BENCHMARK_DATABASE"] = json.dumps({"port": "5432", **where})
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
        fill(chosen.rows, chosen.bytes)
        print(f"{chosen.rows:,} messages of {chosen.bytes:,} bytes, two cores:")
        steps = {name: step for name, step in STEPS.items() if chosen.only in {None, name}}
        if chosen.only == "roll up":
            steps = {"export": STEPS["export"], **steps}
        worst = [measure(name, step, server.url(), home, chosen) for name, step in steps.items()]
        print(f"At most {max(worst):.0f} MB; the goal is under {GOAL:.0f} MB.")
        return 0 if max(worst) < GOAL else 1
    finally:
        server.stop()
        shutil.rmtree(home, ignore_errors=True)


def fill(rows: int, size: int) -> None:
    import django
    from django.core.management import call_command
    from django.db import connection

    django.setup()
    call_command("migrate", verbosity=0)

    from django_pgqueue.models import Message

    queue = Message.objects.create_queue("orders")
    Message.objects.create_queue("copies")
    with connection.cursor() as cursor:
        cursor.execute("SET session_replication_role = replica")
        cursor.execute(FILL.format_map(queue.tables), {"count": rows, "size": size})
        cursor.execute("RESET session_replication_role")
        cursor.execute("VACUUM ANALYZE")


def measure(name: str, step: str, url: str, home: Path, chosen: argparse.Namespace) -> float:
    """Run one step in a program of its own; returns the most megabytes held meanwhile."""
    # Hides polars, which ADBC would import and a cluster's machine does not need.
    absent = home / "absent"
    absent.mkdir(exist_ok=True)
    (absent / "polars.py").write_text("raise ImportError('absent')\n")
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(heap=HEAP), url, str(home / "lake"), step],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(absent), os.getcwd()])},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stdout.readline() == "started\n", f"{name}: no session"
    started, worst = time.monotonic(), sizes(program.pid)
    while not select([program.stdout], [], [], 0.05)[0]:
        worst = max(worst, sizes(program.pid), key=together)
    assert program.stdout.readline() == "done\n", f"{name} failed"
    seconds = time.monotonic() - started
    time.sleep(chosen.idle)
    idle = sizes(program.pid)
    program.stdin.close()
    program.wait()
    print(
        f"{name:8} {seconds:6.1f} s, {together(worst):5.0f} MB in {len(worst)} processes; "
        f"after {chosen.idle:g} s idle {together(idle):5.0f} MB in {len(idle)}",
        flush=True,
    )
    if chosen.each:
        for size, command in sorted([*worst.values()], reverse=True):
            print(f"    {size:5.0f} MB {command[:100]}")
    return together(worst)


if __name__ == "__main__":
    sys.exit(main())
