"""Sends messages, and records what it knows of each send: invoke, then ok, fail or unknown.

    python -m tests.acceptance.chaos.producer NAME SEED SECONDS '{"queues": [...], ...}'

Half of the sends are transactions without another write, which may sleep before their commit or
roll back. If the connection breaks at the commit, the outcome is unknown.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time


def main(name: str, seed: str, count: str, plan_text: str) -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.working.settings")
    import django

    django.setup()
    from django.db import Error, connection, transaction

    from django_pgqueue.models import Message
    from tests.working.history import record

    plan = json.loads(plan_text)
    draw = random.Random(seed)
    for number in range(int(count)):
        op = f"{name}-{number}"
        queue = draw.choice(plan["queues"])
        group = draw.choice(plan.get("groups", [None]))
        body = {"op": op, **fault(draw, plan, queue)}
        kind = draw.choice(plan.get("sends", ["plain", "transaction"]))
        record("invoke", op=op, queue=queue, kind=kind, body=body)
        try:
            if kind == "plain":
                Message.objects.send(queue, body, group=group)
            else:
                with transaction.atomic():
                    Message.objects.send(queue, body, group=group)
                    if kind == "sleep":
                        time.sleep(draw.uniform(0.05, 1.0))
                    if kind == "rollback":
                        raise RolledBack
            record("ok", op=op)
        except RolledBack:
            record("fail", op=op)
        except Error as error:
            record("unknown", op=op, error=str(error))
            connection.close()
            time.sleep(0.1)
        time.sleep(draw.expovariate(plan.get("rate", 200)))


class RolledBack(Exception):
    pass


def fault(draw: random.Random, plan: dict[str, object], queue: str) -> dict[str, object]:
    """The fault that a message's handler must raise, for some messages."""
    faults = plan.get("faults")
    if not faults or draw.random() >= plan.get("fault_rate", 0.02):  # type: ignore[operator]
        return {}
    return {draw.choice(["before", "after"]): draw.choice(faults), "times": 1}  # type: ignore[arg-type]


if __name__ == "__main__":
    main(*sys.argv[1:])
