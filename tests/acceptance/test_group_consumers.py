"""FIFO groups while consumers fail, retry and are killed: in order, and one message at a time.

Four processes of four threads work on 200 groups. Each handler records its start and its effect.
Some handlers raise before or after the effect, and processes are killed with SIGKILL and restarted
until every message is done.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message, queue
from tests.app.models import Order
from tests.waiting import until
from tests.worker.test_processes import url
from tests.working import history
from tests.working.effects import numbers_by_group
from tests.working.running import Command, runconsumer

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.acceptance,
    pytest.mark.slow,
]

PROCESSES, THREADS = 4, 4
GROUPS = 200
LENGTH = int(os.environ.get("FIRE_LENGTH", "6"))
KILLS = int(os.environ.get("FIRE_KILLS", "4"))
#: The visibility timeout in seconds: short for a killed process, and long for a handler.
LEASE = 6


@pytest.fixture
def draw() -> random.Random:
    seed = int(os.environ.get("FIRE_SEED") or random.SystemRandom().randrange(10**6))
    print(f"FIRE_SEED={seed}")
    return random.Random(seed)


@pytest.fixture
def lease(committed: None) -> BoundQueue:
    Message.objects.create_queue("lease", visibility_timeout=LEASE)
    return queue("lease")


@pytest.fixture
def workers(lease: BoundQueue, tmp_path: Path) -> Iterator[list[Command]]:
    environment = {"WORKING_HISTORY": tmp_path}
    started = [
        runconsumer(url(), "lease", "--workers", THREADS, **environment) for _ in range(PROCESSES)
    ]
    yield started
    for number, each in enumerate(started):
        print(f"process {number}:\n{each.output[-1000:]}")
        each.__exit__(None, None, None)


def send_round(lease: BoundQueue, number: int, draw: random.Random) -> None:
    """Send one more message to each group; some handlers raise before or after their effect."""
    groups = draw.sample(range(GROUPS), GROUPS)
    bodies = [{"op": f"{group}-{number}", **fault(draw)} for group in groups]
    lease.send_batch(bodies, group=[f"group {group}" for group in groups])


def fault(draw: random.Random) -> dict[str, Any]:
    if draw.random() > 0.06:
        return {}
    return {draw.choice(["before", "after"]): "raise", "times": draw.choice([1, 2])}


def test_every_group_keeps_its_order_whichever_handler_fails_or_dies(
    lease, workers, tmp_path, draw
):
    killed: dict[int, float] = {}
    for number in range(LENGTH // 2):
        send_round(lease, number, draw)
    until(lambda: effects(tmp_path), 40)

    for number in range(LENGTH // 2, LENGTH):
        send_round(lease, number, draw)
    for _ in range(KILLS):
        victim = draw.choice(workers)
        until(partial(busy, tmp_path, victim.pid), 40)
        time.sleep(draw.uniform(0, 0.2))
        killed[victim.pid] = time.monotonic()
        victim.kill()
        victim.start()
    until(lambda: not LiveMessage.objects.exists(), 90)

    events = history.read(tmp_path)
    sent = [f"{group}-{number}" for group in range(GROUPS) for number in range(LENGTH)]
    assert ArchivedMessage.objects.filter(state="COMPLETED").count() == len(sent)
    assert {order.number for order in Order.objects.all()} == set(sent), "lost"
    assert killed.keys() & {event["pid"] for event in events}, "no consumer at work was killed"
    expect_one_at_a_time(events, killed)
    expect_the_order_of_the_sends()


def effects(directory: Path) -> int:
    return sum(event["event"] == "effect" for event in history.read(directory))


def busy(directory: Path, pid: int) -> bool:
    """Whether a process has handled a message, or no message is left."""
    path = directory / f"{pid}.jsonl"
    return (path.exists() and '"effect"' in path.read_text()) or not LiveMessage.objects.exists()


def expect_one_at_a_time(events: list[dict[str, Any]], killed: dict[int, float]) -> None:
    """In each group, a handler starts only after the previous one ended or was killed."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["event"] in ("deliver", "effect", "fault"):
            groups[event["op"].split("-")[0]].append(event)
    assert len(groups) == GROUPS
    for group, story in groups.items():
        current: dict[str, Any] | None = None
        for event in story:
            if event["event"] == "deliver":
                if current is not None:
                    assert killed.get(current["pid"], event["at"]) < event["at"], (
                        f"two at once in group {group}: {current} and {event}"
                    )
                current = event
            elif current is not None:
                assert (event["pid"], event["op"]) == (current["pid"], current["op"]), (
                    f"two at once in group {group}: {current} and {event}"
                )
                current = None
            else:
                # This handler raised after its effect.
                assert event["event"] == "fault"


def expect_the_order_of_the_sends() -> None:
    """The effects of each group are in order, ignoring repetitions after a failure."""
    assert numbers_by_group() == {str(group): list(range(LENGTH)) for group in range(GROUPS)}
