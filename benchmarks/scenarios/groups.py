"""FIFO groups."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.scenarios import Goal, Measure, scenario
from django_pgqueue.models import Message

GROUPS = 10_000


@scenario(
    "Read 100 of 10,000 groups with 5 messages each and archive them (quick: 1,000 groups)",
    baseline="PGMQ, read_grouped_rr",
    goals=(Goal("ours", "PGMQ, read_grouped_rr", at_least=20),),
)
def groups_read(bench: Any) -> dict[str, Measure]:
    groups = [str(number) for number in range(bench.amount(1_000, GROUPS))] * 5
    bodies = bench.payload.take(len(groups))
    measures: dict[str, Measure] = {}

    def ours() -> float:
        _, name = bench.queue("ours")
        Message.objects.send_batch(name, bodies, group=groups)
        bench.settle()

        def cycle() -> int:
            messages = Message.objects.read_grouped_rr(name, qty=100)
            return len(Message.objects.archive(name, messages))

        return bench.rate(cycle)

    def pgmq() -> float:
        queues, name = bench.queue("PGMQ")
        queues.cursor.execute("SELECT pgmq.create_fifo_index(%s)", [name])
        headers = [json.dumps({"x-pgmq-group": group}) for group in groups]
        queues.cursor.execute(
            "SELECT count(*) FROM pgmq.send_batch(%s, %s::jsonb[], %s::jsonb[])",
            [name, [json.dumps(body) for body in bodies], headers],
        )
        bench.settle()

        def cycle() -> int:
            queues.cursor.execute("SELECT * FROM pgmq.read_grouped_rr(%s, 30, 100)", [name])
            ids = [row[0] for row in queues.cursor.fetchall()]
            queues.cursor.execute("SELECT * FROM pgmq.archive(%s, %s::bigint[])", [name, ids])
            return len(queues.cursor.fetchall())

        return bench.rate(cycle)

    if hasattr(Message.objects, "read_grouped_rr"):
        measures["ours"] = ours
    if bench.has("PGMQ"):
        measures["PGMQ, read_grouped_rr"] = pgmq
    return measures
