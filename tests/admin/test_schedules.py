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
from django_pgqueue.models import AuditEntry, Message, Queue, Schedule
from tests.admin.conftest import confirm, page, plain
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


AT = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)


def ticked(minutes: float = 0, **values: Any) -> Schedule:
    """A schedule whose first tick was due, and sent, these minutes after ``AT``."""
    made = often({"report": "sales"})
    Schedule.objects.update(next_run_at=AT, **values)
    send_due(AT + dt.timedelta(minutes=minutes))
    made.refresh_from_db()
    return made


def test_the_page_of_a_schedule_has_its_next_and_latest_ticks(planner, orders):
    made = ticked(2.5)
    Schedule.objects.update(next_run_at=AT + dt.timedelta(days=3650))
    [message] = Message.objects.all()

    text = page(planner, "schedule", "change", made.pk)

    _before, _field, following = text.partition("field-next_ticks")
    assert re.findall(r"<time[^>]*>([^<]+)</time>", following.partition("field-error")[0]) == [
        f"2035-12-30 12:0{minute}" for minute in range(5)
    ]
    latest = plain(text.partition("Latest ticks</h2>")[2].partition("</section>")[0])
    assert latest == (
        "2026-01-01 12:00:00: sent 2 min 30 s late 2026-01-01 12:01:00: missed, not sent "
        "2026-01-01 12:02:00: missed, not sent 1 late, 2 missed As a table "
        "2026-01-01 12:02 missed, not sent Send now 2026-01-01 12:01 missed, not sent Send now "
        f"2026-01-01 12:00 sent 2 min 30 s late {message.pk}"
    )
    assert "field-next_ticks" not in page(planner, "schedule", "add")


def test_the_list_draws_the_latest_ticks_of_each_schedule(planner, orders):
    ticked(2.5, unique_key="report")
    send_due(AT + dt.timedelta(minutes=3, seconds=2))

    drawn = re.findall(r'<svg class="ticks".*?</svg>', page(planner, "schedule"), re.DOTALL)

    [line] = drawn
    assert 'aria-label="Latest ticks: 1 late, 1 not sent for their key, 2 missed"' in line
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)".*? height="([\d.]+)"', line)
    assert [look for look, _x, _height in bars] == ["late", "missed", "missed", "held"]
    heights = [float(height) for _look, _x, height in bars]
    assert heights[0] < heights[1] > heights[3]
    places = [float(x) for _look, x, _height in bars]
    assert places == sorted(set(places))


def test_a_missed_tick_is_sent_once_after_a_question(planner, orders):
    made = ticked(2.5)
    _sent, missed, _other = made.latest_ticks
    url = reverse("admin:django_pgqueue_schedule_missed", args=[made.pk, missed.microseconds])
    assert f'href="{url}"' in page(planner, "schedule", "change", made.pk)

    asked = planner.get(url).content.decode()

    assert "No message was sent for the tick 2026-01-01 12:01:00 of often." in plain(asked)
    assert orders.metrics().length == 1
    planner.post(url)  # a question not answered
    assert orders.metrics().length == 1
    told = confirm(planner, url, asked)
    message = Message.objects.latest("pk")
    assert f"Sent message {message.pk} to orders." in plain(told)
    assert url not in told
    assert message.body == {"report": "sales"}
    assert message.headers["x-schedule"]["at"] == "2026-01-01T12:01:00+00:00"
    entry = AuditEntry.objects.get(operation="run_missed")
    assert (entry.place, entry.arguments["ids"]) == ("admin", [message.pk])

    again = confirm(planner, url, asked)
    gone = planner.get(url.replace(f"{missed.microseconds}", "99"), follow=True).content.decode()

    assert f"This tick is not missed: see message {message.pk}" in plain(again)
    assert "This tick is not among the latest 30" in plain(gone)
    assert orders.metrics().length == 2


def test_a_missed_tick_that_cannot_be_sent_stays_and_says_why(planner, orders):
    made = ticked(2.5, unique_key="report")
    url = reverse(
        "admin:django_pgqueue_schedule_missed",
        args=[made.pk, made.latest_ticks[1].microseconds],
    )
    asked = planner.get(url).content.decode()

    held = confirm(planner, url, asked)
    Schedule.objects.update(unique_key="", priority=101)
    refused = confirm(planner, url, asked)

    assert "Nothing was sent: message" in plain(held)
    assert "priority must be a whole number" in plain(refused).lower()
    made.refresh_from_db()
    assert made.latest_ticks[1].is_missed
    assert orders.metrics().length == 1


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
    client, made = staff("view_schedule"), ticked(2.5)
    missed = made.latest_ticks[1].microseconds

    for name, *args in (("run",), ("pause",), ("resume",), ("missed", missed)):
        address = reverse(f"admin:django_pgqueue_schedule_{name}", args=[made.pk, *args])
        assert address not in page(client, "schedule")
        assert address not in page(client, "schedule", "change", made.pk)
        assert client.post(address, {"confirmed": "yes"}).status_code == 403
    assert Message.objects.count() == 1


def test_schedules_of_other_queues_are_out_of_sight(planner, orders, settings):
    orders_pk = Queue.objects.get(name="orders").pk
    posted(planner, "add", queue=orders_pk)
    settings.PGQUEUE = {"QUEUES_FOR": "tests.admin.access.ours"}

    assert "nightly" not in page(planner, "schedule")

    posted(planner, "add", queue=orders_pk, name="second")

    assert not Schedule.objects.filter(name="second").exists()
