"""Subscriptions in the admin: their figures and alerts, their forms, and how they are moved."""

from __future__ import annotations

import re

import pytest
from django.urls import reverse

from django_pgqueue.models import AuditEntry, Queue, queue
from tests.admin.conftest import page, plain
from tests.conftest import run_sql

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def audit(orders):
    queue("audit").subscribe(to="orders", start="earliest")
    return queue("audit")


def number_of(name):
    return Queue.objects.get(name=name).pk


def url(view, name):
    return reverse(f"admin:django_pgqueue_queue_{view}", args=[number_of(name)])


def shown(client, name):
    return plain(page(client, "queue", "overview", number_of(name)))


def lose_position(name):
    run_sql(
        f"UPDATE pgqueue_cursor SET system = system + 1 WHERE queue_id = {number_of(name)} "
        "RETURNING 1"
    )


def age_messages(name):
    run_sql(
        f"UPDATE pgqueue_message_q{number_of(name)} SET enqueued_at = now() - interval '1 h' "
        "RETURNING 1"
    )


def test_a_subscriptions_page_shows_its_source_and_how_far_it_is_behind(operator, orders, audit):
    orders.send_batch([1, 2, 3])
    audit.read()

    text = page(operator, "queue", "overview", number_of("audit"))

    assert f'subscription to <a href="{url("overview", "orders")}">orders</a>' in text
    assert re.search(r"\b2 unread in the source\b", plain(text))
    assert "Send a message" not in text


def test_a_sources_page_lists_its_subscriptions(operator, orders, audit):
    queue("mails").subscribe(to="orders")
    queue("old").subscribe(to="orders")
    lose_position("old")
    orders.send_batch([1, 2, 3])
    audit.read()

    text = page(operator, "queue", "overview", number_of("orders"))

    listed = plain(text.partition("<h2>Subscriptions</h2>")[2].partition("</section>")[0])
    assert re.match(r"Queue Unread Behind Lost audit 2 .* mails 3 .* old position lost$", listed)
    assert "Subscribe" in plain(text)


def test_the_overview_marks_subscriptions(operator, orders, audit):
    orders.send_batch([1, 2, 3])

    text = plain(page(operator, "queue"))

    assert "audit subscription to orders 3 3 unread" in text


def test_a_subscription_that_is_behind_is_an_alert_as_a_queue_is(operator, orders, audit):
    orders.send_batch([1, 2, 3])
    age_messages("orders")

    assert "No consumer audit 3 messages to read, the oldest readable for 1 h" in shown(
        operator, "audit"
    )


def test_a_lost_position_is_an_alert(operator, orders, audit):
    lose_position("audit")

    text = shown(operator, "audit")

    assert "Position lost audit consumers read nothing: move it to a position" in text
    assert "position lost unread in the source" in text
    overview = operator.get(reverse("admin:django_pgqueue_overview_json")).json()
    found = {each["queue"]: each for each in overview["queues"]}["audit"]
    assert (found["source"], found["lag"]) == ("orders", None)


def test_lost_messages_are_an_alert(operator, orders, audit):
    audit.alter(keep_for=60)
    orders.send(1)
    age_messages("orders")
    orders.purge()

    text = shown(operator, "audit")

    assert "Messages lost audit 1 message lost: removed from the source unread" in text


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"start": "earliest"}, [1, 2, 3]),
        ({"start": "now"}, []),
        ({"start": "moment", "moment": "2020-01-01 00:00"}, [1, 2, 3]),
        ({"start": "id"}, [2, 3]),
    ],
)
def test_a_subscription_is_moved(staff, orders, audit, given, read):
    ids = orders.send_batch([1, 2, 3])
    audit.archive(audit.read(qty=3))
    client = staff("view_queue", "seek_queue")
    if given["start"] == "id":
        given = {**given, "id": ids[1]}

    answer = client.post(url("seek", "audit"), given, follow=True)

    assert "Moved audit. The next read begins there." in answer.content.decode()
    assert [message.body for message in audit.read(qty=10)] == read
    [entry] = AuditEntry.objects.filter(operation="seek")
    assert (entry.who, entry.place, entry.queue_name) == ("ann", "admin", "audit")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"start": "moment"}, "Enter a moment."),
        ({"start": "id"}, "Enter the id of a message."),
        ({"start": "id", "id": "x"}, "Enter a whole number."),
        ({"start": "moment", "moment": "x"}, "Enter a valid date/time."),
        ({"start": "else"}, "Select a valid choice."),
    ],
)
def test_a_wrong_place_is_an_error_of_the_form(staff, orders, audit, given, says):
    client = staff("view_queue", "seek_queue")

    assert says in client.post(url("seek", "audit"), given).content.decode()
    assert not AuditEntry.objects.filter(operation="seek").exists()


def test_moving_needs_its_permission_and_a_subscription(staff, operator, orders, audit):
    assert operator.post(url("seek", "audit"), {"start": "now"}).status_code == 403
    assert "Move" not in shown(operator, "audit")


def test_a_queue_that_is_no_subscription_is_not_moved(staff, orders, audit):
    client = staff("view_queue", "seek_queue")

    answer = client.get(url("seek", "orders"), follow=True)

    assert "Queue orders is no subscription." in answer.content.decode()


def test_a_subscription_is_made(operator, orders):
    orders.send(1)

    answer = operator.post(
        url("subscribe", "orders"), {"name": "audit", "start": "earliest"}, follow=True
    )

    assert "Made subscription audit." in answer.content.decode()
    assert answer.redirect_chain[-1][0] == url("change", "audit")
    assert [message.body for message in queue("audit").read()] == [1]
    [entry] = AuditEntry.objects.filter(operation="subscribe")
    assert (entry.who, entry.arguments) == ("ann", {"to": "orders", "start": "earliest"})


@pytest.mark.parametrize(
    ("name", "says"), [("Orders", "A queue of this name exists"), ("au dit", "1 to 63")]
)
def test_a_wrong_name_is_an_error_of_the_form(operator, orders, name, says):
    answer = operator.post(url("subscribe", "orders"), {"name": name, "start": "now"})

    assert says in answer.content.decode()
    assert Queue.objects.count() == 1


def test_a_subscription_has_no_subscriptions(operator, orders, audit):
    answer = operator.get(url("subscribe", "audit"), follow=True)

    assert "Queue audit is a subscription: subscribe to its source." in answer.content.decode()


def test_subscribing_needs_the_permission_to_add_queues(staff, orders):
    client = staff("view_queue")

    assert client.get(url("subscribe", "orders")).status_code == 403
    assert "Subscribe" not in shown(client, "orders")


def test_nothing_is_sent_to_a_subscription(operator, orders, audit):
    answer = operator.get(url("send", "audit"), follow=True)

    assert "Queue audit is a subscription: send to its source." in answer.content.decode()


def test_a_copy_of_its_message_goes_to_its_source(operator, orders, audit):
    pk = orders.send({"n": 1})
    audit.release([audit.read()[0].receipt])

    answer = operator.get(url("send", "audit"), {"copy": pk, "queue": number_of("audit")})

    offered = answer.context["form"].fields["queue"].queryset
    assert [each.name for each in offered] == ["orders"]
    assert answer.context["form"].initial["queue"] == number_of("orders")


def test_its_settings_are_those_that_a_subscription_may_have(operator, orders, audit):
    text = operator.get(url("change", "audit")).content.decode()

    for name, has in (("keep_for", True), ("archive_completed", True), ("group_limit", False)):
        assert (f'name="{name}"' in text) is has
    others = operator.get(url("change", "orders")).content.decode()
    assert 'name="keep_for"' not in others
    assert 'name="group_limit"' in others


def test_a_message_tells_what_became_of_it_in_each_subscription(operator, orders, audit):
    for name in ("mails", "old", "sums", "tests"):
        queue(name).subscribe(to="orders", start="earliest")
    pk = orders.send(1)
    audit.read()
    queue("mails").archive(queue("mails").read())
    queue("sums").release([queue("sums").read()[0].receipt])
    lose_position("old")

    text = page(operator, "message", "change", pk, queue=number_of("orders"))

    listed = text.partition("<h2>In its subscriptions</h2>")[2].partition("</section>")[0]
    assert re.findall(r"<li>(.*?)</li>", listed) == [
        "audit: in flight",
        "mails: read",
        "old: position lost",
        re.search(r"sums: ready \(<a href=.*?</a>\)", listed)[0],
        "tests: not read yet",
    ]
