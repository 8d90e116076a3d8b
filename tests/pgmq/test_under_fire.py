"""Clients in Python and JavaScript and our consumers work on one queue, and are killed.

PGMQ_KILLS=20 makes it longer: kills of each kind of process.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pgmq import PGMQueue

from django_pgqueue.management.jobs import url_of
from django_pgqueue.models import ArchivedMessage, BoundQueue, LiveMessage, Message, queue
from tests.app.models import Order
from tests.pgmq.conftest import Call, environment
from tests.pgmq.worker import LEASE
from tests.waiting import until
from tests.worker.test_processes import url
from tests.working import history
from tests.working.effects import numbers_by_group
from tests.working.running import ROOT

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.acceptance,
    pytest.mark.slow,
]

GROUPS = 15
KILLS = int(os.environ.get("PGMQ_KILLS", "2"))
KINDS = ["django", "python", "js"]


class Worker:
    """A process that works on the queue until it is killed, and may be started again."""

    def __init__(self, kind: str, folder: Path, scripts: Path) -> None:
        self.kind = kind
        self._folder = folder
        self._command = {
            "django": [sys.executable, "-m", "django", "runconsumer", "lease", "--workers", "2"],
            "python": [sys.executable, "-m", "tests.pgmq.worker", url_of("default"), "lease"],
            "js": ["node", str(scripts / "worker.mjs"), "lease"],
        }[kind]
        self._environment = {
            **environment(),
            "DATABASE_URL": url(),
            "DJANGO_SETTINGS_MODULE": "tests.working.settings",
            "WORKING_HISTORY": str(folder),
        }
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, cwd=ROOT, env=self._environment)
        self.pid = self._process.pid

    @property
    def has_worked(self) -> bool:
        assert self._process.poll() is None, f"the {self.kind} worker ended by itself"
        return '"effect"' in self._history

    @property
    def is_late(self) -> bool:
        """Whether it has messages that it archives later."""
        return '"late"' in self._history.rstrip("\n").rpartition("\n")[2]

    @property
    def _history(self) -> str:
        path = self._folder / f"{self.pid}.jsonl"
        return path.read_text() if path.exists() else ""

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def lease(committed_pgmq: Call) -> BoundQueue:
    Message.objects.create_queue("lease", visibility_timeout=LEASE, max_deliveries=100)
    return queue("lease")


@pytest.fixture
def scripts(pgmq_js: Path) -> Path:
    shutil.copy(Path(__file__).parent / "worker.mjs", pgmq_js)
    return pgmq_js


@pytest.fixture
def workers(lease: BoundQueue, scripts: Path, tmp_path: Path) -> Iterator[list[Worker]]:
    started = [Worker(kind, tmp_path, scripts) for kind in KINDS * 2]
    yield started
    for each in started:
        each.kill()


@pytest.fixture
def send(lease: BoundQueue, scripts: Path, grouped: bool) -> Iterator[Callable[[], list[str]]]:
    """Send a message to each group, or a batch without groups, by all kinds of clients in turn."""
    client = PGMQueue(conn_string=url_of("default"), init_extension=False, pool_size=1)
    rounds = 0

    def send_round() -> list[str]:
        nonlocal rounds
        rounds += 1
        kind = KINDS[rounds % 3]
        if grouped:
            bodies: list[dict[str, Any]] = [
                {"op": f"{group}-{rounds}", "group": group} for group in range(GROUPS)
            ]
            if kind == "django":
                lease.send_batch(bodies, group=[str(group) for group in range(GROUPS)])
            else:  # pgmq-js sends no headers
                headers = [{"x-pgmq-group": str(group)} for group in range(GROUPS)]
                client.send_batch("lease", bodies, headers)
        else:
            bodies = [{"op": f"{rounds}-{n}"} for n in range(40)]
            if kind == "django":
                lease.send_batch(bodies)
            elif kind == "python":
                client.send_batch("lease", bodies)
            else:
                command = ["node", scripts / "worker.mjs", "lease", json.dumps(bodies)]
                subprocess.run(command, check=True, env=environment())
        return [body["op"] for body in bodies]

    yield send_round
    client.close()


@pytest.mark.parametrize("grouped", [False, True], ids=["alone", "groups"])
def test_nothing_is_lost_or_archived_twice_whichever_client_dies(send, workers, tmp_path, grouped):
    draw = random.Random(7)
    sent: list[str] = []
    killed: dict[int, str] = {}
    for _ in range(KILLS):
        for victim in draw.sample(workers[:3], 3):
            deadline = time.monotonic() + 60
            while not victim.has_worked:
                assert time.monotonic() < deadline, f"the {victim.kind} worker had no message"
                sent += send()
                time.sleep(0.1)
            sent += send()
            time.sleep(draw.uniform(0, 0.1))
            victim.kill()
            killed[victim.pid] = victim.kind
            victim.start()
    until(lambda: not LiveMessage.objects.exists(), 60)
    until(lambda: not any(worker.is_late for worker in workers), 30)

    events = history.read(tmp_path)
    archived = list(ArchivedMessage.objects.values_list("pk", "state"))
    assert len({pk for pk, _ in archived}) == len(archived) == len(sent)
    assert {state for _, state in archived} == {"COMPLETED"}
    assert {order.number for order in Order.objects.all()} == set(sent), "lost"
    late = {event["op"] for event in events if event["event"] == "late"}
    expect_one_archiver(events, late)
    expect_repetitions_after_kills_alone(events, late, killed)
    if grouped:
        expect_the_order_of_the_sends()


def expect_one_archiver(events: list[dict[str, Any]], late: set[str]) -> None:
    acked: set[str] = set()
    gone: set[str] = set()
    twice = []
    for event in events:
        op = event.get("op")
        if event["event"] == "archives" and op in acked:
            gone.add(op)
        elif event["event"] == "acked":
            # A consumer whose delivery a late client archives counts it as completed by itself.
            if op in gone or (op in acked and op not in late):
                twice.append(op)
            acked.add(op)
    assert twice == []


def expect_repetitions_after_kills_alone(
    events: list[dict[str, Any]], late: set[str], killed: dict[int, str]
) -> None:
    pids: dict[str, list[int]] = defaultdict(list)
    for event in events:
        if event["event"] == "effect" and event["op"] not in late:
            pids[event["op"]].append(event["pid"])
    assert {op: each for op, each in pids.items() if not killed.keys() >= set(each[:-1])} == {}


def expect_the_order_of_the_sends() -> None:
    """The effects of each group are in order, ignoring repetitions after a kill."""
    made = numbers_by_group()
    assert {group: sorted(numbers) for group, numbers in made.items()} == made
    assert len(made) == GROUPS
