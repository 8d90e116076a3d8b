"""Processes that send to groups and consume them, for test_groups_under_fire."""

from __future__ import annotations

import random
import time
from typing import Any

from tests.actors import enter

__all__ = ["send", "work"]


def send(databases: dict[str, dict[str, Any]], groups: list[str], messages: int, seed: int) -> None:
    """Send numbered messages to this process's groups; some transactions sleep, some roll back."""
    enter(databases)
    from django.db import transaction

    from django_pgqueue import queue

    chance = random.Random(seed)
    todo = dict.fromkeys(groups, 1)
    while todo:
        chosen = chance.sample(sorted(todo), min(len(todo), chance.randint(1, 5)))
        fails = chance.random() < 0.05
        with transaction.atomic():
            for group in chosen:
                queue("orders").send({"n": todo[group]}, group=group)
            if chance.random() < 0.1:
                time.sleep(chance.random() * 0.2)
            transaction.set_rollback(fails)
        if not fails:
            todo = {g: n + (g in chosen) for g, n in todo.items() if n + (g in chosen) <= messages}


def work(databases: dict[str, dict[str, Any]], seed: int) -> None:
    """Consume until killed: record each held message, then its effect together with its ack."""
    enter(databases)
    from django.db import connection, transaction

    from django_pgqueue import queue

    chance = random.Random(seed)
    orders = queue("orders")
    cursor = connection.cursor()
    while True:
        messages = orders.read_with_poll(
            qty=chance.randint(1, 8), vt=3, max_poll_seconds=1, poll_interval_ms=20
        )
        for message in messages:
            cursor.execute(
                "INSERT INTO hand (grp, began) VALUES (%s, clock_timestamp()) RETURNING seq",
                [message.group_key],
            )
            [hand] = cursor.fetchone()
            fate = chance.random()
            if fate < 0.05:
                continue  # the message's lease expires
            # Recorded before the ack, since the next message could start before a later record.
            cursor.execute("UPDATE hand SET ended = clock_timestamp() WHERE seq = %s", [hand])
            if fate < 0.2:
                queue("orders").retry({message.receipt: chance.random() / 10})
            else:
                with transaction.atomic():
                    if orders.archive(message.receipt) == [message.id]:
                        cursor.execute(
                            "INSERT INTO effect (grp, n) VALUES (%s, %s)",
                            [message.group_key, message.body["n"]],
                        )
