"""The overview: alerts, and a row for each queue."""

from __future__ import annotations

import datetime as dt
import getpass
import html
import json
import re

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_pgqueue import queue
from django_pgqueue.audit import acting_as
from django_pgqueue.history.recent import Counts, Recent
from django_pgqueue.models import Attempt, AuditEntry, Message, Queue
from tests.admin.conftest import (
    MOST,
    OF_PERMISSIONS,
    alerts,
    consumer,
    happened,
    overview,
    page,
    plain,
    queries,
    young,
)


def test_each_queue_has_a_row_whose_numbers_add_up(operator, orders):
    orders.send_batch([1, 2, 3, 4])
    orders.send(5, delay=60)
    orders.read()
    orders.send(6)
    orders.set_vt(orders.read(qty=4)[-1], 0)
    orders.send_batch([7, 8], group="g")
    queue("mails").create()

    found = overview(operator)

    assert found["orders"].pop("Oldest").endswith(" s")
    assert found["orders"] == {
        "Backlog": "8",
        "In": "",
        "Out": "",
        "Failures": "",
        "Wait p95": "",
        "Run p95": "",
        "Consumers": "0",
    }
    assert set(found["mails"].values()) == {""}
    bar = '"ready 1, due 1, waiting 1, in flight 4, delayed 1"'
    assert f"aria-label={bar}" in page(operator, "queue")


def test_a_backlog_leads_to_its_messages_or_to_its_places(operator, orders):
    pk = Queue.objects.get().pk
    orders.send(1)
    of_one_place = page(operator, "queue")
    orders.send(1, delay=60)

    assert f'/message/?queue={pk}&amp;state=ready">1</a>' in of_one_place
    assert f'/queue/{pk}/overview/">2</a>' in page(operator, "queue")


def test_a_page_asks_as_often_for_many_queues(operator, orders):
    queue("other").create()
    with CaptureQueriesContext(connection) as few:
        page(operator, "queue")
    for number in range(60):
        queue(f"other-{number}").create()

    with CaptureQueriesContext(connection) as many:
        page(operator, "queue")

    assert queries(many) == queries(few) <= MOST + OF_PERMISSIONS


def test_a_queue_can_be_added_from_here(operator, staff, orders):
    link = f'<a class="btn" href="{reverse("admin:django_pgqueue_queue_add")}">Add queue</a>'

    assert page(operator, "queue").count(link) == 1
    User.objects.all().delete()
    assert link not in page(staff("view_queue"), "queue")


def test_a_queue_without_a_live_consumer_is_an_alert(operator, orders):
    orders.send(1)
    consumer("orders", silent_for=dt.timedelta(minutes=1))
    alone = alerts(operator)
    consumer("orders")

    assert alone == [
        "● No consumer orders 1 message to read, the oldest readable for 0 s",
        "● Consumer gone web-1:7 no heartbeat for 1 min",
    ]
    assert overview(operator)["orders"]["Consumers"] == "1"
    assert alerts(operator) == ["● Consumer gone web-1:7 no heartbeat for 1 min"]


@pytest.mark.parametrize("state", [{"stopping": True}, {"quiet": True}])
def test_a_consumer_that_fetches_nothing_does_not_count(operator, orders, state):
    orders.send(1)
    consumer("orders", **state)

    assert overview(operator)["orders"]["Consumers"] == "0"


def test_a_queue_with_nothing_to_read_needs_no_consumer(operator, orders):
    orders.send(1, delay=60)

    assert alerts(operator) == []
    assert "Nothing needs attention." in page(operator, "queue")


def test_a_message_that_waits_for_too_long_is_an_alert(operator, orders, sql):
    orders.send(1)
    orders.send_batch([2] * 3, priority=5)
    consumer("orders")
    sql("UPDATE pgqueue_ready SET enqueued_at = enqueued_at - interval '20 min' WHERE priority = 0")

    assert alerts(operator) == [
        "● Behind orders 4 messages to read, the oldest readable for 20 min"
    ]
    assert overview(operator)["orders"]["Oldest"] == "20 min"


@pytest.mark.parametrize(
    ("limit", "told"),
    [("10min", ["● Behind orders 1 message to read, the oldest readable for 20 min"]), ("2h", [])],
)
def test_a_queue_has_its_own_limit_of_age(operator, orders, sql, limit, told):
    orders.send(1)
    consumer("orders")
    sql("UPDATE pgqueue_ready SET enqueued_at = enqueued_at - interval '20 min'")
    change = reverse("admin:django_pgqueue_queue_change", args=[Queue.objects.get().pk])

    form = {"visibility_timeout": 30, "max_deliveries": 20, "age_limit": limit}
    assert operator.post(change, form).status_code == 302

    assert alerts(operator) == told


def test_the_last_hour_is_told_by_its_history(operator, orders):
    for minutes in (1, 2, 3, 30):
        happened(minutes, completed=600, waits={"0": 9}, runs={"-20": 99, "4": 1})
    happened(3, 0, sent=1200)
    happened(70, completed=9999, failed=9999)

    row = overview(operator)["orders"]

    assert (row["Wait p95"], row["Run p95"]) == ("1.09 s", "34.1 ms")
    assert row["In"] == "200"
    assert 250 <= float(row["Out"]) <= 300
    assert page(operator, "queue").count('<svg class="spark"') == 1


def test_an_unknown_number_of_ended_messages_is_no_zero(operator, orders):
    """Messages that other programs end are in no history: only samples count what was sent."""
    pk, every = Queue.objects.get().pk, reverse("admin:django_pgqueue_overview_json")
    for minutes in (2, 4, 6):
        happened(minutes, 0, sent=1200)

    def figures() -> tuple[str, str, float | None, bool]:
        text, own = page(operator, "queue"), page(operator, "queue", "overview", pk)
        strip = text.partition('<div class="label">out<')[0].rpartition('class="figure')[2]
        out = own.partition('</dd><dt class="label">out per minute<')[0].rpartition(">")[2]
        row = json.loads(operator.get(every).content)["queues"][-1]
        drawn = 'class="line second"' in text or 'class="line second"' in own
        assert ("No consumer has counted those that ended." in own) != drawn
        return plain(strip.partition(">")[2]), out, row["out_per_minute"], drawn

    unknown = figures()
    queue("mails").create()
    consumer("mails")
    of_some = plain(page(operator, "queue"))
    consumer("orders")

    assert unknown == ("\u2013", "\u2013", None, False)
    assert "≥ 0 / min" in of_some
    assert figures() == ("0 / min", "0", 0, True)


@pytest.mark.parametrize("second", [0, 1, 30, 59])
def test_the_rate_of_messages_in_does_not_drop_where_the_sample_is_late(second):
    """Samples of the present minute come in its middle, or up to 30 seconds later."""
    recent = Recent()
    for minutes in range(1, 60):
        recent.add(minutes, Counts(100, 0, 0, 0, 0))
    before = recent.per_minute(second)
    recent.add(0, Counts(100, 0, 0, 0, 0))

    assert before == recent.per_minute(second) == (100, 0)


def test_failures_of_now_are_an_alert_with_the_newest_error(operator, orders):
    consumer("orders")
    happened(20, completed=10_000, retried=10)
    calm = alerts(operator)
    happened(1, completed=900, retried=100)
    Attempt.objects.create(
        queue=Queue.objects.get(),
        message_id=1,
        attempt=1,
        error_class="shop.errors.CardDeclined",
        message="no <card>\nat all",
    )

    assert calm == []
    assert alerts(operator) == [
        "● Failing orders 100 of 1,000 attempts failed in the last ten minutes: "
        "CardDeclined: no <card>"
    ]


def test_an_alert_stays_what_it_is_while_failures_go_on(operator, orders):
    """Four of a hundred attempts fail in each minute; a refresh must not find another colour."""
    consumer("orders")
    told = set()
    for minutes in range(50, -1, -1):
        happened(minutes, completed=96, failed=4)
        if minutes < 40:
            told |= {text.split()[1] for text in alerts(operator)}

    assert told == {"Failing"}


def test_failures_that_are_over_are_a_warning(operator, orders):
    happened(20, completed=10, failed=10)
    happened(0, completed=20)

    assert alerts(operator) == ["▲ Failed orders 10 of 40 attempts failed in the last hour"]


def test_a_number_of_failures_leads_to_them(operator, orders):
    dead = Message.objects.create_queue("dead")
    Message.objects.create_queue("mails", dead_letter_queue=dead)
    for name in ("mails", "orders"):
        queue(name).send_batch([1] * 4)
        for message in queue(name).read(qty=4):
            message.reject("no")

    found, text = overview(operator), page(operator, "queue")

    assert (found["orders"]["Failures"], found["mails"]["Failures"], found["dead"]["Failures"]) == (
        *("4", "4", ""),
    )
    for name in ("orders", "mails"):
        link = f"/message/failures/?queue={Queue.objects.get(name=name).pk}&amp;window=1h"
        assert link in text
        listed = operator.get("/admin/django_pgqueue" + html.unescape(link)).content.decode()
        assert re.search(r'data-label="messages">(\d+)<', listed)[1] == "4"  # type: ignore[index]


def test_failures_of_queues_without_a_consumer_are_counted_from_their_rows(operator, orders):
    orders.send_batch([1] * 5)
    for message in orders.read(qty=5):
        message.reject("no")
    queue("busy").create()
    queue("busy").send_batch([1] * 3000)
    queue("busy").archive(queue("busy").read(qty=3000))

    assert alerts(operator) == ["▲ Failed orders 5 messages failed in the last hour"]
    [busy, counted] = operator.get(reverse("admin:django_pgqueue_overview_json")).json()["queues"]
    assert (counted["failed_last_hour"], counted["completed_last_hour"]) == (5, None)
    assert busy["completed_last_hour"] is None  # unknown, and not zero


def test_few_failures_among_many_are_none(operator, orders):
    happened(1, completed=97, failed=3)

    assert alerts(operator) == []


def test_dead_letters_are_an_alert(operator, orders):
    Message.objects.create_queue("source", dead_letter_queue="orders")
    orders.send(1)

    assert alerts(operator) == ["▲ Dead letters orders 1 from source, the oldest readable for 0 s"]


def test_a_paused_queue_is_an_alert_while_something_waits(operator, orders):
    Queue.objects.update(paused=True)
    empty = alerts(operator)
    orders.send(1)

    assert empty == []
    assert alerts(operator) == [f"▲ Paused orders 1 waiting, paused by {getpass.getuser()}"]
    assert '<span class="chip warning">paused</span>' in page(operator, "queue")


def test_a_queue_has_one_alert_with_its_first_cause_first(operator, orders):
    orders.send(1)
    happened(1, completed=10, failed=10)

    [told] = alerts(operator)

    assert told.startswith(
        "● Failing orders 10 of 20 attempts failed in the last ten minutes; 1 mess"
    )
    Queue.objects.update(paused=True)
    assert alerts(operator) == [
        f"▲ Paused orders 1 waiting, paused by {getpass.getuser()}; 10 of 20 attempts failed in "
        "the last ten minutes"
    ]


def test_who_paused_a_queue_is_told(operator, orders):
    orders.send(1)
    operator.post(reverse("admin:django_pgqueue_queue_pause", args=[Queue.objects.get().pk]))

    assert alerts(operator) == ["▲ Paused orders 1 waiting, paused by ann"]
    assert "since <time" in page(operator, "queue")
    with acting_as("bob"):
        orders.alter(paused=False)
        orders.alter(paused=True, limit=5)
    with acting_as("eve"):
        orders.alter(limit=6)
        orders.group("g").limits(limit=2)
        orders.group("g").pause()
    assert alerts(operator) == ["▲ Paused orders 1 waiting, paused by bob"]
    with acting_as("ann"):
        queue("mails").create(paused=True)
    queue("mails").send(1)
    assert alerts(operator)[0] == "▲ Paused mails 1 waiting, paused by ann"


def test_idle_queues_are_folded(operator, orders):
    queue("idle").create()
    orders.send(1)

    text = page(operator, "queue")

    assert "1 idle queue" in text
    assert text.index('title="orders"') < text.index("1 idle queue") < text.index('title="idle"')


def test_equal_rows_do_not_swap_at_a_refresh(operator, orders, sql):
    for number in range(5):
        queue(f"q{number}").create()
        queue(f"q{number}").send(1)
        consumer(f"q{number}")
    first = list(overview(operator))
    for number in (3, 1, 4):
        queue(f"q{number}").send_batch([1] * number)
        pk = Queue.objects.get(name=f"q{number}").pk
        sql(f"UPDATE pgqueue_ready SET enqueued_at = now() - interval '9 s' WHERE queue_id = {pk}")

    assert list(overview(operator)) == first


def test_the_totals_of_all_queues_are_above(operator, orders, dead_letters):
    orders.send_batch([1, 2, 3])
    orders.read()[0].reject("no")
    consumer("orders")

    strip = page(operator, "queue").partition('class="strip"')[2].partition("</section>")[0]

    figures = re.findall(r'class="figure[^>]*>(.*?)</div><div class="label">(.*?)<', strip)
    assert {name: plain(value) for value, name in figures} == {
        "backlog": "3",
        "out": "0 / min",
        "failed in 1 h": "1",
        "dead letters": "1",
        "consumers": "1",
    }


def test_the_worst_queue_is_first_or_queues_go_by_name(operator, orders):
    for name in ("Z", "a"):
        queue(name).create()
    queue("Z").send(1)

    assert next(iter(overview(operator))) == "Z"
    assert list(overview(operator, by="name")) == ["a", "orders", "Z"]
    assert list(overview(operator, q="ORD")) == ["orders"]
    assert overview(operator, q="\x00") == {}


def test_queues_are_paused_and_resumed_by_a_button(operator, orders):
    pk = Queue.objects.get().pk
    pause = reverse("admin:django_pgqueue_queue_pause", args=[pk])
    resume = reverse("admin:django_pgqueue_queue_resume", args=[pk])

    assert f'action="{pause}"' in page(operator, "queue")
    operator.post(pause)
    operator.post(pause)
    paused = Queue.objects.get().paused
    assert f'action="{resume}"' in page(operator, "queue")
    operator.post(resume)

    assert paused
    assert not Queue.objects.get().paused
    entries = AuditEntry.objects.filter(place="admin").order_by("pk")
    assert [entry.operation for entry in entries] == ["pause", "resume"]


def test_pausing_takes_a_post_and_a_queue(operator, orders):
    pause = reverse("admin:django_pgqueue_queue_pause", args=[Queue.objects.get().pk])

    assert operator.get(pause).status_code == 405
    assert operator.post(pause.replace(str(Queue.objects.get().pk), "999")).status_code == 404
    assert not Queue.objects.get().paused


def test_programs_get_the_same(operator, orders):
    orders.send(1)

    response = operator.get(reverse("admin:django_pgqueue_overview_json"))

    found = json.loads(response.content)
    [row] = found["queues"]
    found["alerts"][0]["text"] = young(found["alerts"][0]["text"])
    assert (row["queue"], row["ready"], row["length"], row["consumers"]) == ("orders", 1, 1, 0)
    assert (row["in_per_minute"], row["failed_last_hour"], row["wait_p95_seconds"]) == (0, 0, None)
    assert found["alerts"] == [
        {
            "level": "bad",
            "cause": "No consumer",
            "subject": "orders",
            "text": "1 message to read, the oldest readable for 0 s",
            "queue": "orders",
            "since": None,
            "acknowledged_by": None,
        }
    ]


def test_programs_may_show_a_token(client, orders, settings):
    url = reverse("admin:django_pgqueue_overview_json")
    without = client.get(url, headers={"Authorization": "Bearer None"})
    settings.PGQUEUE = {"OVERVIEW_TOKEN": "s3cret"}

    wrong = client.get(url, headers={"Authorization": "Bearer guess"})
    right = client.get(url, headers={"Authorization": "Bearer s3cret"})

    assert (without.status_code, wrong.status_code, right.status_code) == (401, 401, 200)
    assert json.loads(right.content)["queues"][0]["queue"] == "orders"


def test_a_refresh_takes_the_live_part_and_leaves_messages_alone(operator, orders):
    operator.post(reverse("admin:django_pgqueue_queue_pause", args=[Queue.objects.get().pk]))
    url = reverse("admin:django_pgqueue_queue_changelist")

    live = operator.get(url, headers={"X-Requested-With": "pgqueue"}).content.decode()

    assert live.startswith('<div id="pgqueue-live">')
    assert "<html" not in live
    assert "Paused orders: consumers do not read from it" in page(operator, "queue")
