"""Ticks of schedules, for which many sessions race."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from unittest import mock

import pytest
from django.db import connection

from django_pgqueue.models import Message, Queue, Schedule
from tests.promises.full_speed import SECONDS
from tests.promises.pages import promise

pytestmark = [pytest.mark.acceptance, pytest.mark.slow]

START = dt.datetime(2026, 2, 10, tzinfo=dt.timezone.utc)
TICKS = int(25 * SECONDS)


@promise(
    "A tick of a schedule sends one message, regardless of the number of consumers and of killed "
    "ones."
)
@pytest.mark.parametrize("missed", ["all", "once"])
def test_eight_sessions_send_each_tick_once(committed_orders, missed):
    orders = Queue.objects.get(name="orders")
    names = [f"schedule {number}" for number in range(3)]
    for name in names:
        Schedule.objects.create(
            name=name, queue=orders, interval=dt.timedelta(seconds=60), missed=missed
        )
    Schedule.objects.update(next_run_at=START)
    ends = START + dt.timedelta(minutes=TICKS)
    # Each session has a clock of its own, which may be behind: as fast as it can send.
    now = {"at": START}

    def race(number: int) -> None:
        while now["at"] < ends:
            if not Schedule.objects.send_due(using="default"):
                now["at"] += dt.timedelta(seconds=45)
        connection.close()

    with (
        mock.patch("django_pgqueue.queues.schedule._now", side_effect=lambda _: now["at"]),
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(race, range(8)))

    sent = Counter(
        (headers["x-schedule"]["name"], headers["x-schedule"]["at"])
        for headers in Message.objects.values_list("headers", flat=True)
    )
    assert {name for name, _ in sent} == set(names)
    assert set(sent.values()) == {1}
    if missed == "all":
        assert len(sent) >= 3 * (TICKS - 2)


ELSEWHERE = {
    "This message is delivered at least once, as above.": [
        "tests/promises/test_delivered.py::test_every_message_is_delivered_until_it_is_settled"
    ],
}
