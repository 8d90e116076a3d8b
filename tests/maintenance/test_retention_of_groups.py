"""FIFO groups stay in order and lose no message while partitions are dropped."""

from __future__ import annotations

import multiprocessing
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_pgqueue.models import Message, Queue
from tests.acceptance import group_players
from tests.acceptance.test_groups_under_fire import notes
from tests.maintenance import retention_players

__all__ = ["notes"]

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

GROUPS, MESSAGES, SECONDS = 20, 10, 120


def test_groups_keep_their_order_while_partitions_are_dropped(committed, notes, reachable, sql):
    queue = Message.objects.create_queue("orders", partition_interval=1, retention=1)
    at_first = f"to_regclass('{queue.tables['message']}_p' || %s)"
    [(first,)] = sql(
        "SELECT substring(relname FROM '_p(\\d+)$') FROM pg_class "
        "WHERE relispartition AND relname ~ %s ORDER BY relname LIMIT 1",
        [f"^{queue.tables['message']}_p"],
    )
    spawn = multiprocessing.get_context("spawn")
    chance = random.Random(7)

    def hire(work: Callable[..., None], *args: Any) -> Any:
        process = spawn.Process(target=work, args=(reachable, *args), daemon=True)
        process.start()
        return process

    names = [f"g{number}" for number in range(GROUPS)]
    senders = [hire(group_players.send, names[s::2], MESSAGES, s) for s in range(2)]
    workers = [hire(group_players.work, number) for number in range(3)]
    maintainers = [hire(retention_players.maintain) for _ in range(2)]
    deadline = time.monotonic() + SECONDS
    killed = 0
    try:
        while sql("SELECT count(*) FROM effect") != [(GROUPS * MESSAGES,)]:
            assert time.monotonic() < deadline, Message.objects.metrics("orders")
            time.sleep(0.5)
            if killed < 6:
                place = chance.randrange(2)
                maintainers[place].kill()
                maintainers[place].join()
                maintainers[place] = hire(retention_players.maintain)
                killed += 1
        while sql(f"SELECT {at_first} IS NULL", [first]) != [(True,)]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        for process in senders + workers + maintainers:
            process.kill()
            process.join()

    wrong = sql(
        "SELECT grp FROM effect GROUP BY grp HAVING array_agg(n ORDER BY seq)"
        " <> ARRAY(SELECT generate_series(1, %s))",
        [MESSAGES],
    )
    assert wrong == []
    assert killed
    assert Message.objects.metrics("orders").length == 0
    assert Queue.objects.get().pk == queue.pk
