"""The admin's pages, beside a large backlog, 10,000 groups, bodies of 5 MB, an audit log, and 200
queues with their history and alerts.
"""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from time import perf_counter
from typing import Any

from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils.timezone import now

from benchmarks.scenarios import Goal, Measure, median_ms, scenario
from django_pgqueue import queue
from django_pgqueue.models import BoundQueue, GroupSetting, Message, Process, Queue

QUEUES = 200
LARGE, LARGE_BYTES = 50, 5_000_000
VISITS = 5
#: The queues that the paths name, in the order of their creation.
LABELS = ("ready", "done", "large", "groups", "dying", "dead", "failing")
#: Messages in each group, and further ones in one of them.
IN_GROUP, IN_LARGEST = 20, 10_000
#: Of this many groups or queues one is paused, has a rate, or fails.
ONE_OF = 20
#: The paths below the app's index, with the ids of queues and of a message.
PAGES = {
    "overview": "queue/",
    "overview, by name": "queue/?by=name",
    "overview as JSON": "queue/overview.json",
    "queue with the backlog": "queue/{ready}/overview/",
    "queue, two weeks": "queue/{ready}/overview/?range=fortnight",
    "queue with large bodies": "queue/{large}/overview/",
    "queue with groups": "queue/{groups}/overview/",
    "groups": "queue/{groups}/groups/",
    "paused groups": "queue/{groups}/groups/?only=paused",
    "blocked groups": "queue/{groups}/groups/?only=blocked",
    "groups with settings": "queue/{groups}/groups/?only=own&skip=5000",
    "a group": "queue/{groups}/group/?key=customer 00001",
    "a blocked group": "queue/{groups}/group/?key={blocked}",
    "settings of a queue": "queue/{ready}/change/",
    "messages": "message/",
    "messages of the backlog": "message/?queue={ready}",
    "ready messages": "message/?queue={ready}&state=ready",
    "search of bodies": "message/?queue={ready}&q=nowhere",
    "search of a body's key": "message/?queue={dying}&state=failed&q=body.n:77",
    "messages of a group": "message/?queue={groups}&group=customer 00001",
    "completed messages": "message/?queue={done}&state=completed",
    "large messages": "message/?queue={large}",
    "a large message": "message/{message}/change/",
    "failures": "message/failures/",
    "failures of a week": "message/failures/?window=7d",
    "failures of a queue": "queue/{dying}/overview/",
    "failed messages": "message/?state=failed",
    "dead letters": "message/?queue={dead}",
    "a dead letter": "message/{letter}/change/?queue={dead}",
    "schedules": "schedule/",
    "consumers": "process/",
    "database": "process/health/",
    "charts": "rollup/charts/",
    "bulk actions": "bulkaction/",
    "audit log": "auditentry/",
    "audit log of a queue": "auditentry/?queue={groups}",
}
#: An error of one of eight kinds, as long as those of a project are.
ERROR = "KeyError: 'price{kind}'\n\nTraceback (most recent call last):\n" + "".join(
    f'  File "/app/shop/consumers_{number}.py", line {{line}}, in handle_{number}\n'
    f"    return await self.service.charge(order, source=body['token'], number={number})\n"
    for number in range(9)
)
# Two hours of minutes and two weeks of hours. Rows of single consumers exist only for the last
# minutes; older ones are folded. One queue in twenty fails.
HISTORY = """
INSERT INTO pgqueue_history (queue_id, bucket, seconds, process_id, completed, retried, failed,
                             dead_lettered, expired, lost, busy, waits, runs, sent, depth,
                             oldest, total)
SELECT q.id, date_trunc('minute', now()) - m * interval '1 min', 60, p, 600,
       CASE WHEN q.id %% %(one_of)s = 0 AND m < 30 THEN 200 ELSE 3 END, 1, 0, 0, 0, 12,
       h, h, 604, 10, 1, 1000
FROM pgqueue_queue q, generate_series(0, 120) m, generate_series(0, 8) p,
     (SELECT jsonb_object_agg(k, 50) AS h FROM generate_series(-24, -12) k) h
WHERE p = 0 OR m < 4
UNION ALL
SELECT q.id, date_trunc('hour', now()) - m * interval '1 h', 3600, 0, 36000, 90, 60, 0, 0, 0, 720,
       h, h, 36240, 10, 1, 1000
FROM pgqueue_queue q, generate_series(3, 336) m,
     (SELECT jsonb_object_agg(k, 3000) AS h FROM generate_series(-24, -12) k) h
"""
AUDIT = """
INSERT INTO pgqueue_audit (at, operation, queue_id, queue_name, arguments, count, ended_at, who,
                           place, program, host)
SELECT now() - n * interval '10 s', (ARRAY['purge', 'redrive', 'pause', 'alter'])[1 + n %% 4], q.id,
       q.name, '{"ids": [1, 2, 3], "of": 100}', n, now(), 'ann', 'command', 'pgqueue_purge', 'web-1'
FROM (SELECT id, name, row_number() OVER (ORDER BY id) - 1 AS number FROM pgqueue_queue) q,
     generate_series(1, %(entries)s) n
WHERE n %% (SELECT count(*) FROM pgqueue_queue) = q.number
ORDER BY n DESC
"""


@scenario(
    "The admin's pages, beside 1,000,000 ready, 300,000 archived and 8,000 failed messages, "
    "110,000 dead letters, 10,000 groups with settings of their own and an audit log of 200,000 "
    "entries (quick: a hundredth)",
    unit="ms",
    baseline=None,
    goals=tuple(
        Goal(page, at_most=limit, unit=unit)
        for page in PAGES
        for unit, limit in (("ms", 300), ("cold ms", 1000), ("queries", 15))
    ),
)
def admin_pages(bench: Any) -> dict[str, Measure]:
    found = fill(bench)
    client = Client()
    client.force_login(User.objects.create_superuser("ann"))
    bench.on_close(User.objects.all().delete)
    return {
        page: partial(visit, client, f"/admin/django_pgqueue/{path.format(**found)}")
        for page, path in PAGES.items()
    }


def visit(client: Client, address: str) -> dict[str, float]:
    """The duration of a visit with a new connection, and the median of later ones."""
    connection.close()
    began = perf_counter()
    with CaptureQueriesContext(connection) as asked:
        answer = client.get(address)
    cold = perf_counter() - began
    assert answer.status_code == 200, f"{address} answers {answer.status_code}"
    transactional = ("SAVEPOINT", "RELEASE", "BEGIN", "COMMIT")
    queries = sum(not query["sql"].startswith(transactional) for query in asked)
    return {
        "ms": median_ms(lambda: client.get(address), VISITS),
        "cold ms": 1000 * cold,
        "queries": queries,
        "kB": len(answer.content) / 1000,
    }


def fill(bench: Any) -> dict[str, Any]:
    """Create the messages and the history; returns the ids that the pages need."""
    made = [bench.queue("ours") for _ in range(QUEUES)]
    names = [name for _, name in made]
    _, done, large, groups, dying, dead, failing = map(queue, names[:7])
    sizes = bench.amount((10_000, 3_000), (1_000_000, 300_000))
    for (queues, name), count in zip(made, sizes, strict=False):
        queues.fill(name, bench.payload.bodies, count)
    while messages := done.read(qty=1000):
        done.archive(messages)
    for _ in range(LARGE):
        large.send({"large": "z" * LARGE_BYTES})
    keys = [f"customer {number:05}" for number in range(bench.amount(100, 10_000))]
    for _ in range(IN_GROUP):
        groups.send_batch([{"n": 1}] * len(keys), group=keys)
    groups.send_batch([{"n": 1}] * bench.amount(2000, IN_LARGEST), group=keys[1])
    groups_pk = Queue.objects.get(name=groups.name).pk
    blocked = keys[0]
    for message in groups.read(qty=1000):  # gives heads to groups, and blocks some of them
        if message.id % 10 == 0:
            message.nack(3600)
            blocked = message.group_key
    # A limit of one, which is the queue's, leaves a blocked group blocked.
    GroupSetting.objects.bulk_create(
        GroupSetting(
            queue_id=groups_pk,
            group_key=key,
            limit=1 + number % 2 if key != blocked else 1,
            rate=None if number % ONE_OF else "30/m",
            paused=number % ONE_OF == ONE_OF - 1,
        )
        for number, key in enumerate(keys)
    )
    for message in large.read(qty=10):
        message.reject("CardDeclined: no")
    Queue.objects.filter(name=dying.name).update(
        dead_letter_queue=Queue.objects.get(name=dead.name)
    )
    Queue.objects.forget_all()
    fail(dying, bench.amount(1100, 110_000))
    fail(failing, bench.amount(80, 8000))
    for number in range(16):
        process = Process(host=f"web-{number}", pid=number, version="1", queues=names)
        process.heartbeat_at = now() + timedelta(hours=-1 if number % 2 else 3)
        process.save()
    bench.on_close(Process.every.all().delete)
    bench.sql("DELETE FROM pgqueue_history")  # of consumers measured earlier
    bench.sql(HISTORY, {"one_of": ONE_OF})
    bench.sql(AUDIT, {"entries": bench.amount(2000, 200_000)})
    bench.on_close(bench.sql, "TRUNCATE pgqueue_audit")
    bench.settle()
    pks = {
        label: Queue.objects.get(name=name).pk for label, name in zip(LABELS, names, strict=False)
    }
    messages = {"message": pks["large"], "letter": pks["dead"]}
    first = {
        label: Message.objects.filter(queue=pk).earliest("pk").pk for label, pk in messages.items()
    }
    return {**pks, **first, "blocked": blocked}


def fail(bound: BoundQueue, count: int) -> None:
    """Send messages, and fail them with errors of all kinds."""
    bound.send_batch([{"n": number, "x": "y" * 180} for number in range(count)])
    while messages := bound.read(qty=1000):
        bound.fail(
            {
                message.receipt: ERROR.format(kind="abcdefgh"[number % 8], line=number % 40)
                for number, message in enumerate(messages)
            }
        )
