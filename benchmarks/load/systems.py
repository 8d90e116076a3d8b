"""How each system is installed, emptied and filled, and the program of its connections."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from psycopg import sql

from benchmarks import database, peers
from benchmarks.payloads import Payload

__all__ = ["QUEUE", "System", "open_system", "store_bodies"]

QUEUE = "load"
CHUNK = 100_000


class System:
    """A system, and its queue."""

    #: What a message costs it: the calls of a turn.
    calls = ""
    channel = ""
    #: Inserts messages with the bodies of ``chunk``, as the system's own call would store them.
    insert = ""

    def __init__(self) -> None:
        self.connection = database.connect()

    def install(self) -> None: ...

    def clear(self) -> None:
        """Remove all messages, with those that are done."""

    def fill(self, count: int, tell: Callable[[str], None]) -> None:
        """Add a backlog."""
        for start in range(0, count, CHUNK):
            self.connection.execute(
                "WITH chunk AS ("
                " SELECT body FROM generate_series(%(start)s::bigint, %(end)s) AS g (number)"
                " JOIN load_body ON n = number %% (SELECT count(*) FROM load_body)"
                f" ORDER BY number) {self.insert}",
                {"start": start, "end": min(start + CHUNK, count) - 1},
            )
            if start and start % (5 * CHUNK) == 0:
                tell(f"{start:,} of {count:,} messages")

    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.load.client"]

    def environment(self) -> dict[str, str]:
        return {}

    def close(self) -> None:
        self.connection.close()


class Ours(System):
    calls = "`Message.objects.send`, `read`, `archive`"
    channel = "pgqueue"

    def clear(self) -> None:
        from django_pgqueue.errors import QueueNotFound
        from django_pgqueue.models import Message, Queue

        with suppress(QueueNotFound):
            Message.objects.drop_queue(QUEUE)
        Message.objects.create_queue(QUEUE)
        pk = Queue.objects.resolve(QUEUE, None).pk
        self.insert = f"INSERT INTO pgqueue_message (queue_id, body) SELECT {pk}, body FROM chunk"

    install = clear


class Pgmq(System):
    calls = "`pgmq.send`, `read`, `archive`"
    channel = f"pgmq.q_{QUEUE}.INSERT"
    insert = f"INSERT INTO pgmq.q_{QUEUE} (vt, message) SELECT clock_timestamp(), body FROM chunk"

    def install(self) -> None:
        from benchmarks.peers import pgmq

        pgmq.install()
        self.connection.execute("SELECT pgmq.create(%s)", [QUEUE])
        # At most every 250 ms, its default.
        self.connection.execute("SELECT pgmq.enable_notify_insert(%s)", [QUEUE])

    def clear(self) -> None:
        self.connection.execute(f"TRUNCATE pgmq.q_{QUEUE}, pgmq.a_{QUEUE}")

    def fill(self, count: int, tell: Callable[[str], None]) -> None:
        # Its trigger runs for each row.
        self.connection.execute(f"ALTER TABLE pgmq.q_{QUEUE} DISABLE TRIGGER USER")
        super().fill(count, tell)
        self.connection.execute(f"ALTER TABLE pgmq.q_{QUEUE} ENABLE TRIGGER USER")


class Peer(System):
    """A contestant of ``benchmarks/peers``, tuned."""

    label = ""

    def __init__(self) -> None:
        super().__init__()
        self.worker = peers.open_worker(self.label, is_tuned=True)

    def install(self) -> None:
        self.worker.install()
        self.worker.tune(QUEUE)

    def clear(self) -> None:
        self.worker.clear(QUEUE)

    def close(self) -> None:
        self.worker.close()
        super().close()


class PgQueuer(Peer):
    label = "PgQueuer"
    calls = "`Queries.enqueue`, `dequeue`, `log_jobs` with asyncpg"
    channel = "ch_pgqueuer"
    insert = f"""
        , inserted AS (
            INSERT INTO pgqueuer (priority, entrypoint, payload, status)
            SELECT 0, '{QUEUE}', convert_to(body::text, 'UTF8'), 'queued' FROM chunk
            RETURNING id, status, entrypoint, priority
        )
        INSERT INTO pgqueuer_log (job_id, status, entrypoint, priority) SELECT * FROM inserted
    """


class GraphileWorker(Peer):
    label = "graphile-worker"
    calls = "`add_job`, and its worker's `getJobs` and `completeJobs`, on Node.js"
    channel = "jobs:insert"
    insert = f"""
        INSERT INTO graphile_worker._private_jobs (task_id, payload)
        SELECT (SELECT id FROM graphile_worker._private_tasks WHERE identifier = '{QUEUE}'), body
        FROM chunk
    """

    def install(self) -> None:
        super().install()
        self.connection.execute(
            "INSERT INTO graphile_worker._private_tasks (identifier) VALUES (%s) "
            "ON CONFLICT DO NOTHING",
            [QUEUE],
        )

    def command(self) -> list[str]:
        return ["node", str(Path(__file__).with_name("graphile_worker.js"))]

    def environment(self) -> dict[str, str]:
        from benchmarks.peers.graphile_worker import SCRATCH, where

        return {**where(), "NODE_PATH": str(SCRATCH / "node_modules")}


KINDS: dict[str, type[System]] = {
    "ours": Ours,
    "PGMQ": Pgmq,
    "PgQueuer": PgQueuer,
    "graphile-worker": GraphileWorker,
}


def open_system(label: str) -> System:
    if needed := peers.missing(label):
        raise RuntimeError(f"{needed} is not installed")
    found = KINDS[label]()
    try:
        found.install()
    except BaseException:
        found.close()
        raise
    return found


def store_bodies(connection: Any, payload: Payload) -> int:
    """Store a payload's bodies for backlogs. Returns their average size in bytes, as JSON."""
    connection.execute("CREATE TABLE IF NOT EXISTS load_body (n bigint PRIMARY KEY, body jsonb)")
    connection.execute("TRUNCATE load_body")
    insert = sql.SQL("INSERT INTO load_body VALUES (%s, %s)")
    with connection.cursor() as cursor:
        texts = [json.dumps(body) for body in payload.bodies]
        cursor.executemany(insert, list(enumerate(texts)))
    connection.execute("ANALYZE load_body")
    return sum(map(len, texts)) // len(texts)
