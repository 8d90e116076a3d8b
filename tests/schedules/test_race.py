"""Ticks in ten time zones: fifty consumers race for each tick, and are killed at random.

Each tick must be sent once: the messages are compared with the library's own iteration. The
consumers are sessions in several processes. Processes are killed, single sessions are terminated by
the server, and each time the clock is set back. All share the clock, which advances as fast as they
work. SCHEDULE_PROCESSES, SCHEDULE_SESSIONS, SCHEDULE_KILLS and SCHEDULE_DAYS in the environment
make it longer.
"""

from __future__ import annotations

import datetime as dt
import os
import random
import signal
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from itertools import takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from django_pgqueue.models import BoundQueue, Message, Queue, Schedule
from tests.actors import Actor
from tests.conftest import run_sql
from tests.schedules.players import tick_until
from tests.waiting import until

PROCESSES = int(os.environ.get("SCHEDULE_PROCESSES", "5"))
SESSIONS = int(os.environ.get("SCHEDULE_SESSIONS", "10"))
KILLS = int(os.environ.get("SCHEDULE_KILLS", "6"))
#: The application name of the racing sessions.
RACER = "pgqueue-test-racer"

UTC = dt.timezone.utc
# With the days on which most of the zones change their clocks.
START = dt.datetime(2026, 2, 10, tzinfo=UTC)
END = START + dt.timedelta(days=int(os.environ.get("SCHEDULE_DAYS", "60")))
STEP = dt.timedelta(days=2)

SCHEDULES = {
    "Europe/Berlin": "30 2 * * *",
    "America/New_York": "30 1,2 * * *",
    "America/Sao_Paulo": "0 0 * * *",
    "America/St_Johns": "15 1 * * *",
    "Australia/Lord_Howe": "45 1 * * *",
    "Africa/Casablanca": "30 2 * * *",
    "Asia/Kathmandu": "0 */6 * * *",
    "Asia/Tehran": "0 0 * * 5",
    "Pacific/Chatham": "30 2 1,15 * *",
    "UTC": "0 4 * * *",
}


class Player:
    """A process with several sessions that send what is due."""

    def __init__(self, reachable: dict[str, dict[str, Any]]) -> None:
        default = reachable["default"]
        options = {**default.get("OPTIONS", {}), "application_name": RACER}
        self.actor = Actor({"default": {**default, "OPTIONS": options}})
        self.pid: Future[int] = self.actor.start(os.getpid)
        self.sent = self.actor.start(tick_until, END, STEP, SESSIONS)

    def kill(self) -> None:
        os.kill(self.pid.result(60), signal.SIGKILL)
        with pytest.raises(BrokenProcessPool):
            self.sent.result(60)
        self.actor.leave()


@pytest.fixture
def clock(committed_orders: BoundQueue) -> Any:
    run_sql("CREATE TABLE schedule_clock AS SELECT %s::timestamptz AS now", [START])
    yield
    run_sql("DROP TABLE schedule_clock")


@pytest.mark.slow
def test_each_tick_is_sent_once(clock, reachable):
    orders = Queue.objects.get(name="orders")
    expected: dict[str, list[str]] = {}
    for zone, expression in SCHEDULES.items():
        ticks = (t.astimezone(UTC) for t in CronSim(expression, START.astimezone(ZoneInfo(zone))))
        expected[zone] = [t.isoformat() for t in takewhile(lambda t: t <= END, ticks)]
        made = Schedule.objects.create(
            name=zone, queue=orders, cron=expression, time_zone=zone, missed="all"
        )
        Schedule.objects.filter(pk=made.pk).update(next_run_at=made.following(START, START))

    players = [Player(reachable) for _ in range(PROCESSES)]
    draw = random.Random(7)
    span = END - START
    killed = 0
    try:
        for number in range(1, KILLS + 1):
            # Spread over the time.
            mark = START + span * number / (KILLS + 2)
            until(lambda mark=mark: now() >= mark, seconds=300)
            run_sql("UPDATE schedule_clock SET now = now - interval '36 hours'")
            if number % 2:
                end_sessions(draw.randrange(SESSIONS))
                continue
            victim = draw.choice(players)
            if victim.sent.done():
                break
            victim.kill()
            killed += 1
            players[players.index(victim)] = Player(reachable)
        shares = [player.sent.result(300) for player in players]
    finally:
        for player in players:
            player.actor.leave()

    found: dict[str, list[str]] = {zone: [] for zone in SCHEDULES}
    for headers in Message.objects.order_by("pk").values_list("headers", flat=True):
        found[headers["x-schedule"]["name"]].append(headers["x-schedule"]["at"])
    assert found == expected
    assert sum(map(len, found.values())) > 3500 / 365 * (END - START).days
    assert killed > KILLS // 4
    assert sum(share > 0 for share in shares) > 1


def end_sessions(most: int) -> None:
    run_sql(
        "SELECT count(pg_terminate_backend(pid)) FROM (SELECT pid FROM pg_stat_activity "
        "WHERE application_name = %s ORDER BY random() LIMIT %s) s",
        [RACER, most + 1],
    )


def now() -> dt.datetime:
    moment: dt.datetime = run_sql("SELECT now FROM schedule_clock")[0][0]
    return moment
