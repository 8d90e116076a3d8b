"""The schedules' page: creating, changing, pausing, running now."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from django_pgqueue.errors import QueueNotFound
from django_pgqueue.models import Message, Queue, Schedule
from tests.admin.conftest import page, plain
from tests.schedules.clocks import send_due

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


def test_a_button_names_its_schedule(admin_client, orders):
    Schedule.objects.create(
        name="nightly", queue=Queue.objects.get(), interval=dt.timedelta(days=1)
    )

    text = page(admin_client, "schedule")

    assert 'aria-label="Run now: nightly"' in text
    assert 'aria-label="Pause: nightly"' in text


def test_a_schedule_is_made_and_changed(planner, orders):
    orders_pk = Queue.objects.get(name="orders").pk

    posted(planner, "add", queue=orders_pk)

    made = Schedule.objects.get()
    assert (made.cron, made.body) == ("0 4 * * *", {"report": "sales"})
    assert made.next_run_at > dt.datetime.now(dt.timezone.utc)
    assert "0 4 * * * Europe/Berlin" in page(planner, "schedule")

    posted(planner, "change", made.pk, queue=orders_pk, cron="", interval="10min")

    made.refresh_from_db()
    assert (made.cron, made.interval) == ("", dt.timedelta(minutes=10))
    assert "every 10 min" in page(planner, "schedule")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"cron": "nonsense"}, "is not a cron expression"),
        ({"time_zone": "Mars/Olympus"}, "there is no time zone"),
        ({"interval": "10min"}, "either a cron expression or an interval"),
        ({"priority": "101"}, "less than or equal to 100"),
        ({"body": r'"\u0000"'}, "Correct the JSON"),
    ],
)
def test_what_makes_no_sense_is_said_in_the_form(planner, orders, data, message):
    text = posted(planner, "add", queue=Queue.objects.get(name="orders").pk, **data)

    assert message in text
    assert not Schedule.objects.exists()


def press(client: Client, name: str, pk: int) -> str:
    """Press a button of a schedule; returns the next page's text."""
    address = reverse(f"admin:django_pgqueue_schedule_{name}", args=[pk])
    assert f'formaction="{address}"' in page(client, "schedule")
    return client.post(address, follow=True).content.decode()


def often(body: Any = None) -> Schedule:
    orders = Queue.objects.get(name="orders")
    return Schedule.objects.create(
        name="often", queue=orders, interval=dt.timedelta(minutes=1), body=body
    )


def test_schedules_are_paused_and_resumed(planner, orders):
    made = often()
    before = made.next_run_at

    for name, paused, told in (("pause", True, "Paused"), ("resume", False, "Resumed")):
        assert f"{told} often." in press(planner, name, made.pk)
        made.refresh_from_db()
        assert made.paused is paused
    assert made.next_run_at > before


def test_resuming_a_schedule_with_invalid_times_says_why(planner, orders):
    made = often()
    Schedule.objects.update(interval=dt.timedelta(0), paused=True)

    assert "Interval must be at least a second" in press(planner, "resume", made.pk)

    assert Schedule.objects.get().paused


def test_a_schedule_is_run_now(planner, orders):
    made = often({"report": "sales"})

    text = press(planner, "run", made.pk)

    [message] = orders.read()
    assert message.body == {"report": "sales"}
    assert f'/message/{message.id}/change/?queue={message.queue_id}">{message.id}</a>' in text
    again = Schedule.objects.get()
    assert (again.next_run_at, again.last_run_at) == (made.next_run_at, None)


@pytest.mark.parametrize("key", ["", "nightly"])
def test_a_button_that_is_pressed_twice_runs_a_schedule_once(planner, orders, key):
    made = often({"report": "sales"})
    Schedule.objects.update(unique_key=key)
    listed = page(planner, "schedule", "changelist")
    token = re.findall(r'name="once" value="(\w+)"', listed)[0]
    url = reverse("admin:django_pgqueue_schedule_run", args=[made.pk])

    planner.post(url, {"once": token})
    text = planner.post(url, {"once": token}, follow=True).content.decode()

    assert orders.metrics().length == 1
    assert "submitted before" in text
    assert token not in text
    if key:
        again = planner.post(url, {}, follow=True).content.decode()
        assert "Nothing was sent: message <a" in again


def test_a_schedule_that_cannot_be_sent_says_why(planner, orders, monkeypatch):
    def fail(self: Schedule) -> int:
        raise QueueNotFound("orders", "default")

    monkeypatch.setattr(Schedule, "run", fail)

    assert "orders" in press(planner, "run", often().pk).partition('class="error"')[2]


def test_the_page_of_a_schedule_has_its_next_and_last_ticks(planner, orders):
    made = often()
    at = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)
    Schedule.objects.update(next_run_at=at)
    send_due(at)
    Schedule.objects.update(next_run_at=at + dt.timedelta(days=3650))
    orders.send(1, headers={"x-schedule": {"name": "often", "at": "soon"}})  # anyone may write it

    text = page(planner, "schedule", "change", made.pk)

    ticks = text.partition("field-next_ticks")[2].partition("field-last_ticks")
    assert re.findall(r"<time[^>]*>([^<]+)</time>", ticks[0]) == [
        f"2035-12-30 12:0{minute}" for minute in range(5)
    ]
    odd, sent = Message.objects.order_by("-pk")
    last = plain(ticks[2].partition("field-error")[0])
    assert f": {odd.pk} , 2026-01-01 12:00 : {sent.pk}" in last
    assert "field-next_ticks" not in page(planner, "schedule", "add")


def test_its_inputs_are_one_line_each(planner, orders):
    text = page(planner, "schedule", "change", often().pk)

    assert text.count("<textarea") == 1  # the body
    assert '<input type="text" name="cron"' in text
    assert 'name="interval" value="1min"' in text


def test_a_schedule_that_ended_is_shown_and_goes_on_as_the_admins(planner, orders):
    Schedule.objects.declare("nightly", "orders", using="default", interval=dt.timedelta(days=1))
    [ended] = Schedule.objects.end(["nightly"], using="default")
    assert "▲ ended" in plain(page(planner, "schedule"))

    press(planner, "resume", ended.pk)

    ended.refresh_from_db()
    assert (ended.ended_at, ended.declared) == (None, None)
    assert ended.next_run_at > dt.datetime.now(dt.timezone.utc)


def test_who_may_only_view_presses_nothing(staff, orders):
    client, made = staff("view_schedule"), often()

    for name in ("run", "pause", "resume"):
        address = reverse(f"admin:django_pgqueue_schedule_{name}", args=[made.pk])
        assert address not in page(client, "schedule")
        assert client.post(address).status_code == 403
    assert not Message.objects.exists()


def test_schedules_of_other_queues_are_out_of_sight(planner, orders, settings):
    orders_pk = Queue.objects.get(name="orders").pk
    posted(planner, "add", queue=orders_pk)
    settings.PGQUEUE = {"QUEUES_FOR": "tests.admin.access.ours"}

    assert "nightly" not in page(planner, "schedule")

    posted(planner, "add", queue=orders_pk, name="second")

    assert not Schedule.objects.filter(name="second").exists()
