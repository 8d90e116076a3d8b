"""Measures the admin's pages with a large backlog, and the cost of history to consumers.

    python -m benchmarks.admin                    # 1,000,000 ready, 300,000 archived, 200 queues,
                                                  # 110,000 dead letters, 8,000 failed
    python -m benchmarks.admin --size 0.01        # a hundredth of the messages
    python -m benchmarks.admin pages              # only the pages; history: only the consumers

A page's time is the median of five visits after a first one, in the process of the benchmark. A
consumer's throughput is what one process does with a handler that does nothing, with and without
history in turn; its processor time besides, on which a busy machine has less influence. The server
is one of our own that is gone afterwards, or DATABASE_URL's.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import django

from benchmarks import database

READY, ARCHIVED, QUEUES = 1_000_000, 300_000, 200
DEAD, FAILED, KINDS = 110_000, 8_000, 40
#: Of one kind of failure, as long as tracebacks are.
TRACE = "KeyError: 'price{kind}'\n\nTraceback (most recent call last):\n" + "".join(
    f'  File "/app/shop/consumers_{number}.py", line {{line}}, in handle_{number}\n'
    f"    return await self.service.charge(order, source=body['token'], number={number})\n"
    for number in range(9)
)
LARGE, LARGE_BYTES = 50, 5_000_000
CHUNK = 50_000
VISITS = 5
#: The goals: milliseconds and queries per page, and the share of throughput kept with history.
GOAL, MOST_QUERIES, SHARE = 300, 15, 0.98
MESSAGES, ROUNDS = 40_000, 6


def fill(size: float) -> None:
    """Create a backlog in one queue, an archive, large bodies, and history for every queue."""
    from django.db import connection

    from django_pgqueue import queue
    from django_pgqueue.models import Message, Process, Queue

    for number in range(QUEUES):
        Message.objects.create_queue(f"queue-{number:03}")
    backlog, done = queue("queue-000"), queue("queue-001")
    for _ in range(0, int(READY * size), CHUNK):
        backlog.send_batch([{"n": 7, "x": "y" * 180}] * min(CHUNK, int(READY * size)))
        say(f"{backlog.metrics().total:,} ready")
    for _ in range(0, int(ARCHIVED * size), CHUNK):
        part = min(CHUNK, int(ARCHIVED * size))
        done.send_batch([{"n": 7, "x": "y" * 180}] * part)
        while messages := done.read(qty=1000):
            done.archive(messages)
    for _ in range(LARGE):
        queue("queue-002").send({"large": "z" * LARGE_BYTES})
    queue("queue-003").send_batch([1] * 2000, group="g")
    for message in queue("queue-002").read(qty=10):
        message.reject("CardDeclined: no")
    Queue.objects.filter(name="queue-004").update(
        dead_letter_queue=Queue.objects.get(name="queue-005")
    )
    Queue.objects.forget_all()
    fail("queue-004", int(DEAD * size))
    fail("queue-006", int(FAILED * size))
    names = [f"queue-{number:03}" for number in range(QUEUES)]
    for number in range(8):
        Process.objects.create(host=f"web-{number}", pid=number, version="1", queues=names)
    with connection.cursor() as cursor:
        # Delete the history of consumers measured earlier.
        cursor.execute("DELETE FROM pgqueue_history")
        # Inserts two hours of minutes and two weeks of hours. Rows of single consumers exist only
        # for the last minutes; older ones are folded.
        cursor.execute(
            """
            INSERT INTO pgqueue_history (queue_id, bucket, seconds, process_id, completed, retried,
                failed, dead_lettered, lost, busy, waits, runs, sent, depth, oldest, total)
            SELECT q.id, date_trunc('minute', now()) - m * interval '1 min', 60, p, 600, 3, 1, 0, 0,
                   12, h, h, 604, 10, 1, 1000
            FROM pgqueue_queue q, generate_series(0, 120) m, generate_series(0, 8) p,
                 (SELECT jsonb_object_agg(k, 50) AS h FROM generate_series(-24, -12) k) h
            WHERE p = 0 OR m < 4
            UNION ALL
            SELECT q.id, date_trunc('hour', now()) - m * interval '1 h', 3600, 0, 36000, 90, 60, 0,
                   0, 720, h, h, 36240, 10, 1, 1000
            FROM pgqueue_queue q, generate_series(3, 336) m,
                 (SELECT jsonb_object_agg(k, 3000) AS h FROM generate_series(-24, -12) k) h
            """
        )
        say(f"{cursor.rowcount:,} rows of history")
        cursor.execute("VACUUM ANALYZE")


def fail(name: str, number: int) -> None:
    """Fail messages of a queue, for all kinds of reasons."""
    from django_pgqueue import queue

    bound = queue(name)
    bound.send_batch([{"n": n, "x": "y" * 180} for n in range(number)])
    while messages := bound.read(qty=1000):
        bound.fail(
            {
                message.receipt: TRACE.format(kind="abcdefgh"[n % 8], line=n % KINDS)
                for n, message in enumerate(messages)
            }
        )
    say(f"{number:,} failed in {name}")


def addresses() -> Iterator[tuple[str, str]]:
    """The URLs of all admin pages, by name."""
    from django.urls import NoReverseMatch, reverse

    from django_pgqueue.models import Message, Queue

    def path(name: str, *args: object, **query: object) -> str:
        return reverse(f"admin:django_pgqueue_{name}", args=args, query=query)

    queues = {queue.name: queue.pk for queue in Queue.objects.all()}
    ready, done, large = (queues[f"queue-00{number}"] for number in range(3))
    message = Message.objects.filter(queue=large).earliest("pk")
    yield "overview", path("queue_changelist")
    yield "overview, by name", path("queue_changelist", by="name")
    yield "overview as JSON", path("overview_json")
    yield "queue with the backlog", path("queue_overview", ready)
    yield "queue, two weeks", path("queue_overview", ready, range="fortnight")
    yield "queue with large bodies", path("queue_overview", large)
    yield "settings of a queue", path("queue_change", ready)
    yield "messages", path("message_changelist")
    yield "messages of the backlog", path("message_changelist", queue=ready)
    yield "ready messages", path("message_changelist", queue=ready, state="ready")
    yield "completed messages", path("message_changelist", queue=done, state="completed")
    yield "large messages", path("message_changelist", queue=large)
    yield "a large message", path("message_change", message.pk)
    yield "consumers", path("process_changelist")
    yield "database", path("health")
    yield "charts", path("rollup_charts")
    for name, page in (("failures", "message_failures"), ("bulk actions", "bulkaction_changelist")):
        try:
            yield name, path(page)
        except NoReverseMatch:
            continue


def pages(size: float) -> bool:
    """Measure each page; returns whether all pages reach the goals."""
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    fill(size)
    client = Client()
    client.force_login(User.objects.create_superuser("ann"))
    good = True
    print("| page | ms | queries | kB |\n|---|---:|---:|---:|")
    for name, address in addresses():
        with CaptureQueriesContext(connection) as asked:
            answer = client.get(address, follow=True)
        queries = [
            q for q in asked if not q["sql"].startswith(("SAVEPOINT", "RELEASE", "BEGIN", "COMMIT"))
        ]
        took = []
        for _ in range(VISITS):
            began = time.perf_counter()
            client.get(address, follow=True)
            took.append((time.perf_counter() - began) * 1000)
        median = statistics.median(took)
        reached = answer.status_code == 200 and median <= GOAL and len(queries) <= MOST_QUERIES
        good = good and reached
        print(
            f"| {name} | {median:.0f} | {len(queries)} | {len(answer.content) / 1000:.0f} |"
            f"{'' if reached else ' missed'}",
            flush=True,
        )
    return good


def history(size: float, rounds: int) -> bool:
    """Measure a consumer with and without history; returns whether the goal is reached."""
    from django_pgqueue import queue

    queue("drain").create()
    runs: dict[str, list[Drained]] = {"10": [], "": []}
    for number in range(2 * rounds):
        # The order alternates, so that the server's caches favour neither.
        seconds = ("10", "")[(number + number // 2) % 2]
        runs[seconds].append(drained(seconds, int(MESSAGES * size)))
        say(f"{'with' if seconds else 'without'} history: {runs[seconds][-1]}")
    kept, without = (
        Drained(*map(statistics.median, zip(*runs[key], strict=True))) for key in ("10", "")
    )
    print(f"with history:    {kept}\nwithout history: {without}")
    print(f"throughput kept: {kept.rate / without.rate:.1%}; cpu: {without.cpu / kept.cpu:.1%}")
    return kept.rate / without.rate >= SHARE


class Drained(NamedTuple):
    """A consumer's messages per second, and its processor time per message in microseconds."""

    rate: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.rate:,.0f} messages a second, {self.cpu:.0f} us of the processor each"


def drained(seconds: str, messages: int) -> Drained:
    """Drain a queue with a new consumer process."""
    from django.db import connection

    from django_pgqueue import queue
    from django_pgqueue.models import Queue

    queue("drain").send_batch([{"x": "y" * 192}] * messages)
    before = _cpu_of_children()
    subprocess.run(
        [sys.executable, "-m", "django", "runconsumer", "drain", "--drain", "--no-progress"],
        env={**os.environ, "BENCHMARK_HISTORY": seconds},
        check=True,
    )
    cpu = (_cpu_of_children() - before) / messages * 1_000_000
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) / extract(epoch FROM max(archived_at) - min(first_read_at)) "
            "FROM pgqueue_archive WHERE queue_id = %s",
            [Queue.objects.get(name="drain").pk],
        )
        rate = float(cursor.fetchone()[0])
        cursor.execute("DELETE FROM pgqueue_archive; DELETE FROM pgqueue_message")
        cursor.execute("VACUUM pgqueue_archive, pgqueue_message, pgqueue_deferred, pgqueue_lease")
    return Drained(rate, cpu)


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.admin",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", choices=["pages", "history", []], metavar="part")
    parser.add_argument("--size", type=float, default=1.0, help="of the backlog (default: 1)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of the consumers")
    options = parser.parse_args()
    parts = options.parts or ["history", "pages"]
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    good = True
    with database.database():
        os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.admin_settings"
        django.setup()
        from django.core.management import call_command
        from django.db import connections

        call_command("migrate", verbosity=0)
        try:
            if "history" in parts:
                good = history(options.size, options.rounds) and good
            if "pages" in parts:
                good = pages(options.size) and good
        finally:
            connections.close_all()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
