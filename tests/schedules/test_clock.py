"""A server's clock that ran ahead: schedules continue after its correction."""

from __future__ import annotations

import datetime as dt
import logging
from typing import Any

import pytest

from django_pgqueue import schedules
from django_pgqueue.engine import cron
from django_pgqueue.models import Message, Queue, Schedule
from django_pgqueue.worker import ticker
from tests.schedules.clocks import DAY, NOON, UTC, found, mend
from tests.schedules.clocks import send_due as due

MINUTE = dt.timedelta(minutes=1)
HOUR = dt.timedelta(hours=1)
YEAR = 365 * DAY

TIMES = pytest.mark.parametrize("times", [{"cron": "0 12 * * *"}, {"interval": DAY}], ids=str)


def made(tick: dt.datetime = NOON, **values: Any) -> Schedule:
    found = Schedule.objects.create(name="daily", queue=Queue.objects.get(), **values)
    Schedule.objects.update(next_run_at=tick)
    return found


def sent() -> list[str]:
    return [m.headers["x-schedule"]["at"][:10] for m in Message.objects.order_by("pk")]


@TIMES
def test_a_schedule_goes_on_after_a_clock_that_was_a_year_ahead(orders, times):
    made(**times)
    assert due(NOON + YEAR) == 1

    assert mend(NOON + HOUR) == ["daily"]
    assert mend(NOON + HOUR) == []

    assert due(NOON + HOUR) == 0
    assert due(NOON + DAY) == 1
    assert sent() == ["2026-01-01", "2026-01-02"]


@TIMES
def test_a_tick_that_was_sent_too_early_is_not_sent_again(orders, times):
    made(**times)
    due(NOON + YEAR)

    assert mend(NOON - HOUR) == ["daily"]

    assert due(NOON) == 0
    assert due(NOON + DAY) == 1
    assert sent() == ["2026-01-01", "2026-01-02"]


def test_ticks_that_were_sent_a_year_ahead_do_not_count(orders):
    made(interval=MINUTE)
    for n in range(3):
        due(NOON + YEAR + n * MINUTE)

    assert mend(NOON + 3.5 * MINUTE) == ["daily"]

    assert Schedule.objects.get().next_run_at == NOON + 4 * MINUTE


@pytest.mark.parametrize("times", [{"cron": "0 */6 * * *"}, {"interval": 6 * HOUR}], ids=str)
def test_a_clock_that_is_set_back_by_a_day_sends_no_tick_twice(orders, times):
    made(missed="all", **times)
    assert due(NOON + DAY) == 5

    assert mend(NOON) == []

    assert due(NOON + DAY) == 0


@TIMES
def test_a_schedule_that_is_on_time_is_left_alone(orders, times):
    made(**times)

    assert mend(NOON - 23 * HOUR) == []
    assert mend(NOON) == []
    assert mend(NOON + YEAR) == []
    assert Schedule.objects.get().next_run_at == NOON


def test_a_process_without_cronsim_mends_intervals_only(orders, monkeypatch):
    made(tick=NOON + YEAR, cron="0 12 * * *")
    monkeypatch.setattr(cron, "cronsim", None)

    assert mend(NOON) == []


def test_the_doctor_finds_a_schedule_far_ahead_and_the_ticker_mends_it(orders, caplog, monkeypatch):
    monkeypatch.setattr(schedules, "_declared", {})
    made(tick=dt.datetime.now(UTC) + YEAR, interval=DAY)

    [finding] = found()
    assert finding.text.startswith("schedule daily is due in 364 d")
    assert "but its times say" in finding.text
    assert "consumer" in finding.action

    with caplog.at_level(logging.WARNING, "django_pgqueue"):
        ticker.Ticker({"default": []})._look("default")

    assert "the next tick of schedule daily was" in caplog.text
    assert not found()[0].is_problem


def test_the_doctor_finds_a_schedule_far_ahead_without_time_zones(orders, settings):
    settings.USE_TZ = False
    made(tick=dt.datetime.now(UTC) + YEAR, interval=DAY)
    Schedule.objects.update(last_run_at=dt.datetime.now(UTC) - DAY)

    assert found()[0].is_problem
