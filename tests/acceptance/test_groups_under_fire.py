"""Groups with many processes, kills, retries and expiring leases.

GROUPS_UNDER_FIRE="workers,groups,messages" makes it longer: the full size is 16,200,30.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tests.acceptance import group_players
from tests.conftest import run_sql

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

WORKERS, GROUPS, MESSAGES = map(int, os.environ.get("GROUPS_UNDER_FIRE", "4,40,8").split(","))
SENDERS = 4
SECONDS = 600


@pytest.fixture
def notes(committed: None) -> Iterator[None]:
    run_sql("CREATE TABLE effect (seq bigserial, grp text, n int)")
    run_sql(
        "CREATE TABLE hand (seq bigserial PRIMARY KEY, grp text,"
        " began timestamptz, ended timestamptz)"
    )
    yield
    run_sql("DROP TABLE effect, hand")


def test_effects_come_in_the_order_of_sending_and_never_two_at_once(
    committed_orders, notes, reachable, sql
):
    spawn = multiprocessing.get_context("spawn")
    chance = random.Random(7)

    def hire(number: int) -> Any:
        worker = spawn.Process(target=group_players.work, args=(reachable, number), daemon=True)
        worker.start()
        return worker

    senders = [
        spawn.Process(
            target=group_players.send,
            args=(reachable, [f"g{n}" for n in range(GROUPS) if n % SENDERS == s], MESSAGES, s),
        )
        for s in range(SENDERS)
    ]
    workers = [hire(number) for number in range(WORKERS)]
    for sender in senders:
        sender.start()

    killed = 0
    deadline = time.monotonic() + SECONDS
    try:
        while sql("SELECT count(*) FROM effect") != [(GROUPS * MESSAGES,)]:
            assert time.monotonic() < deadline, committed_orders.metrics()
            time.sleep(0.5)
            if killed < WORKERS * 2:
                place = chance.randrange(WORKERS)
                workers[place].kill()
                workers[place].join()
                killed += 1
                workers[place] = hire(1000 + killed)
    finally:
        for process in workers + senders:
            process.kill()
            process.join()

    assert [sender.exitcode for sender in senders if sender.exitcode not in (0, -9)] == []
    wrong = sql(
        "SELECT grp FROM effect GROUP BY grp HAVING array_agg(n ORDER BY seq)"
        " <> ARRAY(SELECT generate_series(1, %s))",
        [MESSAGES],
    )
    assert wrong == []
    at_once = sql(
        "SELECT a.grp FROM hand a JOIN hand b USING (grp)"
        " WHERE a.seq < b.seq AND a.began < b.ended AND b.began < a.ended"
    )
    assert at_once == []
    assert killed > 0
