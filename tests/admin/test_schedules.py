"""The schedules' page: creating, changing, pausing."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_pgqueue.models import BoundQueue, Queue, Schedule
from tests.admin.conftest import page

FORM = {
    "name": "nightly",
    "cron": "0 4 * * *",
    "interval": "",
    "time_zone": "Europe/Berlin",
    "missed": "once",
    "body": '{"report": "sales"}',
    "priority": "0",
}


@pytest.fixture
def planner(staff: Callable[..., Client]) -> Client:
    return staff(*(f"{verb}_schedule" for verb in ("add", "view", "change", "delete")))


def posted(client: Client, view: str, *args: object, **data: object) -> str:
    address = reverse(f"admin:django_pgqueue_schedule_{view}", args=args)
    response = client.post(address, {**FORM, **data}, follow=True)
    assert response.status_code == 200
    return response.content.decode()


def test_a_schedule_is_made_and_changed(planner: Client, orders: BoundQueue) -> None:
    orders_pk = Queue.objects.get(name="orders").pk

    posted(planner, "add", queue=orders_pk)

    made = Schedule.objects.get()
    assert (made.cron, made.body) == ("0 4 * * *", {"report": "sales"})
    assert made.next_run_at > dt.datetime.now(dt.timezone.utc)
    assert "0 4 * * * Europe/Berlin" in page(planner, "schedule")

    posted(planner, "change", made.pk, queue=orders_pk, cron="", interval="00:10:00")

    made.refresh_from_db()
    assert (made.cron, made.interval) == ("", dt.timedelta(minutes=10))
    assert "every 0:10:00" in page(planner, "schedule")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"cron": "nonsense"}, "is no cron expression"),
        ({"time_zone": "Mars/Olympus"}, "there is no time zone"),
        ({"interval": "00:10:00"}, "either a cron expression or an interval"),
        ({"priority": "101"}, "less than or equal to 100"),
    ],
)
def test_what_makes_no_sense_is_said_in_the_form(
    planner: Client, orders: BoundQueue, data: dict[str, str], message: str
) -> None:
    text = posted(planner, "add", queue=Queue.objects.get(name="orders").pk, **data)

    assert message in text
    assert not Schedule.objects.exists()


def test_schedules_are_paused_and_go_on(planner: Client, orders: BoundQueue) -> None:
    made = Schedule.objects.create(
        name="often", queue=Queue.objects.get(name="orders"), interval=dt.timedelta(minutes=1)
    )
    address = reverse("admin:django_pgqueue_schedule_changelist")
    before = made.next_run_at

    for action, paused in (("pause", True), ("go_on", False)):
        text = planner.post(
            address, {"action": action, "_selected_action": [made.pk]}, follow=True
        ).content.decode()
        made.refresh_from_db()
        assert made.paused is paused
        assert "1 schedule." in text
    assert made.next_run_at > before


def test_a_schedule_that_ended_is_shown_and_goes_on_as_the_admins(
    planner: Client, orders: BoundQueue
) -> None:
    Schedule.objects.declare("nightly", "orders", using="default", interval=dt.timedelta(days=1))
    [ended] = Schedule.objects.end(["nightly"], using="default")
    text = page(planner, "schedule")
    assert "Ended at" in text

    planner.post(
        reverse("admin:django_pgqueue_schedule_changelist"),
        {"action": "go_on", "_selected_action": [ended.pk]},
    )

    ended.refresh_from_db()
    assert (ended.ended_at, ended.declared) == (None, None)
    assert ended.next_run_at > dt.datetime.now(dt.timezone.utc)


def test_schedules_of_other_queues_are_out_of_sight(
    planner: Client, orders: BoundQueue, settings: Any
) -> None:
    orders_pk = Queue.objects.get(name="orders").pk
    posted(planner, "add", queue=orders_pk)
    settings.PGQUEUE = {"QUEUES_FOR": "tests.admin.access.ours"}

    assert "nightly" not in page(planner, "schedule")

    posted(planner, "add", queue=orders_pk, name="second")

    assert not Schedule.objects.filter(name="second").exists()
