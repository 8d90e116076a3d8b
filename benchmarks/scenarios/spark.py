"""The Spark pipeline: reading into Spark, exporting a lake, writing from Spark.

DuckDB is measured too where it is installed, through ADBC and by its own extension, which it
downloads unless the package duckdb-ext-postgres has it. Spark's JDBC reader needs its driver
(Debian's libpostgresql-jdbc-java), and a server that listens on TCP.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
from psycopg.conninfo import make_conninfo

from benchmarks import database
from benchmarks.scenarios import Goal, Measure, scenario

READ = "CREATE TABLE read AS SELECT * FROM rows"
JDBC_DRIVER = Path("/usr/share/java/postgresql.jar")
AVAILABLE = shutil.which("java") is not None and all(
    find_spec(name) for name in ("pyspark", "pyarrow", "adbc_driver_postgresql")
)


# Three days of history, inserted without the trigger: archived a day ago, and never read.
FILL = """
WITH sent AS (
    INSERT INTO {message} (enqueued_at, queue_id, body)
    SELECT now() - interval '4 days' + n * interval '3 days' / %(count)s, {queue_id},
           (%(bodies)s::jsonb[])[1 + n %% %(kinds)s]
    FROM generate_series(1, %(count)s) n
    RETURNING id, enqueued_at
)
INSERT INTO {archive} (id, enqueued_at, first_read_at, last_read_at, archived_at, queue_id,
                       read_ct, attempts, state)
SELECT id, enqueued_at, enqueued_at + interval '1 s', enqueued_at + interval '1 s',
       enqueued_at + interval '2 s', {queue_id}, 1, 1, 'COMPLETED'
FROM sent
"""


@cache
def session() -> Any:
    """One session for all scenarios, like a warm cluster."""
    from pyspark_pgqueue.session import local_session

    jars = {"spark__driver__extraClassPath": str(JDBC_DRIVER)} if JDBC_DRIVER.exists() else {}
    # Parquet of webhooks needs vectors of 74 MB.
    return local_session("benchmark", memory="2g", **jars)


def url() -> str:
    given = {key: str(value) for key, value in database.parameters().items() if value}
    return make_conninfo(**given)


def rows_of(bench: Any, small: int) -> int:
    """The number of rows: ``small`` small bodies, or a twentieth of it in webhooks, which are forty
    times as large.
    """
    if not AVAILABLE:
        raise RuntimeError("needs Java, PySpark, PyArrow and ADBC's driver")
    count = small if bench.payload.is_small else small // 20
    bench.made_of = f"{count:,} rows"
    return count


def history(bench: Any) -> tuple[str, int, Any]:
    """Create a queue with only an archive; returns its name, size and tables."""
    count = rows_of(bench, bench.amount(100_000, 3_000_000, 30_000_000))
    name, tables = archived(bench, count)
    bench.settle()
    return name, count, tables


def archived(bench: Any, count: int, bodies: Sequence[Any] = ()) -> tuple[str, Any]:
    """Create a queue with ``count`` archived messages; returns its name and tables."""
    from django_pgqueue.models import Queue

    _, name = bench.queue("ours")
    tables = Queue.objects.get(name=name).tables
    texts = [json.dumps(body) for body in bodies or bench.payload.bodies]
    params = {"count": count, "bodies": texts, "kinds": len(texts)}
    bench.sql("SET session_replication_role = replica")
    bench.sql(FILL.format_map(tables), params)
    bench.sql("RESET session_replication_role")
    return name, tables


def folder_for(bench: Any) -> Path:
    """An empty folder, deleted at the end."""
    folder = Path(tempfile.mkdtemp(prefix="pgqueue-spark-"))
    bench.on_close(shutil.rmtree, folder, True)
    return folder


def no_lake(folder: Path) -> str:
    """Delete the lake's files and row, so that the next export creates it; returns its path."""
    from django_pgqueue.models import Lake

    lake = str(folder / "ours")
    shutil.rmtree(lake, ignore_errors=True)
    Lake.objects.filter(path=lake).delete()
    return lake


def seconds(action: Callable[[], Any]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


def jdbc(query: str, tables: dict[str, Any], bounds: tuple[int, int]) -> Any:
    """Spark's own reader with its best settings: split by id, one partition a core."""
    where = database.parameters()
    # The benchmark's own server listens there, too.
    host = "127.0.0.1" if str(where["host"]).startswith("/") else where["host"]
    return (
        session()
        .read.format("jdbc")
        .options(
            url=f"jdbc:postgresql://{host}:{where['port']}/{where['dbname']}",
            driver="org.postgresql.Driver",
            user=where["user"],
            password=where.get("password", ""),
            dbtable=query.format_map(tables),
            fetchsize="10000",
            partitionColumn="id",
            lowerBound=str(bounds[0]),
            upperBound=str(bounds[1]),
            numPartitions=str(session().sparkContext.defaultParallelism),
        )
        .load()
    )


def reads(bench: Any, columns: str, query: str) -> dict[str, Measure]:
    """Read every column of every row into the JVM, which discards it; compared with programs
    without a JVM.
    """
    name, count, tables = history(bench)
    source = session().read.format("pgqueue").options(url=url(), subscribe=name, columns=columns)

    def materialise(frame: Any) -> float:
        action = frame.write.format("noop").mode("overwrite").save
        return count / seconds(action)

    def ours() -> float:
        return materialise(source.load())

    measures: dict[str, Measure] = {"ours": ours}
    ours()  # warm up, since Spark's own start is not compared
    if JDBC_DRIVER.exists():
        bounds = bench.sql(f"SELECT min(id), max(id) FROM {tables['archive']}")[0]

        def theirs() -> float:
            return materialise(jdbc(query, tables, bounds))

        theirs()
        measures["Spark's JDBC"] = theirs
    plain = f"SELECT * FROM {query.format_map(tables)}"
    if find_spec("duckdb"):
        measures["DuckDB through ADBC"] = lambda: count / seconds(lambda: by_duckdb(plain, READ))
    if has_extension():
        scan = in_duckdb(plain)
        measures["DuckDB's extension"] = lambda: (
            count / seconds(lambda: by_extension(READ.replace("rows", f"({scan})")))
        )
    measures["COPY to a client"] = lambda: count / seconds(lambda: read_by_copy(plain))
    return measures


def by_duckdb(query: str, statement: str) -> None:
    """Run a statement of DuckDB on ``rows``, a query's record batches through ADBC."""
    import adbc_driver_postgresql.dbapi as adbc
    import duckdb

    with adbc.connect(url()) as connection, connection.cursor() as cursor, duckdb.connect() as duck:
        cursor.execute(query)
        rows = cursor.fetch_record_batch()  # noqa: F841  DuckDB finds it by its name
        duck.execute(statement)


def extended(duck: Any) -> None:
    """Load DuckDB's extension for PostgreSQL. Raises an error if it cannot be downloaded."""
    package = find_spec("duckdb_ext")
    places = package.submodule_search_locations if package else []
    files = [*chain(*(Path(each).rglob("postgres_scanner.duckdb_extension") for each in places))]
    if files:
        duck.load_extension(str(files[0]))
    else:
        duck.install_extension("postgres")
        duck.load_extension("postgres")


@cache
def has_extension() -> bool:
    if not find_spec("duckdb"):
        return False
    import duckdb

    with duckdb.connect() as duck, suppress(duckdb.Error):
        extended(duck)
        return True
    return False


def in_duckdb(query: str) -> str:
    """The query as :func:`by_extension` takes it."""
    return re.sub("::(text|integer)", "", query).replace("pgqueue_", "pg.pgqueue_")


def by_extension(statement: str) -> None:
    """Run a statement of DuckDB on ``pg``, this database: it reads tables with several threads."""
    import duckdb

    with duckdb.connect() as duck:
        extended(duck)
        duck.execute(f"ATTACH '{url()}' AS pg (TYPE postgres, READ_ONLY)")
        duck.execute(statement)


def read_by_copy(query: str) -> None:
    with (
        database.connect() as connection,
        connection.cursor() as cursor,
        cursor.copy(f"COPY ({query}) TO STDOUT") as copying,
    ):
        for _ in copying:
            pass


@scenario(
    "Read the archive into Spark, without bodies",
    baseline="Spark's JDBC",
    unit="rows/s",
    goals=(Goal("ours", "Spark's JDBC", at_least=1.2),),
)
def spark_read_archive(bench: Any) -> dict[str, Measure]:
    columns = "id,enqueued_at,first_read_at,last_read_at,archived_at,archive_xid,read_ct,attempts"
    query = f"(SELECT {columns}, state, error, result::text FROM {{archive}}) rows"
    return reads(bench, f"{columns},state,error,result", query)


@scenario(
    "Read the archive into Spark, with bodies",
    baseline="Spark's JDBC",
    unit="rows/s",
    webhooks=True,
    goals=(Goal("ours", "Spark's JDBC", at_least=1.2),),
)
def spark_read_bodies(bench: Any) -> dict[str, Measure]:
    query = (
        "(SELECT a.id, a.state, a.archived_at, m.body::text FROM {archive} a "
        "JOIN {message} m ON m.id = a.id AND m.enqueued_at = a.enqueued_at) rows"
    )
    return reads(bench, "id,state,archived_at,body", query)


@scenario(
    "Archive to Parquet, in a warm session",
    unit="s",
    baseline="DuckDB through ADBC",
    webhooks=True,
    goals=(
        Goal("ours", "DuckDB through ADBC", at_most=1.0),
        Goal("ours", "DuckDB's extension", at_most=1.0),
    ),
)
def spark_export(bench: Any) -> dict[str, Measure]:
    """Export an archive with bodies to Parquet by date, in a warm session."""
    from pyspark_pgqueue.jobs.export import export

    name, _, tables = history(bench)
    folder = folder_for(bench)

    def ours() -> float:
        lake = no_lake(folder)
        return seconds(lambda: export(session(), url(), lake, queues=[name]))

    measures: dict[str, Measure] = {"ours": ours}
    ours()
    if find_spec("duckdb"):
        measures["DuckDB through ADBC"] = lambda: seconds(
            lambda: to_parquet(tables, folder / "duckdb")
        )
    if has_extension():
        scan = in_duckdb(lake_rows(tables)).replace(DAY, DAY_IN_DUCKDB)
        measures["DuckDB's extension"] = lambda: seconds(
            lambda: by_extension(written(scan, folder / "duckdb"))
        )
    return measures


#: Eight fields of several types, about 180 bytes.
FIELDS = (
    "order bigint, customer bigint, price double, at timestamp, name string, items array<bigint>, "
    "paid boolean, note string"
)
ORDERS = [
    {
        "order": n,
        "customer": 7 * n,
        "price": round(1.37 * n, 2),
        "at": "2026-11-21T10:00:00Z",
        "name": f"customer {n}",
        "items": [1, 2, n],
        "paid": bool(n % 2),
        "note": "z" * (20 + n % 30),
    }
    for n in range(100)
]


@scenario(
    "Archive to Parquet, with columns for the eight fields of its bodies",
    unit="s",
    baseline="without columns",
    goals=(Goal("ours", "without columns", at_most=1.2),),
)
def spark_export_typed(bench: Any) -> dict[str, Measure]:
    """Export bodies of eight fields, with and without columns for them."""
    from pyspark_pgqueue.jobs.export import export

    count = rows_of(bench, bench.amount(100_000, 3_000_000))
    name, _ = archived(bench, count, ORDERS)
    bench.settle()
    folder = folder_for(bench)

    def run(schemas: dict[str, str]) -> float:
        lake = no_lake(folder)
        return seconds(lambda: export(session(), url(), lake, queues=[name], body_schemas=schemas))

    run({name: FIELDS})
    return {"ours": lambda: run({name: FIELDS}), "without columns": lambda: run({})}


@scenario(
    "Archive to Parquet, cold: by a process of its own",
    unit="s",
    baseline="DuckDB through ADBC, a new process",
)
def spark_export_cold(bench: Any) -> dict[str, Measure]:
    """Export in a new process, like a nightly job."""
    name, _, tables = history(bench)
    folder = folder_for(bench)

    def ours() -> float:
        options = ["export", no_lake(folder), "--queue", name, "--url", url()]
        return seconds(lambda: run("-m", "pyspark_pgqueue", *options))

    measures: dict[str, Measure] = {"ours, with a new session": ours}
    if find_spec("duckdb"):
        call = f"from {__name__} import to_parquet; to_parquet({tables!r}, '{folder}/duckdb')"
        measures["DuckDB through ADBC, a new process"] = lambda: seconds(lambda: run("-c", call))
    return measures


def run(*arguments: str, **environment: str) -> str:
    """The output of a Python process."""
    variables = {**os.environ, **environment}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=variables)
    return done.stdout


PLAIN_ROLLUP = """
SELECT date_trunc('hour', a.archived_at), count(*) FILTER (WHERE state = 'COMPLETED'),
       count(*) FILTER (WHERE state = 'FAILED'), count(*) FILTER (WHERE read_ct > 1),
       count(DISTINCT m.group_key),
       percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY
           extract(epoch FROM a.first_read_at - greatest(m.enqueued_at, m.scheduled_at))),
       percentile_cont(ARRAY[0.5, 0.95, 0.99]) WITHIN GROUP (ORDER BY
           extract(epoch FROM a.archived_at - a.last_read_at))
FROM {archive} a JOIN {message} m ON m.id = a.id AND m.enqueued_at = a.enqueued_at
     AND m.queue_id = a.queue_id
GROUP BY a.queue_id, 1
"""
#: The tables shared by all queues.
ALL_TABLES = {"archive": "pgqueue_archive", "message": "pgqueue_message"}


@scenario(
    "Roll up the archive",
    unit="s",
    baseline="plain SQL",
    goals=(Goal("ours", "plain SQL", at_most=1.5),),
)
def spark_rollup(bench: Any) -> dict[str, Measure]:
    """Roll up everything; the baseline does most of the same work."""
    from pyspark_pgqueue.jobs.rollup import rollup

    _, _, tables = history(bench)

    def ours() -> float:
        return seconds(lambda: rollup(url(), every=True))

    ours()
    plain = PLAIN_ROLLUP.format_map(tables)
    return {"ours": ours, "plain SQL": lambda: seconds(lambda: bench.sql(plain))}


#: The number of queues, and all rows as a multiple of the normal number. --size full has the last.
SHAPES = {
    "1 queue": (1, 1),
    "1 queue, a tenth of the rows": (1, 0.1),
    "10 queues": (10, 1),
    "100 queues": (100, 1),
    "1 queue, ten times the rows": (1, 10),
}


@scenario(
    "Cost of a row by growth: of queues, and of rows in all of them",
    baseline="1 queue",
    unit="µs, read",
)
def spark_growth(bench: Any) -> dict[str, Measure]:
    """Reads with bodies, exports and full roll-ups, and SQL for most of a roll-up."""
    from pyspark_pgqueue.jobs.export import export
    from pyspark_pgqueue.jobs.rollup import rollup

    normal = rows_of(bench, bench.amount(30_000, 3_000_000))
    folder = folder_for(bench)
    shapes = list(SHAPES.items())[: bench.amount(4, 4, len(SHAPES))]

    def run(queues: int, rows: int) -> dict[str, float]:
        names = [archived(bench, rows // queues)[0] for _ in range(queues)]
        bench.settle()
        lake = no_lake(folder)
        source = session().read.format("pgqueue").option("url", url())
        frame = source.option("columns", "id,state,archived_at,body").load()
        steps: dict[str, Callable[[], Any]] = {
            "read": frame.write.format("noop").mode("overwrite").save,
            "exported": lambda: export(session(), url(), lake),
            "rolled up": lambda: rollup(url(), every=True),
            "by plain SQL": lambda: bench.sql(PLAIN_ROLLUP.format_map(ALL_TABLES)),
        }
        found = {f"µs, {step}": 1e6 * seconds(action) / rows for step, action in steps.items()}
        for _ in range(2):
            # Simulates hours passing: the second roll-up finds a run from before its span.
            bench.sql("UPDATE pgqueue_rollup_run SET started_at = started_at - interval '2 hours'")
            found["s, nothing new"] = seconds(lambda: rollup(url()))
        for name in names:
            bench.drop(name)
        return found

    run(1, normal // 10)  # warm
    return {label: partial(run, queues, int(share * normal)) for label, (queues, share) in shapes}


DAY = "to_char(a.archived_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')"
DAY_IN_DUCKDB = "strftime(a.archived_at AT TIME ZONE 'UTC', '%Y-%m-%d')"


def lake_rows(tables: dict[str, Any]) -> str:
    """The query for a lake's columns."""
    from pyspark_pgqueue.source import columns

    selected = columns.select(columns.ARCHIVE, columns.ARCHIVE, "'orders'::text")
    return (
        f"SELECT {selected}, {DAY} AS date "
        f"FROM {tables['archive']} a JOIN {tables['message']} m "
        f"ON m.id = a.id AND m.enqueued_at = a.enqueued_at"
    )


def to_parquet(tables: dict[str, Any], folder: Path | str) -> None:
    """Export by DuckDB as our job does."""
    by_duckdb(lake_rows(tables), written("SELECT * FROM rows", folder))


def written(query: str, folder: Path | str) -> str:
    """DuckDB's statement that writes a query's rows as our job does."""
    shutil.rmtree(folder, ignore_errors=True)
    layout = "FORMAT parquet, COMPRESSION zstd, PARTITION_BY (queue, date)"
    return f"COPY ({query}) TO '{folder}' ({layout})"


def kinds_of(bodies: list[str], folder: Path) -> Path:
    """A Parquet file of numbered bodies; webhooks are too large for a query plan."""
    import pyarrow as pa
    from pyarrow import parquet

    found = pa.table({"kind": pa.array(range(len(bodies)), pa.int64()), "body": bodies})
    parquet.write_table(found, folder / "kinds.parquet")
    return folder / "kinds.parquet"


@scenario(
    "Write rows from Spark into a queue",
    unit="s",
    baseline="bare COPY into the queue",
    webhooks=True,
    goals=(Goal("ours", "bare COPY into the queue", at_most=1.4),),
)
def spark_write(bench: Any) -> dict[str, Measure]:
    """Write rows from Parquet into a queue; the baseline copies the same bodies with COPY."""
    count = rows_of(bench, bench.amount(100_000, 3_000_000))
    folder = folder_for(bench)
    bodies = [json.dumps(body) for body in bench.payload.take(1000)]
    kinds = session().read.parquet(str(kinds_of(bodies, folder)))
    rows = session().range(count).selectExpr(f"id % {len(bodies)} AS kind")
    rows.join(kinds, "kind").select("body").write.mode("overwrite").parquet(str(folder / "rows"))

    def ours() -> float:
        _, name = bench.queue("ours")
        rows = session().read.parquet(str(folder / "rows"))
        writer = rows.write.format("pgqueue").mode("append").options(url=url(), queue=name)
        return seconds(writer.save)

    def bare() -> float:
        from django_pgqueue.models import Queue

        _, name = bench.queue("ours")
        tables = Queue.objects.get(name=name).tables
        # Escaped for COPY; JSON contains no other control characters.
        lines = (body.replace("\\", "\\\\") + f"\t{tables['queue_id']}\n" for body in bodies)
        block = "".join(lines)

        def copy() -> None:
            with (
                database.connect() as connection,
                connection.cursor() as cursor,
                cursor.copy(f"COPY {tables['message']} (body, queue_id) FROM STDIN") as copying,
            ):
                for _ in range(count // len(bodies)):
                    copying.write(block)

        return seconds(copy)

    ours()
    return {"ours": ours, "bare COPY into the queue": bare}


STEPS = ("read", "stream", "consume", "export", "write")
#: Seconds until an idle process has ended: Spark looks each minute for those of the last minute.
IDLE = 150


@scenario(
    "Memory of all Python processes on two cores, with a heap of 512 MB for the JVM",
    baseline=None,
    unit="MB, together",
    webhooks=True,
    goals=tuple(Goal(step, at_most=300) for step in STEPS),
)
def spark_memory(bench: Any) -> dict[str, Measure]:
    """The most that Python processes held at a time, the driver's own included, and what they hold
    when nothing has run for a while.
    """
    name, _, _ = history(bench)
    _, copies = bench.queue("ours")
    folder = folder_for(bench)
    # Hides polars, which ADBC would import and a cluster's machine does not need.
    (folder / "absent").mkdir()
    (folder / "absent" / "polars.py").write_text("raise ImportError('absent')\n")
    paths = [str(folder / "absent"), os.environ.get("PYTHONPATH", "")]

    def held(step: str) -> dict[str, float]:
        if step == "consume":
            from django_pgqueue.models import Message

            for _ in range(bench.amount(10, 100)):
                Message.objects.send_batch(copies, bench.payload.take(1000))
        # A new process each time: the JVM keeps its heap.
        arguments = (step, name, copies, no_lake(folder) if step == "export" else f"{folder}/ours")
        call = f"from {__name__} import print_memory; print_memory{arguments!r}"
        said = run("-c", call, PYTHONPATH=os.pathsep.join(filter(None, paths)))
        found: dict[str, float] = json.loads(said.splitlines()[-1])
        return found

    return {step: partial(held, step) for step in STEPS}


def print_memory(step: str, name: str, copies: str, lake: str) -> None:
    """Run a step. Print as JSON the most memory that Python held meanwhile, and holds when idle."""
    from pyspark_pgqueue.jobs.export import export
    from pyspark_pgqueue.session import local_session

    spark = local_session("memory", cores=2, memory="512m")
    options = {"url": url(), "subscribe": name, "columns": "body"}
    bodies = spark.read.format("pgqueue").options(**options).load()
    written = bodies.write.format("pgqueue").mode("append").options(url=url(), queue=copies)

    def stream(**options: str) -> None:
        rows = spark.readStream.format("pgqueue").options(url=url(), **options).load()
        query = rows.writeStream.format("noop").trigger(availableNow=True).start()
        query.awaitTermination()

    actions: dict[str, Callable[[], Any]] = {
        "read": bodies.write.format("noop").mode("overwrite").save,
        "stream": lambda: stream(subscribe=name, maxOffsetsPerTrigger="100000"),
        "consume": lambda: stream(subscribe=copies, mode="consume"),
        "export": lambda: export(spark, url(), lake),
        "write": written.save,
    }
    most: dict[str, float] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.05):
            for unit, size in held_now().items():
                most[unit] = max(most.get(unit, 0), size)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    actions[step]()  # here, since Spark has no session in another thread
    ended.set()
    watching.join()
    time.sleep(IDLE)
    print(json.dumps({**most, "MB, idle": held_now()["MB, together"]}))


def held_now() -> dict[str, float]:
    """Megabytes held by this process and its Python workers, by the kind of work.

    A proportional set size counts shared pages once.
    """
    sizes: dict[str, float] = {"driver": psutil.Process().memory_full_info().pss}
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            command = " ".join(process.cmdline())
            if "pyspark" in command and "java" not in command:
                kind = "tasks" if ".daemon pyspark.worker" in command else "planning"
                size = process.memory_full_info().pss
                sizes[kind] = sizes.get(kind, 0) + size
    sizes["together"] = sum(sizes.values())
    return {f"MB, {kind}": size / 2**20 for kind, size in sizes.items()}
