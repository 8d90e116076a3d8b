"""The incident, told: what broke, since when, what else is wrong, and what has been seen to."""

from __future__ import annotations

import datetime as dt
import re
from collections import Counter
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.timezone import now

from django_pgqueue import queue
from django_pgqueue.admin.acknowledging import as_shown
from django_pgqueue.models import Acknowledgement, Attempt, History, Mark, Process, Queue
from tests.admin.conftest import alerts, consumer, happened, overview, page, plain

SECOND = dt.timedelta(seconds=1)


def lines(client: Any) -> list[str]:
    """The lines of *Needs attention*: of folded alerts, only the line that unfolds."""
    panel = page(client, "queue").partition('aria-label="Alerts">')[2].partition("</section>")[0]
    panel = panel.partition("</h2>")[2] or panel
    panel = re.sub(r"(</summary>).*?(</details>)", r"\1\2", panel, flags=re.DOTALL)
    return [plain(each) for each in re.split(r"</tr>|</summary>", panel) if plain(each)]


def test_the_worst_alert_comes_first_with_a_line_for_each_cause(operator, orders):
    """Eight queues without a consumer do not hide that payments fail."""
    for number in range(8):
        queue(f"q{number}").create()
        queue(f"q{number}").send_batch([1] * (500 if number == 6 else 1))
    consumer("orders")
    happened(0, retried=100)

    found = lines(operator)

    assert found[0].startswith("● Failing orders 100 of 100 attempts failed")
    assert found[1].startswith("● No consumer 8 queues without a consumer: q6, q0, q1, …")
    assert len(found) == 2
    assert [text.split()[3] for text in alerts(operator)[1:3]] == ["q6", "q0"]


def test_a_queue_that_grows_is_worse_than_one_without_a_consumer(operator, orders, sql):
    queue("calm").create()
    queue("calm").send(1)
    consumer("orders")
    orders.send_batch([1] * 5000)
    sql(
        f"UPDATE pgqueue_ready SET enqueued_at = now() - interval '20 min' "
        f"WHERE queue_id = {Queue.objects.get(name='orders').pk}"
    )
    for minutes in range(1, 8):
        happened(minutes, completed=100, sent=220)

    first, second = lines(operator)

    assert first.startswith("● Behind, growing orders 5,000 messages to read, the oldest")
    assert re.search(r"grows by 1[23]\d/min", first)
    assert second.startswith("● No consumer calm")
    [_calm, told] = operator.get(reverse("admin:django_pgqueue_overview_json")).json()["queues"]
    assert told["empty_in_seconds"] is None
    assert 120 <= told["grows_per_minute"] < 140


def test_when_a_queue_is_empty_is_on_the_overview(operator, orders):
    consumer("orders")
    orders.send_batch([1] * 2600)
    for minutes in range(1, 8):
        happened(minutes, completed=260, sent=60)

    backlog = overview(operator)["orders"]["Backlog"]

    assert re.fullmatch(r"2,600 empty in ≈ 1[3-9] min( \d+ s)?", backlog)
    assert "empty in ≈ 1" in page(operator, "queue", "overview", Queue.objects.get().pk)


def test_failing_since_is_the_second_of_the_deploy_that_broke_payments(operator, orders):
    """A message failed 20 minutes ago, too, as one does now and then."""
    consumer("orders")
    present = now().replace(microsecond=0)
    broke = present - 25 * SECOND
    minute = broke.replace(second=0)
    for ago in range(1, 30):
        good = {"completed": 60, "retried": int(ago == 20)}
        _minute(minute - ago * 60 * SECOND, **good)
    _minute(minute, completed=broke.second, retried=min(60 - broke.second, 25))
    if broke.second > 35:
        _minute(minute + 60 * SECOND, retried=broke.second - 35)
    Attempt.objects.bulk_create(
        Attempt(queue=Queue.objects.get(), message_id=1, attempt=1, at=at, error_class="KeyError")
        for at in [broke - 1200 * SECOND, *(broke + n * SECOND for n in range(25))]
    )
    Mark.objects.create(text="v42", at=broke - 8 * SECOND)

    [alert] = operator.get(reverse("admin:django_pgqueue_overview_json")).json()["alerts"]

    assert dt.datetime.fromisoformat(alert["since"]) == broke
    assert "8 s after v42" in lines(operator)[0]


def _minute(bucket: dt.datetime, **counts: int) -> None:
    History.objects.create(
        queue=Queue.objects.get(name="orders"), bucket=bucket, seconds=60, process_id=1, **counts
    )


def shown(client: Any) -> dict[str, str]:
    """The alerts in the forms of the overview, by cause and subject."""
    forms = set(re.findall(r'name="alert" value="([^"]+)"', page(client, "queue")))
    return {f"{each.cause}:{each.subject}": form for form in forms for each in as_shown([form])}


def acknowledge(client: Any, *alerts: str, **more: str) -> None:
    """Press the button of these alerts, which are as the overview shows them now."""
    given = shown(client)
    press(client, *(given.get(alert, alert) for alert in alerts), **more)


def press(client: Any, *forms: str, **more: str) -> None:
    url = reverse("admin:django_pgqueue_queue_acknowledge")
    assert client.post(url, {"alert": forms, **more}).status_code == 302


@pytest.fixture
def responder(staff: Any) -> Any:
    """A user who may acknowledge alerts."""
    return staff("view_queue", "acknowledge_alert")


def test_an_acknowledged_alert_is_folded_until_it_changes(responder, orders, sql):
    orders.send_batch([1] * 10)

    acknowledge(responder, "no-consumer:orders", "paused:nothing")

    text = page(responder, "queue")
    [line] = lines(responder)
    assert line == "1 acknowledged alert"
    assert re.search(r"acknowledged by ann, <time", text)
    assert "An alert that you acknowledged has ended or changed." in text
    orders.send_batch([1] * 10)
    assert lines(responder) == ["1 acknowledged alert"]
    orders.send_batch([1] * 10)  # more than twice as many as then
    assert lines(responder)[0].startswith("● No consumer orders")

    acknowledge(responder, "no-consumer:orders")
    orders.purge()
    orders.send_batch([1] * 10)  # the queue was empty meanwhile
    assert lines(responder)[0].startswith("● No consumer orders")

    acknowledge(responder, "no-consumer:orders")
    assert lines(responder) == ["1 acknowledged alert"]
    happened(0, retried=9)  # another cause
    assert lines(responder)[0].startswith("● Failing orders")

    acknowledge(responder, "failing:orders")
    assert lines(responder) == ["1 acknowledged alert"]
    acknowledge(responder, "failing:orders", again="yes")
    assert lines(responder)[0].startswith("● Failing orders")


def test_another_error_or_a_new_onset_ends_an_acknowledgement(responder, orders):
    consumer("orders")
    happened(0, retried=9)
    fails = {"queue": Queue.objects.get(), "message_id": 1, "attempt": 1}
    Attempt.objects.create(**fails, error_class="shop.CardDeclined", message="no 1")
    acknowledge(responder, "failing:orders")
    Attempt.objects.create(**fails, error_class="shop.CardDeclined", message="no 2")
    assert lines(responder) == ["1 acknowledged alert"]

    Attempt.objects.create(**fails, error_class="KeyError", message="price")
    assert lines(responder)[0].startswith("● Failing orders")

    acknowledge(responder, "failing:orders")
    Acknowledgement.objects.update(at=now() - dt.timedelta(minutes=5))  # before the failures began
    assert lines(responder)[0].startswith("● Failing orders")


def test_only_what_a_user_saw_is_acknowledged(responder, orders):
    """Each page was opened before the alert changed."""
    orders.send_batch([1] * 10)
    [small] = shown(responder).values()
    orders.send_batch([1] * 11)

    press(responder, small)
    assert "An alert that you acknowledged has ended or changed." in page(responder, "queue")
    assert lines(responder)[0].startswith("● No consumer orders")

    [large] = shown(responder).values()
    orders.purge()
    orders.send_batch([1] * 10)  # the queue was empty meanwhile
    for form in (large, large[:-1], "no-consumer:orders", ""):
        press(responder, form)
        assert lines(responder)[0].startswith("● No consumer orders")
    assert not Acknowledgement.objects.exists()


def test_two_users_acknowledge_an_alert_and_either_shows_it_again(
    responder, orders, django_user_model
):
    bob = Client()
    bob.force_login(django_user_model.objects.create_superuser("bob"))
    orders.send(1)
    [form] = shown(responder).values()

    for client in (responder, bob, responder):
        press(client, form)
    [known] = Acknowledgement.objects.all()
    for client in (bob, responder):
        press(client, form, again="yes")

    assert known.by == "ann"
    assert not Acknowledgement.objects.exists()


def test_steady_failures_of_errors_that_are_known_are_no_change(responder, orders):
    """The alert was acknowledged half a minute after it began. It fails on as before."""
    consumer("orders")
    orders_pk = Queue.objects.get().pk
    errors = ["shop.CardDeclined", "TimeoutError"]

    def fail_for(seconds: int) -> None:
        """A failure a second until now, of two errors by turns."""
        History.objects.all().delete()
        Attempt.objects.all().delete()
        times = [now() - ago * SECOND for ago in range(seconds)]
        for minute, number in Counter(at.replace(second=0, microsecond=0) for at in times).items():
            _minute(minute, retried=number)
        Attempt.objects.bulk_create(
            Attempt(
                queue_id=orders_pk, message_id=1, attempt=1, at=at, error_class=errors[place % 2]
            )
            for place, at in enumerate(times)
        )

    fail_for(30)
    acknowledge(responder, "failing:orders")
    for minutes in (1, 3, 9):
        fail_for(60 * minutes)
        assert lines(responder) == ["1 acknowledged alert"]

    errors[1] = "shop.OutOfStock"
    fail_for(60 * 9)
    assert lines(responder)[0].startswith("● Failing orders")


def test_a_silent_consumer_that_is_found_dead_stays_acknowledged(responder, orders):
    process = consumer("orders", silent_for=dt.timedelta(minutes=1))
    acknowledge(responder, f"gone:{process}")

    Process.every.update(gone_at=now(), given_back=20)
    assert lines(responder) == ["1 acknowledged alert"]

    Process.every.update(heartbeat_at=now(), gone_at=now())  # another one of that name
    assert lines(responder)[0].startswith("● Consumer gone web-1:7")


def test_acknowledging_takes_a_permission_and_hides_nothing_from_programs(staff, orders):
    orders.send(1)
    viewer = staff("view_queue")

    url = reverse("admin:django_pgqueue_queue_acknowledge")
    assert viewer.post(url, {"alert": "any"}).status_code == 403
    assert "Acknowledge" not in page(viewer, "queue")
    Acknowledgement.objects.create(
        cause="no-consumer", subject="orders", causes="no-consumer", errors="", harm=1, by="bob"
    )
    [alert] = viewer.get(reverse("admin:django_pgqueue_overview_json")).json()["alerts"]
    assert (alert["cause"], alert["acknowledged_by"]) == ("No consumer", "bob")


def test_marks_are_on_every_chart(operator, orders):
    happened(3, completed=5, sent=5, runs={"0": 5})
    Mark.objects.create(text="v42 <b>", at=now() - dt.timedelta(minutes=10))
    Mark.objects.create(text="too old", at=now() - dt.timedelta(hours=3))

    charts = page(operator, "queue", "overview", Queue.objects.get().pk)

    figures = charts.count('id="pgqueue-table-')
    assert figures >= 2
    assert len(re.findall(r'<path class="mark".*?<title>v42 &lt;b&gt; 20', charts)) == figures
    assert "too old" not in charts
    drawn = re.findall(r'<path class="mark" d="(M[\d.]+ 0V\d+)"', page(operator, "queue"))
    assert drawn[0].endswith("V46")
    assert drawn[1].endswith("V18")
