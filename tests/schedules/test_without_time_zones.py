"""Schedules under USE_TZ = False: rows return naive times."""

from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from django_pgqueue import schedules
from django_pgqueue.management.diagnosis import Finding, Limits, examine
from django_pgqueue.models import Message, Queue, Schedule
from django_pgqueue.testing import travel
from django_pgqueue.worker import ticker
from tests.admin.conftest import page
from tests.app.models import Order
from tests.conftest import run_sql
from tests.schedules.clocks import send_due
from tests.waiting import until
from tests.worker.test_processes import url
from tests.working.running import Command, runconsumer

DAY = dt.timedelta(days=1)


@pytest.fixture(autouse=True)
def naive(settings: Any) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"


def made(**values: Any) -> Schedule:
    return Schedule.objects.create(
        name="nightly", queue=Queue.objects.get(name="orders"), time_zone="Europe/Berlin", **values
    )


def set_tick(moment: str) -> None:
    run_sql("UPDATE pgqueue_schedule SET next_run_at = %s::timestamptz", [moment])


def due(moment: str) -> int:
    return send_due(dt.datetime.fromisoformat(moment))


def sent() -> list[str]:
    return [m.headers["x-schedule"]["at"] for m in Message.objects.order_by("pk")]


def found() -> list[Finding]:
    return [each for each in examine("default", Limits()) if each.check in ("clock", "schedules")]


@pytest.mark.parametrize("times", [{"cron": "0 4 * * *"}, {"interval": DAY}], ids=str)
def test_a_tick_is_sent_once_and_the_next_one_follows(orders, times):
    made(**times)
    set_tick("2026-01-01T03:00:00+00:00")

    assert Schedule.objects.send_due(using="default") == 1
    assert Schedule.objects.send_due(using="default") == 0

    assert sent() == ["2026-01-01T03:00:00+00:00"]
    wait = Schedule.objects.seconds_until_next(using="default")
    assert wait is not None
    assert 0 < wait <= DAY.total_seconds()
    schedule = Schedule.objects.get()
    assert schedule.last_run_at == dt.datetime(2026, 1, 1, 4)
    assert schedule.next_run_at.tzinfo is None


def test_ticks_of_the_hour_that_is_repeated_are_sent_once_each(orders):
    made(interval=dt.timedelta(minutes=20), missed="all")
    set_tick("2026-10-25T00:40:00+00:00")

    for moment in ("2026-10-25T00:50:00+00:00", "2026-10-25T01:10:00+00:00"):
        due(moment)
    due("2026-10-25T01:45:00+00:00")

    assert [at[11:16] for at in sent()] == ["00:40", "01:00", "01:20", "01:40"]


def test_saving_in_the_hour_that_is_repeated_leaves_the_next_tick(orders):
    made(interval=DAY)
    set_tick("2026-10-25T00:30:00+00:00")

    schedule = Schedule.objects.get()
    schedule.body = {"report": "stock"}
    schedule.save()

    assert run_sql("SELECT next_run_at = '2026-10-25T00:30:00Z' FROM pgqueue_schedule") == [(True,)]
    assert Schedule.objects.get().body == {"report": "stock"}


def test_a_saved_schedule_has_moments_as_the_rows_do(orders):
    schedule = made(cron="0 4 * * *")

    assert schedule.next_run_at == Schedule.objects.get().next_run_at


def test_the_ticker_waits_for_the_next_tick(orders, monkeypatch):
    monkeypatch.setattr(schedules, "_declared", {})
    made(cron="0 4 * * *")
    set_tick("2026-01-01T03:00:00+00:00")

    assert ticker.Ticker({"default": []})._look("default") == ticker._LONGEST
    assert Message.objects.count() == 1


def test_the_doctor_looks_at_clock_and_schedules(orders):
    made(cron="0 4 * * *")
    assert [each.is_problem for each in found()] == [False, False]

    set_tick("2026-01-01T03:00:00+00:00")

    assert "schedule nightly was due" in found()[1].text


def test_travel_sends_due_schedules(orders):
    made(interval=DAY)

    assert travel(DAY) == 1


def test_the_admin_shows_and_pauses_schedules(orders, admin_client):
    made(cron="0 4 * * *")

    assert "0 4 * * * Europe/Berlin" in page(admin_client, "schedule")


@pytest.mark.acceptance
def test_a_consumer_process_sends_due_schedules(committed):
    Message.objects.create_queue("patient")
    Schedule.objects.create(
        name="often",
        queue=Queue.objects.get(name="patient"),
        interval=dt.timedelta(seconds=1),
        body={"op": 1},
    )

    with runconsumer(url(), "patient", WORKING_USE_TZ="no") as consumer:
        until(lambda: Order.objects.count() >= 2)
        consumer.terminate()
        assert consumer.wait() == 0
    with Command(url(), "pgqueue_doctor", WORKING_USE_TZ="no") as doctor:
        doctor.wait()
        output = doctor.output

    assert "Traceback" not in output
    assert "schedules: 1; none is late" in output
